"""Node for the JS half, and the browser of the browser tests (same thread, same rules: see tests/browser)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import chromium, lab, notebook, pytest_pyfunc_call, stage, theme  # noqa: F401
from tests.widgets.page import Page, page

HERE = Path(__file__).parent


class Node:
    """A node process that answers one JSON line with one."""

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(
            ["node", str(HERE / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def __call__(self, message: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"node ended with {self._process.wait(5)}"
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def node(need: Callable[[object, str], None]) -> Iterator[Callable[[str], Node]]:
    """Starts the scripts beside this file; they end with the test."""
    need(shutil.which("node"), "there is no node on this machine.")
    running: list[Node] = []

    def start(script: str) -> Node:
        running.append(Node(script))
        return running[-1]

    yield start
    for process in running:
        process.close()


@pytest.fixture
def open_page(stage: Any, chromium: Any) -> Iterator[Callable[..., Page]]:  # noqa: F811
    """Opens a page with nothing but the view's module in it; closed with the test."""
    opened: list[Any] = []

    def open_one(**how: Any) -> Page:
        manager = page(chromium, **how)
        opened.append(manager)
        return manager.__enter__()

    yield open_one
    for manager in opened:
        stage.call(manager.__exit__, None, None, None)
