"""A JupyterLab of the tests' own: on loopback, with nothing of this machine's user in it.

Configuration, data, settings, workspaces, IPython folder, home and lionnb database are private. It needs no browser;
tests/notebook_page.py drives a page of it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nbformat

__all__ = ("KERNEL", "LabServer")

KERNEL = "lionnb-test"

# Plugin settings, by plugin id.
SETTINGS: dict[str, dict[str, Any]] = {
    # "Would you like to get notified about official Jupyter news?" lies over the notebook otherwise.
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # Cells outside the window are otherwise taken out of the page, and a locator does not find them.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}


class LabServer:
    """A private JupyterLab. A context manager; `close` is idempotent and ends its kernels with it.

    Args:
        base: An empty folder for all it writes; the notebooks are in its ``root``.
        python: The interpreter its kernel (`KERNEL`) runs on.
        kernels: More kernels, name to interpreter.
        env: Added to the environment of the server and so of its kernels.
        settings: Plugin settings by plugin id, over `SETTINGS`.
        arguments: Added to the server's command line.
    """

    def __init__(
        self,
        base: Path,
        *,
        python: str | Path = sys.executable,
        kernels: Mapping[str, str | Path] | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        arguments: Iterable[str] = (),
    ) -> None:
        self.base = base
        self.root = base / "root"
        self.database = base / "lionnb.db"
        self.log = base / "server.log"
        self.token = uuid.uuid4().hex
        self.root.mkdir(parents=True)
        self._env = self._private_environment() | dict(env or {})
        self._arguments = tuple(arguments)
        for name, interpreter in {KERNEL: python, **(kernels or {})}.items():
            self._write_kernelspec(name, interpreter)
        self._write_settings({**SETTINGS, **(settings or {})})
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def _private_environment(self) -> dict[str, str]:
        folders = {
            "HOME": "home",
            "IPYTHONDIR": "ipython",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
        }
        theirs = ("JUPYTER", "LIONAGI_", "LIONNB_", "XDG_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(theirs)}
        for variable, name in folders.items():
            (self.base / name).mkdir()
            env[variable] = str(self.base / name)
        return env | {"JUPYTER_PLATFORM_DIRS": "1", "LIONNB_DB": str(self.database)}

    def _write_kernelspec(self, name: str, python: str | Path) -> None:
        spec = {
            "argv": [
                str(python),
                "-Xfrozen_modules=off",
                "-m",
                "ipykernel_launcher",
                "-f",
                "{connection_file}",
            ],
            "display_name": name,
            "language": "python",
        }
        folder = self.base / "data" / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps(spec))

    def _write_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        for plugin_id, values in settings.items():
            extension, plugin = plugin_id.split(":")
            path = self.base / "settings" / extension / f"{plugin}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            RuntimeError: It ended instead; the text is the end of its log.
        """
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
            "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.root}", "--expose-app-in-browser", *self._arguments,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_it_answers(self._process)
        return self

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        while True:
            try:
                self.api("status")
                return
            except urllib.error.HTTPError:  # something else answers on this port
                self.close()
                raise
            except urllib.error.URLError:
                try:
                    code = process.wait(0.05)
                except subprocess.TimeoutExpired:
                    continue
            raise RuntimeError(f"JupyterLab ended with {code}:\n{self.log.read_text()[-3000:]}")

    def close(self) -> None:
        """Stop the server, and wait until it is gone."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def api(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Call the server's REST interface, as ``api("sessions")``."""
        request = urllib.request.Request(
            f"{self.url}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            raw = reply.read()
        return json.loads(raw) if raw else None

    def write_notebook(self, cells: Iterable[str], *, name: str | None = None, kernel: str = KERNEL) -> str:
        """Write a notebook of code *cells* under the root; returns its name there."""
        name = name or f"{uuid.uuid4().hex[:8]}.ipynb"
        # Without a kernelspec Lab asks for a kernel, in a dialog.
        spec = {"name": kernel, "display_name": kernel, "language": "python"}
        notebook = nbformat.v4.new_notebook(metadata={"kernelspec": spec})
        notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
        nbformat.write(notebook, self.root / name)
        return name

    def add_notebook(self, path: Path, *, kernel: str = KERNEL, replace: Mapping[str, str] | None = None) -> str:
        """Copy a notebook file under the root, bound to *kernel*; returns its name there.

        Args:
            path: The file.
            kernel: The kernel's name.
            replace: Regular expressions and what stands for them in the copy; each must be found.
        """
        notebook = nbformat.read(path, as_version=4)
        for pattern, words in (replace or {}).items():
            found = 0
            for cell in notebook.cells:
                cell.source, n = re.subn(pattern, words, cell.source)
                found += n
            assert found, f"{path.name} has no {pattern!r}"
        notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
        name = f"{path.stem}-{uuid.uuid4().hex[:6]}.ipynb"
        nbformat.write(notebook, self.root / name)
        return name
