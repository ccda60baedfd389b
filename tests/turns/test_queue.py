"""Waiting is visible and fair (T1)."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from turnkit import Host, outcome_of, until

from lionnb.testing import Gate
from lionnb.turns import run_in_turn, stream_in_turn


def named(coro, name):
    return asyncio.create_task(coro, name=name)


async def test_the_queue_shows_who_waits_in_the_order_of_arrival_and_since_when(watch):
    gate, before = Gate(), time.time()
    w = watch("x", gate=gate)
    tasks = [named(w.branch.chat("q"), "first")]
    await gate.reached()
    tasks += [named(w.branch.communicate("q"), "second"), named(w.branch.interpret("q"), "third")]
    await until(lambda: len(w.branch.turn_queue) == 2)
    queue = w.branch.turn_queue
    assert [(r.operation, r.task) for r in queue] == [("communicate", "second"), ("interpret", "third")]
    assert all(before <= r.since_at <= time.time() for r in queue)
    assert {r.behind_turn_id for r in queue} == {w.branch.current_turn.turn_id}
    assert {r.behind for r in queue} == {f"turn {w.branch.current_turn.turn_id[:8]} (chat), active"}
    assert {r.deadlock for r in queue} == {None}
    gate.open()
    await asyncio.gather(*tasks)
    assert w.branch.turn_queue == [] and w.branch.current_turn is None


async def test_a_wait_behind_a_stream_that_was_left_open_says_so_with_the_turns_id():
    host = Host()

    async def body(scope):
        yield 1
        yield 2

    async def nothing(scope): ...

    stream = stream_in_turn(host, invoke=body, operation="run")
    opened = asyncio.create_task(outcome_of(anext(stream)))
    await opened
    waiter = asyncio.create_task(run_in_turn(host, invoke=nothing))
    await until(lambda: host.turn_state.waiters)
    (waiting,) = host.turn_state.queue()
    turn_id = stream.turn_id
    assert waiting.behind == (
        f"turn {turn_id[:8]} (run): its stream is open and nobody has asked for the next item for 0 s; close it with aclose()"
    )
    (told,) = [e for e in host.turns.events() if e.kind == "wait"]
    assert told.data["behind"] == waiting.behind
    await stream.aclose()
    await waiter
    host.check("RunEnd", "RunEnd")


async def test_a_wait_behind_a_dropped_stream_says_that_it_is_being_closed():
    host = Host()

    async def body(scope):
        yield 1

    async def nothing(scope): ...

    async for _ in stream_in_turn(host, invoke=body):
        break
    await run_in_turn(host, invoke=nothing)
    (told,) = [e for e in host.turns.events() if e.kind == "wait"]
    assert told.data["behind"].endswith("it was dropped in the middle and is being closed")


async def test_callers_enter_in_the_order_of_arrival():
    host, order = Host(observed=False), []

    def body(n):
        async def invoke(scope):
            order.append(n)
            await asyncio.sleep(0)

        return invoke

    await asyncio.gather(*(run_in_turn(host, invoke=body(n)) for n in range(50)))
    assert order == list(range(50))


async def test_a_caller_that_comes_between_two_turns_queues_visibly_behind_who_was_woken():
    """The lock is free for a moment, and the woken waiter has not run yet: no wait of asyncio's own hides a caller."""
    host, seen = Host(observed=False), []

    async def nothing(scope): ...

    async def look(scope):
        seen.extend(w.operation for w in host.turn_state.queue())

    async def twice():
        await run_in_turn(host, invoke=lambda scope: until(lambda: host.turn_state.waiters))
        await run_in_turn(host, invoke=nothing, operation="again")  # no step of the loop in between

    first = asyncio.create_task(twice())
    second = asyncio.create_task(run_in_turn(host, invoke=look))
    await asyncio.gather(first, second)
    assert seen == ["again"]
    host.check()


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_is_cancelled_the_others_enter_in_order_and_each_once(seed):
    """Random cancellations before, while and after the lock is handed over."""
    dice = random.Random(seed)
    host, order = Host(observed=seed % 2 == 0), []

    def body(n):
        async def invoke(scope):
            assert host.turn_state.turn.scope is scope
            order.append(n)
            for _ in range(dice.randrange(3)):
                await asyncio.sleep(0)

        return invoke

    tasks = [asyncio.create_task(run_in_turn(host, invoke=body(n))) for n in range(40)]
    while not all(t.done() for t in tasks):
        dice.choice(tasks).cancel() if dice.random() < 0.3 else None
        await asyncio.sleep(0)
    assert order == sorted(set(order))
    cancelled = {n for n, t in enumerate(tasks) if t.cancelled()}
    assert set(range(40)) - cancelled <= set(order)
    host.check(*[k for k in host.kinds if k != "RunStart"])
    assert len(host.turns.records()) == 40 or cancelled


async def test_a_waiter_that_times_out_leaves_the_queue():
    host, gate = Host(), Gate()

    async def held(scope):
        await gate.wait()

    turn = asyncio.create_task(run_in_turn(host, invoke=held))
    await gate.reached()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_in_turn(host, invoke=held), 0.001)
    assert host.turn_state.waiters == {}
    assert [r.outcome.value for r in host.turns.records()] == ["running", "cancelled while waiting"]
    gate.open()
    await turn
    host.check("RunEnd")


async def test_ten_thousand_queued_turns_leave_nothing_behind():
    asyncio.get_running_loop().set_debug(False)  # it takes ten times as long
    host, done = Host(observed=False), []

    async def body(scope):
        done.append(1)

    await asyncio.gather(*(run_in_turn(host, invoke=body) for _ in range(10_000)))
    assert len(done) == 10_000
    assert len(host.turns.records()) == 1_000 and host.turns.dropped_turns == 9_000
    host.check()


async def test_current_turn_is_the_active_row_as_it_stands(watch):
    gate = Gate()
    w = watch("x", gate=gate)
    call = named(w.branch.communicate("q"), "caller")
    await gate.reached()
    now = w.branch.current_turn
    assert (now.operation, now.task, now.outcome, now.ended_at) == ("communicate", "caller", "running", None)
    assert now.waited_s >= 0
    gate.open()
    await call
    assert w.branch.current_turn is None
