"""The databases of the protocol's tests: a SQLite file and a real PostgreSQL, each test with one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import pg


@pytest.fixture(scope="session")
def server(need: Callable[[object, str], None]) -> Iterator[pg.Server]:
    """A PostgreSQL server, started when the first test asks for it."""
    why = pg.missing()
    need(why is None, str(why))
    with pg.server() as made:
        yield made


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind that several processes can use."""
    if request.param == "sqlite":
        yield str(tmp_path / "shared" / "control.sqlite")
        return
    with request.getfixturevalue("server").database() as made:
        yield made
