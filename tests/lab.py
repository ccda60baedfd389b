"""JupyterLab and chromium for the tests: a server of its own, and one notebook page driven through Lab's own app.

`LabServer` runs JupyterLab on loopback with nothing of this machine's user in it: own configuration, data, settings,
workspaces, IPython folder and lionnb database. `NotebookPage` opens one notebook in single-document mode and waits
for what the application says (kernel status, the promise of a command, a cell's execution state), never for time.
`Stage` is the thread that playwright's synchronous interface lives in.

Made for tests/browser (see its conftest for the fixtures); `LabServer` alone needs no browser.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

import nbformat
from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, Request

__all__ = (
    "KERNEL",
    "OUT",
    "LabServer",
    "NotebookPage",
    "Stage",
    "Theme",
    "chromium_path",
    "launch_options",
)

P = ParamSpec("P")
T = TypeVar("T")
Theme = Literal["light", "dark"]

KERNEL = "lionnb-test"
OUT = Path(__file__).parent / "out"

# Plugin settings, by plugin id.
SETTINGS: dict[str, dict[str, Any]] = {
    # "Would you like to get notified about official Jupyter news?" lies over the notebook otherwise.
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # Cells outside the window are otherwise taken out of the page, and a locator does not find them.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}

CHROMIUM_FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",  # containers give it 64 MB
    "--disable-domain-reliability",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no CDN can help a page that must work without
    "--no-default-browser-check",
    "--no-first-run",
)


def chromium_path() -> str | None:
    """The chromium of the distribution; playwright's own download is not used."""
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


def launch_options(executable: str) -> dict[str, Any]:
    """Arguments for playwright's `chromium.launch`."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # chromium refuses to sandbox root
    return {"executable_path": executable, "headless": True, "args": [*CHROMIUM_FLAGS, *sandbox]}


class Stage:
    """The one thread that playwright's synchronous interface lives in.

    That interface keeps an event loop running on its thread for as long as it is open. On the main thread no other
    loop could be run then, and every async test after the first browser test would fail.
    """

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "browser")
        self.call(lambda: None)  # it is there from now on; started by the first test, it would look like its leak

    def call(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *fn* there and return what it returns, or raise what it raises."""
        return self._thread.submit(fn, *args, **kwargs).result()

    def close(self) -> None:
        """End the thread; what lives on it must be closed before."""
        self._thread.shutdown()


class LabServer:
    """A private JupyterLab. A context manager; `close` is idempotent and ends its kernels with it.

    Args:
        base: An empty folder for all it writes; the notebooks are in its ``root``.
        python: The interpreter its kernel (`KERNEL`) runs on.
        kernels: More kernels, name to interpreter.
        env: Added to the environment of the server and so of its kernels.
        settings: Plugin settings by plugin id, over `SETTINGS`.
    """

    def __init__(
        self,
        base: Path,
        *,
        python: str | Path = sys.executable,
        kernels: Mapping[str, str | Path] | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.base = base
        self.root = base / "root"
        self.database = base / "lionnb.db"
        self.log = base / "server.log"
        self.token = uuid.uuid4().hex
        self.root.mkdir(parents=True)
        self._env = self._private_environment() | dict(env or {})
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
        theirs = ("JUPYTER", "LIONAGI_", "LIONNB_", "XDG_", "PYTHONASYNCIODEBUG")  # no kernel runs in debug mode
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
            f"--ServerApp.root_dir={self.root}", "--expose-app-in-browser",
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

    def add_notebook(self, path: Path, *, kernel: str = KERNEL) -> str:
        """Copy a notebook file under the root, bound to *kernel*; returns its name there."""
        notebook = nbformat.read(path, as_version=4)
        notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
        nbformat.write(notebook, self.root / path.name)
        return path.name


# Runs in every page before its own scripts. `run` remembers what it started until the command's promise settles;
# a cell counts as ended when its execution state comes back to idle, or when the run it was part of is over.
PAGE_SCRIPT = """
window.lionnbTest = {
  runs: 0,
  cells: new Map(),
  get panel() { return window.jupyterapp?.shell.currentWidget; },
  get kernel() { return this.panel?.context?.sessionContext?.session?.kernel; },
  get ready() {
    const context = this.panel?.context;
    return !!(context?.isReady && context.sessionContext.isReady && this.kernel?.status === 'idle');
  },
  get done() { return this.runs === 0 && this.kernel?.status === 'idle'; },
  run(command, index) {
    const content = this.panel.content;
    if (index !== null) { content.activeCellIndex = index; content.deselectAll(); }
    const cells = (index === null ? content.widgets : [content.widgets[index]]).map(c => c.model)
      .filter(m => m.type === 'code' && m.sharedModel.source.trim() !== '');
    const run = {};
    for (const model of cells) {
      this.cells.set(model, run);
      const settle = (_, change) => {
        if (change.name === 'executionState' && change.newValue === 'idle') {
          model.stateChanged.disconnect(settle);
          if (this.cells.get(model) === run) this.cells.delete(model);
        }
      };
      model.stateChanged.connect(settle);
    }
    this.runs += 1;
    window.jupyterapp.commands.execute(command).catch(() => null).finally(() => {
      this.runs -= 1;
      for (const model of cells) if (this.cells.get(model) === run) this.cells.delete(model);
    });
  },
  ended(index) { return !this.cells.has(this.panel.content.widgets[index].model); },
};
"""


class NotebookPage:
    """One notebook, open in JupyterLab. Every method must run on the `Stage`, as the body of a browser test does.

    Timeouts are seconds and bound a wait for an event; they are no delays. `page` is playwright's, for all else.
    """

    def __init__(self, browser: Browser, server: LabServer, name: str, *, width: int = 1200, height: int = 900) -> None:
        self.server, self.name = server, name
        self.errors: list[str] = []
        self.foreign_requests: list[str] = []
        self.theme: Theme = "light"
        self._context = browser.new_context(viewport={"width": width, "height": height})
        self._context.add_init_script(PAGE_SCRIPT)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", self._on_page_error)
        self.page.on("request", self._on_request)
        # A fresh workspace: no layout of an earlier page.
        workspace = f"{server.url}/doc/workspaces/{uuid.uuid4().hex[:8]}"
        self.page.goto(f"{workspace}/tree/{name}?token={server.token}&reset", wait_until="domcontentloaded")
        self.wait_ready()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _on_page_error(self, error: Error) -> None:
        self.errors.append(f"uncaught: {error.message}")

    def _on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.netloc != urlsplit(self.server.url).netloc:
            self.foreign_requests.append(request.url)

    def _wait(self, condition: str, timeout_s: float, arg: Any = None) -> None:
        self.page.wait_for_function(condition, arg=arg, timeout=timeout_s * 1000)

    def wait_ready(self, timeout_s: float = 60) -> None:
        """Wait until the notebook is loaded and its kernel idle."""
        self._wait("() => window.lionnbTest.ready", timeout_s)

    def run_all(self, *, wait: bool = True, timeout_s: float = 60) -> None:
        """Run all cells, as the menu does; ``wait=False`` returns once they are queued."""
        self.page.evaluate("() => window.lionnbTest.run('notebook:run-all-cells', null)")
        if wait:
            self.wait_done(timeout_s)

    def run_cell(self, index: int, *, wait: bool = True, timeout_s: float = 60) -> None:
        """Run one cell in place; ``wait=False`` returns once it is queued."""
        self.page.evaluate("i => window.lionnbTest.run('notebook:run-cell', i)", index)
        if wait:
            self.wait_cell(index, timeout_s)

    def wait_cell(self, index: int, timeout_s: float = 60) -> None:
        """Wait until the cell that was run has ended, or was skipped after an error above it."""
        self._wait("i => window.lionnbTest.ended(i)", timeout_s, index)

    def wait_done(self, timeout_s: float = 60) -> None:
        """Wait until all that was run has ended and the kernel is idle."""
        self._wait("() => window.lionnbTest.done", timeout_s)

    def wait_text(self, index: int, text: str, timeout_s: float = 60) -> None:
        """Wait until a cell that may still run has printed *text*."""
        printed = """([i, text]) => window.lionnbTest.panel.content.widgets[i].model.outputs.toJSON()
            .some(o => o.output_type === 'stream' && [o.text].flat().join('').includes(text))"""
        self._wait(printed, timeout_s, [index, text])

    def outputs(self, index: int) -> list[dict[str, Any]]:
        """The outputs of a cell as nbformat JSON."""
        return self.page.evaluate("i => window.lionnbTest.panel.content.widgets[i].model.outputs.toJSON()", index)

    def text(self, index: int) -> str:
        """What a cell printed, its errors as ``Name: value``, and the plain twins of what it displayed."""
        parts = []
        for output in self.outputs(index):
            if output["output_type"] == "stream":
                parts.append("".join(output["text"]))
            elif output["output_type"] == "error":
                parts.append(f"{output['ename']}: {output['evalue']}")
            else:
                parts.append("".join(output["data"].get("text/plain", "")))
        return "".join(parts)

    def output(self, index: int) -> Locator:
        """The output area of a cell, to find things in."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-Cell-outputArea")

    def click(self, name: str, *, cell: int | None = None) -> None:
        """Press the button with exactly this accessible name, in one cell's output or in the notebook."""
        self._within(cell).get_by_role("button", name=name, exact=True).click()

    def type(self, label: str, text: str, *, cell: int | None = None, enter: bool = False) -> None:
        """Fill the field with exactly this label as a person would, key by key; *enter* presses Enter after it."""
        field = self._within(cell).get_by_label(label, exact=True)
        field.press_sequentially(text)
        if enter:
            field.press("Enter")

    def _within(self, cell: int | None) -> Locator:
        return self.page.locator(".jp-Notebook") if cell is None else self.output(cell)

    def execute(self, command: str, args: Mapping[str, Any] | None = None) -> None:
        """Execute a command of JupyterLab and wait until it is done."""
        self.page.evaluate(
            "([c, a]) => window.jupyterapp.commands.execute(c, a).then(() => null)",
            [command, dict(args or {})],
        )

    def set_theme(self, theme: Theme) -> None:
        """Switch JupyterLab's theme and wait until it is drawn."""
        self.execute("apputils:change-theme", {"theme": f"JupyterLab {theme.capitalize()}"})
        self._wait("light => document.body.dataset.jpThemeLight === String(light)", 30, theme == "light")
        self.theme = theme

    def screenshot(self, name: str, *, cell: int | None = None) -> Path:
        """Save a picture of the page, or of one cell's output, as ``tests/out/NAME-THEME.png``."""
        OUT.mkdir(exist_ok=True)
        path = OUT / f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}-{self.theme}.png"
        self.page.evaluate("() => document.fonts.ready.then(() => null)")
        target = self.page if cell is None else self.output(cell)
        path.write_bytes(target.screenshot(animations="disabled"))  # given a path, it would start a thread pool
        return path

    def interrupt(self) -> None:
        """Press the stop square."""
        self.execute("notebook:interrupt-kernel")

    def reload(self) -> None:
        """Reload the page; the kernel goes on."""
        self.page.reload(wait_until="domcontentloaded")
        self.wait_ready()

    def restart_kernel(self, timeout_s: float = 60) -> None:
        """Restart the kernel without asking, and wait until it is idle again; views stay on the screen."""
        self.page.evaluate("() => window.lionnbTest.panel.context.sessionContext.restartKernel().then(() => null)")
        self.wait_ready(timeout_s)

    def save(self) -> nbformat.NotebookNode:
        """Save the notebook and return it as the file has it."""
        self.execute("docmanager:save")
        return nbformat.read(self.server.root / self.name, as_version=4)

    def close(self) -> None:
        """Close the page, and shut its kernel down."""
        self._context.close()
        for session in self.server.api("sessions"):
            if session["path"] == self.name:
                self.server.api(f"sessions/{session['id']}", "DELETE")
