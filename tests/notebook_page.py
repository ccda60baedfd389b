"""One notebook in JupyterLab, in a real browser, driven through Lab's own application.

`NotebookPage` opens a notebook in single-document mode and waits for what the application says (kernel status, the
promise of a command, a cell's execution state), never for time. `Stage` is the thread that playwright's synchronous
interface lives in. The fixtures are in tests/browser/conftest.py.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar
from urllib.parse import urlsplit

import nbformat
from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, Request

from tests.lab import LabServer

__all__ = ("OUT", "NotebookPage", "Stage", "Theme", "chromium_path", "launch_options")

P = ParamSpec("P")
T = TypeVar("T")
Theme = Literal["light", "dark"]

OUT = Path(__file__).parent / "out"

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
        self._context.set_default_timeout(60_000)
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
        self.errors.append(f"uncaught: {error.stack or error.message}")

    def _on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.netloc != urlsplit(self.server.url).netloc:
            self.foreign_requests.append(request.url)

    def _wait(self, condition: str, timeout_s: float, arg: Any = None) -> None:
        self.page.wait_for_function(condition, arg=arg, timeout=timeout_s * 1000)

    def wait_ready(self, timeout_s: float = 60) -> None:
        """Wait until the notebook is loaded and its kernel idle, and JupyterLab's splash has gone."""
        self._wait("() => window.lionnbTest.ready", timeout_s)
        self._wait_splash()

    def _wait_splash(self) -> None:
        """Wait until the splash of a start or of a change of theme has gone.

        JupyterLab 4.6 takes it away 200 ms after it was last needed, once for each need: two of them within that time
        take it away twice, and the second fails with an uncaught "removeChild" that is nobody's fault here.
        """
        self._wait("() => !document.getElementById('jupyterlab-splash')", 30)

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

    def is_code(self, index: int) -> bool:
        """Whether the cell is one of code."""
        return self.page.evaluate("i => window.lionnbTest.panel.content.widgets[i].model.type === 'code'", index)

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
        """Switch JupyterLab's theme and wait until it is drawn and a next switch is safe."""
        self.execute("apputils:change-theme", {"theme": f"JupyterLab {theme.capitalize()}"})
        self._wait("light => document.body.dataset.jpThemeLight === String(light)", 30, theme == "light")
        self._wait_splash()
        self.theme = theme

    def screenshot(self, name: str, *, cell: int | None = None) -> Path:
        """Save a picture of the page, or of one cell's output, as ``tests/out/NAME-THEME.png``."""
        OUT.mkdir(exist_ok=True)
        path = OUT / f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}-{self.theme}.png"
        self.page.evaluate("() => document.fonts.ready.then(() => null)")
        target = self.page if cell is None else self.output(cell)
        tall = 0 if cell is None else int(target.evaluate("e => e.getBoundingClientRect().height"))
        with self._window(tall + 200):  # what is taller than the window would be pieced together, with its edges in it
            path.write_bytes(target.screenshot(animations="disabled"))  # given a path, it would start a thread pool
        return path

    def picture(self, name: str) -> Path:
        """Save a picture of the whole notebook, however long it is."""
        height = """e => {
            e.scrollTop = 0;
            return Math.ceil([...e.querySelectorAll('.jp-Cell')].at(-1).getBoundingClientRect().bottom) + 60;
        }"""
        with self._window(self.page.locator(".jp-NotebookPanel .jp-WindowedPanel-outer").evaluate(height)):
            return self.screenshot(name)

    @contextlib.contextmanager
    def _window(self, height: int) -> Iterator[None]:
        """Make the window at least so high for the time of the block."""
        size = self.page.viewport_size
        self.page.set_viewport_size({"width": size["width"], "height": max(size["height"], height)})
        try:
            yield
        finally:
            self.page.set_viewport_size(size)

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

    def end_kernel(self) -> None:
        """Shut the kernel down, as closing a notebook's session does."""
        for session in self.server.api("sessions"):
            if session["path"] == self.name:
                self.server.api(f"sessions/{session['id']}", "DELETE")

    def close(self) -> None:
        """Close the page, and shut its kernel down."""
        self._context.close()
        self.end_kernel()
