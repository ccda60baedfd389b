"""A page that hosts a view's module with a model of our own: no Jupyter, no kernel, a real browser.

``Page.deliver`` plays the kernel, ``Page.sent`` is what the page sent to it. Everything is served by the routes below;
a request for anything else is refused and noted, so a test can say that nothing was fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lionnb.widgets import assets
from lionnb.widgets.feed import Feed

CHROMIUM = Path("/usr/bin/chromium")
ARGS = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]

# JupyterLab's own values, for the variables that the style sheet reads.
LAB = {
    "light": {
        "layout-color0": "#fff", "layout-color1": "#fff", "layout-color2": "#eee", "border-color2": "#e0e0e0",
        "ui-font-color0": "rgba(0,0,0,1)", "brand-color1": "#1976d2", "success-color1": "#388e3c",
        "error-color1": "#d32f2f", "warn-color1": "#ef6c00",
        "ui-font-family": 'system-ui, -apple-system, "DejaVu Sans", sans-serif',
        "code-font-family": 'menlo, consolas, "DejaVu Sans Mono", monospace',
    },
    "dark": {
        "layout-color0": "#111", "layout-color1": "#212121", "layout-color2": "#424242", "border-color2": "#616161",
        "ui-font-color0": "rgba(255,255,255,1)", "brand-color1": "#1e88e5", "success-color1": "#388e3c",
        "error-color1": "#d32f2f", "warn-color1": "#ef6c00",
        "ui-font-family": 'system-ui, -apple-system, "DejaVu Sans", sans-serif',
        "code-font-family": 'menlo, consolas, "DejaVu Sans Mono", monospace',
    },
}  # fmt: skip

HTML = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<style>:root{%s} body{margin:12px;background:var(--jp-layout-color0, Canvas);color-scheme:%s}</style>
<link rel="stylesheet" href="/view.css"><div id="a"></div><div id="b"></div>
<script type="module">
import view from "/view.js";
const on = new Map();
const data = { snapshot: null };
const model = {
  get: (k) => data[k],
  on: (k, f) => on.set(k, [...(on.get(k) ?? []), f]),
  off: (k, f) => on.set(k, (on.get(k) ?? []).filter((g) => g !== f)),
  send: (m) => { if (window.fake.cut) throw new Error("no comm"); window.fake.sent.push(JSON.parse(JSON.stringify(m))); },
};
window.fake = {
  sent: [], ended: [], on,
  deliver: (m) => { for (const f of on.get("msg:custom") ?? []) f(structuredClone(m)); },
  set: (k, v) => { data[k] = v; for (const f of on.get(`change:${k}`) ?? []) f(); },
  show: (id) => { window.fake.ended.push(view.render({ model, el: document.getElementById(id) })); },
};
window.ready = true;
</script>"""


class Page:
    """One page of a running browser."""

    def __init__(self, context: Any, theme: str, lab: bool) -> None:
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.fetched: list[str] = []
        variables = ";".join(f"--jp-{k}:{v}" for k, v in LAB[theme].items()) if lab else ""
        self._files = {
            "/": ("text/html; charset=utf-8", HTML % (variables, theme)),
            "/view.js": ("text/javascript; charset=utf-8", assets.esm()),
            "/view.css": ("text/css; charset=utf-8", assets.css()),
        }
        self.page = context.new_page()
        self.page.on("dialog", lambda d: (self.dialogs.append(d.message), d.dismiss()))
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.route("**/*", self._serve)
        self.page.goto("http://view.test/")
        self.page.wait_for_function("window.ready === true")

    def _serve(self, route: Any) -> None:
        path = route.request.url.removeprefix("http://view.test")
        if path in self._files:
            kind, body = self._files[path]
            route.fulfill(content_type=kind, body=body)
        else:
            self.fetched.append(route.request.url)
            route.abort()

    def open(self, feed: Feed, where: str = "a") -> None:
        """Display the view with the feed's state of now."""
        self.page.evaluate("s => window.fake.set('snapshot', s)", feed.snapshot())
        self.show(where)

    def show(self, where: str) -> None:
        """One more display of the same view."""
        self.page.evaluate("id => window.fake.show(id)", where)

    def deliver(self, message: dict[str, Any] | None) -> None:
        """Play the kernel."""
        if message is not None:
            self.page.evaluate("m => window.fake.deliver(m)", message)
            self.frame()

    def frame(self) -> None:
        """Wait until what was delivered is drawn."""
        self.page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def sent(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What the page sent, without its questions for missing events; with *kind*, one intent only."""
        said: list[dict[str, Any]] = self.page.evaluate("window.fake.sent")
        return [m for m in said if "since" not in m and kind in (None, m.get("intent"))]

    def picture(self, path: Path) -> None:
        """Write what is seen."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(path), full_page=True)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, once: starting it is most of a test's time."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=ARGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page(
    browser: Any, *, theme: str = "light", width: int = 1000, height: int = 900, lab: bool = True
) -> Iterator[Page]:
    """A page with the theme of JupyterLab (or of nothing) and a width."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, timezone_id="UTC")
    context.set_default_timeout(10_000)
    try:
        yield Page(context, theme, lab)
    finally:
        context.close()
