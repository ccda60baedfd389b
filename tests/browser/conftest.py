"""Fixtures for tests in a real JupyterLab. Every test here is slow, needs a browser, and is a plain function.

Its body runs on the `Stage` thread, where playwright lives, so it may use all of playwright's synchronous interface.
A fixture that touches a page must go there too: ``stage.call(fn)``. Async tests here run on the main thread as
everywhere, and cannot touch a page.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.lab import LabServer
from tests.notebook_page import NotebookPage, Stage, Theme, chromium_path, launch_options

HERE = Path(__file__).parent
LIMIT_S = 60  # for one wait: an event on a machine that is busy with other things

expect.set_options(timeout=LIMIT_S * 1000)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(5 * LIMIT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    stage = pyfuncitem.funcargs.get("stage")
    if stage is None or pyfuncitem.get_closest_marker("asyncio") is not None:
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    stage.call(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The thread that playwright lives in."""
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture(scope="session")
def chromium(stage: Stage, need: Callable[[object, str], None]) -> Iterator[Browser]:
    """The browser; each page has a context of its own."""
    executable = chromium_path()
    need(executable, "there is no chromium on this machine.")
    playwright = stage.call(sync_playwright().start)
    try:
        browser = stage.call(playwright.chromium.launch, **launch_options(executable))
        yield browser
        stage.call(browser.close)
    finally:
        stage.call(playwright.stop)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """The server; its notebooks share one lionnb database, as those of one user do."""
    with LabServer(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> Theme:
    """Runs the test in both themes."""
    return request.param


@pytest.fixture
def notebook(stage: Stage, chromium: Browser, lab: LabServer) -> Iterator[Callable[..., NotebookPage]]:
    """Opens a notebook of the given code cells (``notebook("1 + 1", theme="dark")``), or a copy of a notebook file.

    ``replace`` maps patterns to what stands for them in the copy. Closed with the test.
    """
    pages: list[NotebookPage] = []

    def open_notebook(*cells: str | Path, replace: Mapping[str, str] = {}, theme: Theme = "light") -> NotebookPage:
        path = cells[0] if isinstance(cells[0], Path) else None
        name = lab.write_notebook(cells) if path is None else lab.add_notebook(path, replace=replace)
        page = NotebookPage(chromium, lab, name)
        pages.append(page)
        page.set_theme(theme)
        return page

    yield open_notebook
    for page in pages:
        stage.call(page.close)
