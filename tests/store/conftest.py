"""One contract over SQLite in a file, SQLite in memory, and a real PostgreSQL; and the words the tests tell stories in."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from lionnb.records import ControlRecord, FeedEvent, SessionSpec, TurnOutcome, TurnRecord
from lionnb.store import Claim, Location, locate
from lionnb.store.core import StoreCore
from lionnb.store.schema import meta, metadata
from lionnb.store.watch import Watchers
from tests import pg
from tests.store.processes import Other

NOW = 1_700_000_000.0


@pytest.fixture(scope="session")
def postgres(need: Callable[[object, str], None]) -> Iterator[pg.Server]:
    """The server of this test run, started when the first test asks for it."""
    why = pg.missing()
    need(why is None, str(why))
    with pg.server() as server:
        yield server


@pytest.fixture
def pg_url(postgres: pg.Server) -> Iterator[str]:
    """A database of the test's own, empty."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def _kept_database(postgres: pg.Server) -> Iterator[str]:
    with postgres.database() as url:
        asyncio.run(_make_tables(url))
        yield url


async def _make_tables(url: str) -> None:
    await (await StoreCore.open(locate(url))).aclose()


@pytest.fixture
def pg_emptied_url(postgres: pg.Server, _kept_database: str) -> str:
    """A database with lionnb's tables and no rows: the same one for each test, because making one costs 0.2 s."""
    tables = ", ".join(table.name for table in metadata.sorted_tables if table is not meta)
    postgres.sql(_kept_database, f"TRUNCATE {tables} RESTART IDENTITY")
    return _kept_database


@pytest.fixture
def file_location(tmp_path: Path) -> Location:
    return locate(tmp_path / "store" / "control.sqlite")


BACKENDS = ["file", "memory", pytest.param("postgres", marks=pytest.mark.postgres)]
SHARED = ["file", pytest.param("postgres", marks=pytest.mark.postgres)]  # those that two connections can meet in


def _location(request: pytest.FixtureRequest) -> Location:
    match request.param:
        case "file":
            return request.getfixturevalue("file_location")
        case "memory":
            return locate(":memory:")
        case _:
            return locate(request.getfixturevalue("pg_emptied_url"))


@pytest.fixture(params=BACKENDS)
def location(request: pytest.FixtureRequest) -> Location:
    """Each kind of database, without a row."""
    return _location(request)


@pytest.fixture(params=SHARED)
def shared_location(request: pytest.FixtureRequest) -> Location:
    """Each kind of database that several processes can use, without a row."""
    return _location(request)


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., Any]]:
    """Opens stores and closes them at the end of the test."""
    async with AsyncExitStack() as stack:

        async def open_(where: Location, **how: Any) -> StoreCore:
            core = await StoreCore.open(where, **how)
            stack.push_async_callback(core.aclose)
            return core

        yield open_


@pytest.fixture
def other() -> Iterator[Callable[..., Other]]:
    """Starts processes, and ends them with the test."""
    with ExitStack() as stack:

        def start(*prefix: str, **env: str) -> Other:
            made = Other(*prefix, **env)
            stack.callback(made.close)
            return made

        yield start


@pytest.fixture
def watchers() -> Watchers:
    return Watchers()


@pytest.fixture
async def core(location: Location, opened: Callable[..., Any], watchers: Watchers) -> StoreCore:
    return await opened(location, watchers=watchers)


@pytest.fixture
def story(core: StoreCore) -> Story:
    return Story(core)


@pytest.fixture
def make_story() -> type[Story]:
    """For tests that open stores of their own."""
    return Story


class Story:
    """A run and its controls, told in a few words; ids and instants are made up as they are needed."""

    def __init__(self, core: StoreCore) -> None:
        self.core = core
        self._ids = itertools.count(1)
        self._now = itertools.count(1)

    @property
    def now(self) -> float:
        """A later instant each time."""
        return NOW + next(self._now)

    async def running(self, leg: str = "leg-1", **fields: Any) -> str:
        """A running run of *leg*; gives its id."""
        spec = session_spec(leg=leg, id=f"session-{next(self._ids)}", **fields)
        return (await self.core.start_session(spec, self.now)).id

    async def ended(self, status: str = "completed", *, sweep: bool = True, pending: int = 0) -> str:
        sid = await self.running()
        for _ in range(pending):
            await self.pending(sid)
        assert (await self.core.end(sid, "leg-1", status, by="leg-1", sweep=sweep, now=self.now)).ended
        return sid

    async def pending(self, sid: str | None = None, text: str = "only sources after 2020", **how: Any) -> ControlRecord:
        sid = sid or await self.running()
        return (await self.core.admit(sid, text=text, by="ana", now=self.now, **how)).unwrap()

    async def claimed(self, sid: str | None = None, *, leg: str = "leg-1", rows: int = 1) -> Claim:
        sid = sid or await self.running(leg)
        for _ in range(rows):
            await self.pending(sid)
        claim = await self.core.claim_all(sid, leg, self.now)
        assert len(claim.rows) == rows
        return claim

    async def report(self, token: str, **how: Any) -> Any:
        how = {"turn_id": "turn-1", "turn_outcome": "completed", "in_history": True} | how
        return await self.core.report(token, **how, now=self.now)

    async def row(self, control: ControlRecord | str) -> ControlRecord:
        found = await self.core.get_control(control if isinstance(control, str) else control.id)
        assert found is not None
        return found


@pytest.fixture
def turn() -> Callable[..., TurnRecord]:
    """Makes turns."""

    def make(turn_id: str | None, **fields: Any) -> TurnRecord:
        made = {"branch_id": "b-1", "operation": "operate", "queued_at": 1.0, "outcome": TurnOutcome.RUNNING}
        return TurnRecord(turn_id=turn_id, **made | fields)

    return make


@pytest.fixture
def event() -> Callable[..., FeedEvent]:
    """Makes feed events."""
    return lambda i, **fields: FeedEvent(i, **{"at": 1.0, "kind": "text", "turn_id": None} | fields)


def session_spec(**fields: Any) -> SessionSpec:
    made = {"id": "session-0", "run_id": "20261130T101010-abcdef", "branch_id": "branch-1", "leg": "leg-1"}
    return SessionSpec(**made | {"created_at": NOW} | fields)
