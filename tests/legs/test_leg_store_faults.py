"""A store that is slow, locked, broken or gone: the agent works on, and nothing that is recorded is false."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading

import pytest

import lionnb
from lionnb.errors import SteerRefusedError, StoreError
from lionnb.legs import course as course_module
from lionnb.legs import drain, run
from lionnb.legs.states import LegPhase, TurnEnd
from lionnb.records import Fate, RunStatus
from lionnb.store import store as store_module
from tests.legs.story import HookedStore, ended, heard, spend

pytestmark = pytest.mark.databases


class Patience:
    """How long the drain, and the leg itself, wait for the store: not at all, or for ever.

    What a test holds is held until the test lets go, so no clock decides anything.
    """

    def __init__(self, monkeypatch):
        self._set = monkeypatch.setattr
        self.drain(None)
        self.leg(None)

    def drain(self, limit_s):
        self._set(drain, "STORE_LIMIT_S", limit_s)

    def leg(self, limit_s):
        self._set(course_module, "STORE_LIMIT_S", limit_s)
        self._set(run, "STORE_LIMIT_S", limit_s)


@pytest.fixture
def patience(monkeypatch):
    return Patience(monkeypatch)


def lock(store):
    """A second connection that holds the database, as another program would."""
    other = sqlite3.connect(store.location.address, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def lose_answer(store, name):
    """Let the first *name* land, and its answer be lost."""
    lost = []

    async def hook(operation, *args, **kwargs):
        answer = await operation(*args, **kwargs)
        if not lost:
            lost.append(answer)
            raise StoreError("the server does not answer.")
        return answer

    store.hooks[name] = hook


# ---------------------------------------------------------------------- it cannot be opened
async def test_without_a_store_the_leg_runs_and_a_steer_is_refused_with_its_sentence(scene, tmp_path, caplog):
    (tmp_path / "notes.txt").write_text("not a database" * 99)
    s = scene()
    s.store = HookedStore(tmp_path / "notes.txt")
    leg = s.leg()
    await s.working()
    with pytest.raises(SteerRefusedError, match="not a database") as caught:
        leg.steer("anybody?")
    assert caught.value.reason == "store"
    s.answer_all()
    result = await leg
    assert (result.status, result.value) == (RunStatus.COMPLETED, "one")
    assert ".:" not in repr(result) and str(tmp_path / "notes.txt") in repr(result)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("lionnb.legs")]
    first, last = said  # once what it means, and once what became of the record, however much was tried between
    assert "cannot be steered: " in first and "the end of leg" in last
    assert await heard(leg.feed, lambda e: e.kind == "warning" and "cannot be steered" in e.data["text"])
    s.store.close()


async def test_a_store_that_opens_later_makes_the_leg_steerable(scene):
    """The run is registered with the first call that gets through."""
    s = scene()
    s.store.hooks["open"] = refuse = Refuse(StoreError("not yet"))
    leg = s.leg()
    await s.working()
    with pytest.raises(SteerRefusedError, match="not yet"):
        leg.steer("anybody?")
    refuse.error = None
    receipt = leg.steer("and now?")
    s.answer_all()
    await leg
    assert (await receipt).fate is Fate.APPLIED and s.run(leg).status is RunStatus.COMPLETED


class Refuse:
    def __init__(self, error):
        self.error = error

    async def __call__(self, *args, **kwargs):
        if self.error is not None:
            raise self.error


async def test_a_store_that_was_closed_ends_no_agents_run(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("pending for ever, and told so")
    s.store.close()
    with pytest.raises(SteerRefusedError, match="closed"):
        leg.steer("anybody?")
    s.answer_all()
    result = await leg
    assert result.status is RunStatus.COMPLETED and result.value == "one"
    assert leg.receipts[0].fate is Fate.NEVER_LANDED and leg.receipts[0].settled


async def test_a_driver_that_fails_unexpectedly_ends_no_agents_run(scene, caplog):
    s = scene()
    s.store.fail("start_session", KeyError("a bug"))
    leg = s.leg()
    s.answer_all()
    assert (await leg).value == "one"
    assert "failed unexpectedly" in caplog.text


# ---------------------------------------------------------------------- it is slow
async def test_a_run_that_is_slow_to_be_registered_holds_no_agent_up(scene, patience):
    """d18: The first turn works, and ends, before the row is there. The leg never idles; its record is written late."""
    s = scene()
    patience.leg(0)
    start = s.store.hold("start_session")
    leg = s.leg()
    receipt = leg.steer("as soon as you can")
    assert receipt.fate is None and receipt.sentence == "being recorded"
    await s.answer()
    await ended(leg)  # nothing could be asked of the store: the leg does not idle
    assert receipt.fate is None and not receipt.settled
    start.open()
    leg.flush(10)
    assert s.run(leg).status is RunStatus.COMPLETED  # written late, and written
    assert (await receipt).fate in (Fate.REJECTED, Fate.REFUSED) and leg.status is RunStatus.COMPLETED


async def test_a_claim_that_is_not_answered_delivers_nothing_and_gives_back_what_comes(scene, patience):
    """Rows that come too late have no taker: the control thread returns them before the leg's next call."""
    s = scene()
    patience.drain(0)
    leg = s.leg()
    await s.working()
    receipt = leg.steer("patience")
    fates = []
    unwatch = s.store.watch(leg.session_id, lambda row: fates.append(row.state.value))
    claim = s.store.hold("claim_all")
    s.answer_all()
    await heard(leg.feed, lambda e: any(t.end is TurnEnd.NOTHING for t in leg.turns))
    assert receipt.fate is Fate.PENDING and len(s.requests) == 1
    patience.drain(None)
    claim.open()
    result = await leg
    unwatch()
    assert fates == ["delivering", "pending", "delivering", "applied"]
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED, TurnEnd.NOTHING, TurnEnd.RETURNED]
    assert s.last(1).count("> patience") == 1 and (await receipt).fate is Fate.APPLIED


async def test_a_database_that_another_program_locks_leaves_the_steer_pending(scene, tmp_path):
    """The claim fails with a sentence; when the lock is gone the steer lands, or the sweep says that it did not."""
    s = scene()
    s.store = HookedStore(tmp_path / "locked.sqlite", wait_s=0.01)
    leg = s.leg()
    await s.working()
    receipt = leg.steer("patience")
    other = None
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def claim_under_lock(claim, *args, **how):
        nonlocal other
        if other is None:
            other = lock(s.store)
            try:
                return await claim(*args, **how)
            finally:
                other.execute("ROLLBACK")
                other.close()
                loop.call_soon_threadsafe(tried.set)
        return await claim(*args, **how)

    s.store.hooks["claim_all"] = claim_under_lock
    s.answer_all()
    await tried.wait()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED, TurnEnd.NOTHING, TurnEnd.RETURNED]
    assert (await receipt).fate is Fate.APPLIED and s.last(1).count("> patience") == 1
    s.store.close()


@pytest.mark.parametrize("fails", [1, 2, 3, 9])
async def test_a_claim_that_fails_is_tried_again_but_not_for_ever(scene, fails):
    """A leg never idles and never spins: after three failures it ends, and the sweep says that nothing landed."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("patience")
    s.store.fail("claim_all", *[StoreError("no right to update")] * fails)
    s.answer_all()
    result = await leg
    await receipt
    assert result.status is RunStatus.COMPLETED and [t.end for t in result.turns].count(TurnEnd.NOTHING) == min(
        fails, 3
    )
    if fails < 3:
        assert receipt.fate is Fate.APPLIED and result.value == "two"
    else:
        assert receipt.fate is Fate.REJECTED and result.value == "one"
        assert result.note == "the pending steers could not be taken: no right to update"


# ---------------------------------------------------------------------- a report is not taken
async def test_a_report_that_fails_is_tried_again_before_the_leg_ends(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("more")
    s.store.fail("report", StoreError("locked"))
    s.answer_all()
    await leg
    (row,) = s.rows(leg)
    assert (row.state, row.turn_outcome) == ("applied", "completed")
    assert (await receipt).fate is Fate.APPLIED and s.store.said.count("report") == 2


async def test_a_report_that_is_only_late_is_not_sent_twice(scene, patience, caplog):
    """A second one would find the rows closed, by the first: and would be told as somebody else's."""
    s = scene()
    patience.leg(10)
    leg = s.leg()
    await s.working()
    receipt = leg.steer("more")
    report = s.store.hold("report")
    await s.answer()
    await s.working()
    patience.drain(0)
    s.answer_all()
    await report.reached()
    await heard(leg.feed, lambda e: len(leg.turns) == 2)
    patience.drain(None)
    report.open()
    await leg
    leg.flush(10)
    assert (await receipt).settled and s.states(leg) == ["applied"] and s.store.said.count("report") == 1
    assert "by somebody else" not in caplog.text


async def test_a_report_that_never_gets_through_leaves_a_question_to_a_person(scene):
    """What was delivered must not read as rejected: claimed, and never reported back."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("more")
    s.store.fail("report", *[StoreError("locked")] * 9)
    s.answer_all()
    await leg
    assert s.states(leg) == ["delivering"] and (await receipt).fate is Fate.NEVER_REPORTED
    said = await heard(leg.feed, lambda e: e.kind == "steer" and e.data["chip"] == "needs you")
    assert "never reported back" in said.data["sentence"] and "resolve" in receipt.sentence


async def test_a_person_who_resolves_a_row_meanwhile_is_not_overwritten(scene, caplog):
    """S5: the holder finds its row resolved, writes a late report, and says so."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("more")
    await s.answer()
    await s.working()
    s.store.ask(lambda core: core.resolve(receipt.control_id, "abandoned", "ana", 5.0))
    s.answer_all()
    result = await leg
    (row,) = s.rows(leg)
    assert (row.state, row.note, row.closed_by) == ("resolved", "abandoned", "ana")
    assert result.turns[1].turn_id in row.late_report and "by somebody else" in caplog.text
    assert (await receipt).fate is Fate.RESOLVED and "later its leg reported" in receipt.sentence


# ---------------------------------------------------------------------- a give-back is not taken
async def test_a_give_back_that_fails_is_tried_again(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("nearly")
    claim = s.store.hold("claim_all")
    s.store.fail("give_back", StoreError("locked"))
    s.answer_all()
    await claim.reached()
    leg.stop()
    await asyncio.sleep(0)
    claim.open()
    await leg
    assert s.states(leg) == ["rejected"] and (await receipt).fate is Fate.REJECTED
    assert s.store.said.count("give_back") == 2


async def test_a_late_claim_whose_give_back_fails_is_given_back_at_the_end(scene, patience):
    s = scene()
    patience.drain(0)
    leg = s.leg()
    await s.working()
    leg.steer("nearly")
    claim = s.store.hold("claim_all")
    s.store.fail("give_back", StoreError("locked"))
    s.answer_all()
    await heard(leg.feed, lambda e: any(t.end is TurnEnd.NOTHING for t in leg.turns))
    patience.drain(None)
    claim.open()
    await leg
    leg.flush(10)
    assert "delivering" not in s.states(leg)


# ---------------------------------------------------------------------- the end is not taken
@pytest.mark.parametrize("fails", [1, 2, 3, 4])
async def test_what_is_pending_is_not_rejected_because_the_store_failed_once_but_no_leg_waits_for_ever(scene, fails):
    """S1: asked whether anything is pending, the store fails: three times it is asked; then the run ends, with its
    sweep, which is tried three times, too."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("pending")
    s.store.fail("end", *[StoreError("locked")] * fails)
    s.answer_all()
    result = await leg
    await receipt
    assert result.status is RunStatus.COMPLETED and s.run(leg).status is RunStatus.COMPLETED
    if fails < 3:
        assert receipt.fate is Fate.APPLIED and len(s.requests) == 2 and result.note is None
    else:
        assert receipt.fate is Fate.REJECTED and len(s.requests) == 1 and "unknown: locked" in result.note


async def test_an_end_whose_answer_was_lost_is_known_to_be_ones_own(scene):
    """It is asked again, and finds the run ended: by this very leg, so nobody has taken it over."""
    s = scene()
    leg = s.leg()
    lose_answer(s.store, "end")
    s.answer_all()
    result = await leg
    assert (result.status, result.note, result.value) == (RunStatus.COMPLETED, None, "one")
    assert s.run(leg).ended_by == leg._run.token and s.store.said.count("end") == 2


async def test_a_report_whose_answer_was_lost_is_known_to_be_ones_own(scene, caplog):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("more")
    lose_answer(s.store, "report")
    s.answer_all()
    await leg
    assert (await receipt).fate is Fate.APPLIED and s.store.said.count("report") == 2
    assert "could not be recorded yet" in caplog.text and "somebody else" not in caplog.text


async def test_a_registration_whose_answer_was_lost_and_that_has_ended_meanwhile_is_known_to_be_ones_own(scene):
    s = scene()
    lose_answer(s.store, "start_session")
    leg = s.leg()
    await s.working()
    s.store.ask(lambda core: core.mark_lost(leg.session_id, leg._run.token, "no sign of life", "ben", 9.0))
    with pytest.raises(SteerRefusedError, match="has ended"):
        leg.steer("anybody?")
    s.answer_all()
    assert (await leg).status is RunStatus.LOST


@pytest.mark.parametrize("how", ["stopped", "out of time"])
async def test_a_leg_that_must_end_anyway_does_not_ask_again(scene, how):
    """And what the store says later of the run is not taken for an answer that there was time for."""
    s = scene()
    leg = s.leg(timeout_s=600.0)
    await s.working()
    receipt = leg.steer("pending")

    async def fails(end, *args, only_if_idle=False, **more):
        if only_if_idle:
            loop.call_soon_threadsafe(leg.stop if how == "stopped" else lambda: spend(leg, 600.0))
            raise StoreError("locked")
        return await end(*args, **more)

    loop = asyncio.get_running_loop()
    s.store.hooks["end"] = fails
    s.answer_all()
    result = await leg
    assert result.status is (RunStatus.CANCELLED if how == "stopped" else RunStatus.TIMED_OUT)
    assert s.store.said.count("end") == 2 and (await receipt).fate is Fate.REJECTED


async def test_an_end_that_never_gets_through_does_not_hold_the_result_back(scene, caplog):
    s = scene()
    leg = s.leg()
    s.store.fail("end", *[StoreError("locked")] * 6)
    s.answer_all()
    result = await leg
    assert (result.status, result.value) == (RunStatus.COMPLETED, "one") and leg.phase is LegPhase.ENDED
    assert "could not be recorded: locked" in caplog.text
    assert s.run(leg).status is RunStatus.RUNNING
    leg.flush(10)  # what the end of the process does: the store may answer by then
    leg.flush(10)
    assert s.run(leg).status is RunStatus.COMPLETED


async def test_what_the_store_did_not_take_at_the_end_is_written_when_it_answers_again(scene, monkeypatch):
    """S4: the process lives on, so the run would read running, and take steers that nobody reads, for as long."""
    monkeypatch.setattr(store_module, "AGAIN_S", 0.0)
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("more")
    await s.answer()
    await s.working()
    last = leg.steer("and more")
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    down, wrote = [True], []

    for name in ("report", "claim_all", "give_back", "end"):

        async def fails(operation, *args, name=name, **how):
            if down[0]:
                raise StoreError("the server is down")
            wrote.append(name)
            return await operation(*args, **how)

        s.store.hooks[name] = fails
    s.answer_all()
    await leg
    assert (receipt.fate, last.fate) == (Fate.NEVER_REPORTED, Fate.NEVER_LANDED)
    assert s.run(leg).status is RunStatus.RUNNING and s.states(leg) == ["delivering", "pending"]
    s.store.watch(leg.session_id, lambda row: row.state == "rejected" and loop.call_soon_threadsafe(told.set))
    down[0] = False
    await told.wait()
    assert s.run(leg).status is RunStatus.COMPLETED and s.states(leg) == ["applied", "rejected"]
    assert (receipt.fate, last.fate) == (Fate.APPLIED, Fate.REJECTED) and wrote.index("report") < wrote.index("end")


async def test_a_receipt_hears_of_an_end_that_lands_late(scene, patience):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("pending")
    end = s.store.hold("end")
    patience.leg(0)
    leg.stop()
    await leg
    assert receipt.fate is Fate.NEVER_LANDED and receipt.settled
    end.open()
    leg.flush(10)
    assert receipt.fate is Fate.REJECTED and s.run(leg).status is RunStatus.CANCELLED


async def test_a_steer_that_slips_past_an_end_that_was_not_recorded_settles_all_the_same(scene, monkeypatch):
    """It found the leg alive; then that ended, and the store did not take it: nobody will take the row now."""
    s = scene()
    leg = s.leg()
    await s.working()
    loop, entered, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    add = leg._steering._book.add

    def slowly(receipt):
        loop.call_soon_threadsafe(entered.set)
        go_on.wait()
        add(receipt)

    monkeypatch.setattr(leg._steering._book, "add", slowly)
    sending = loop.run_in_executor(None, leg.steer, "in between")
    await entered.wait()
    s.store.fail("end", *[StoreError("locked")] * 3)
    leg.stop()
    await leg
    go_on.set()
    receipt = await sending
    assert s.states(leg) == ["pending"] and s.run(leg).status is RunStatus.RUNNING
    assert (await receipt).fate is Fate.NEVER_LANDED
    leg.flush(10)
    leg.flush(10)


async def test_a_turn_that_cannot_be_recorded_is_said_and_harms_nothing(scene, caplog):
    s = scene()
    s.store.fail("put_turn", StoreError("locked"))
    leg = s.leg()
    s.answer_all()
    assert (await leg).value == "one" and "a turn of the leg could not be recorded: locked" in caplog.text


# ---------------------------------------------------------------------- somebody else's hand
async def test_a_run_that_somebody_else_ended_is_told_as_it_stands(scene):
    """A leg that was taken for dead starts no new work, and its status is the record's."""
    s = scene()
    leg = s.leg()
    await s.working()
    s.store.ask(lambda core: core.mark_lost(leg.session_id, leg._run.token, "no sign of life", "reaper", 9.0))
    s.answer_all()
    result = await leg
    assert (result.status, leg.status) == (RunStatus.LOST, RunStatus.LOST) and "no sign of life" in result.note
    assert result.value == "one"  # what it has found out is not taken away


async def test_a_run_that_was_taken_over_starts_no_continuation(scene):
    """The claim says so: pending steers belong to the new leg."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("for whoever runs it")
    spec = s.run(leg).model_copy(update={"leg": "leg-2"})

    def take_over(core):
        return core.resume_session(spec, dead_leg=leg._run.token, now=9.0)

    s.store.ask(take_over)
    s.answer_all()
    result = await leg
    assert result.status is RunStatus.CANCELLED and "taken over" in result.note and len(s.requests) == 1
    run = s.run(leg)
    assert (run.status, run.leg) == (RunStatus.RUNNING, "leg-2") and s.states(leg) == ["pending"]
    assert receipt.settled and isinstance(s.branch, lionnb.Branch)


async def test_a_run_that_is_taken_over_before_the_claim_hands_nothing_over(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("for whoever runs it")
    claim = s.store.hold("claim_all")
    s.answer_all()
    await claim.reached()
    spec = s.run(leg).model_copy(update={"leg": "leg-2"})
    s.store.ask(lambda core: core.resume_session(spec, dead_leg=leg._run.token, now=9.0))
    claim.open()
    result = await leg
    assert result.status is RunStatus.CANCELLED and "taken over" in result.note
    assert s.states(leg) == ["pending"] and len(s.requests) == 1
