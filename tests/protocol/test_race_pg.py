"""ADR-0108's race on PostgreSQL, with real connections: an admission that passes while the run is being ended.

The admission as it is, and the same statement without its row lock: on SQLite, which has one writer, that lock renders
nothing; here it is what keeps an acknowledged steer from lying in a queue that nobody will ever look into.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import sqlalchemy as sa

from lionnb.records import ControlState, SessionSpec
from lionnb.store import locate
from lionnb.store import statements as sql
from lionnb.store.core import StoreCore
from lionnb.store.transact import Tx

pytestmark = pytest.mark.postgres
LOCK = " FOR UPDATE"
NOW = 1_700_000_000.0
END = {"of_leg": "leg-1", "as_what": "completed", "who": "leg-1", "why": None, "now": NOW}
SWEEP = {"who": "leg-1", "why": "ended", "now": NOW}


@pytest.fixture
def url(server):
    with server.database() as made:
        yield made


@pytest.fixture
async def connect(url):
    """Opens stores of the database; ``locked=False``: one whose admissions take no row lock."""
    async with AsyncExitStack() as stack:

        async def open_(*, locked: bool = True) -> StoreCore:
            core = await StoreCore.open(locate(url))
            stack.push_async_callback(core.aclose)
            if not locked:
                sa.event.listen(core._engine.sync_engine, "before_cursor_execute", without_lock, retval=True)
            return core

        yield open_


def without_lock(conn, cursor, statement, parameters, context, executemany):
    if statement.startswith("INSERT INTO session_controls"):
        assert LOCK in statement
        statement = statement.replace(LOCK, "")
    return statement, parameters


@asynccontextmanager
async def holding(core: StoreCore) -> AsyncIterator[Tx]:
    """A transaction that commits when the block ends."""
    async with core._engine.begin() as connection:
        yield Tx(connection)


async def waits(core: StoreCore, task: asyncio.Task[object]) -> bool:
    """Whether *task* comes to wait for somebody's lock, and not to its end."""
    asked = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    while not task.done():
        async with core._engine.connect() as connection:
            if await connection.scalar(asked):
                return True
        await asyncio.sleep(0.005)
    return False


async def running(core: StoreCore, sid: str) -> str:
    spec = SessionSpec(id=sid, run_id="20261130T101010-abcdef", branch_id="b", leg="leg-1", created_at=NOW)
    return (await core.start_session(spec, NOW)).id


async def orphans(core: StoreCore) -> list[str]:
    """Controls that are pending on a run that has ended."""
    ended = [session.id for session in await core.list_sessions(running=False)]
    return [row.id for row in await core.list_controls(ended) if row.state is ControlState.PENDING]


def binds(sid: str) -> dict[str, object]:
    said = {"cid": f"c-{sid}", "what": "message", "body": {"text": "x"}, "by": "ana", "idem": None, "origin": None}
    return {"sid": sid, "kinds": ["agent"], "now": NOW, **said}


async def admission_first(admits: StoreCore, ends: StoreCore) -> tuple[bool, bool, int]:
    """The admission has decided and not committed; the run is ended; the admission commits."""
    sid = await running(ends, "s-1")
    async with holding(admits) as tx:
        admitted = await tx.change(sql.ADMIT, **binds(sid))
        end = asyncio.create_task(ends.end(sid, "leg-1", "completed", by="leg-1", now=NOW))
        waited = await waits(admits, end)
    return bool(admitted), waited, len((await end).swept)


async def end_first(admits: StoreCore, ends: StoreCore) -> tuple[bool, bool, int]:
    """The run is ended and swept, and not committed; the admission comes; then the end commits."""
    sid = await running(ends, "s-1")
    async with holding(ends) as tx:
        await tx.rows(sql.END, sid=sid, **END)
        swept = await tx.change(sql.SWEEP, sid=sid, **SWEEP)
        admission = asyncio.create_task(admits.admit(sid, text="x", by="ana", now=NOW))
        waited = await waits(ends, admission)
    return (await admission).control is not None, waited, len(swept)


@pytest.mark.parametrize(
    ("order", "locked", "admitted_waited_swept", "lost"),
    [
        (admission_first, False, (True, False, 0), 1),
        (admission_first, True, (True, True, 1), 0),
        (end_first, False, (True, False, 0), 1),
        (end_first, True, (False, True, 0), 0),
    ],
)
async def test_the_row_lock_is_what_keeps_an_acknowledged_steer_from_being_lost(
    connect, order, locked, admitted_waited_swept, lost
):
    admits, ends = await connect(locked=locked), await connect()
    assert await order(admits, ends) == admitted_waited_swept
    assert len(await orphans(ends)) == lost


async def storm(connect, sessions: int, *, locked: bool) -> tuple[int, int]:
    """For each run, three admissions and its end at once, over four connections; gives (admitted, lost)."""
    asyncio.get_running_loop().set_debug(False)
    ends, *admit = [await connect(locked=locked) for _ in range(4)]
    when = random.Random(sessions)
    admitted = 0

    async def one(core: StoreCore, sid: str) -> bool:
        await asyncio.sleep(when.random() * 0.001)
        return (await core.admit(sid, text="x", by="ana", now=NOW)).control is not None

    async def end(sid: str) -> None:
        await asyncio.sleep(when.random() * 0.001)
        await ends.end(sid, "leg-1", "completed", by="leg-1", now=NOW)

    for n in range(sessions):
        sid = await running(ends, f"s-{n}")
        admitted += sum((await asyncio.gather(end(sid), *(one(core, sid) for core in admit)))[1:])
    return admitted, len(await orphans(ends))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_steer_is_lost_in_a_storm_of_admissions_and_ends(connect):
    """And the storm is one: without the lock it loses steers."""
    admitted, lost = await storm(connect, 1500, locked=True)
    print(f"\n1,500 runs, three admissions against each end: {admitted:,} of 4,500 admitted, {lost} lost")
    assert lost == 0 and 0 < admitted < 4500


@pytest.mark.slow
async def test_without_the_lock_the_same_storm_loses_steers(connect):
    admitted, lost = await storm(connect, 300, locked=False)
    print(f"\n300 runs without the lock: {admitted:,} of 900 admitted, {lost} lost")
    assert lost > 0
