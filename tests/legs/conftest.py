"""Fixtures of the tests of legs: a store that can be held and failed, and a Branch on each of lionagi's roads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lionnb.legs import ledger, steering
from tests.legs.story import HookedStore, Scene
from tests.store.conftest import _kept_database, pg_emptied_url, postgres  # noqa: F401  # fixtures

# A story of a module that is marked `databases` is told on PostgreSQL, too: on one road, because the store knows none.
ROADS_AND_DATABASES = [
    ("cli", "own"),
    ("api", "own"),
    pytest.param("cli", "postgresql", marks=pytest.mark.postgres),
]


@pytest.hookimpl(tryfirst=True)  # a mark on the test, unlike a call here, stands above the fixture's own parameters
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    told = {"road", "store"} <= {*metafunc.fixturenames}
    chosen = any("road" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if told and not chosen and metafunc.definition.get_closest_marker("databases"):
        both = pytest.mark.parametrize(("road", "database"), ROADS_AND_DATABASES, indirect=True)
        metafunc.definition.add_marker(both)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """``own`` (SQLite) or ``postgresql``."""
    return getattr(request, "param", "own")


@pytest.fixture
def where(road: Any, database: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of the test's database."""
    if database == "postgresql":
        return request.getfixturevalue("pg_emptied_url")
    return str(tmp_path / "legs.sqlite") if road.name == "cli" else ":memory:"


@pytest.fixture
def store(where: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedStore]:
    """A real database: in a file on one road, in memory (which is faster) on the other, and on a server.

    A steer waits for its row as long as it takes, unless something is held: no clock decides what it says.
    """
    made = HookedStore(where)
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
