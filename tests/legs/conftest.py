"""Fixtures of the tests of legs: a store that can be held and failed, and a Branch on each of lionagi's roads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lionnb.legs import ledger, steering
from tests.legs.story import HookedStore, Scene


@pytest.fixture
def store(road: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedStore]:
    """A real database: in a file on one road, in memory (which is faster) on the other.

    A steer waits for its row as long as it takes, unless something is held: no clock decides what it says.
    """
    made = HookedStore(tmp_path / "legs.sqlite" if road.name == "cli" else ":memory:")
    monkeypatch.setattr(steering, "RECORDED_WITHIN_S", 30.0)
    monkeypatch.setattr(ledger, "PAUSE_S", 0.0)
    made.hurry = lambda: monkeypatch.setattr(steering, "RECORDED_WITHIN_S", 0.0)
    yield made
    made.close()


@pytest.fixture
def scene(road: Any, store: HookedStore) -> Callable[..., Scene]:
    """Makes a `Scene`: ``scene(replies, gate_at=…)``."""

    def make(replies: Any = ("one", "two", "three", "four"), **how: Any) -> Scene:
        return Scene(road, store, list(replies) if isinstance(replies, tuple) else replies, how=how)

    return make
