"""The calls of a stream's consumer between two items, when somebody else ends the stream; closings that meet (T1, T6)."""

from __future__ import annotations

import asyncio

import pytest
from lionagi.session.signal import RunEnd
from turnkit import Host, Watched, outcome_of, until

from lionnb.errors import TurnFinalizingError
from lionnb.testing import Gate, cancel_at_every_step, scripted_model
from lionnb.turns import run_in_turn, stream_in_turn


async def numbers(scope):
    for i in range(5):
        yield i


async def nothing(scope):
    return True


class Reading:
    """A consumer that takes one item of a stream and then calls the Branch, or reads a second stream of it."""

    def __init__(self, *, second="call", observed=True, swallows=False):
        self.host, self.gate, self.swallows = Host(observed=observed), Gate(), swallows
        self.stream = stream_in_turn(self.host, invoke=numbers)
        self.left: list[str] = []
        self.task = asyncio.create_task(getattr(self, second)())

    async def _wait(self):
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            if not self.swallows:
                raise
        finally:
            self.left.append(self.host.turn_state.context.phase.value)

    async def call(self):
        await anext(self.stream)
        return await run_in_turn(self.host, invoke=lambda scope: self._wait())

    async def read(self):
        async def body(scope):
            yield 0
            await self._wait()
            yield 1

        await anext(self.stream)
        nested = stream_in_turn(self.host, invoke=body)
        await anext(nested)
        return await anext(nested)


@pytest.mark.parametrize("second", ["call", "read"])
@pytest.mark.parametrize("how", ["closed by another task", "dropped", "let go of"])
async def test_a_consumers_call_ends_with_the_stream_that_it_is_part_of(second, how, observed):
    """Else it would go on beside the next turn: nobody had cancelled it, and nobody waited for it."""
    r = Reading(second=second, observed=observed)
    await r.gate.reached()
    if how == "closed by another task":
        await r.stream.aclose()
    elif how == "dropped":
        r.stream = None
        await until(lambda: r.task.done())
    else:
        from lionnb.turns.finalize import release

        assert await release(r.host.turn_state.turn, 1.0) is True
    assert r.left == ["finalizing"]
    await until(lambda: r.task.done())
    with pytest.raises(TurnFinalizingError):
        await r.task
    assert r.task.cancelling() == 0, "nobody has cancelled the consumer"
    await until(lambda: r.host.turn_state.turn is None)
    r.host.check("RunEnd")
    assert await run_in_turn(r.host, invoke=nothing) is True


async def test_a_consumer_that_somebody_has_cancelled_too_stays_cancelled():
    r = Reading()
    await r.gate.reached()
    closing = asyncio.create_task(r.stream.aclose())
    await asyncio.sleep(0)
    r.task.cancel()
    await closing
    assert isinstance(await outcome_of(r.task), asyncio.CancelledError)
    r.host.check("RunEnd")


async def test_a_call_that_swallows_its_end_returns_and_the_consumer_is_not_cancelled_later():
    r = Reading(swallows=True)
    await r.gate.reached()
    await r.stream.aclose()
    assert await r.task is None
    assert r.task.cancelling() == 0
    r.host.check("RunEnd")


async def test_a_consumers_call_may_close_the_stream_itself_also_through_a_child():
    """The closing waits for nothing that waits for it."""
    for child in (False, True):
        host = Host()
        stream = stream_in_turn(host, invoke=numbers)

        async def closes(scope, stream=stream, child=child):
            await (asyncio.create_task(stream.aclose()) if child else stream.aclose())
            return "closed"

        await anext(stream)
        assert await run_in_turn(host, invoke=closes) == "closed"
        host.check("RunEnd")


async def test_a_real_consumers_call_leaves_no_answer_in_a_later_turn(watch):
    """On the API road too: what it asked for is cut before the next turn's request is built."""
    gate = Gate()
    w = Watched(scripted_model("streamed"))
    stream = w.branch.run("q")
    await anext(stream)
    other = watch("nested", gate=gate).branch.mdls.chat

    async def consumer():
        await anext(stream)
        return await w.branch.communicate("between", chat_model=other)

    task = asyncio.create_task(consumer())
    await gate.reached()
    await stream.aclose()
    assert isinstance(await outcome_of(task), TurnFinalizingError)
    gate.open()
    await w.branch.communicate("next")
    asked = [m.content.instruction for m in w.branch.messages if hasattr(m.content, "instruction")]
    assert asked == ["q", "next"]
    w.check("RunEnd", "RunEnd")


class CutWorld:
    """Another task closes the stream while its consumer is in a call; one of the two is cancelled."""

    def __init__(self, who):
        self.r, self.who = Reading(), who
        self.host = self.r.host

    def victim(self):
        return self.r.task if self.who == "consumer" else self.closer

    closer = None

    async def run(self):
        self.closer = asyncio.current_task()
        reached = asyncio.ensure_future(self.r.gate.reached())
        try:
            await asyncio.wait((reached, self.r.task), return_when=asyncio.FIRST_COMPLETED)
            await self.r.stream.aclose()
        finally:
            reached.cancel()

    async def check(self, outcome):
        self.r.task.cancel()  # the closer may have been cancelled before it closed anything
        await outcome_of(self.r.task)
        await self.r.stream.aclose()
        assert self.r.left in ([], ["finalizing"], ["active"])
        terminals = [s.kind for s in self.host.seen if s.kind != "RunStart"]
        assert len(terminals) <= 1
        self.host.check(*terminals)
        assert await run_in_turn(self.host, invoke=nothing) is True


@pytest.mark.parametrize("who", ["closer", "consumer"])
@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_cutting_a_consumers_call_may_be_cancelled_at_any_step(who, cancels):
    async def scenario():
        return CutWorld(who)

    assert cancel_at_every_step(scenario, cancels=cancels) >= 4


# --- closings that meet --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 5])
async def test_who_closes_a_stream_that_is_being_closed_waits_for_its_end(n, observed):
    """c10: a second way of closing, added for safety, races with the first one. All of them return; one terminal."""
    host, gate, closed = Host(observed=observed), Gate(), []

    async def body(scope):
        try:
            yield 0
        finally:
            await gate.wait()
            closed.append(True)

    stream = stream_in_turn(host, invoke=body)
    await anext(stream)
    closings = [asyncio.create_task(stream.aclose()) for _ in range(n)]
    await gate.reached()
    assert not any(t.done() for t in closings)
    gate.open()
    assert await asyncio.gather(*closings, return_exceptions=True) == [None] * n
    await stream.aclose()
    assert closed == [True]
    host.check("RunEnd")
    assert [r.outcome for r in host.turns.records()] == ["closed"]


async def test_who_closes_a_stream_that_ends_by_itself_waits_for_its_end():
    host, gate = Host(), Gate()

    async def body(scope):
        yield 0

    async def hold(kind, ctx):
        if kind == "RunEnd":
            await gate.wait()

    host.on_signal = hold
    stream = stream_in_turn(host, invoke=body)
    await anext(stream)
    step = asyncio.create_task(anext(stream, "the end"))
    await gate.reached()
    closing = asyncio.create_task(stream.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open()
    assert (await step, await closing) == ("the end", None)
    host.check("RunEnd")


async def test_closings_of_a_nested_stream_meet_too():
    host, gate, got = Host(), Gate(), []

    async def inner(scope):
        try:
            yield 0
        finally:
            await gate.wait()

    async def body(scope):
        nested = stream_in_turn(host, invoke=inner)
        await anext(nested)
        both = [asyncio.create_task(nested.aclose()) for _ in range(2)]
        await gate.reached()
        gate.open()
        got.extend(await asyncio.gather(*both, return_exceptions=True))

    await run_in_turn(host, invoke=body)
    assert got == [None, None]
    host.check("RunEnd")


async def test_an_observer_of_its_own_closing_fails_fast_instead_of_waiting_for_itself():
    w, met = Watched(scripted_model("x")), []
    stream = w.branch.run("q")

    async def closes(*_):
        met.append(await outcome_of(stream.aclose()))

    w.observe(RunEnd, closes)
    await anext(stream)
    await stream.aclose()
    assert [type(e) for e in met] == [TurnFinalizingError]
    w.check("RunEnd")


async def test_a_message_observer_of_the_consumers_own_message_fails_fast_too():
    """Its task is the turn's to drain, and it inherited the consumer's view of the stream."""
    from lionagi.session.signal import MessageAdded

    w, met, gate = Watched(scripted_model("x")), [], Gate()
    stream = w.branch.run("q")

    async def closes(*_):
        await gate.wait()
        met.append(type(await outcome_of(stream.aclose())))

    await anext(stream)
    w.observe(MessageAdded, closes)
    w.branch.msgs.add_message(instruction="from the consumer")
    await gate.reached()
    closing = asyncio.create_task(stream.aclose())
    await until(lambda: w.branch.turn_state.turn.finalization is not None)
    gate.open()
    await closing
    assert set(met) == {TurnFinalizingError}
    w.check("RunEnd")


async def test_who_gives_up_waiting_for_a_closing_leaves_it_at_work():
    host, gate = Host(), Gate()

    async def body(scope):
        try:
            yield 0
        finally:
            await gate.wait()

    stream = stream_in_turn(host, invoke=body)
    await anext(stream)
    first = asyncio.create_task(stream.aclose())
    await gate.reached()
    second = asyncio.create_task(stream.aclose())
    await asyncio.sleep(0)
    second.cancel()
    assert isinstance(await outcome_of(second), asyncio.CancelledError)
    gate.open()
    await first
    host.check("RunEnd")
