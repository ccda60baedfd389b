"""Two real connections at once, in a fixed order: what one has written and not committed when the other comes.

On PostgreSQL the second party really waits for the first one's row lock (the server is asked until it says so); on
SQLite it waits for the only writer. No test here depends on a pause.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa

from lionnb.records import ControlState, RunStatus
from lionnb.store import locate
from lionnb.store import statements as sql
from lionnb.store.transact import Tx

S = ControlState
pytestmark = pytest.mark.postgres


@pytest.fixture
async def two(pg_emptied_url, opened, make_story):
    """Two stores of one PostgreSQL database, and a story told through the first."""
    first, second = await opened(locate(pg_emptied_url)), await opened(locate(pg_emptied_url))
    return first, second, make_story(first)


@asynccontextmanager
async def holding(core):
    """A transaction of *core* that commits when the block ends."""
    async with core._engine.begin() as connection:
        yield Tx(connection)


async def until_blocked(core, other):
    """Return when *other*, a task, waits in the server for a lock; fail when it ends instead."""
    asked = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')")
    while not other.done():
        async with core._engine.connect() as connection:
            if await connection.scalar(asked):
                return
        await asyncio.sleep(0.005)
    pytest.fail("it did not wait for the transaction that is open")


async def admitting(tx, sid, cid="c-1", **how):
    binds = {
        "cid": cid,
        "what": "message",
        "body": {"text": cid},
        "by": "ana",
        "idem": None,
        "origin": None,
        "now": 1.0,
    }
    return await tx.change(sql.ADMIT, sid=sid, kinds=["agent", "flow"], **binds | how)


@pytest.mark.parametrize("only_if_idle", [False, True])
async def test_an_end_waits_for_an_admission_that_is_under_way_and_sees_its_row(two, only_if_idle):
    """Order A of ADR-0108's race: unlocked, the sweep would see nothing and the row would stay pending for ever."""
    first, second, story = two
    sid = await story.running()
    async with holding(first) as tx:
        assert await admitting(tx, sid)
        end = asyncio.create_task(second.end(sid, "leg-1", "completed", by=None, only_if_idle=only_if_idle, now=9.0))
        await until_blocked(first, end)
    done = await end
    if only_if_idle:
        assert not done.ended and done.pending_left == 1 and done.session.status is RunStatus.RUNNING
    else:
        assert done.ended and [row.id for row in done.swept] == ["c-1"] and done.pending_left == 0


async def test_an_admission_waits_for_an_end_that_is_under_way_and_is_refused(two):
    """Order B: the end came first."""
    first, second, story = two
    sid = await story.running()
    ending = {"sid": sid, "of_leg": "leg-1", "as_what": "failed", "who": None, "why": None, "now": 9.0}
    async with holding(first) as tx:
        assert await tx.rows(sql.END, **ending)
        admission = asyncio.create_task(second.admit(sid, text="hello", by="ana", now=9.0))
        await until_blocked(first, admission)
    assert (await admission).refusal[0] == "ended"
    assert await first.list_controls() == []


async def test_an_admission_waits_for_a_resume_that_is_under_way_and_is_taken(two):
    """The first look says ended; read again, the run is running: that is no reason to refuse."""
    first, second, story = two
    sid = await story.ended()
    async with holding(first) as tx:
        resume = {"sid": sid, "dead_leg": None, "new_leg": "leg-2", "on_branch": "b", "now": 9.0}
        nothing = dict.fromkeys(("until", "budget_s", "on_host", "in_pid", "in_pid_start", "lease_s"))
        assert await tx.rows(sql.RESUME, **resume, **nothing)
        assert (await second.admit(sid, text="hello", by="ana", now=9.0)).refusal[0] == "ended"
    assert (await second.admit(sid, text="hello", by="ana", now=9.0)).control is not None


async def test_admissions_of_one_run_commit_in_the_order_of_their_numbers(two):
    first, second, story = two
    sid = await story.running()
    async with holding(first) as tx:
        (one,) = await admitting(tx, sid)
        later = asyncio.create_task(second.admit(sid, text="later", by="ben", now=9.0))
        await until_blocked(first, later)
    assert (await later).control.seq > one.seq and (await later).position == 1


async def test_one_key_from_two_places_at_once_is_one_row(two):
    first, second, story = two
    sid = await story.running()
    async with holding(first) as tx:
        (one,) = await admitting(tx, sid, idem="k")
        again = asyncio.create_task(second.admit(sid, text="c-1", by="ben", key="k", now=9.0))
        await until_blocked(first, again)
    assert (await again).duplicate and (await again).control == one


async def test_a_claim_waits_for_an_end_that_is_under_way_and_takes_nothing(two):
    first, second, story = two
    sid = await story.running()
    control = await story.pending(sid)
    ending = {"sid": sid, "of_leg": "leg-1", "as_what": "lost", "who": "reaper", "why": "gone", "now": 9.0}
    async with holding(first) as tx:
        assert await tx.rows(sql.END, **ending)
        claim = asyncio.create_task(second.claim_all(sid, "leg-1", 9.0))
        await until_blocked(first, claim)
        assert await tx.change(sql.SWEEP, sid=sid, who="reaper", why="gone", now=9.0)
    assert not await claim and not (await claim).owned
    assert (await story.row(control)).state is S.REJECTED


async def test_two_claims_of_one_leg_share_no_row(two):
    first, second, story = two
    sid = await story.running()
    control = await story.pending(sid)
    async with holding(first) as tx:
        taken = await tx.change(sql.CLAIM_ALL, sid=sid, of_leg="leg-1", token="leg-1:a", now=9.0)
        again = asyncio.create_task(second.claim_all(sid, "leg-1", 9.0))
        await until_blocked(first, again)
    assert [row.id for row in taken] == [control.id] and not await again and (await again).owned


async def test_a_resolution_that_loses_against_the_report_reports_nothing(two):
    """ADR-0108: a receipt for a write that did not land is refused, also when the reader had seen it delivering."""
    first, second, story = two
    claim = await story.claimed()
    told = {"in_turn": "t-1", "outcome": "completed", "kept": True, "why": None, "who": "leg-1", "now": 9.0}
    async with holding(first) as tx:
        assert await tx.change(sql.APPLY, token=claim.token, **told)
        resolve = asyncio.create_task(second.resolve(claim.rows[0].id, "abandoned", "ana", 9.0))
        await until_blocked(first, resolve)
    with pytest.raises(Exception, match="closed already"):
        await resolve
    assert (await story.row(claim.rows[0])).state is S.APPLIED


async def test_a_report_that_loses_against_a_resolution_is_late(two):
    first, second, story = two
    claim = await story.claimed()
    cid = claim.rows[0].id
    async with holding(first) as tx:
        assert await tx.change(sql.RESOLVE, cid=cid, seen=claim.token, as_what="abandoned", who="ana", now=9.0)
        report = asyncio.create_task(
            second.report(claim.token, turn_id="t-1", turn_outcome="completed", in_history=True, now=9.0)
        )
        await until_blocked(first, report)
    assert (await report).late == (cid,) and (await story.row(cid)).state is S.RESOLVED


@pytest.mark.parametrize("bound", [True, False], ids=["with the claim", "without"])
async def test_a_resolution_that_loses_against_a_new_hand_over_closes_nothing(two, bound):
    """V4: given back and handed over anew between what was read and the write: by the person, or by the call itself."""
    first, second, story = two
    claim = await story.claimed()
    (row,) = claim.rows
    async with holding(first) as tx:
        assert await tx.change(sql.GIVE_BACK, token=claim.token)
        taken = await tx.change(sql.CLAIM_ALL, sid=row.session_id, of_leg="leg-1", token="leg-1:b", now=9.0)
        how = {"claim": claim.token} if bound else {}
        resolve = asyncio.create_task(second.resolve(row.id, "abandoned", "ana", 9.0, **how))
        await until_blocked(first, resolve)
    with pytest.raises(Exception, match="handed over anew"):
        await resolve
    assert await story.row(row) == taken[0]


async def test_a_withdrawal_that_loses_against_the_claim_is_refused(two):
    first, second, story = two
    sid = await story.running()
    control = await story.pending(sid)
    async with holding(first) as tx:
        assert await tx.change(sql.CLAIM_ALL, sid=sid, of_leg="leg-1", token="leg-1:a", now=9.0)
        withdraw = asyncio.create_task(second.withdraw(control.id, "ana", 9.0))
        await until_blocked(first, withdraw)
    with pytest.raises(Exception, match="handed over"):
        await withdraw
    assert (await story.row(control)).state is S.DELIVERING


async def test_a_deadlock_is_repeated_and_not_shown(two):
    """Two transactions that lock two rows crosswise: the server ends one of them, which then runs again."""
    first, second, story = two
    one, other = await story.running(), await story.running()
    locked, tries = asyncio.Event(), []

    async def crossing(core, mine, theirs, gate):
        async def body(tx):
            tries.append(mine)
            await tx.rows(sql.HEARTBEAT, sid=mine, of_leg="leg-1", now=9.0)
            await gate()
            return await tx.rows(sql.HEARTBEAT, sid=theirs, of_leg="leg-1", now=9.0)

        return await core._write(body)

    barrier = asyncio.Barrier(2)

    async def meet():
        if not locked.is_set():
            await barrier.wait()
            locked.set()

    done = await asyncio.gather(crossing(first, one, other, meet), crossing(second, other, one, meet))
    assert all(done) and len(tries) == 3


async def test_many_at_once_leave_no_orphan_and_deliver_nothing_twice(two):
    first, second, story = two
    for _ in range(15):
        sid = await story.running()

        async def admit(core, sid=sid):
            return [await core.admit(sid, text="x", by="ana", now=9.0) for _ in range(4)]

        async def leg(sid=sid):
            taken = [row.id for _ in range(3) for row in (await first.claim_all(sid, "leg-1", 9.0)).rows]
            return taken, await first.end(sid, "leg-1", "completed", by=None, now=9.0)

        admitted, also, (taken, done) = await asyncio.gather(admit(first), admit(second), leg())
        rows = {row.id: row.state for row in await first.list_controls(sid)}
        assert set(rows) == {a.control.id for a in admitted + also if a.control}
        assert len(taken) == len(set(taken)) and {cid for cid in rows if rows[cid] is S.DELIVERING} == set(taken)
        assert {cid for cid in rows if rows[cid] is S.REJECTED} == {row.id for row in done.swept}
        assert S.PENDING not in rows.values()


# --- SQLite: one writer, from two processes' point of view ------------------------------------------------------


async def test_on_sqlite_a_second_store_waits_for_the_first_ones_transaction(file_location, opened, make_story):
    first, second = await opened(file_location), await opened(file_location)
    sid = await make_story(first).running()
    async with holding(first) as tx:
        assert await admitting(tx, sid)
        end = asyncio.create_task(second.end(sid, "leg-1", "completed", by=None, now=9.0))
        assert await second.list_controls(sid) == []  # a reader waits for nobody and sees what was committed
        assert not end.done()
    assert [row.id for row in (await end).swept] == ["c-1"]


async def test_writers_of_one_store_are_served_in_the_order_of_their_arrival(core, story):
    sid, order = await story.running(), []

    async def send(i):
        await core.admit(sid, text=f"m{i}", by="ana", now=1.0)
        order.append(i)

    await asyncio.gather(*(send(i) for i in range(20)))
    assert order == list(range(20)) and [row.text for row in await core.list_controls(sid)] == [f"m{i}" for i in order]
