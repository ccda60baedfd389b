"""Faults that people met elsewhere when they cancelled or interrupted (group b), on every road that can meet them.

b01 is in tests/turns/test_cancel.py; b11, b13, b15 and b20 speak of background runs: tests/legs/test_leg_cases.py.
"""

from __future__ import annotations

import asyncio
import gc

import pytest
from lionagi.session.control import LoopDirective
from turnkit import STREAMS, drain, on_both_roads, outcome_of, until

from lionnb.testing import Gate, Reply

LEFT = pytest.mark.filterwarnings("ignore:turn .* left a question")
CANCEL, BREAK = LoopDirective.CANCEL, LoopDirective.BREAK


def echo(payload):
    """What was asked last."""
    return str(payload["messages"][-1]["content"]).rpartition("Instruction: ")[2].strip()


def fates(branch):
    return [(e.turn_id, e.data["fate"]) for e in branch.turns.events() if e.kind == "control"]


@LEFT
@on_both_roads(STREAMS)
async def test_a_stream_that_was_dropped_half_way_frees_its_branch_in_whatever_task_it_is_closed(operation, watch):
    """b03: it was closed in another task, which could not release a lock that belongs to a task: locked for ever."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    w = watch([*operation.replies, "next"], repeat_last=True)
    stream = operation.open(w.branch)
    async for _ in stream:
        break
    del stream
    gc.collect()
    assert await asyncio.create_task(w.branch.communicate("next")) is not None
    w.check("RunEnd", "RunEnd")
    assert w.outcomes == ["abandoned", "completed"]
    assert told == []


async def test_a_directive_that_comes_late_never_hits_the_next_turn(watch):
    """b04: an interrupt that was meant for one cell killed the innocent next one."""
    gate = Gate(opened=True)
    w = watch(["one", "two"], gate=gate)
    await w.branch.communicate("one")
    (late,) = {s.turn_id for s in w.seen if s.kind == "RunStart"}
    gate.close()
    two = asyncio.create_task(w.branch.communicate("two"))
    await gate.reached()
    assert w.branch.control(CANCEL, turn_id=late) is False
    gate.open()
    assert await two == "two"
    w.check("RunEnd", "RunEnd")
    assert [fate for _, fate in fates(w.branch)] == ["refused"]


@LEFT
@pytest.mark.parametrize("how", ["directive", "task"])
async def test_each_turn_ends_for_its_own_reason(how, watch, road):
    """b06: 'cancelled by user' from an earlier turn was attached to the failure of a later one."""
    gate = Gate()
    streams = road.name == "cli"
    w = watch(["one", Reply(error=ValueError("quota"), status=400)], gate=gate)
    call = asyncio.create_task(drain(w.branch.run("one")) if streams else w.branch.chat("one"))
    await gate.reached()
    if how == "task":
        call.cancel("operator pressed stop")
    else:
        assert w.branch.control(CANCEL, reason="operator pressed stop") is True
    gate.open()
    await outcome_of(call)
    assert await outcome_of(w.branch.chat("two")) is not None
    one, two = w.branch.turns.records()
    assert two.outcome == "failed" and "operator" not in two.error
    assert one.outcome == ("cancelled" if how == "task" else "completed")
    if how == "directive":  # on the API road nothing polls, and the log says what became of the directive
        assert fates(w.branch) == [(one.turn_id, "stored"), (one.turn_id, "taken" if streams else "not consumed")]


async def test_a_directive_before_the_turn_has_begun_is_refused_and_not_kept(watch):
    """b07: an interrupt that was sent before the run had really started reported success and did nothing."""
    w = watch("long")
    call = asyncio.create_task(w.branch.communicate("long"))  # nothing of it has run
    assert w.branch.control(CANCEL) is False
    assert w.branch.current_turn is None
    assert await call == "long"
    assert [fate for _, fate in fates(w.branch)] == ["refused"]
    w.check("RunEnd")


@LEFT
@pytest.mark.parametrize("streams", [False, True])
async def test_after_a_stop_each_answer_is_that_of_its_own_question(streams, watch, road):
    """b09: every answer belonged to the question before it."""
    if streams and road.name == "api":
        streams = False  # lionagi streams command-line providers only: the same call as without
    gate = Gate()
    w = watch(echo, gate=gate)
    first = asyncio.create_task(drain(w.branch.run("q1")) if streams else w.branch.communicate("q1"))
    await gate.reached()
    first.cancel()
    await asyncio.wait((first,))
    gate.open()
    assert [await w.branch.communicate(q) for q in ("q2", "q3")] == ["q2", "q3"]
    w.check("RunFailed", "RunEnd", "RunEnd")


async def test_a_directive_is_consumed_once_and_by_its_own_turn(watch, road):
    """b16: an answer that had been used was delivered again to a later pause."""
    gate = Gate()
    streams = road.name == "cli"
    w = watch(["one", "two"], gate=gate)

    def call(text):
        return drain(w.branch.run(text)) if streams else w.branch.communicate(text)

    one = asyncio.create_task(call("one"))
    await gate.reached()
    assert w.branch.control(BREAK) is True
    gate.open()
    await outcome_of(one)
    await call("two")
    first, second = w.branch.turns.records()
    assert fates(w.branch) == [(first.turn_id, "stored"), (first.turn_id, "taken" if streams else "not consumed")]
    assert second.outcome == "completed"


async def limited(call, limits):
    """*call* under a time limit, which the test lets run out."""
    async with asyncio.timeout(None) as limit:
        limits.append(limit)
        return await call


@LEFT
@pytest.mark.parametrize("together", [False, True])
async def test_calls_that_run_into_their_time_limit_block_none_behind_them(together, watch):
    """b18: the first call that timed out blocked all later ones. Each has one row, and no row has none."""
    gate, limits, calls = Gate(), [], []
    w = watch("d", gate=gate)
    for q in "abc":
        calls.append(asyncio.create_task(limited(w.branch.communicate(q), limits)))
        if not together:
            await gate.reached()
            limits.pop().reschedule(0.0)
            await asyncio.wait((calls[-1],))
            await gate.left()
    if together:
        await gate.reached()
        await until(lambda: len(w.branch.turn_queue) == 2)
        for limit in limits[::-1]:
            limit.reschedule(0.0)
        await asyncio.wait(calls)
    gate.open()
    assert await w.branch.communicate("d") == "d"
    assert [type(c.exception()) for c in calls] == [TimeoutError] * 3
    assert w.outcomes == (
        ["cancelled", "cancelled while waiting", "cancelled while waiting", "completed"]
        if together
        else ["cancelled"] * 3 + ["completed"]
    )
    assert w.branch.current_turn is None
