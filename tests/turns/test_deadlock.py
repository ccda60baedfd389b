"""Deadlock is an error where it is certain, and shown where it is possible.

Two Branches that are entered in opposite order is the whole of it; everything else is who waits, and for how long.
"""

from __future__ import annotations

import asyncio

import anyio
import pytest
from turnkit import Host, Watched, outcome_of, until

from lionnb.errors import TurnDeadlockError
from lionnb.testing import Gate, scripted_model
from lionnb.turns import run_in_turn, stream_in_turn


async def nothing(scope):
    return "entered"


class Ring:
    """Turns on n Branches, each of which calls the next Branch when its gate is opened."""

    def __init__(self, n, how=None):
        self.hosts = [Host("ABCDEF"[i]) for i in range(n)]
        self.gates = [Gate() for _ in range(n)]
        self.how = how or {}
        self.tasks = []

    def _body(self, i):
        async def body(scope):
            await self.gates[i].wait()
            target = self.hosts[(i + 1) % len(self.hosts)]
            return await self.how.get(i, lambda call: call)(run_in_turn(target, invoke=nothing, operation="chat"))

        return body

    async def start(self):
        for i, host in enumerate(self.hosts):
            self.tasks.append(asyncio.create_task(run_in_turn(host, invoke=self._body(i), operation="operate")))
            await self.gates[i].reached()

    async def wait_at(self, i):
        """Let turn *i* go on, until it waits for the next Branch."""
        self.gates[i].open()
        await until(lambda: self.hosts[(i + 1) % len(self.hosts)].turn_state.waiters)

    def queue_of(self, i):
        return self.hosts[i].turn_state.queue()

    def check(self, *terminals):
        for host, terminal in zip(self.hosts, terminals, strict=True):
            host.check(*terminal)


@pytest.mark.parametrize("n", [2, 3, 5])
async def test_the_entry_that_closes_a_cycle_raises_and_the_other_turns_finish(n):
    ring = Ring(n)
    await ring.start()
    for i in range(n - 1):
        await ring.wait_at(i)
    ring.gates[n - 1].open()
    exc = await outcome_of(ring.tasks[n - 1])
    assert isinstance(exc, TurnDeadlockError)
    assert await asyncio.gather(*ring.tasks[:-1]) == ["entered"] * (n - 1)
    ids = [str(h.seen[0].turn_id)[:8] for h in ring.hosts]
    names = "ABCDEF"
    turns = [f"turn {ids[i]} (operate on {names[i]})" for i in range(n)]
    assert exc.cycle == ("chat on A", *turns, "chat on A")
    assert ring.hosts[n - 1].kinds[:2] == ["RunStart", "RunFailed"]
    for host in ring.hosts:
        host.check(*[k for k in host.kinds if k != "RunStart"])


async def test_a_refused_entry_has_a_row_and_leaves_nothing_in_the_queue():
    ring = Ring(2)
    await ring.start()
    await ring.wait_at(0)
    ring.gates[1].open()
    await outcome_of(ring.tasks[1])
    await ring.tasks[0]
    rows = ring.hosts[0].turns.records()
    assert [(r.operation, r.outcome.value) for r in rows] == [("operate", "completed"), ("chat", "refused")]
    assert rows[1].error.startswith("TurnDeadlockError")


async def test_who_handles_the_refusal_may_go_on():
    async def tolerant(call):
        return type(await outcome_of(call)).__name__

    ring = Ring(2, {1: tolerant})
    await ring.start()
    await ring.wait_at(0)
    ring.gates[1].open()
    assert await asyncio.gather(*ring.tasks) == ["entered", "TurnDeadlockError"]


async def test_a_cycle_over_the_task_that_drives_a_stream_raises():
    a, b, gate = Host("A"), Host("B"), Gate()

    async def body(scope):
        await gate.wait()
        yield await run_in_turn(b, invoke=nothing)

    async def in_b(scope):
        gate.open()
        await until(lambda: b.turn_state.waiters)
        return await outcome_of(run_in_turn(a, invoke=nothing))

    async def drive():
        return [x async for x in stream_in_turn(a, invoke=body)]

    stream = asyncio.create_task(drive())
    await gate.reached()
    assert isinstance(await run_in_turn(b, invoke=in_b), TurnDeadlockError)
    assert await stream == ["entered"]


async def test_real_branches_raise_too_and_the_other_call_returns(watch):
    a, b = watch(["in a"]), watch(["in b"])
    gate = Gate()

    async def first(*_, **__):
        await gate.wait()
        return await b.branch.communicate("from a")

    async def second(*_, **__):
        gate.open()
        await until(lambda: b.branch.turn_queue)
        return await a.branch.communicate("from b")

    one = asyncio.create_task(a.branch.operate(instruction="q", middle=first, skip_validation=True))
    await gate.reached()
    with pytest.raises(TurnDeadlockError):
        await b.branch.operate(instruction="q", middle=second, skip_validation=True)
    assert await one == "in b"
    a.check("RunEnd")
    b.check("RunFailed", "RunEnd")


# --- possible, and only shown ----------------------------------------------------------------------------------------


async def test_contention_without_a_cycle_is_no_deadlock():
    a, gate = Host("A"), Gate()

    async def held(scope):
        await gate.wait()

    turn = asyncio.create_task(run_in_turn(a, invoke=held))
    await gate.reached()
    waiters = [asyncio.create_task(run_in_turn(a, invoke=nothing)) for _ in range(3)]
    await until(lambda: len(a.turn_state.waiters) == 3)
    assert [r.deadlock for r in a.turn_state.queue()] == [None] * 3
    gate.open()
    await asyncio.gather(turn, *waiters)


async def in_child(call):
    return await asyncio.create_task(call)


async def _shown_and_then_broken(ring):
    """Both wait; both are shown; cancelling one lets the other finish."""
    await ring.start()
    await ring.wait_at(0)
    assert ring.queue_of(1)[0].deadlock is None  # no cycle yet
    await ring.wait_at(1)
    ids = [str(h.seen[0].turn_id)[:8] for h in ring.hosts]
    assert [r.deadlock for r in (*ring.queue_of(1), *ring.queue_of(0))] == [
        f"this wait may never end: chat on B → turn {ids[1]} (operate on B) → turn {ids[0]} (operate on A)",
        f"this wait may never end: chat on A → turn {ids[0]} (operate on A) → turn {ids[1]} (operate on B)",
    ]
    (told,) = [e for e in ring.hosts[0].turns.events() if e.kind == "warning"]
    assert told.data["text"].startswith("this wait may never end: chat on A")
    ring.tasks[1].cancel()
    assert await ring.tasks[0] == "entered"
    await outcome_of(ring.tasks[1])


@pytest.mark.parametrize("which", [0, 1])
async def test_a_cycle_through_a_child_task_is_shown_and_never_raised(which):
    """Nobody may be waiting for the child."""
    await _shown_and_then_broken(Ring(2, {which: in_child}))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", ["asyncio.timeout", "wait_for", "anyio"])
async def test_a_cycle_in_which_one_wait_is_under_a_timeout_is_shown_and_never_raised(kind, which):
    async def limited(call):
        if kind == "wait_for":
            return await asyncio.wait_for(call, 1000)
        if kind == "anyio":
            with anyio.fail_after(1000):
                return await call
        async with asyncio.timeout(1000):
            return await call

    await _shown_and_then_broken(Ring(2, {which: limited}))


async def test_a_timeout_that_is_over_does_not_count():
    async def limited(call):
        async with asyncio.timeout(1000) as scope:
            await asyncio.sleep(0)
        keep.append(scope)
        with anyio.fail_after(1000):
            await asyncio.sleep(0)
        return await call

    keep = []
    ring = Ring(2, {0: limited, 1: limited})
    await ring.start()
    await ring.wait_at(0)
    ring.gates[1].open()
    assert isinstance(await outcome_of(ring.tasks[1]), TurnDeadlockError)
    assert await ring.tasks[0] == "entered"


async def test_the_consumer_of_an_open_stream_that_waits_is_a_possible_cycle():
    """Somebody else may close the stream."""
    a, b, gate = Host("A"), Host("B"), Gate()

    async def items(scope):
        yield 1

    async def consume():
        async for _ in stream_in_turn(a, invoke=items, operation="run"):
            await gate.wait()
            return await run_in_turn(b, invoke=nothing, operation="chat")

    async def in_b(scope):
        gate.open()
        await until(lambda: b.turn_state.waiters)
        call = asyncio.ensure_future(run_in_turn(a, invoke=nothing))
        await until(lambda: a.turn_state.waiters)
        shown = [r.deadlock for r in (*a.turn_state.queue(), *b.turn_state.queue())]
        call.cancel()
        await outcome_of(call)
        return shown

    consumer = asyncio.create_task(consume())
    await gate.reached()
    shown = await run_in_turn(b, invoke=in_b)
    assert all(s.startswith("this wait may never end") for s in shown)
    assert await consumer == "entered"
    await until(lambda: a.turn_state.turn is None)


async def test_an_observer_that_waits_for_a_branch_that_waits_for_its_own_is_a_possible_cycle():
    a, b, gate = Watched(scripted_model("x")), Host("B"), Gate()

    async def on_message(*_):
        await gate.wait()
        await run_in_turn(b, invoke=nothing)

    from lionagi.session.signal import MessageAdded

    a.observe(MessageAdded, on_message)

    async def in_b(scope):
        call = asyncio.ensure_future(a.branch.chat("from b"))
        await until(lambda: a.branch.turn_queue)
        gate.open()
        await until(lambda: b.turn_state.waiters)
        shown = [r.deadlock for r in (*a.branch.turn_queue, *b.turn_state.queue())]
        call.cancel()
        await outcome_of(call)
        return shown

    turn = asyncio.create_task(a.branch.communicate("q"))
    await gate.reached()
    shown = await run_in_turn(b, invoke=in_b)
    assert len(shown) >= 2 and all(s and s.startswith("this wait may never end") for s in shown)
    assert await turn == "x"
