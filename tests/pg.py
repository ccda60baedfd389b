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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER = "postgres"
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

    def start(self) -> None:
        """Make the cluster and start it; ready when this returns."""
        data = f"{self._folder}/data"
        self._run("initdb", "-D", data, "-U", "lion", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        options = (
            f"-c listen_addresses= -c unix_socket_directories={self._folder} -c port={PORT} -c fsync=off "
            "-c max_connections=60 -c shared_buffers=16MB"
        )
        self._run("pg_ctl", "-D", data, "-l", f"{self._folder}/log", "-w", "-o", options, "start")

    def stop(self) -> None:
        """Stop it, at once and with every connection."""
        self._run("pg_ctl", "-D", f"{self._folder}/data", "-m", "immediate", "stop")

    def restart(self) -> None:
        """Stop it as a crash does, and start it again."""
        self._run(
            "pg_ctl", "-D", f"{self._folder}/data", "-m", "immediate", "-w", "-l", f"{self._folder}/log", "restart"
        )

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
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
