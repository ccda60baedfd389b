"""The terminal matrix, row by row, on both roads, observed and not (ADR-0018 D4)."""

from __future__ import annotations

import asyncio

import pytest
from lionagi.operations._observe import StopStream
from lionagi.protocols.messages import Instruction
from lionagi.session.control import LoopBreak, LoopDirective
from turnkit import OPERATIONS, CleanStop, Host, Watched, drain, every_operation, outcome_of, until

from lionnb.testing import Gate, scripted_model
from lionnb.turns import run_in_turn, stream_in_turn


@every_operation
async def test_an_operation_that_ends_is_one_run_start_and_one_run_end(operation, watch, observed):
    w = watch(list(operation.replies), observed=observed)
    value = await operation.call(w.branch)
    w.check("RunEnd")
    assert w.outcomes == ["completed"]
    if observed and not operation.streams:
        assert w.terminal.data == value


@every_operation
async def test_a_failing_provider_is_run_failed_with_the_callers_exception(operation, watch, observed):
    w = watch([ValueError("boom")], observed=observed)
    if operation.name == "parse":  # it hands the text back where lionagi cannot parse it
        assert await operation.call(w.branch) == operation.positional["text"]
        w.check("RunEnd")
        return
    exc = await outcome_of(operation.call(w.branch))
    assert isinstance(exc, Exception)
    w.check("RunFailed")
    assert w.outcomes == ["failed"]
    if observed:
        assert w.terminal.data is exc


@every_operation
async def test_cancelled_after_the_start_is_run_failed_with_the_cancellation(operation, watch, observed):
    gate = Gate()
    w = watch(list(operation.replies), observed=observed, gate=gate)
    task = asyncio.create_task(operation.call(w.branch))
    await gate.reached()
    task.cancel()
    exc = await outcome_of(task)
    assert isinstance(exc, asyncio.CancelledError)
    w.check("RunFailed")
    assert w.outcomes == ["cancelled"]
    if observed:
        assert isinstance(w.terminal.data, asyncio.CancelledError)


@every_operation
async def test_cancelled_while_waiting_leaves_no_signal_and_harms_nobody_behind(operation, watch, observed):
    gate = Gate()
    w = watch([*operation.replies, *operation.replies], observed=observed, gate=gate)
    first = asyncio.create_task(w.branch.chat("first"))
    await gate.reached()
    waiting = asyncio.create_task(operation.call(w.branch))
    behind = asyncio.create_task(w.branch.chat("behind"))
    await until(lambda: len(w.branch.turn_queue) == 2)
    waiting.cancel()
    assert isinstance(await outcome_of(waiting), asyncio.CancelledError)
    gate.open()
    await asyncio.gather(first, behind)
    w.check("RunEnd", "RunEnd")
    assert w.outcomes == ["completed", "cancelled while waiting", "completed"]


@pytest.mark.parametrize("name", ["ReActStream", "run"])
async def test_a_stream_that_is_made_and_never_iterated_is_nothing(name, observed):
    w = Watched(scripted_model("x"), observed=observed)
    stream = OPERATIONS[name].open(w.branch)
    await stream.aclose()
    dropped = OPERATIONS[name].open(w.branch)
    del dropped
    w.check()
    assert w.outcomes == []


@pytest.mark.parametrize("name", ["ReActStream", "run"])
async def test_a_consumer_that_closes_the_stream_ends_it_cleanly_and_its_source_is_closed_first(name, observed):
    op = OPERATIONS[name]
    w = Watched(scripted_model(list(op.replies)), observed=observed)
    stream = op.open(w.branch)
    await anext(stream)
    await stream.aclose()
    await stream.aclose()
    w.check("RunEnd")
    assert w.outcomes == ["closed"]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_cancel_is_a_clean_end_of_the_stream():
    w = Watched(scripted_model("never told"))
    got = []
    async for msg in w.branch.run("q"):
        got.append(type(msg).__name__)
        assert w.branch.control(LoopDirective.CANCEL)
    assert got == ["Instruction"]
    w.check("RunEnd")


async def test_break_is_a_failure_with_the_original_exception():
    w = Watched(scripted_model("never told"))

    async def consume():
        async for msg in w.branch.run("q"):
            if isinstance(msg, Instruction):
                assert w.branch.control(LoopDirective.BREAK, reason="enough")

    with pytest.raises(LoopBreak, match="enough") as caught:
        await consume()
    w.check("RunFailed")
    assert w.terminal.data is caught.value


# --- rows the specification's table lacks -------------------------------------------------------


async def test_a_clean_stop_out_of_a_coroutine_is_run_end_and_reaches_the_caller():
    w = Watched(scripted_model("x"))

    async def middle(*_, **__):
        raise StopStream("enough")

    with pytest.raises(StopStream, match="enough"):
        await w.branch.operate(instruction="q", middle=middle, skip_validation=True)
    w.check("RunEnd")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
async def test_a_base_exception_of_the_body_itself_is_run_failed_and_raised(error, observed):
    host = Host(observed=observed)

    async def body(scope):
        raise error

    async def stream(scope):
        yield 1
        raise error

    # not as tasks: a KeyboardInterrupt would stop the loop
    if error is not GeneratorExit:  # raised at an await of a coroutine, it cannot be told from a destroyed frame
        assert isinstance(await outcome_of(run_in_turn(host, invoke=body)), error)
        host.check("RunFailed")
        host.seen.clear()
        assert isinstance(await outcome_of(drain(stream_in_turn(host, invoke=stream))), error)
        host.check("RunFailed")


async def test_a_close_time_base_exception_is_raised_only_when_nothing_else_unwinds():
    class Odd(BaseException):
        pass

    class Source:  # closed by the driver after a clean stop: nothing unwinds then
        def __init__(self, *, stops):
            self.stops, self.n = stops, 0

        def __aiter__(self):
            return self

        async def __anext__(self):
            self.n += 1
            if self.stops and self.n == 2:
                raise CleanStop
            return self.n

        async def aclose(self):
            raise Odd

    host = Host()
    with pytest.raises(Odd):
        await drain(stream_in_turn(host, invoke=lambda scope: Source(stops=True)))
    host.check("RunFailed")
    host.seen.clear()
    stream = stream_in_turn(host, invoke=lambda scope: Source(stops=False))
    await anext(stream)
    await stream.aclose()  # GeneratorExit unwinds: Odd is secondary
    host.check("RunEnd")


async def test_an_exception_while_closing_is_suppressed():
    class Source:
        def __aiter__(self):
            return self

        async def __anext__(self):
            return 1

        async def aclose(self):
            raise RuntimeError("cannot close")

    host = Host()
    stream = stream_in_turn(host, invoke=lambda scope: Source())
    await anext(stream)
    await stream.aclose()
    host.check("RunEnd")


async def test_cancelled_once_the_outcome_was_fixed_keeps_the_terminal_and_raises(observed):
    host = Host()
    gate = Gate()

    async def hold(kind, ctx):
        if kind == "RunEnd":
            await gate.wait()

    host.on_signal = hold

    async def body(scope):
        return "done"

    task = asyncio.create_task(run_in_turn(host, invoke=body))
    await gate.reached()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.open()
    assert isinstance(await outcome_of(task), asyncio.CancelledError)
    host.check("RunEnd")
    assert host.turns.records()[-1].outcome == "completed"


async def test_cancelled_while_a_failure_is_finalized_is_run_failed_and_raises_the_cancellation():
    host, gate = Host(), Gate()

    async def hold(kind, ctx):
        if kind == "RunFailed":
            await gate.wait()

    host.on_signal = hold

    async def body(scope):
        raise ValueError("first")

    task = asyncio.create_task(run_in_turn(host, invoke=body))
    await gate.reached()
    task.cancel()
    gate.open()
    exc = await outcome_of(task)
    assert isinstance(exc, asyncio.CancelledError) and isinstance(exc.__cause__, ValueError)
    host.check("RunFailed")


async def test_no_model_can_be_resolved_releases_the_lock_without_a_signal(observed):
    host = Host(observed=observed)

    def none():
        raise LookupError("no model")

    host.turn_model = none

    async def body(scope):
        raise AssertionError("must not run")

    with pytest.raises(LookupError, match="no model"):
        await run_in_turn(host, invoke=body)
    host.check()
    assert host.turns.records()[0].outcome == "refused"


async def test_a_call_that_was_destroyed_at_an_await_gets_its_terminal_from_the_loop(observed):
    """Nobody can await there, but the loop lives: nested work is cancelled, the terminal sent, the lock released."""
    host, kids = Host(observed=observed), []

    async def nested(scope):
        await asyncio.get_running_loop().create_future()

    async def body(scope):
        kids.append(asyncio.create_task(run_in_turn(host, invoke=nested)))
        await until(lambda: kids[0] in scope.context.nested_tasks)
        await asyncio.get_running_loop().create_future()

    call = run_in_turn(host, invoke=body)
    while not (kids and host.turn_state.context and host.turn_state.context.nested_tasks):
        if (waits := call.send(None)) is not None:  # driven by hand, to be dropped where it stands
            waits._asyncio_future_blocking = False
            await until(waits.done)
        await asyncio.sleep(0)
    call.close()
    await until(lambda: host.turn_state.turn is None)
    assert kids[0].cancelled()
    host.check("RunFailed")
    assert host.turns.records()[0].outcome == "abandoned"


async def test_a_streams_step_that_was_destroyed_at_an_await_is_run_end(observed):
    """Before Python 3.13 the generator is not even told, and would hold the Branch for ever."""
    host = Host(observed=observed)

    async def body(scope):
        yield 1
        await asyncio.get_running_loop().create_future()

    stream = stream_in_turn(host, invoke=body)
    await anext(stream)
    step = stream.__anext__()
    step.send(None)
    step.close()
    await until(lambda: host.turn_state.turn is None)
    host.check("RunEnd")
    assert host.turns.records()[0].outcome == "abandoned"
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # what Python itself says about such a generator


@pytest.mark.parametrize("whose", ["the provider's", "a child's", "asked for", "a timeout's"])
async def test_a_cancellation_that_nobody_has_asked_this_task_for_is_a_failure(whose, observed):
    """The log says the same as the signal: only who is cancelled reads cancelled."""
    host = Host(observed=observed)

    async def body(scope):
        if whose == "the provider's":
            raise asyncio.CancelledError("by the provider")
        child = asyncio.get_running_loop().create_future()
        if whose == "a child's":
            child.cancel()
        elif whose == "asked for":
            asyncio.current_task().cancel()
        await child

    async def stream(scope):
        yield 1
        await body(scope)

    for call in (lambda: run_in_turn(host, invoke=body), lambda: drain(stream_in_turn(host, invoke=stream))):
        wrapped = asyncio.wait_for(call(), 0.01) if whose == "a timeout's" else call()
        error = await outcome_of(asyncio.create_task(wrapped))
        assert isinstance(error, TimeoutError if whose == "a timeout's" else asyncio.CancelledError)
    host.check("RunFailed", "RunFailed")
    wanted = "failed" if whose in ("the provider's", "a child's") else "cancelled"
    assert [r.outcome.value for r in host.turns.records()] == [wanted] * 2
    assert [e.data["outcome"] for e in host.turns.events() if e.kind == "end"] == [wanted] * 2
