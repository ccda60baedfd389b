"""A run goes on under a new leg: who may take it, and what is queued again, in one transaction."""

from __future__ import annotations

import asyncio
import os

import pytest
import sqlalchemy as sa

from lionnb.records import ControlState, RunStatus
from lionnb.store import locate
from lionnb.store import statements as sql
from lionnb.store.lease import identity
from tests.store.conftest import session_spec
from tests.store.test_lease import OTHER_HOST
from tests.store.test_store_race import holding, until_blocked

S = ControlState
GONE = {"pid_start": "1"}  # this pid, and a process that began at another tick


async def reopen(core, story, sid, leg="leg-2", *, resend=True, instructed=False, **how):
    spec = session_spec(id=sid, leg=leg, **identity())
    return await core.reopen(spec, resend=resend, instructed=instructed, now=story.now, **how)


async def states(core, sid):
    return [row.state.value for row in await core.list_controls(sid)]


# --- what is queued again ---------------------------------------------------------------------------------------


async def test_what_the_sweep_rejected_is_queued_again_in_its_order_by_its_author(core, story):
    sid = await story.running()
    for text, by in (("first", "ana"), ("second", "ben")):
        await core.admit(sid, text=text, by=by, key=text, now=story.now)
    await core.end(sid, "leg-1", "failed", by=None, now=story.now)
    got = await reopen(core, story, sid)
    old, new = (await core.list_controls(sid))[:2], got.queued
    assert (got.session.status, got.session.leg, got.refusal) == (RunStatus.RUNNING, "leg-2", None)
    assert [(row.text, row.created_by, row.resent_from) for row in new] == [
        ("first", "ana", old[0].id),
        ("second", "ben", old[1].id),
    ]
    assert {row.state for row in old} == {S.REJECTED} and list((await core.list_controls(sid))[2:]) == list(new)
    assert [row.id for row in (await core.claim_all(sid, "leg-2", story.now)).rows] == [row.id for row in new]


async def test_only_what_was_rejected_is_queued_again(core, story):
    """Withdrawn, resolved, applied and delivering rows never are; pending ones are the new leg's as they are."""
    sid = await story.running()
    applied = await story.claimed(sid)
    await story.report(applied.token)
    delivering, resolved = await story.claimed(sid), await story.claimed(sid)
    await core.resolve(resolved.rows[0].id, "abandoned", "ana", story.now)
    await core.withdraw((await story.pending(sid)).id, "ana", story.now)
    left = await story.pending(sid)
    await core.end(sid, "leg-1", "timed_out", by=None, sweep=False, now=story.now)
    before = await core.list_controls(sid)
    got = await reopen(core, story, sid)
    assert await core.list_controls(sid) == before and [row.id for row in got.queued] == [left.id]
    assert (await story.row(delivering.rows[0])).claim == delivering.token


async def test_however_often_it_is_resumed_each_is_queued_again_once(core, story):
    sid = await story.ended("failed", pending=2)
    await reopen(core, story, sid)
    await core.claim_all(sid, "leg-2", story.now)
    await core.end(sid, "leg-2", "failed", by=None, now=story.now)
    got = await reopen(core, story, sid, "leg-3")
    assert got.session is None and got.refusal[0] == "nothing"
    assert (await core.get_session(sid)).status is RunStatus.FAILED
    assert await states(core, sid) == ["rejected"] * 2 + ["delivering"] * 2


async def test_one_that_is_rejected_again_is_followed_by_one_more(core, story):
    sid = await story.ended("failed", pending=1)
    for leg in ("leg-2", "leg-3"):
        await reopen(core, story, sid, leg)
        await core.end(sid, leg, "failed", by=None, now=story.now)
    rows = await core.list_controls(sid)
    assert [row.resent_from for row in rows] == [None, rows[0].id, rows[1].id]
    assert [row.key for row in rows[1:]] == [f"resent:{row.id}" for row in rows[:2]]


async def test_a_key_that_somebody_used_does_not_keep_a_steer_from_being_sent_again(core, story):
    sid = await story.running()
    swept = await story.pending(sid, "mine")
    await story.pending(sid, "cunning", key=f"resent:{swept.id}")
    await core.end(sid, "leg-1", "failed", by=None, now=story.now)
    got = await reopen(core, story, sid)
    assert [row.resent_from for row in got.queued] == [row.id for row in (await core.list_controls(sid))[:2]]
    assert (got.queued[0].text, got.queued[0].resent_from, len(got.queued)) == ("mine", swept.id, 2)


async def test_without_resend_nothing_is_queued_and_with_an_instruction_nothing_needs_to_be(core, story):
    sid = await story.ended("failed", pending=1)
    assert (await reopen(core, story, sid, resend=False)).refusal[0] == "nothing"
    got = await reopen(core, story, sid, resend=False, instructed=True)
    assert got.session.leg == "leg-2" and got.queued == () and await states(core, sid) == ["rejected"]


async def test_twice_with_one_token_is_once(core, story):
    """Its answer may be lost on the way."""
    sid = await story.ended("failed", pending=1)
    first, second = await reopen(core, story, sid), await reopen(core, story, sid)
    assert first.queued == second.queued and second.session.leg == "leg-2" and len(await core.list_controls(sid)) == 2


# --- who may ----------------------------------------------------------------------------------------------------


async def test_a_live_leg_keeps_its_run_and_is_named(core, story):
    sid = await story.running(**identity())
    got = await reopen(core, story, sid, instructed=True)
    assert got.session is None and got.refusal[0] == "live"
    assert "leg-1" in got.refusal[1] and str(os.getpid()) in got.refusal[1]
    assert (await core.get_session(sid)).leg == "leg-1"
    assert (await reopen(core, story, sid, instructed=True, anyway=True)).refusal[0] == "live", "no word takes it"


async def test_a_dead_legs_run_is_taken_with_what_is_pending_and_what_it_holds_stays(core, story):
    sid = await story.running(**identity() | GONE)
    held = await core.claim_all(sid, "leg-1", story.now)
    spec = (await core.get_session(sid)).status
    assert not held.rows and spec is RunStatus.RUNNING
    got = await reopen(core, story, sid, instructed=True)
    assert got.session.leg == "leg-2" and got.session.ended_at is None


async def test_a_leg_that_the_caller_knows_to_have_ended_is_no_hindrance(core, story):
    sid = await story.running(**identity())
    await story.pending(sid)
    got = await reopen(core, story, sid, ended_legs={"leg-1"})
    assert got.session.leg == "leg-2" and len(got.queued) == 1
    assert not (await core.end(sid, "leg-1", "completed", by=None, now=story.now)).ended, "its late end is fenced"


async def test_a_silent_leg_elsewhere_is_taken_on_a_word_only_and_a_fresh_one_never(core, story):
    sid = await story.running(host=OTHER_HOST, pid=7, pid_start="8", ttl_s=0.5)
    assert (await reopen(core, story, sid, instructed=True)).refusal[0] == "silent"
    assert (await reopen(core, story, sid, instructed=True, anyway=True)).session.leg == "leg-2"
    other = await story.running(host=OTHER_HOST, pid=7, pid_start="8", ttl_s=10_000.0)
    for anyway in (False, True):
        assert (await reopen(core, story, other, instructed=True, anyway=anyway)).refusal[0] == "live"


async def test_an_unknown_run_and_one_that_is_no_agents_are_refused(core, story):
    assert (await reopen(core, story, "nobody", instructed=True)).refusal[0] == "unknown"
    for fields in ({"kind": "flow"}, {"run_id": ""}):
        sid = await story.running(**fields)
        await core.end(sid, "leg-1", "failed", by=None, now=story.now)
        assert (await reopen(core, story, sid, instructed=True)).refusal[0] == "kind"
    assert await core.list_controls() == []


@pytest.mark.postgres
async def test_of_two_that_want_a_run_one_gets_it_and_the_other_is_told_whose_it_is(pg_emptied_url, opened, make_story):
    """The second waits for the first one's lock, and reads what that has written."""
    first, second = await opened(locate(pg_emptied_url)), await opened(locate(pg_emptied_url))
    story = make_story(first)
    sid = await story.ended("failed", pending=1)
    async with holding(first) as tx:
        assert await tx.sessions(sql.LOCK_SESSION, sid=sid)
        late = asyncio.create_task(reopen(second, story, sid, "leg-3"))
        await until_blocked(first, late)
        binds = dict.fromkeys(("until", "budget_s", "lease_s", "dead_leg"))
        me = identity()
        where = {"on_host": me["host"], "in_pid": me["pid"], "in_pid_start": me["pid_start"], "on_branch": "b"}
        assert await tx.rows(sql.RESUME, sid=sid, new_leg="leg-2", now=1.0, **where, **binds)
    got = await late
    assert got.refusal[0] == "live" and "leg-2" in got.refusal[1] and await states(first, sid) == ["rejected"]


# --- what a later kernel goes on with ---------------------------------------------------------------------------


async def test_one_history_a_run_is_kept_by_its_owner_and_purged_with_it(core, story):
    sid = await story.running()
    assert await core.get_snapshot(sid) is None
    for text in ('{"a": 1}', '{"a": "\\u0000"}'):
        assert await core.put_snapshot(sid, "leg-1", text, story.now)
        assert await core.get_snapshot(sid) == text
    assert not await core.put_snapshot(sid, "leg-2", "{}", story.now)
    await core.end(sid, "leg-1", "failed", by=None, now=story.now)
    assert not await core.put_snapshot(sid, "leg-1", "{}", story.now)
    assert await core.get_snapshot(sid) == '{"a": "\\u0000"}'
    assert (await core.purge(story.now + 1, story.now + 1)).sessions == 1
    assert await core.get_snapshot(sid) is None


async def test_a_database_without_histories_gets_the_table_and_keeps_what_it_has(location, opened, make_story):
    """From version 2; on every database."""
    if location.kind == "memory":
        return
    core = await opened(location)
    sid = await make_story(core).ended()
    async with core._engine.begin() as connection:
        await connection.execute(sa.text("DROP TABLE snapshots"))
        await connection.execute(sa.text("UPDATE lionnb_meta SET version = 2"))
    migrated = await opened(location)
    assert (await migrated.get_session(sid)).id == sid and await migrated.get_snapshot(sid) is None
    assert (await migrated.reopen(session_spec(id=sid, leg="leg-2"), resend=True, instructed=True, now=9.0)).session
    assert await migrated.put_snapshot(sid, "leg-2", "{}", 9.0)
