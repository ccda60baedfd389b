"""A real PostgreSQL for the tests: private data folder, private Unix socket, no TCP port, gone at the end.

The server refuses to run as root, so root starts it as the account ``postgres``. Every test gets a database of its own.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER = "postgres"
# The server runs as long as our end of the pipe is open: a test process that is killed leaves no server behind.
WITH_US = '"$@" & cat >/dev/null; kill -QUIT $!; wait $!'
PORT = 5432  # part of the socket's name; nothing listens on the network


def binaries() -> Path | None:
    """The folder with initdb and postgres; ``None`` when this machine has none."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if found := shutil.which("initdb"):
        folders.insert(0, Path(found).resolve().parent)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def missing() -> str | None:
    """Why there can be no server here; ``None`` when there can."""
    if binaries() is None:
        return "the PostgreSQL server binaries are missing (Debian: postgresql)"
    if os.geteuid() == 0 and OWNER not in {entry.pw_name for entry in pwd.getpwall()}:
        return f"PostgreSQL does not run as root and there is no account {OWNER!r} to run it as"
    return None


class Server:
    """A running server; `database` makes a fresh database and gives its URL."""

    def __init__(self, bin_dir: Path, folder: Path) -> None:
        self._bin, self._folder = bin_dir, folder
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._user = OWNER if os.geteuid() == 0 else None

    def _run(self, program: str, *args: str) -> None:
        command = [str(self._bin / program), *args]
        done = subprocess.run(
            command, user=self._user, cwd=self._folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == 0, f"{program}: {done.stdout}\n{self.log()}"

    def log(self) -> str:
        """What the server has said."""
        log = self._folder / "log"
        return log.read_text() if log.exists() else ""

    def make(self) -> None:
        """Make the cluster."""
        options = ("-U", "lion", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self._run("initdb", "-D", f"{self._folder}/data", *options)

    def start(self) -> None:
        """Start it; it answers when this returns. It ends with this process, however that ends."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            "port": str(PORT),
            "fsync": "off",
            "max_connections": "60",
            "shared_buffers": "16MB",
        }
        server = [str(self._bin / "postgres"), "-D", f"{self._folder}/data"]
        for name, value in settings.items():
            server += ["-c", f"{name}={value}"]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", WITH_US, "sh", *server],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
                start_new_session=True,  # an interrupt from the keyboard is for pytest
            )
        ready = [str(self._bin / "pg_isready"), "-q", "-h", str(self._folder), "-p", str(PORT)]
        until = time.monotonic() + 60
        while subprocess.run(ready).returncode != 0:
            assert self._process.poll() is None and time.monotonic() < until, self.log()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop it as a crash does: at once and with every connection."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def restart(self) -> None:
        """Stop it as a crash does, and start it again."""
        self.stop()
        self.start()

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        return f"postgresql://lion@/{database}?host={self._folder}&port={PORT}"

    def sql(self, url: str, text: str) -> None:
        """Run statements in the database of *url*."""
        self._run("psql", "-d", url, "-v", "ON_ERROR_STOP=1", "-X", "-q", "-c", text)

    @contextmanager
    def database(self) -> Iterator[str]:
        """A fresh, empty database, dropped at the end; gives its URL."""
        name = f"test{next(self._names)}"
        where = ("-h", str(self._folder), "-p", str(PORT), "-U", "lion")
        self._run("createdb", *where, name)
        try:
            yield self.url(name)
        finally:
            self._run("dropdb", *where, "--force", name)


@contextmanager
def server() -> Iterator[Server]:
    """A server for as long as the block lasts. Ask `missing` first."""
    bin_dir = binaries()
    assert bin_dir is not None
    # not pytest's tmp_path: a Unix socket's path is short, and the server's account must be able to enter it
    folder = Path(tempfile.mkdtemp(prefix="lionnb-pg-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, OWNER)
    made = Server(bin_dir, folder)
    try:
        made.make()
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
