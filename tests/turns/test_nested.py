"""Child tasks of a turn: nested while it is active, cancelled and awaited at its end, strangers afterwards (T6)."""

from __future__ import annotations

import asyncio
import threading

import pytest
from lionagi.session.signal import MessageAdded
from turnkit import Host, Watched, outcome_of, until

from lionnb.errors import TurnFinalizingError
from lionnb.testing import Gate, scripted_model
from lionnb.turns import run_in_turn, stream_in_turn


async def test_unfinished_nested_tasks_are_cancelled_and_awaited_before_the_terminal(observed):
    host, gate, order = Host(observed=observed), Gate(), []

    async def note(kind, ctx):
        order.append(kind)

    host.on_signal = note

    async def nested(scope):
        assert scope.owns_lifecycle is False
        try:
            await gate.wait()
        finally:
            await asyncio.sleep(0)
            order.append("nested ended")

    async def body(scope):
        kid = asyncio.create_task(run_in_turn(host, invoke=nested))
        await gate.reached()
        assert scope.context.nested_tasks == {kid}
        return kid

    kid = await run_in_turn(host, invoke=body)
    assert kid.cancelled()
    host.check("RunEnd")
    assert order == (["RunStart", "nested ended", "RunEnd"] if observed else ["nested ended"])


async def test_a_failing_child_that_nobody_awaits_is_diagnostic_only(caplog):
    host = Host()
    caplog.set_level("DEBUG", logger="lionnb")

    async def fails(scope):
        raise ValueError("nobody awaits me")

    async def body(scope):
        kid = asyncio.create_task(run_in_turn(host, invoke=fails))
        await asyncio.wait((kid,))
        return "fine"

    assert await run_in_turn(host, invoke=body) == "fine"
    host.check("RunEnd")
    assert "nobody awaits me" in caplog.text


async def test_a_failing_child_that_the_owner_awaits_fails_the_turn():
    host = Host()

    async def fails(scope):
        raise ValueError("awaited")

    async def body(scope):
        await asyncio.create_task(run_in_turn(host, invoke=fails))

    with pytest.raises(ValueError, match="awaited"):
        await run_in_turn(host, invoke=body)
    host.check("RunFailed")


async def test_a_child_that_outlives_its_turn_is_a_contender_with_a_turn_of_its_own(watch):
    """Its copied binding is a tombstone."""
    w, go, kids = watch(["one", "two"]), asyncio.Event(), []

    async def late():
        await go.wait()
        return await w.branch.communicate("late")

    async def middle(*_, **__):
        kids.append(asyncio.create_task(late()))
        return await w.branch.chat("now")

    await w.branch.operate(instruction="q", middle=middle, skip_validation=True)
    w.check("RunEnd")
    go.set()
    assert await kids[0] == "two"
    w.check("RunEnd", "RunEnd")


async def test_a_child_of_an_ended_turn_that_calls_during_a_later_one_waits_for_it():
    host, gate, go, kids = Host(), Gate(), asyncio.Event(), []

    async def scopes(scope):
        return scope.owns_lifecycle

    async def late():
        await go.wait()
        return await run_in_turn(host, invoke=scopes)

    async def first(scope):
        kids.append(asyncio.create_task(late()))

    async def second(scope):
        await gate.wait()

    await run_in_turn(host, invoke=first)
    later = asyncio.create_task(run_in_turn(host, invoke=second))
    await gate.reached()
    go.set()
    await until(lambda: host.turn_state.waiters)
    gate.open()
    await later
    assert await kids[0] is True
    host.check("RunEnd", "RunEnd", "RunEnd")


async def test_a_child_that_calls_while_its_turn_is_finalizing_fails_fast():
    host, gate, go, kids = Host(), Gate(), asyncio.Event(), []

    async def hold(kind, ctx):
        if kind == "RunEnd":
            await gate.wait()

    host.on_signal = hold

    async def call():
        await go.wait()

        async def nothing(scope): ...

        return await outcome_of(run_in_turn(host, invoke=nothing))

    async def body(scope):
        kids.append(asyncio.create_task(call()))

    turn = asyncio.create_task(run_in_turn(host, invoke=body))
    await gate.reached()
    go.set()
    assert isinstance(await kids[0], TurnFinalizingError)
    gate.open()
    await turn
    host.check("RunEnd")


async def test_a_message_of_an_ended_turns_child_is_drained_by_nobodys_turn():
    """A stale child's emission is detached: a later turn neither waits for it nor has it among its own (D3)."""
    w, gate, go, kids = Watched(scripted_model(["one", "two"])), Gate(), asyncio.Event(), []

    async def late():
        await go.wait()
        w.branch.msgs.add_message(instruction="stale", sender="user", recipient=w.branch.id)
        return [t for t in w.branch.turn_state.detached if not t.done()]

    async def middle(*_, **__):
        kids.append(asyncio.create_task(late()))
        return "done"

    await w.branch.operate(instruction="q", middle=middle, skip_validation=True)

    async def hold(signal, _):
        if isinstance(signal, MessageAdded) and signal.data.content.instruction == "stale":
            await gate.wait()

    w.observe(MessageAdded, hold)
    seen_in_turn = []

    async def second(*_, **__):
        go.set()
        detached = await kids[0]
        seen_in_turn.append((len(detached), len(w.branch.turn_state.context.signal_tasks)))
        return "done"

    await w.branch.operate(instruction="q", middle=second, skip_validation=True)
    assert seen_in_turn == [(1, 0)]
    await gate.reached()
    gate.open()
    await w.branch.drain_signals()
    assert w.branch.turn_state.detached == set()


async def test_a_task_that_outlives_many_turns_holds_nothing_of_them():
    """lionagi's rate limiter is made inside a turn and keeps its context for ever: a tombstone holds no model."""
    import gc
    import weakref

    class Report:
        blocks = ()

    host, keep, refs = Host(), [], []

    async def body(scope):
        keep.append(asyncio.create_task(asyncio.Event().wait()))
        scope.context.provider_report = Report()
        refs.append(weakref.ref(scope.context.provider_report))
        refs.append(weakref.ref(scope.context.owner_task))

    for _ in range(3):
        await asyncio.create_task(run_in_turn(host, invoke=body))
    host.turn_state.report = None
    await asyncio.sleep(0)  # the loop itself still holds the last one
    gc.collect()
    assert [r() for r in refs] == [None] * 6
    for task in keep:
        task.cancel()
    await asyncio.wait(keep)


async def test_a_nested_stream_that_a_cancelled_child_leaves_open_is_closed_before_the_terminal():
    """Nested tasks first: while the child is inside of the stream nobody can close it, and afterwards nobody else does."""
    host, gate, order, kept = Host(), Gate(), [], []

    async def note(kind, ctx):
        order.append(kind)

    host.on_signal = note

    async def source(scope):
        try:
            yield 0
            try:
                await gate.wait()
            except asyncio.CancelledError:
                yield "the rest"  # a provider that takes a cancellation for its last word
        finally:
            order.append("closed")

    async def child():
        kept.append(stream_in_turn(host, invoke=source))
        return [await anext(kept[0]), await anext(kept[0])]

    async def body(scope):
        kid = asyncio.create_task(child())
        await gate.reached()
        return kid

    kid = await run_in_turn(host, invoke=body)
    assert await kid == [0, "the rest"]
    assert order == ["RunStart", "closed", "RunEnd"]
    host.check("RunEnd")


async def test_a_nested_call_on_another_threads_loop_enters_before_the_phase_moves_or_not_at_all(monkeypatch):
    """Its entry reads the phase and registers in one step. Between the two the turn's end waits; else that end would
    see no nested work, and the call would go on beside the next turn.
    """
    from lionnb.turns import turn as module

    host, reached = Host(), threading.Event()

    class Mutex:
        """The state's, which says when somebody has to wait for it."""

        def __init__(self, real):
            self.real = real

        def __enter__(self):
            if not self.real.acquire(blocking=False):
                reached.set()
                self.real.acquire()

        def __exit__(self, *_):
            self.real.release()

    own, entered = module.own, asyncio.Event()
    home = asyncio.get_running_loop()

    def slow_own(owner, task, what):
        if task.get_loop() is not home:
            home.call_soon_threadsafe(entered.set)
            assert reached.wait(20), "the turn neither ended nor waited"
        own(owner, task, what)

    host.turn_state.mutex = Mutex(host.turn_state.mutex)
    monkeypatch.setattr(module, "own", slow_own)
    ended = []

    async def nested(scope):
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(host.turn_state.turn is not None)

    def elsewhere():
        try:
            asyncio.run(run_in_turn(host, invoke=nested))
        except asyncio.CancelledError:
            return "cancelled"

    async def body(scope):
        thread = asyncio.ensure_future(asyncio.to_thread(elsewhere))
        await entered.wait()
        return thread

    call = asyncio.create_task(run_in_turn(host, invoke=body))
    call.add_done_callback(lambda _: reached.set())
    thread = await call
    host.check("RunEnd")
    assert await thread == "cancelled"
    assert ended == [True], "the nested call outlived its turn"


async def test_messages_of_nested_work_on_another_threads_loop_are_the_turns_own_and_come_before_its_terminal():
    """Observers live in the turn's loop. In the thread's own they were cut when that loop ended."""
    w, heard = Watched(scripted_model("x")), []

    async def slow(*_):
        await asyncio.sleep(0)
        heard.append((threading.current_thread() is threading.main_thread(), w.kinds))

    w.observe(MessageAdded, slow)

    async def adds():
        w.branch.msgs.add_message(instruction="from a thread")

    async def middle(*_, **__):
        await asyncio.to_thread(asyncio.run, adds())
        return "done"

    await w.branch.operate(instruction="q", middle=middle, skip_validation=True)
    assert heard == [(True, ["RunStart"])]
    w.check("RunEnd")


async def test_a_message_that_foreign_nested_work_adds_while_its_turn_ends_is_emitted_where_observers_live():
    """Detached, for the turn is no longer active; in the thread's own loop it would be cut when that ends."""
    w, heard, gate = Watched(scripted_model("x")), [], Gate()

    async def slow(*_):
        await asyncio.sleep(0)
        heard.append(threading.current_thread() is threading.main_thread())

    w.observe(MessageAdded, slow)

    async def inner(*_, **__):
        try:
            await gate.wait()
        finally:
            w.branch.msgs.add_message(instruction="a last word")

    async def call():
        await w.branch.operate(instruction="in the thread", middle=inner, skip_validation=True)

    async def middle(*_, **__):
        thread = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(call())))
        await gate.reached()
        return thread

    thread = await w.branch.operate(instruction="q", middle=middle, skip_validation=True)
    assert isinstance(await outcome_of(thread), asyncio.CancelledError)
    await w.branch.drain_signals()
    assert heard == [True]
    assert w.kinds == ["RunStart", "RunEnd"]
