"""Who is inside a turn: contexts that are wiped, nested, interleaved or gone (ADR-0018 D2)."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import anyio
import pytest
from turnkit import Host, Watched, drain, outcome_of, until

from lionnb.errors import TurnFinalizingError
from lionnb.testing import Gate, scripted_model
from lionnb.turns import context as ctxs
from lionnb.turns import run_in_turn, stream_in_turn


async def nothing(scope):
    return scope.owns_lifecycle


def wiped(coro):
    """A task in an empty context."""
    return contextvars.Context().run(asyncio.ensure_future, coro)


def count_to(host, n, *, nested=True):
    """A stream of numbers; each step calls the host again from inside."""

    async def body(scope):
        for i in range(n):
            if nested:
                assert await run_in_turn(host, invoke=nothing) is False
            yield i

    return stream_in_turn(host, invoke=body)


# --- coroutines ------------------------------------------------------------------------------------------------------


async def test_a_wiped_context_inside_the_owners_own_task_is_still_inside_the_turn():
    """A wait for the lock there could never end."""
    host = Host()

    async def body(scope):
        coro = run_in_turn(host, invoke=nothing)
        # driven by this very task, but in an empty context: as a raw callback or a foreign framework does it
        with pytest.raises(StopIteration) as done:
            contextvars.Context().run(coro.send, None)
        return done.value.value

    assert await run_in_turn(host, invoke=body) is False
    host.check("RunEnd")


async def test_a_child_task_in_an_empty_context_is_a_contender_of_its_own():
    host = Host()
    children = []

    async def body(scope):
        children.append(wiped(run_in_turn(host, invoke=nothing)))
        await until(lambda: host.turn_state.waiters)

    await run_in_turn(host, invoke=body)
    assert await children[0] is True
    host.check("RunEnd", "RunEnd")


async def test_a_turn_that_comes_back_through_another_branch_nests():
    """A → B → A: one slot for the binding is not enough."""
    a, b = Host("A"), Host("B")

    async def in_b(scope):
        assert await run_in_turn(a, invoke=nothing) is False
        assert await run_in_turn(b, invoke=nothing) is False

    async def in_a(scope):
        await run_in_turn(b, invoke=in_b)
        assert await run_in_turn(a, invoke=nothing) is False

    await run_in_turn(a, invoke=in_a)
    a.check("RunEnd")
    b.check("RunEnd")


async def test_the_caller_is_outside_again_when_its_turn_is_over():
    host = Host()
    for _ in range(2):
        assert await run_in_turn(host, invoke=nothing) is True
        assert ctxs.chain() == ()


async def test_a_restored_snapshot_with_the_same_id_is_another_branch():
    w = Watched(scripted_model(["outer"]))
    import lionnb

    twin = lionnb.Branch.from_dict(w.branch.to_dict(), chat_model=scripted_model("twin"))
    assert twin.id == w.branch.id

    async def middle(*_, **__):
        assert twin.current_turn is None
        return await twin.communicate("q")

    assert await w.branch.operate(instruction="q", middle=middle, skip_validation=True) == "twin"
    assert [r.operation for r in twin.turns.records()] == ["communicate"]


async def test_a_call_from_a_worker_thread_with_a_copied_context_nests():
    """`asyncio.to_thread` copies the context; the thread's own loop is another one."""
    host = Host()

    async def body(scope):
        return await asyncio.to_thread(lambda: asyncio.run(run_in_turn(host, invoke=nothing)))

    assert await run_in_turn(host, invoke=body) is False
    host.check("RunEnd")


async def test_nested_work_on_another_threads_loop_does_not_outlive_its_turn():
    host, gate, ended = Host(), Gate(), threading.Event()

    async def held(scope):
        try:
            await gate.wait()
        finally:
            ended.set()

    async def body(scope):
        context = contextvars.copy_context()
        call = outcome_of(run_in_turn(host, invoke=held))
        thread = threading.Thread(target=lambda: context.run(asyncio.run, call))
        thread.start()
        await gate.reached()
        return thread

    thread = await run_in_turn(host, invoke=body)
    assert ended.is_set()
    host.check("RunEnd")
    await asyncio.to_thread(thread.join)


# --- streams ------------------------------------------------------------------------------------------------------------


async def test_a_stream_may_be_started_in_one_task_continued_in_a_second_and_closed_in_a_third(observed):
    host = Host(observed=observed)
    stream = count_to(host, 6)

    async def step():
        return await anext(stream)

    assert await step() == 0
    assert await asyncio.create_task(step()) == 1
    assert await wiped(step()) == 2
    assert host.turn_state.turn is not None
    await wiped(stream.aclose())
    host.check("RunEnd")
    assert await run_in_turn(host, invoke=nothing) is True  # this context holds only a tombstone


async def test_two_streams_of_two_branches_may_be_interleaved_in_one_task():
    a, b = Host("A"), Host("B")
    one, two = count_to(a, 2), count_to(b, 4)
    got = [await anext(one), await anext(two), await anext(one), await anext(two)]
    with pytest.raises(StopAsyncIteration):
        await anext(one)
    a.check("RunEnd")
    assert got + await drain(two) == [0, 0, 1, 1, 2, 3]
    b.check("RunEnd")
    assert ctxs.chain() == ()


async def test_the_consumer_of_an_open_stream_nests_between_items():
    """A wait would be for itself."""
    host, owned = Host(), []
    async for _ in count_to(host, 2):
        owned += [
            await run_in_turn(host, invoke=nothing),
            await asyncio.create_task(run_in_turn(host, invoke=nothing)),
            await asyncio.wait_for(run_in_turn(host, invoke=nothing), 60),
        ]
    assert owned == [False] * 6
    host.check("RunEnd")


async def test_another_task_than_the_consumer_waits_behind_the_open_stream():
    host = Host()
    stream = count_to(host, 2)
    other = asyncio.create_task(run_in_turn(host, invoke=nothing))  # its context is older than the stream
    await asyncio.sleep(0)
    await other
    await anext(stream)
    late = wiped(run_in_turn(host, invoke=nothing))
    await until(lambda: host.turn_state.waiters)
    await stream.aclose()
    assert await late is True
    host.check("RunEnd", "RunEnd", "RunEnd")


@pytest.mark.parametrize("how", ["directly", "in a child task"])
async def test_a_call_right_after_break_queues_behind_the_close(how, observed):
    """No await stands between the break and the call; the loop closes the stream only later."""
    host = Host(observed=observed)
    async for _ in count_to(host, 3):
        break
    call = run_in_turn(host, invoke=nothing)
    assert await (call if how == "directly" else asyncio.create_task(call)) is True
    host.check("RunEnd", "RunEnd")
    assert [r.outcome for r in host.turns.records()] == ["abandoned", "completed"]


async def test_a_dropped_stream_is_closed_and_its_branch_is_free(observed):
    host = Host(observed=observed)
    stream = count_to(host, 3)
    await anext(stream)
    del stream
    await until(lambda: host.turn_state.turn is None)
    host.check("RunEnd")


async def test_a_stream_that_the_collector_drops_in_another_thread_is_closed_in_its_own_loop():
    host = Host()
    box = [count_to(host, 3)]
    await anext(box[0])
    await asyncio.to_thread(box.clear)
    await until(lambda: host.turn_state.turn is None)
    host.check("RunEnd")


async def test_a_stream_that_is_dropped_in_a_reference_cycle_is_closed_when_the_cycle_is_collected():
    import gc

    host = Host()
    loop = [count_to(host, 3)]
    await anext(loop[0])
    loop.append(loop)
    del loop
    assert host.turn_state.turn is not None
    gc.collect()
    await until(lambda: host.turn_state.turn is None)
    host.check("RunEnd")


async def test_a_temporary_stream_lives_for_its_step():
    host = Host()
    assert await anext(count_to(host, 1)) == 0
    await until(lambda: host.turn_state.turn is None)
    host.check("RunEnd")


async def test_a_second_task_cannot_step_or_close_a_stream_in_the_middle_of_a_step_and_does_no_harm():
    host, gate = Host(), Gate()

    async def body(scope):
        yield 0
        await gate.wait()
        yield 1

    stream = stream_in_turn(host, invoke=body)
    await anext(stream)
    step = asyncio.ensure_future(anext(stream))
    await gate.reached()
    for meddle in (stream.aclose(), anext(stream)):
        with pytest.raises(RuntimeError, match="already running"):
            await meddle
    gate.open()
    assert await step == 1
    await asyncio.create_task(stream.aclose())
    host.check("RunEnd")


async def test_a_stream_driven_by_a_new_task_for_every_item_keeps_no_list_of_them():
    host, kept = Host(), []

    async def step():
        return await anext(stream)

    stream = count_to(host, 200, nested=False)
    while True:
        try:
            await asyncio.create_task(step())
        except StopAsyncIteration:
            break
        kept.append(len(host.turn_state.turn.drivers))
    assert max(kept) < 20
    host.check("RunEnd")


async def test_an_exception_thrown_into_a_stream_fails_its_turn():
    host = Host()
    stream = count_to(host, 3)
    await anext(stream)
    with pytest.raises(ZeroDivisionError):
        await stream.athrow(ZeroDivisionError())
    host.check("RunFailed")


# --- nested streams ---------------------------------------------------------------------------------------------------------


async def test_a_nested_stream_has_no_lifecycle_of_its_own_and_ends_with_its_turn():
    host, keep, closed = Host(), [], []

    async def inner(scope):
        assert scope.owns_lifecycle is False
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def body(scope):
        keep.append(stream_in_turn(host, invoke=inner))
        return await anext(keep[0])

    assert await run_in_turn(host, invoke=body) == 1
    assert closed == [True]
    host.check("RunEnd")
    with pytest.raises((StopAsyncIteration, TurnFinalizingError)):
        await anext(keep[0])
    assert await run_in_turn(host, invoke=nothing) is True


async def test_a_nested_stream_that_another_task_drives_does_not_outlive_its_turn():
    """That task never called the Branch itself; it only took over the stream."""
    host, gate, ended = Host(), Gate(), []

    async def inner(scope):
        yield 1
        try:
            await gate.wait()
            yield 2
        finally:
            ended.append(True)

    async def body(scope):
        stream = stream_in_turn(host, invoke=inner)
        await anext(stream)
        scope_task.append(asyncio.create_task(drain(stream)))
        await gate.reached()

    scope_task = []
    await run_in_turn(host, invoke=body)
    assert ended == [True] and scope_task[0].cancelled()
    host.check("RunEnd")


async def test_a_nested_stream_inside_a_stream_is_interleaved_with_it():
    host = Host()

    async def body(scope):
        inner = count_to(host, 3)
        async for n in inner:
            yield ("inner", n)
        yield "outer"

    got = await drain(stream_in_turn(host, invoke=body))
    assert got == [("inner", 0), ("inner", 1), ("inner", 2), "outer"]
    host.check("RunEnd")


# --- cancel scopes, timeouts, groups ----------------------------------------------------------------------------------


async def _held(host, gate):
    async def body(scope):
        await gate.wait()

    await run_in_turn(host, invoke=body)


async def test_an_anyio_scope_that_is_cancelled_in_the_body_fails_the_turn_and_ends_there():
    host, gate = Host(), Gate()
    async with anyio.create_task_group() as group:
        group.start_soon(_held, host, gate)
        await gate.reached()
        group.cancel_scope.cancel()
    host.check("RunFailed")


async def test_an_anyio_cancellation_during_finalization_waits_without_a_busy_loop():
    """anyio cancels again at every await; without a shielded scope this spins."""
    host, gate = Host(), Gate()
    loop = asyncio.get_running_loop()
    calls, call_soon = [0], loop.call_soon

    async def hold(kind, ctx):
        if kind == "RunEnd":
            await gate.wait()

    def counting(*args, **kw):
        calls[0] += 1
        return call_soon(*args, **kw)

    host.on_signal = hold
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_in_turn(host, invoke=nothing))
            await gate.reached()
            loop.call_soon = counting
            scope.cancel()
            with anyio.CancelScope(shield=True):
                for _ in range(200):
                    await asyncio.sleep(0)
                gate.open()
    loop.call_soon = call_soon
    assert calls[0] < 300  # 200 are the steps of this test itself; without the shield there are 600
    host.check("RunEnd")


async def test_asyncio_timeout_around_a_turn_is_a_timeout_and_counts_right():
    host, gate = Host(), Gate()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as scope:
            loop = asyncio.get_running_loop()
            gate_reached = asyncio.ensure_future(gate.reached())
            gate_reached.add_done_callback(lambda _: scope.reschedule(loop.time()))
            await _held(host, gate)
    assert asyncio.current_task().cancelling() == 0
    host.check("RunFailed")


async def test_a_shielded_call_goes_on_when_who_waits_for_it_is_cancelled():
    host, gate = Host(), Gate()
    inner = asyncio.ensure_future(_held(host, gate))

    async def caller():
        await asyncio.shield(inner)

    outer = asyncio.create_task(caller())
    await gate.reached()
    outer.cancel()
    await outcome_of(outer)
    gate.open()
    await inner
    host.check("RunEnd")


async def test_calls_in_a_task_group_queue_and_a_failing_sibling_cancels_them_cleanly():
    host, gate = Host(), Gate()

    async def fail():
        await gate.reached()
        raise ValueError("sibling")

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(_held(host, gate))
            group.create_task(fail())
    host.check("RunFailed")
    outcomes = [r.outcome.value for r in host.turns.records()]
    assert outcomes == ["cancelled", "cancelled while waiting", "cancelled while waiting"]
