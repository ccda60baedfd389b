"""Fixtures for tests in a real kernel, without a browser. All of them are marked slow.

The newest supported kernel runs them from .venv, the oldest from .venv/floor (`.ci/floor -m pytest tests/kernel`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_core.utils import ensure_event_loop

from tests.cells import SETUP, Hold
from tests.kernel.front import LIMIT_S, Front

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(5 * LIMIT_S))


class _Shared:
    """One kernel for the tests that leave theirs as they found it; a new one after a test that did not."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self.front = self._start()

    def _start(self) -> Front:
        folder = self._factory.mktemp("kernel")
        front = Front(folder, LIONNB_DB=str(folder / "controls.db"))
        front.__enter__()
        return front

    def tidy(self) -> None:
        busy = [cell for cell in self.front.cells.values() if cell.code and not cell.done]
        if busy or self.front.value("[leg.run_id for leg in lionnb.legs() if leg.live]"):
            self.close()
            self.front = self._start()

    def close(self) -> None:
        self.front.__exit__()


@pytest.fixture(scope="session", autouse=True)
def _loop_of_the_client() -> Iterator[None]:
    """jupyter_client makes one event loop a thread and keeps it: here, before the first test is judged for leaks."""
    loop = ensure_event_loop()
    loop.set_debug(False)  # it would call every wait for a kernel slow
    yield
    loop.close()


@pytest.fixture(scope="session")
def _shared(_loop_of_the_client: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Shared]:
    shared = _Shared(tmp_path_factory)
    yield shared
    shared.close()


@pytest.fixture
def kernel(_shared: _Shared) -> Iterator[Front]:
    """A kernel with a Branch ``branch`` whose model answers when ``gate`` is opened. Its legs end with the test."""
    _shared.front.forget()
    _shared.front.run(SETUP)
    yield _shared.front
    _shared.tidy()


@pytest.fixture
def own_kernel(world: Path) -> Iterator[Front]:
    """As `kernel`, for tests that end it."""
    with Front(world) as front:
        front.run(SETUP)
        yield front


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    """What a cell can be held at."""
    return Hold(tmp_path / "hold")
