"""Cancellation at every step: the lock, the pointer, the signals, the log and the next turn survive it (T2, T5)."""

from __future__ import annotations

import asyncio
import contextlib

import anyio
import pytest
from lionagi.session.signal import MessageAdded, RunEnd, RunFailed, RunStart
from turnkit import OPERATIONS, Host, Watched, drain, outcome_of

from lionnb.testing import cancel_at_every_step, scripted_model
from lionnb.turns import run_in_turn, stream_in_turn

CANCELS = [1, pytest.param(2, marks=pytest.mark.slow), 3]
# ReAct is many calls in one turn: the steps between two of them are those of one
OPERATIONS_AND_CANCELS = [
    pytest.param(name, n, marks=[pytest.mark.slow] if n == 2 or (n > 1 and "ReAct" in name) else [])
    for name in OPERATIONS
    for n in (1, 2, 3)
]


class _Checked:
    """A world: whatever became of the cancelled call, everything of T2 and T5 holds, and the next turn works."""

    def check_signals(self, seen, records):
        starts = [s for s in seen if s.kind == "RunStart"]
        assert len(starts) <= 1 and len(seen) == 2 * len(starts), [s.kind for s in seen]
        assert len(records) <= 1 and all(r.ended_at is not None for r in records)
        assert sum(r.turn_id is not None for r in records) == len(starts)


class OperationWorld(_Checked):
    def __init__(self, op, *, observed=True, model=None):
        self.op = op
        self.w = Watched(model or scripted_model(list(op.replies)), observed=observed)
        if observed:
            self.w.observe(MessageAdded, self._slow)

    async def _slow(self, *_):
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def run(self):
        return await self.op.call(self.w.branch)

    async def check(self, outcome):
        w = self.w
        w.check(*[s.kind for s in w.seen if s.kind in ("RunEnd", "RunFailed")])
        if w.session is not None:
            self.check_signals([s for s in w.seen if s.kind != "MessageAdded"], w.branch.turns.records())
        assert outcome.delivered or outcome.error is None
        assert await w.branch.chat("next") is not None
        assert w.outcomes[-1] == "completed"


@pytest.mark.filterwarnings("ignore:turn .* left a question")
@pytest.mark.parametrize(("name", "cancels"), OPERATIONS_AND_CANCELS)
def test_an_operation_may_be_cancelled_at_any_step(name, cancels, observed):
    async def scenario():
        return OperationWorld(OPERATIONS[name], observed=observed)

    assert cancel_at_every_step(scenario, cancels=cancels) >= 8


# --- an observer in trouble at the same moment ---------------------------------------------------------------------------


async def _fails():
    await asyncio.sleep(0)
    raise ValueError("the observer failed")


async def _fails_in_a_group():
    async with anyio.create_task_group() as group:
        group.start_soon(_fails)
        group.start_soon(anyio.sleep, 5)


async def _times_out():
    with anyio.fail_after(0.0):
        await anyio.sleep(5)


async def _gives_up():
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_soon(scope.cancel)
        await anyio.sleep(5)


async def _swallows():
    for _ in range(3):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


class TroubledWorld:
    def __init__(self, trouble, *, stream):
        self.w, self.stream = Watched(scripted_model(["one", "two"])), stream
        for signal in (RunStart, RunEnd, RunFailed):
            self.w.observe(signal, lambda *_: trouble())

    async def run(self):
        return await (drain(self.w.branch.run("x")) if self.stream else self.w.branch.communicate("x"))

    async def check(self, outcome):
        assert outcome.cancelled is (outcome.delivered > 0), "a cancellation was lost, or came from nowhere"
        assert self.w.kinds in ([], ["RunStart", "RunEnd"], ["RunStart", "RunFailed"])
        assert await self.w.branch.chat("next") is not None


@pytest.mark.filterwarnings("ignore:turn .* left a question")
@pytest.mark.parametrize("cancels", CANCELS)
@pytest.mark.parametrize("stream", [False, True], ids=["coroutine", "stream"])
@pytest.mark.parametrize("trouble", [_fails, _fails_in_a_group, _times_out, _gives_up, _swallows])
def test_an_observer_never_takes_a_cancellation_with_it(trouble, stream, cancels, caplog):
    """anyio's groups and scopes drop a cancellation that comes while they handle an exception of their own."""
    caplog.set_level("CRITICAL", "lionnb")

    async def scenario():
        return TroubledWorld(trouble, stream=stream)

    assert cancel_at_every_step(scenario, cancels=cancels) > 8


@pytest.mark.parametrize("rounds", [1, 2, 3, 8])
@pytest.mark.parametrize("stream", [False, True], ids=["coroutine", "stream"])
async def test_a_turn_whose_every_task_is_cancelled_before_its_first_step_says_that_it_started(stream, rounds):
    """T2, as at the end of asyncio.run: no RunFailed without RunStart."""
    host = Host()

    async def items(scope):
        yield 1

    async def body(scope):
        return 1

    async def run():
        if stream:
            return await drain(stream_in_turn(host, invoke=items))
        return await run_in_turn(host, invoke=body)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    here, told = asyncio.current_task(), 0
    for _ in range(rounds):
        for other in asyncio.all_tasks() - {here}:
            told += other.cancel()
        await asyncio.sleep(0)
    await asyncio.wait((task,))
    assert told >= 2 and task.cancelled()
    assert [s.kind for s in host.seen] == ["RunStart", "RunFailed"]
    host.check("RunFailed")


# --- the driver alone: every step, with everything slow -----------------------------------------------------------------


class DriverWorld(_Checked):
    """A turn with a slow observer, a nested task and a message signal, or a stream of them."""

    def __init__(self, *, stream, fails=False):
        self.host, self.stream, self.fails = Host(), stream, fails
        self.host.on_signal = self._slow

    async def _slow(self, kind, ctx):
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _nested(self, scope):
        try:
            await asyncio.sleep(0)
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)  # cleaning up takes a step, too

    async def _work(self, scope):
        from lionnb.turns.driver import schedule_signal

        self.kid = asyncio.create_task(run_in_turn(self.host, invoke=self._nested))
        schedule_signal(self.host.turn_state, lambda: self._slow("message", None))
        await asyncio.sleep(0)
        if self.fails:
            raise ValueError("failed")
        return "done"

    async def _stream(self, scope):
        try:
            yield await self._work(scope)
            yield 2
        finally:
            await asyncio.sleep(0)

    async def run(self):
        if self.stream:
            return await drain(stream_in_turn(self.host, invoke=self._stream))
        return await run_in_turn(self.host, invoke=self._work)

    async def check(self, outcome):
        self.host.check(*[s.kind for s in self.host.seen if s.kind != "RunStart"])
        self.check_signals(self.host.seen, self.host.turns.records())
        assert not hasattr(self, "kid") or self.kid.done(), "nested work outlived its turn"

        async def again(scope):
            return "again"

        assert await run_in_turn(self.host, invoke=again) == "again"


@pytest.mark.parametrize("cancels", CANCELS)
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "fails"])
@pytest.mark.parametrize("stream", [False, True], ids=["coroutine", "stream"])
def test_finalization_reaches_its_end_under_any_number_of_cancellations(stream, fails, cancels):
    async def scenario():
        return DriverWorld(stream=stream, fails=fails)

    for gap in (1, 2):
        assert cancel_at_every_step(scenario, cancels=cancels, gap=gap) > 8


class WaitingWorld:
    """One of three waiters is cancelled, at every step of the hand-over of the lock."""

    def __init__(self):
        self.host, self.order = Host(), []

    async def _turn(self, n):
        async def body(scope):
            self.order.append(n)
            await asyncio.sleep(0)

        await run_in_turn(self.host, invoke=body)

    async def run(self):
        self.tasks = [asyncio.create_task(self._turn(n)) for n in range(4)]
        try:
            await asyncio.wait(self.tasks)
        finally:
            await outcome_of(asyncio.gather(*self.tasks, return_exceptions=True))

    def victim(self):
        return self.tasks[1] if hasattr(self, "tasks") else None

    async def check(self, outcome):
        assert [n for n in self.order if n != 1] == [0, 2, 3], "a cancelled waiter disturbed the others"
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.host.check(*[s.kind for s in self.host.seen if s.kind != "RunStart"])


@pytest.mark.parametrize("cancels", CANCELS)
def test_a_waiter_cancelled_at_any_step_of_the_hand_over_harms_nobody_behind_it(cancels):
    """b01: also when the lock has just been handed to it and it has not run yet (T1)."""

    async def scenario():
        return WaitingWorld()

    assert cancel_at_every_step(scenario, cancels=cancels) > 5


class ClosingWorld:
    """The consumer of a stream is cancelled while it closes the stream."""

    def __init__(self):
        self.host = Host()
        self.began = self.closed = False

    async def _stream(self, scope):
        self.began = True
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            self.closed = True

    async def run(self):
        self.stream = stream_in_turn(self.host, invoke=self._stream)
        async for _ in self.stream:
            await self.stream.aclose()
            break

    async def check(self, outcome):
        if hasattr(self, "stream"):
            await outcome_of(self.stream.aclose())
        self.host.check(*[s.kind for s in self.host.seen if s.kind != "RunStart"])
        assert self.closed is self.began


@pytest.mark.parametrize("cancels", CANCELS)
def test_closing_a_stream_may_be_cancelled_at_any_step(cancels):
    async def scenario():
        return ClosingWorld()

    assert cancel_at_every_step(scenario, cancels=cancels) > 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:turn .* left a question")
@pytest.mark.parametrize("name", ["communicate", "operate", "ReAct"])
def test_a_call_over_a_socket_may_be_cancelled_at_any_step(name):
    from lionnb.testing import LoopbackServer

    op = OPERATIONS[name]
    with LoopbackServer(list(op.replies)) as server:

        async def scenario():
            return OperationWorld(op, model=server.model())

        assert cancel_at_every_step(scenario) > 10
