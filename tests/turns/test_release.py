"""`release_turn`: a person lets go of a turn that cannot end; nothing else ever does (T5)."""

from __future__ import annotations

import asyncio
import contextvars
import uuid

import pytest
from lionagi.session.signal import MessageAdded, RunEnd
from turnkit import Host, Watched, finalizing, outcome_of, until

from lionnb.errors import WrongLoopError
from lionnb.testing import Gate, leftover_tasks, scripted_model
from lionnb.turns import run_in_turn, stream_in_turn
from lionnb.turns.finalize import release


def stubborn(gate):
    """Swallows every cancellation until *gate* opens."""

    async def wait(*_):
        while not gate.opened:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    return wait


async def stuck(w, signal, observer):
    """A finished call whose finalization hangs in *observer*; returns the call and the turn's id."""
    w.observe(signal, observer)
    call = asyncio.create_task(w.branch.communicate("q"))
    await finalizing(w.branch)
    await until(lambda: any(s.kind == "MessageAdded" for s in w.seen))
    return call, w.branch.current_turn.turn_id


async def forever(*_):
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("signal", [MessageAdded, RunEnd])
async def test_an_observer_that_never_ends_is_cancelled_and_the_turn_ends_as_it_was_decided(signal, caplog):
    w = Watched(scripted_model("x"))
    call, turn_id = await stuck(w, signal, forever)
    behind = asyncio.create_task(w.branch.chat("behind"))
    assert await w.branch.release_turn(uuid.UUID(turn_id), grace_s=0.01) is True
    assert await call == "x"
    assert w.kinds[:2] == ["RunStart", "RunEnd"]
    assert w.branch.turns.records()[0].outcome == "completed"
    assert f"turn {turn_id} is let go of by hand" in caplog.text
    await until(lambda: w.branch.current_turn is None or w.branch.current_turn.turn_id != turn_id)
    if signal is RunEnd:  # the turn behind has the same observer
        await finalizing(w.branch)
        assert await w.branch.release_turn(w.branch.current_turn.turn_id, grace_s=0.01)
    assert await behind == "x"
    w.check("RunEnd", "RunEnd")


@pytest.mark.parametrize("signal", [MessageAdded, RunEnd])
async def test_an_observer_that_refuses_to_be_cancelled_is_left_behind(signal):
    w, gate = Watched(scripted_model("x")), Gate()
    call, turn_id = await stuck(w, signal, stubborn(gate))
    assert await w.branch.release_turn(turn_id, grace_s=0.01) is True
    assert await call == "x"
    w.check("RunEnd")
    gate.open()
    await until(lambda: not leftover_tasks())
    w.check("RunEnd")


async def test_the_terminal_is_still_attempted_when_a_step_before_it_refuses_to_end():
    class Source:
        def __aiter__(self):
            return self

        async def __anext__(self):
            return 1

        async def aclose(self):
            await stubborn(gate)()

    host, gate = Host(), Gate()
    stream = stream_in_turn(host, invoke=lambda scope: Source())
    await anext(stream)
    closing = asyncio.create_task(stream.aclose())
    await gate.reached()
    assert await release(host.turn_state.turn, 0.01) is True
    await closing
    host.check("RunEnd")
    gate.open()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    host.check("RunEnd")  # the step that came back found another one in its place


async def test_a_nested_task_that_refuses_to_end_is_left_behind_as_a_stranger():
    """What it does later is no part of any turn (T6)."""
    host, gate, scopes = Host(), Gate(), []

    async def nested(scope):
        await stubborn(gate)()
        scopes.append(await run_in_turn(host, invoke=owns))

    async def owns(scope):
        return scope.owns_lifecycle

    async def body(scope):
        kid = asyncio.create_task(run_in_turn(host, invoke=nested))
        await gate.reached()
        return kid

    turn = asyncio.create_task(run_in_turn(host, invoke=body))
    await finalizing(host)
    assert await release(host.turn_state.turn, 0.01) is True
    kid = await turn
    host.check("RunEnd")
    gate.open()
    await kid
    assert scopes == [True]
    host.check("RunEnd", "RunEnd")


async def test_a_stream_that_was_left_open_is_closed():
    w = Watched(scripted_model("x"))
    stream = w.branch.run("q")
    await anext(stream)
    turn_id = stream.turn_id
    other = contextvars.Context().run(asyncio.ensure_future, w.branch.release_turn(turn_id))
    assert await other is True
    w.check("RunEnd")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert w.outcomes == ["closed"]


async def test_an_open_stream_whose_finalization_hangs_is_let_go_of_in_one_call():
    w = Watched(scripted_model("x"))
    w.observe(RunEnd, forever)
    stream = w.branch.run("q")
    await anext(stream)
    assert await w.branch.release_turn(stream.turn_id, grace_s=0.01) is True
    w.check("RunEnd")


async def test_another_id_and_no_turn_are_refused():
    w, gate = Watched(scripted_model("x")), Gate()
    assert await w.branch.release_turn(uuid.uuid4()) is False

    async def hold(*_):
        await gate.wait()

    call, turn_id = await stuck(w, RunEnd, hold)
    for other in (uuid.uuid4(), "", turn_id[:8]):
        assert await w.branch.release_turn(other) is False
    assert not call.done()
    gate.open()
    await call
    assert await w.branch.release_turn(turn_id) is False
    w.check("RunEnd")


async def test_a_turn_that_is_still_at_work_is_not_let_go_of(watch):
    """Its task can be cancelled; letting go of it would leave the model's answer to nobody's turn."""
    gate = Gate()
    w = watch("x", gate=gate)
    call = asyncio.create_task(w.branch.communicate("q"))
    await gate.reached()
    assert await w.branch.release_turn(w.branch.current_turn.turn_id) is False
    gate.open()
    assert await call == "x"
    w.check("RunEnd")


async def test_from_another_loop_it_is_refused():
    w, gate = Watched(scripted_model("x")), Gate()

    async def hold(*_):
        await gate.wait()

    call, turn_id = await stuck(w, RunEnd, hold)
    exc = await asyncio.to_thread(lambda: asyncio.run(outcome_of(w.branch.release_turn(turn_id))))
    assert isinstance(exc, WrongLoopError)
    gate.open()
    await call


async def test_a_cancelled_call_that_was_let_go_of_raises_its_cancellation():
    w = Watched(scripted_model("x"))
    call, turn_id = await stuck(w, MessageAdded, forever)
    call.cancel()
    await asyncio.sleep(0)
    assert not call.done()
    await w.branch.release_turn(turn_id, grace_s=0.01)
    assert isinstance(await outcome_of(call), asyncio.CancelledError)
    w.check("RunEnd")
