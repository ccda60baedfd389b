"""What follows a turn: each row of the table, with a steer pending, on both roads."""

from __future__ import annotations

import asyncio

import pytest
from lionagi.session.control import LoopDirective

from lionnb.errors import LegFailedError
from lionnb.legs.states import TurnEnd
from lionnb.records import Fate, RunStatus, TurnOutcome
from lionnb.testing import Reply
from tests.legs.story import deadline, heard, phase, spend

pytestmark = pytest.mark.databases


def controls(branch):
    return [e.data["fate"] for e in branch.turns.events() if e.kind == "control"]


async def test_cancel_ends_the_turn_cleanly_where_it_is_polled_and_the_leg_drains(scene):
    """Streaming road: a clean stop, and the pending steer lands. API road: nobody polls, the turn returns, so it does."""
    s = scene(("one two three", "after"))
    leg = s.leg()
    await s.working()
    receipt = leg.steer("go on like this")
    assert s.branch.control(LoopDirective.CANCEL) is True
    s.answer_all()
    result = await leg
    assert result.status is RunStatus.COMPLETED and result.value == "after"
    assert (await receipt).fate is Fate.APPLIED
    if s.cli:
        assert (result.turns[0].end, result.turns[0].value) == (TurnEnd.CLEAN_STOP, None)
        assert controls(s.branch) == ["stored", "taken"]
    else:
        assert (result.turns[0].end, result.turns[0].value) == (TurnEnd.RETURNED, "one two three")
        assert controls(s.branch) == ["stored", "not consumed"]


async def test_break_fails_the_leg_where_it_is_polled_and_the_steer_is_rejected(scene):
    s = scene(("one two three", "after"))
    leg = s.leg()
    await s.working()
    receipt = leg.steer("go on like this")
    assert s.branch.control(LoopDirective.BREAK, reason="enough")
    s.answer_all()
    if s.cli:
        with pytest.raises(LegFailedError, match="LoopBreak"):
            await leg
        assert leg.status is RunStatus.FAILED and (await receipt).fate is Fate.REJECTED
        assert len(s.requests) == 1
    else:
        assert (await leg).value == "after" and controls(s.branch) == ["stored", "not consumed"]


FAULTS = {
    "429": Reply(text="slow down", status=429, retry_after_s=0),
    "500": Reply(text="broken", status=500),
    "hang up": Reply(text="half an answer", hang_up=True),
    "malformed": Reply(text="x", malformed=True),
}


def fault(road, name):
    """The HTTP fault on the API road; on the streaming road the exception that an endpoint would raise."""
    if road.name == "api":
        return FAULTS[name]
    return {
        "429": {"type": "error", "kind": "rate_limit", "message": "slow down"},
        "500": {"type": "error", "kind": "server_error", "message": "broken"},
        "hang up": ConnectionResetError("the connection was closed"),
        "malformed": ValueError("not JSON"),
    }[name]


@pytest.mark.parametrize("name", list(FAULTS))
async def test_a_provider_error_fails_the_leg_and_rejects_what_is_pending(scene, road, name):
    s = scene((fault(road, name), "never"))
    leg = s.leg()
    await s.working()
    receipt = leg.steer("too late")
    s.answer_all()
    with pytest.raises(LegFailedError) as caught:
        await leg
    assert caught.value.__cause__ is leg.turns[0].error is not None
    assert (leg.status, leg.turns[0].end, leg.turns[0].outcome) == (RunStatus.FAILED, TurnEnd.RAISED, "failed")
    assert (await receipt).fate is Fate.REJECTED and s.run(leg).status is RunStatus.FAILED
    assert len(s.requests) == 1


@pytest.mark.parametrize("name", list(FAULTS))
async def test_a_provider_error_in_a_continuation_says_applied_and_failed_on_the_row(scene, road, name):
    """Applied means that the Branch was called with it, whatever became of that turn."""
    s = scene(("one", fault(road, name)))
    leg = s.leg()
    await s.working()
    receipt = leg.steer("carried into a failure")
    s.answer_all()
    with pytest.raises(LegFailedError):
        await leg
    (row,) = s.rows(leg)
    assert (row.state, row.turn_outcome, row.turn_id) == ("applied", "failed", leg.turns[1].turn_id)
    assert row.in_history is s.cli  # lionagi's API road records a question with its answer only
    assert (await receipt).fate is Fate.APPLIED and "failed" in receipt.sentence
    assert ("not in the Branch's history" in receipt.sentence) is not s.cli


class Raising:
    """A middle for `operate` that answers some turns and raises in others."""

    def __init__(self, *what):
        self.what = list(what)

    async def __call__(self, branch, instruction, *args, **kwargs):
        what = self.what.pop(0)
        await asyncio.sleep(0)
        if isinstance(what, BaseException):
            raise what
        return what


@pytest.mark.parametrize("error", [asyncio.CancelledError("the provider's own"), TimeoutError("its own")], ids=repr)
@pytest.mark.parametrize("in_continuation", [False, True])
async def test_a_providers_own_cancellation_or_timeout_is_a_failure(scene, error, in_continuation):
    """Only a cancellation of the turn's task is one; nobody stopped this leg."""
    s = scene()
    answers = ["one", error] if in_continuation else [error]
    leg = s.leg(middle=Raising(*answers))
    receipt = leg.steer("x") if in_continuation else None
    with pytest.raises(LegFailedError) as caught:
        await leg
    assert type(caught.value.__cause__) is type(error) and leg.status is RunStatus.FAILED
    if receipt is not None:
        assert (await receipt).record.turn_outcome == "failed"


async def test_the_deadline_ends_a_turn_and_rejects_what_is_pending(scene):
    s = scene()
    leg = s.leg(timeout_s=600)
    await s.working()
    receipt = leg.steer("too late")
    deadline(leg)
    result = await leg
    assert (result.status, result.value) == (RunStatus.TIMED_OUT, None)
    assert (result.turns[0].end, result.turns[0].outcome) == (TurnEnd.DEADLINE, TurnOutcome.TIMED_OUT)
    assert (await receipt).fate is Fate.REJECTED
    assert s.run(leg).status is RunStatus.TIMED_OUT and s.stored_turns(leg)[0].outcome is TurnOutcome.TIMED_OUT


async def test_the_deadline_in_a_continuation_says_applied_and_timed_out_on_the_row(scene):
    """ADR-0108: a steer near the deadline runs with what is left, and its row still reads applied."""
    s = scene()
    leg = s.leg(timeout_s=600)
    await s.working()
    receipt = leg.steer("just in time")
    await s.answer()
    await s.working()
    deadline(leg)
    result = await leg
    (row,) = s.rows(leg)
    assert (row.state, row.turn_outcome) == ("applied", "timed_out")
    assert result.status is RunStatus.TIMED_OUT and result.value == "one"
    assert "ran out of time" in (await receipt).sentence


async def test_the_deadline_between_turns_leaves_the_steer_to_the_sweep(scene):
    """ADR-0108: a drain that reaches the deadline stops without consuming."""
    s = scene()
    leg = s.leg(timeout_s=600)
    await s.working()
    receipt = leg.steer("too late")
    spend(leg, 600)
    s.answer_all()
    result = await leg
    assert (result.status, result.value, len(result.turns)) == (RunStatus.TIMED_OUT, "one", 1)
    assert "claim_all" not in s.store.said and (await receipt).fate is Fate.REJECTED


async def test_a_deadline_with_nothing_pending_takes_nothing_from_a_result(scene):
    s = scene()
    leg = s.leg(timeout_s=600)
    await s.working()
    spend(leg, 600)
    s.answer_all()
    assert (await leg).status is RunStatus.COMPLETED


async def test_a_claim_that_crosses_the_deadline_is_given_back(scene):
    """The claim is I/O and can cross the deadline by itself: nothing is handed over, the sweep rejects the row."""
    s = scene()
    leg = s.leg(timeout_s=600)
    await s.working()
    receipt = leg.steer("nearly")
    fates = []
    receipt.when_recorded(lambda: None)

    async def late(claim, *args, **how):
        answer = await claim(*args, **how)
        spend(leg, 600)
        fates.append(receipt.fate)
        return answer

    s.store.hooks["claim_all"] = late
    s.answer_all()
    result = await leg
    assert fates == [Fate.DELIVERING] and len(s.requests) == 1
    assert result.status is RunStatus.TIMED_OUT and (await receipt).fate is Fate.REJECTED
    assert s.rows(leg)[0].handed_over_at is None


async def test_the_deadline_ends_a_wait_for_the_branch(scene):
    """A leg behind a foreground call: no turn, no signal, and nothing handed over."""
    s = scene()
    foreground = asyncio.create_task(s.branch.communicate("in a cell"))
    await s.working()
    leg = s.leg(timeout_s=600)
    await heard(s.branch.turns, lambda e: e.kind == "wait")
    deadline(leg)
    result = await leg
    assert result.status is RunStatus.TIMED_OUT
    assert (result.turns[0].turn_id, result.turns[0].outcome) == (None, TurnOutcome.CANCELLED_WAITING)
    assert s.branch.turn_queue == [] and len(s.requests) == 1
    s.answer_all()
    await foreground


async def test_the_deadline_of_a_continuation_that_waits_leaves_the_row_pending_for_the_sweep(scene):
    s = scene()
    leg = s.leg(timeout_s=600)
    await s.working()
    receipt = leg.steer("behind a cell")
    foreground = asyncio.create_task(s.branch.communicate("in a cell"))
    await s.answer()
    await s.working()  # the cell has the Branch, the continuation waits for it
    await heard(s.branch.turns, lambda e: e.kind == "wait" and e.data["operation"] == "operate")
    assert receipt.fate is Fate.PENDING
    deadline(leg)
    result = await leg
    assert result.status is RunStatus.TIMED_OUT and (await receipt).fate is Fate.REJECTED
    assert "claim_all" not in s.store.said
    s.answer_all()
    await foreground


async def test_a_first_turn_that_gets_the_branch_after_the_deadline_calls_nobody(scene):
    """The loop was busy when the deadline passed: the turn and its timer are both due, and no provider work starts."""
    s = scene()
    foreground = asyncio.create_task(s.branch.communicate("in a cell"))
    await s.working()
    leg = s.leg(timeout_s=600)
    await phase(leg, "in turn")
    spend(leg, 600)
    s.answer_all()
    await foreground
    result = await leg
    assert result.status is RunStatus.TIMED_OUT and len(s.requests) == 1
    assert result.turns[0].end is TurnEnd.DEADLINE


async def test_a_deadline_that_passes_before_the_first_turn_starts_none(scene):
    s = scene()
    leg = s.leg(timeout_s=600)
    spend(leg, 600)
    result = await leg
    assert result.status is RunStatus.TIMED_OUT and not result.turns and not s.requests
    assert "before its first turn" in result.note


async def test_the_deadline_is_a_timer_of_the_loop(scene, monkeypatch):
    """Set to what is left when a turn begins, and gone when it has ended."""
    s, timers = scene(), []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def watched(delay, fn, *args, **kwargs):
        timer = call_later(delay, fn, *args, **kwargs)
        if args == (TurnEnd.DEADLINE,):
            timers.append((delay, fn, timer))
        return timer

    monkeypatch.setattr(loop, "call_later", watched)
    leg = s.leg(timeout_s=600)
    await s.working()
    leg.steer("more")
    spend(leg, 100)
    await s.answer()
    await s.working()
    (first, _, ended), (second, fire, _) = timers
    assert 500 < first <= 600 and 400 < second <= 500 and ended.cancelled()
    fire(TurnEnd.DEADLINE)
    assert (await leg).status is RunStatus.TIMED_OUT
