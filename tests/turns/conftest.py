"""Every test of turns runs observed and not observed where it says so, and ends with no stale binding in its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from turnkit import OPERATIONS, Operation, Watched

from lionnb.turns import context as ctxs


@pytest.fixture(params=["observed", "alone"])
def observed(request: pytest.FixtureRequest) -> bool:
    """With and without an observer: the two take different paths through finalization."""
    return request.param == "observed"


@pytest.fixture
def operation(request: pytest.FixtureRequest) -> Operation:
    """One of the nine; see `turnkit.on_both_roads`."""
    return OPERATIONS[request.param]


@pytest.fixture
def watch(road: Any) -> Callable[..., Watched]:
    """Makes a watched Branch whose model answers on the road under test."""

    def make(
        replies: Any = "fine", *, observed: bool = True, branch: dict[str, Any] | None = None, **how: Any
    ) -> Watched:
        return Watched(road.model(replies, **how), observed=observed, **(branch or {}))

    return make


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """lionagi waits whole seconds before it parses again; nothing here is about how long."""
    from lionagi.operations import _defaults

    quick = _defaults.get_default_parse_call().with_updates(retry_initial_delay=0, throttle_period=0)
    monkeypatch.setattr(_defaults, "_PARSE_CALL", quick)


@pytest.fixture(autouse=True)
def _no_binding_left() -> Iterator[None]:
    yield
    assert not [b for b in ctxs.chain() if b.turn.scope is not None], "a live binding was left behind"
