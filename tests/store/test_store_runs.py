"""A run's life, on every back end: who owns it, how it ends, what its end does to the controls."""

from __future__ import annotations

import pytest

from lionnb.errors import IllegalTransitionError, StoreError
from lionnb.records import ControlState, RunStatus, SessionSpec

S = ControlState
ENDINGS = [status.value for status in RunStatus if status is not RunStatus.RUNNING]


def _spec(**fields) -> SessionSpec:
    made = {"id": "s-1", "run_id": "20261130T101010-abcdef", "branch_id": "b-1", "leg": "leg-1", "created_at": 1.0}
    return SessionSpec(**made | fields)


# --- start ------------------------------------------------------------------------------------------------------


async def test_a_run_is_stored_as_its_leg_described_it(core):
    spec = _spec(
        name="survey", instruction="Survey X", created_by="ana", deadline_at=900.0, timeout_s=600.0, host="linux:boot:ns",
        pid=2**40, pid_start="12345", ttl_s=15.0, resent_from="s-0",
    )  # fmt: skip
    stored = await core.start_session(spec, 2.0)
    assert stored.model_dump(include=set(SessionSpec.model_fields)) == spec.model_dump()
    assert (stored.status, stored.heartbeat_at, stored.ended_at) == (RunStatus.RUNNING, 2.0, None)
    assert stored == await core.get_session("s-1") and not stored.terminal


async def test_registering_twice_with_one_token_is_one_run(core):
    first = await core.start_session(_spec(), 2.0)
    assert await core.start_session(_spec(), 3.0) == first


async def test_an_id_that_is_another_legs_is_refused_and_unchanged(core):
    first = await core.start_session(_spec(), 2.0)
    with pytest.raises(StoreError, match="there already"):
        await core.start_session(_spec(leg="leg-2"), 3.0)
    assert await core.get_session("s-1") == first


async def test_runs_are_listed_in_order_and_narrowed(core, story):
    one = await story.running(branch_id="b-1", name="survey", created_at=9.0)
    two = await story.running(branch_id="b-2", name="survey", created_at=1.0)
    await core.end(one, "leg-1", "completed", by=None, now=story.now)

    async def listed(*args, **how):
        return [session.id for session in await core.list_sessions(*args, **how)]

    assert await listed() == [one, two] == await listed(name="survey")
    assert await listed(branch_id="b-2") == [two] == await listed(running=True) == await listed([two, "nobody"])
    assert await listed(running=False) == [one] == await listed(running=False, branch_id="b-1")
    assert await listed([]) == [] and await core.get_session("nobody") is None


# --- heartbeat --------------------------------------------------------------------------------------------------


async def test_only_the_leg_that_runs_it_renews_the_lease(core, story):
    sid = await story.running()
    assert await core.heartbeat(sid, "leg-1", 77.0) and (await core.get_session(sid)).heartbeat_at == 77.0
    assert not await core.heartbeat(sid, "leg-2", 78.0)
    await core.end(sid, "leg-1", "completed", by=None, now=79.0)
    assert not await core.heartbeat(sid, "leg-1", 80.0)
    assert (await core.get_session(sid)).heartbeat_at == 77.0


# --- end and sweep ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ENDINGS)
async def test_the_end_records_who_and_why_and_frees_the_run(core, story, status):
    sid = await story.running()
    done = await core.end(sid, "leg-1", status, by="ana", note="enough", now=90.0)
    stored = await core.get_session(sid)
    assert done.ended and done.session == stored and stored.terminal
    assert (stored.status, stored.leg, stored.ended_at, stored.ended_by, stored.ended_note) == (
        status, None, 90.0, "ana", "enough",
    )  # fmt: skip


async def test_the_end_rejects_what_nobody_claimed_and_nothing_else(core, story):
    """S4 and ADR-0108: a claimed row is never resolved by anything but its claimant."""
    sid, other = await story.running(), await story.running()
    claim = await story.claimed(sid)
    withdrawn = await core.withdraw((await story.pending(sid)).id, "ana", story.now)
    pending, elsewhere = [await story.pending(sid), await story.pending(sid)], await story.pending(other)
    done = await core.end(sid, "leg-1", "timed_out", by="leg-1", now=90.0)
    assert [row.id for row in done.swept] == [row.id for row in pending] and done.pending_left == 0
    for row in done.swept:
        assert (row.state, row.closed_at, row.handed_over_at, row.claim) == (S.REJECTED, 90.0, None, None)
        assert "timed_out" in row.note and "lionnb.resume(" in row.note and row == await story.row(row)
    assert await story.row(claim.rows[0]) == claim.rows[0]
    assert await story.row(withdrawn) == withdrawn and (await story.row(elsewhere)).state is S.PENDING


async def test_another_leg_ends_nothing(core, story):
    sid = await story.running()
    await story.pending(sid)
    done = await core.end(sid, "leg-2", "failed", by="leg-2", now=story.now)
    assert not done.ended and done.session.status is RunStatus.RUNNING and done.pending_left == 1 and not done.swept


async def test_a_run_ends_once(core, story):
    sid = await story.ended("failed")
    before = await core.get_session(sid)
    done = await core.end(sid, "leg-1", "completed", by="leg-1", now=story.now)
    assert not done.ended and done.session == before == await core.get_session(sid)


async def test_ending_an_unknown_run_ends_nothing(core, story):
    done = await core.end("nobody", "leg-1", "completed", by=None, now=story.now)
    assert not done.ended and done.session is None


@pytest.mark.parametrize("status", ["running", "asleep"])
async def test_a_run_ends_in_a_terminal_status(core, story, status):
    sid = await story.running()
    with pytest.raises((ValueError, IllegalTransitionError)):
        await core.end(sid, "leg-1", status, by=None, now=story.now)
    assert (await core.get_session(sid)).status is RunStatus.RUNNING


async def test_an_end_without_sweep_leaves_the_queue_to_the_next_leg(core, story):
    sid = await story.running()
    control = await story.pending(sid)
    done = await core.end(sid, "leg-1", "timed_out", by=None, sweep=False, now=story.now)
    assert done.ended and done.pending_left == 1 and not done.swept
    assert (await core.resume_session(_spec(id=sid, leg="leg-2"), now=story.now)).leg == "leg-2"
    assert [row.id for row in (await core.claim_all(sid, "leg-2", story.now)).rows] == [control.id]


async def test_an_end_that_waits_for_idleness_does_nothing_while_a_steer_is_pending(core, story):
    sid = await story.running()
    control = await story.pending(sid)
    done = await core.end(sid, "leg-1", "completed", by=None, only_if_idle=True, now=story.now)
    assert not done.ended and done.pending_left == 1 and done.session.status is RunStatus.RUNNING
    assert (await story.row(control)).state is S.PENDING
    await core.claim_all(sid, "leg-1", story.now)
    assert (await core.end(sid, "leg-1", "completed", by=None, only_if_idle=True, now=story.now)).ended


async def test_a_foreign_leg_learns_that_it_does_not_own_the_run_also_when_idle(core, story):
    sid = await story.running()
    assert not (await core.end(sid, "leg-2", "completed", by=None, only_if_idle=True, now=story.now)).ended


async def test_a_lost_run_is_swept_and_its_leg_is_fenced(core, story):
    sid = await story.running()
    claim, queued = await story.claimed(sid), await story.pending(sid)
    done = await core.mark_lost(sid, "leg-1", "its process is gone", "reaper", story.now)
    assert done.ended and done.session.status is RunStatus.LOST and [row.id for row in done.swept] == [queued.id]
    assert not (await core.claim_all(sid, "leg-1", story.now)).owned
    assert (await story.row(claim.rows[0])).state is S.DELIVERING


async def test_a_stale_proof_cannot_end_a_run_that_another_leg_took(core, story):
    sid = await story.running("leg-1")
    await core.resume_session(_spec(id=sid, leg="leg-2"), dead_leg="leg-1", now=story.now)
    done = await core.mark_lost(sid, "leg-1", "its process is gone", "reaper", story.now)
    assert not done.ended and done.session.leg == "leg-2"


# --- resume -----------------------------------------------------------------------------------------------------


async def test_a_resumed_run_is_the_same_row_with_a_new_leg(core, story):
    sid = await story.ended("failed")
    new = _spec(id=sid, leg="leg-2", deadline_at=999.0, timeout_s=60.0, host="h", pid=7, pid_start="8", ttl_s=9.0)
    before = await core.get_session(sid)
    after = await core.resume_session(new, now=95.0)
    assert after == await core.get_session(sid)
    fresh = {"leg", "branch_id", "deadline_at", "timeout_s", "host", "pid", "pid_start", "ttl_s"}
    assert after.model_dump(include=fresh) == new.model_dump(include=fresh)
    assert (after.status, after.heartbeat_at, after.ended_at, after.ended_by) == (RunStatus.RUNNING, 95.0, None, None)
    same = {"id", "run_id", "kind", "created_at", "instruction", "name"}
    assert after.model_dump(include=same) == before.model_dump(include=same)
    assert (await core.admit(sid, text="go on", by="ana", now=96.0)).control is not None


async def test_a_running_run_is_taken_only_from_the_leg_that_was_proven_dead(core, story):
    sid = await story.running("leg-1")
    assert await core.resume_session(_spec(id=sid, leg="leg-2"), now=story.now) is None
    assert await core.resume_session(_spec(id=sid, leg="leg-2"), dead_leg="leg-0", now=story.now) is None
    assert (await core.get_session(sid)).leg == "leg-1"
    assert (await core.resume_session(_spec(id=sid, leg="leg-2"), dead_leg="leg-1", now=story.now)).leg == "leg-2"
    assert not await core.heartbeat(sid, "leg-1", story.now)


async def test_resuming_an_unknown_run_makes_none(core, story):
    assert await core.resume_session(_spec(id="nobody"), now=story.now) is None
    assert await core.list_sessions() == []


async def test_what_a_dead_leg_holds_stays_with_its_claim(core, story):
    sid = await story.running("leg-1")
    claim = await story.claimed(sid)
    await core.resume_session(_spec(id=sid, leg="leg-2"), dead_leg="leg-1", now=story.now)
    assert not await core.claim_all(sid, "leg-2", story.now)
    assert (await story.report(claim.token)).landed == (claim.rows[0].id,)


# --- purge ------------------------------------------------------------------------------------------------------


async def test_a_purge_removes_old_runs_with_everything_that_belongs_to_them(core, story, turn, event):
    old, young, live = await story.running(), await story.running(), await story.running()
    for sid in (old, young, live):
        await story.pending(sid)
        await core.put_turn(turn(f"turn-{sid}", session_id=sid), story.now)
        await core.put_signals("b-1", [event(1)], session_id=sid)
    await core.end(old, "leg-1", "completed", by=None, now=100.0)
    await core.end(young, "leg-1", "completed", by=None, now=200.0)
    gone = await core.purge(before=150.0, now=300.0)
    assert (gone.sessions, gone.controls, gone.turns, gone.signals, gone.kept_unresolved) == (1, 1, 1, 1, 0)
    assert {session.id for session in await core.list_sessions()} == {young, live}
    assert {row.session_id for row in await core.list_controls()} == {young, live}
    assert {row.session_id for row in await core.list_turns()} == {young, live}
    assert len(await core.list_signals()) == 2


async def test_a_purge_keeps_what_waits_for_a_person(core, story):
    sid = await story.running()
    claim = await story.claimed(sid)
    await core.end(sid, "leg-1", "failed", by=None, now=100.0)
    assert await core.purge(before=150.0, now=300.0) == type(await core.purge(before=0.0, now=0.0))(0, 0, 0, 0, 1)
    await core.resolve(claim.rows[0].id, "abandoned", "ana", story.now)
    gone = await core.purge(before=150.0, now=300.0)
    assert (gone.sessions, gone.controls, gone.kept_unresolved) == (1, 1, 0)


async def test_a_purge_removes_turns_outside_of_runs_by_their_own_age(core, story, turn, event):
    await core.put_turn(turn("old", ended_at=100.0), 1.0)
    await core.put_turn(turn("young", ended_at=200.0), 1.0)
    await core.put_signals("b-1", [event(1, at=100.0), event(2, at=200.0)])
    gone = await core.purge(before=150.0, now=300.0)
    assert (gone.turns, gone.signals) == (1, 1)
    assert [row.turn_id for row in await core.list_turns()] == ["young"]


async def test_a_purge_into_the_future_stops_at_the_present(core, story):
    sid = await story.running()
    await core.end(sid, "leg-1", "completed", by=None, now=250.0)
    assert (await core.purge(before=10_000.0, now=200.0)).sessions == 0


async def test_a_purged_number_never_comes_back(core, story):
    sid = await story.running()
    first = await story.pending(sid)
    await core.end(sid, "leg-1", "completed", by=None, now=100.0)
    await core.purge(before=150.0, now=300.0)
    assert (await story.pending()).seq > first.seq


async def test_a_purge_of_many_runs_is_one_transaction(core, story):
    for _ in range(3):
        await story.ended()
    assert (await core.purge(before=2e9, now=2e9)).sessions == 3


async def test_a_swept_row_names_what_ended_the_run(core, story):
    """The cap, the deadline, the error: whoever sent it learns more than a status; a long one is cut."""
    for note, said in (("max_turns=3 was reached", "completed: max_turns=3 was reached"), (None, "completed")):
        sid = await story.running()
        row = await story.pending(sid)
        await core.end(sid, "leg-1", "completed", by="leg-1", note=note, now=story.now)
        assert (await story.row(row)).note.startswith(f"the run ended ({said}) before the steer could land")
    sid = await story.running()
    row = await story.pending(sid)
    await core.end(sid, "leg-1", "failed", by="leg-1", note="x" * 9_000, now=story.now)
    assert len((await story.row(row)).note) < 400


async def test_only_the_runs_own_leg_sets_its_deadline(core, story):
    sid = await story.running()
    assert not await core.clock_runs(sid, "leg-2", 77.0) and (await core.get_session(sid)).deadline_at is None
    assert await core.clock_runs(sid, "leg-1", 77.0) and (await core.get_session(sid)).deadline_at == 77.0
    await core.end(sid, "leg-1", "completed", by="leg-1", now=story.now)
    assert not await core.clock_runs(sid, "leg-1", 99.0) and (await core.get_session(sid)).deadline_at == 77.0
