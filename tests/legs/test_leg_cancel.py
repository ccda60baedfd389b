"""Ending a turn, and ending a leg: who may, when, how often, from where, and what is left."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from lionnb.errors import LegFailedError, SteerRefusedError
from lionnb.legs.states import LegPhase, TurnEnd
from lionnb.records import Fate, RunStatus, TurnOutcome
from tests.legs.story import heard, phase


def from_thread(fn):
    """Call *fn* in another thread; the loop goes on meanwhile."""
    return asyncio.get_running_loop().run_in_executor(None, fn)


# ---------------------------------------------------------------------- stop
async def test_a_leg_that_is_stopped_before_its_first_step_ends(scene):
    s = scene()
    leg = s.leg()
    leg.stop()
    result = await leg
    assert (result.status, result.turns, result.note) == (RunStatus.CANCELLED, (), "stopped")
    assert not s.requests and s.run(leg).status is RunStatus.CANCELLED


async def test_a_leg_that_is_stopped_while_its_run_is_registered_starts_no_turn(scene):
    s = scene()
    start = s.store.hold("start_session")
    leg = s.leg()
    await start.reached()
    await phase(leg, "starting")
    leg.stop()
    start.open()
    assert (await leg).status is RunStatus.CANCELLED and not s.requests
    assert s.run(leg).status is RunStatus.CANCELLED


async def test_a_leg_that_is_stopped_while_it_waits_for_the_branch_leaves_the_queue(scene):
    s = scene()
    foreground = asyncio.create_task(s.branch.communicate("in a cell"))
    await s.working()
    leg = s.leg()
    await heard(s.branch.turns, lambda e: e.kind == "wait")
    leg.stop()
    result = await leg
    assert result.status is RunStatus.CANCELLED and result.turns[0].outcome is TurnOutcome.CANCELLED_WAITING
    assert s.branch.turn_queue == [] and len(s.requests) == 1
    s.answer_all()
    assert await foreground == "one"


@pytest.mark.databases
async def test_a_leg_that_is_stopped_in_a_turn_ends_and_rejects_what_is_pending(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("too late")
    leg.stop()
    result = await leg
    assert result.status is RunStatus.CANCELLED and result.turns[0].end is TurnEnd.STOPPED
    assert (await receipt).fate is Fate.REJECTED and len(s.requests) == 1
    await s.gate.left()  # nobody is left at the provider


async def test_stopping_twice_is_harmless_and_so_is_stopping_a_leg_that_has_ended(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    leg.stop()
    leg.stop()
    assert (await leg).status is RunStatus.CANCELLED and len(leg.turns) == 1
    leg.stop()
    await from_thread(leg.stop)
    assert leg.cancel_turn() is False and leg.phase is LegPhase.ENDED


async def test_a_leg_is_stopped_from_another_thread(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    await from_thread(leg.stop)
    assert (await leg).status is RunStatus.CANCELLED


@pytest.mark.databases
async def test_a_stop_between_turns_starts_no_continuation(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("never")
    idle = s.store.hold("end")
    s.answer_all()
    await idle.reached()
    leg.stop()
    idle.open()
    assert (await leg).status is RunStatus.CANCELLED and len(s.requests) == 1
    assert (await receipt).fate is Fate.REJECTED


@pytest.mark.databases
async def test_a_stop_during_the_claim_gives_the_rows_back_and_rejects_them(scene):
    """d01: Nobody called the Branch with them, so they never read as delivered."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("nearly")
    claim = s.store.hold("claim_all")
    s.answer_all()
    await claim.reached()
    leg.stop()
    await asyncio.sleep(0)
    claim.open()
    assert (await leg).status is RunStatus.CANCELLED and len(s.requests) == 1
    assert (await receipt).fate is Fate.REJECTED and s.rows(leg)[0].handed_over_at is None


async def test_a_stop_that_arrives_when_the_result_is_there_still_stops_the_leg(scene):
    """The turn keeps its value, and the leg was stopped: it does not read as if it had come to its end by itself."""
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("more")
    await s.answer()
    await s.working()
    report = s.store.hold("report")
    s.answer_all()
    await report.reached()
    leg.stop()
    report.open()
    result = await leg
    assert (result.status, result.value, result.note) == (RunStatus.CANCELLED, "two", "stopped")
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED] * 2


async def test_a_stop_reaches_a_turn_that_swallowed_its_cancellation(scene):
    """A stronger reason cancels once more: a person's stop must not be lost in a tool's `except`."""
    swallowed = asyncio.Event()

    async def stubborn(branch, *args, **kwargs):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.Event().wait()

    s = scene()
    leg = s.leg(middle=stubborn)
    await heard(s.branch.turns, lambda e: e.kind == "start")
    assert leg.cancel_turn()
    await swallowed.wait()
    assert leg.cancel_turn()  # the same reason again does nothing more
    leg.stop()
    assert (await leg).status is RunStatus.CANCELLED


# ---------------------------------------------------------------------- cancel_turn
@pytest.mark.databases
async def test_a_cancelled_turn_goes_on_to_what_is_pending(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("instead")
    assert leg.cancel_turn() is True
    await s.gate.left()
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.TURN_CANCELLED, TurnEnd.RETURNED]
    assert (result.turns[0].outcome, result.turns[0].error) == (TurnOutcome.CANCELLED, None)
    assert result.status is RunStatus.COMPLETED and "> instead" in s.last(1)
    assert (await receipt).fate is Fate.APPLIED


async def test_a_cancelled_turn_with_nothing_pending_ends_the_leg(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    assert leg.cancel_turn()
    result = await leg
    assert (result.status, result.value, len(s.requests)) == (RunStatus.COMPLETED, None, 1)


async def test_a_turn_is_cancelled_by_its_id_and_no_other_one_is(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    first = leg.turn_id
    assert leg.cancel_turn("not this one") is False and leg.cancel_turn("") is False
    leg.steer("more")
    await s.answer()
    await s.working()
    assert leg.turn_id not in (None, first)
    assert leg.cancel_turn(first) is False  # drawn for a turn that is over
    assert await from_thread(lambda: leg.cancel_turn(leg.turn_id)) is True
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED, TurnEnd.TURN_CANCELLED]
    assert result.value == "one" and s.rows(leg)[0].turn_outcome == "cancelled"


async def test_a_late_cancel_never_reaches_the_next_turn(scene, monkeypatch):
    """Sent from another thread while turn 1 ran, arriving when the continuation does: it was not meant for that."""
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("more")
    held = []
    with monkeypatch.context() as patch:
        patch.setattr("lionnb.legs.leg.call_in", lambda _loop, fn: held.append(fn))
        assert leg.cancel_turn() is True
    await s.answer()
    await s.working()
    held[0]()
    s.answer_all()
    assert [t.end for t in (await leg).turns] == [TurnEnd.RETURNED, TurnEnd.RETURNED]


async def test_there_is_nothing_to_cancel_between_turns(scene):
    s = scene()
    leg = s.leg()
    assert leg.cancel_turn() is False  # it has not begun
    await s.working()
    idle = s.store.hold("end")
    s.answer_all()
    await idle.reached()
    assert leg.phase is LegPhase.BETWEEN and leg.cancel_turn() is False
    idle.open()
    assert (await leg).status is RunStatus.COMPLETED


async def test_a_turn_cancelled_before_its_first_step_is_not_told_as_the_turn_before_it(scene):
    """The continuation's task exists and has not run: it carried nothing, and the value is not turn 1's again."""
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("more")

    def cancel_at_once(event):
        if event.kind == "leg" and event.data["sentence"] == "in turn" and leg.turns:
            stop()
            asyncio.get_running_loop().call_soon(leg.cancel_turn)

    stop = leg.feed.listen(cancel_at_once)
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED, TurnEnd.TURN_CANCELLED, TurnEnd.RETURNED]
    cancelled = result.turns[1]
    assert (cancelled.turn_id, cancelled.value, cancelled.steers) == (None, None, ())
    assert result.value == "two" and s.states(leg) == ["applied"]


async def test_a_cancel_that_arrives_when_the_result_is_there_changes_nothing(scene):
    """The turn keeps its terminal, and the leg keeps the value."""
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("more")
    await s.answer()
    await s.working()
    report = s.store.hold("report")
    s.answer_all()
    await report.reached()
    assert leg.cancel_turn() is False
    leg._turn._task.cancel()  # and one that nobody can refuse
    await asyncio.sleep(0)
    report.open()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED] * 2 and result.value == "two"
    assert result.turns[1].outcome is TurnOutcome.COMPLETED and s.rows(leg)[0].turn_outcome == "completed"


async def test_a_stop_that_arrives_when_a_failure_is_there_does_not_hide_it(scene):
    s = scene(("one", ValueError("the second call fails")))
    leg = s.leg()
    await s.working()
    leg.steer("more")
    await s.answer()
    await s.working()
    report = s.store.hold("report")
    s.answer_all()
    await report.reached()
    leg.stop()
    leg._turn._task.cancel()
    await asyncio.sleep(0)
    report.open()
    with pytest.raises(LegFailedError):
        await leg
    assert leg.status is RunStatus.FAILED and s.rows(leg)[0].turn_outcome == "failed"


# ---------------------------------------------------------------------- redirect
@pytest.mark.databases
async def test_a_redirect_ends_the_turn_and_lands(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.redirect("no, do this")
    await s.gate.left()
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.TURN_CANCELLED, TurnEnd.RETURNED]
    assert "> no, do this" in s.last(1) and (await receipt).fate is Fate.APPLIED


async def test_the_row_is_there_before_the_turn_is_cancelled(scene):
    """A crash in between loses the cancel, never the text."""
    s = scene()
    leg = s.leg()
    await s.working()
    admit = s.store.hold("admit")
    receipt = leg.redirect("no, do this")
    assert receipt.fate is None and leg._turn.why is None
    states = []
    leg._turn.cancel, cancel = lambda why: (states.extend(s.states(leg)), cancel(why)), leg._turn.cancel
    admit.open()
    await s.gate.left()
    s.answer_all()
    await leg
    assert states == ["pending"]


async def test_a_redirect_that_is_refused_cancels_nothing(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    with pytest.raises(SteerRefusedError):
        leg.redirect("  ")
    s.answer_all()
    assert [t.end for t in (await leg).turns] == [TurnEnd.RETURNED]


async def test_a_redirect_never_cancels_the_continuation_that_carries_it(scene):
    """The turn it was meant for ended by itself while the row was being written."""
    s = scene()
    leg = s.leg()
    await s.working()
    admit = s.store.hold("admit")
    receipt = leg.redirect("no, do this")
    await admit.reached()
    s.gate.open()
    s.gate.close()
    await phase(leg, "between turns")
    admit.open()
    await s.working()
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED, TurnEnd.RETURNED]
    assert result.turns[1].steers == (receipt.control_id,)


async def test_a_redirect_of_a_turn_that_still_waits_goes_with_it_and_keeps_its_place(scene):
    """Nothing is warm yet: the first turn takes the correction along, before a call that came later."""
    s = scene()
    foreground = asyncio.create_task(s.branch.communicate("in a cell"))
    await s.working()
    leg = s.leg("Survey X")
    await heard(s.branch.turns, lambda e: e.kind == "wait")
    later = asyncio.create_task(s.branch.communicate("in another cell"))
    await heard(s.branch.turns, lambda e: e.kind == "wait" and e.data["operation"] == "communicate")
    receipt = leg.redirect("only Y")
    s.answer_all()
    result = await leg
    await asyncio.gather(foreground, later)
    assert "Survey X" in s.last(1) and "> only Y" in s.last(1) and "another cell" in s.last(2)
    assert len(result.turns) == 1 and result.turns[0].steers == (receipt.control_id,)
    assert s.rows(leg)[0].in_history is True


async def test_a_redirect_during_a_continuations_wait_lands_with_it(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    first = leg.steer("first")
    foreground = asyncio.create_task(s.branch.communicate("in a cell"))
    await s.answer()
    await s.working()
    await heard(s.branch.turns, lambda e: e.kind == "wait" and e.data["operation"] == "operate")
    second = leg.redirect("second")
    s.answer_all()
    result = await leg
    await foreground
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED] * 2
    assert result.turns[1].steers == (first.control_id, second.control_id)


@pytest.mark.databases
async def test_a_redirect_whose_row_misses_the_claim_cancels_that_continuation_and_lands_next(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    first = leg.steer("first")
    claim, admit = s.store.hold("claim_all"), s.store.hold("admit")
    await s.answer()
    await claim.reached()
    second = leg.redirect("second")  # its row will be written after the claim that is under way
    claim.open()
    await s.working()  # the continuation works on the first one
    admit.open()
    await heard(leg.feed, lambda e: len(leg.turns) == 2)  # the provider never answers: only the cancel ends it
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED, TurnEnd.TURN_CANCELLED, TurnEnd.RETURNED]
    assert [t.steers for t in result.turns[1:]] == [(first.control_id,), (second.control_id,)]
    assert [row.turn_outcome for row in s.rows(leg)] == ["cancelled", "completed"]


@pytest.mark.databases
async def test_a_redirect_whose_row_comes_just_behind_the_claim_lands_with_what_was_claimed(scene):
    """Nobody has been called yet: the claim is given back and taken again, with both, and no turn is lost."""
    s = scene()
    leg = s.leg()
    await s.working()
    first = leg.steer("first")
    claim = s.store.hold("claim_all")
    await s.answer()
    await claim.reached()
    second = leg.redirect("second")
    claim.open()
    leg.flush(30)  # blocks the loop: claim and row are both there before the leg hears of either
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED] * 2 and len(s.requests) == 2
    assert result.turns[1].steers == (first.control_id, second.control_id)
    assert s.store.said.count("give_back") == 1 and s.states(leg) == ["applied"] * 2


@pytest.mark.databases
async def test_a_redirect_that_its_turn_has_just_claimed_does_not_cancel_it(scene):
    """It was sent while the continuation waited for the Branch, and its row was written before the claim."""
    s = scene()
    leg = s.leg()
    await s.working()
    first = leg.steer("first")
    cell = asyncio.create_task(s.branch.communicate("a cell"))
    await s.answer()
    await s.working()
    await heard(s.branch.turns, lambda e: e.kind == "wait" and e.data["operation"] == "operate")
    admit = s.store.hold("admit")
    second = leg.redirect("second")
    await s.answer()
    await cell
    await heard(
        s.branch.turns, lambda e: e.kind == "start" and e.data["operation"] == "operate" and len(leg.turns) == 1
    )
    admit.open()
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED] * 2
    assert result.turns[1].steers == (first.control_id, second.control_id)


async def test_a_redirect_before_the_first_turn_goes_with_it(scene):
    """A turn that has not begun is not cancelled: it takes the steer along, also before its leg has made it."""
    s = scene()
    leg = s.leg()
    receipt = leg.redirect("at once")  # nothing runs yet
    assert "lands in this leg's first turn" in leg.steer("this too").sentence
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED] and (await receipt).fate is Fate.APPLIED
    assert "Survey X" in s.last(0) and "> at once" in s.last(0) and "> this too" in s.last(0)


async def test_a_leg_whose_last_turn_was_cancelled_says_so(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    assert leg.cancel_turn()
    result = await leg
    assert (result.value, result.note) == (None, "its last turn was cancelled")
    assert s.run(leg).ended_note == result.note


# ---------------------------------------------------------------------- the task, and the loop
@pytest.mark.databases
async def test_a_leg_whose_task_is_cancelled_records_it_and_raises(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("too late")
    leg.task.cancel()
    result = await leg
    with pytest.raises(asyncio.CancelledError):
        await leg.task
    assert result.status is RunStatus.CANCELLED and result.turns[0].end is TurnEnd.TASK_CANCELLED
    assert (await receipt).fate is Fate.REJECTED and s.run(leg).status is RunStatus.CANCELLED


async def test_a_leg_whose_task_is_cancelled_before_its_first_step_ends(scene):
    s = scene()
    leg = s.leg()
    receipt = leg.steer("never")
    leg.task.cancel()
    result = await leg
    assert (result.status, result.turns) == (RunStatus.CANCELLED, ())
    assert (await receipt).fate in (Fate.REJECTED, Fate.NEVER_LANDED)
    leg.flush(10)
    assert receipt.fate is Fate.REJECTED and s.run(leg).status is RunStatus.CANCELLED


async def test_a_turn_that_ends_with_its_leg_is_cancelled_and_not_failed(scene):
    """The end of asyncio.run cancels both, and the turn's task may be the first to run: who cancelled it is known."""
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("carried")
    await s.answer()
    await s.working()
    leg._turn._task.cancel()
    leg.task.cancel()
    result = await leg
    assert result.status is RunStatus.CANCELLED and result.turns[1].end is TurnEnd.TASK_CANCELLED
    assert s.rows(leg)[0].turn_outcome == "cancelled"


async def test_awaiting_a_leg_and_giving_up_does_not_touch_it(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    waiting = asyncio.create_task(leg.result())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert leg.live
    s.answer_all()
    assert (await leg).value == "one"


@pytest.mark.databases
@pytest.mark.parametrize("when", ["first step", "in turn", "in continuation", "claim", "report", "end"])
def test_the_end_of_asyncio_run_ends_a_leg_with_a_true_record(scene, when):
    """It cancels every task there is, those that help the leg included, and waits for nothing that starts later."""
    s = scene()
    seen = {}

    async def main():
        leg = seen["leg"] = s.leg()
        if when == "first step":
            return
        await s.working()
        if when == "in turn":
            seen["receipt"] = leg.steer("pending")
            return
        seen["receipt"] = leg.steer("carried")
        gate = None if when == "in continuation" else s.store.hold({"claim": "claim_all"}.get(when, when))
        await s.answer()
        if when in ("in continuation", "report"):
            await s.working()
        if when == "report":
            s.answer_all()
        if gate is not None:
            await gate.reached()
            threading.Thread(target=open_when_closing, args=(asyncio.get_running_loop(), gate)).start()

    def open_when_closing(loop, gate):
        # A real store answers by itself; here somebody has to, while the loop cancels its tasks.
        gate.open()

    asyncio.run(main())
    leg, receipt = seen["leg"], seen.get("receipt")
    leg.flush(10)
    assert leg.phase is LegPhase.ENDED and s.run(leg).leg is None
    assert leg.status is s.run(leg).status
    if when != "end":
        assert leg.status is RunStatus.CANCELLED
    if receipt is not None:
        assert receipt.settled
        delivered = when in ("in continuation", "report")
        assert s.states(leg) == ["applied" if delivered else "rejected"]


@pytest.mark.parametrize("road", ["cli"], indirect=True)  # a real connection would be left to the closed loop
def test_a_leg_whose_loop_was_closed_under_it_is_buried_when_somebody_looks(scene):
    """Nobody cancelled its task, so nothing of it can run any more; the record must not say running for ever."""
    s = scene()
    loop = asyncio.new_event_loop()

    async def start():
        leg = s.leg()
        await s.working()
        return leg, leg.steer("pending")

    leg, receipt = loop.run_until_complete(start())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # the point of the test
    loop.close()
    assert not leg.live
    with pytest.raises(SteerRefusedError, match="ended"):
        leg.steer("anybody there?")
    assert leg.phase is LegPhase.ENDED and receipt.settled
    leg.flush(10)
    assert (leg.status, s.run(leg).status) == (RunStatus.LOST, RunStatus.LOST)
    assert receipt.fate is Fate.REJECTED
    assert asyncio.run(leg.result()).status is RunStatus.LOST
    gc.collect()  # destroys what stood at an await; whatever that raises fails this test, not a later one
