"""Controls: stored on the active turn they were meant for, or nowhere, and never kept (P2; ADR-0018 D3)."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from lionagi.session.control import LoopBreak, LoopDirective
from turnkit import Host, Watched, drain, finalizing, until

from lionnb.testing import Gate, Reply, scripted_model
from lionnb.turns import run_in_turn

CANCEL, BREAK, CONTINUE = LoopDirective.CANCEL, LoopDirective.BREAK, LoopDirective.CONTINUE


def fates(w):
    return [e.data["fate"] for e in w.branch.turns.events() if e.kind == "control"]


async def test_an_idle_branch_refuses_and_the_next_turn_is_not_hit():
    w = Watched(scripted_model("x"))
    assert w.branch.control(CANCEL, reason="late") is False
    assert (await drain(w.branch.run("q")))[-1].response == "x"
    assert w.branch.poll_control() is None
    assert fates(w) == ["refused"]


async def test_a_finalizing_turn_refuses():
    w, gate = Watched(scripted_model("x")), Gate()
    from lionagi.session.signal import RunEnd

    async def hold(*_):
        await gate.wait()

    w.observe(RunEnd, hold)
    call = asyncio.create_task(w.branch.chat("q"))
    await finalizing(w.branch)
    assert w.branch.control(CANCEL) is False
    assert w.branch.turn_state.context.control is None
    gate.open()
    await call


@pytest.mark.parametrize("other", [uuid.uuid4(), "", 0, False, "not an id"], ids=repr)
async def test_an_id_that_names_another_turn_or_none_is_refused_and_never_widens_to_any(other):
    w = Watched(scripted_model("x"))
    stream = w.branch.run("q")
    await anext(stream)
    assert w.branch.control(CANCEL, turn_id=other) is False
    assert w.branch.turn_state.context.control is None
    assert [m.response async for m in stream] == ["x"]


async def test_the_right_id_is_stored_and_taken_once():
    w = Watched(scripted_model("x"))
    stream = w.branch.run("q")
    await anext(stream)
    turn_id = w.seen[0].turn_id
    assert w.branch.control(CONTINUE, reason="r", turn_id=turn_id) is True
    assert w.branch.poll_control(turn_id=uuid.uuid4()) is None
    taken = w.branch.poll_control(turn_id=turn_id)
    assert (taken.directive, taken.reason) == (CONTINUE, "r")
    assert w.branch.poll_control() is None
    await stream.aclose()
    assert fates(w) == ["stored", "taken"]


async def test_the_last_directive_before_a_poll_wins():
    w = Watched(scripted_model("x"))
    with pytest.raises(LoopBreak, match="second"):
        async for msg in w.branch.run("q"):
            if not hasattr(msg, "response"):
                w.branch.control(CANCEL, reason="first")
                w.branch.control(BREAK, reason="second")
    assert fates(w) == ["stored", "stored", "taken"]


async def test_a_directive_caused_by_one_turn_never_reaches_another():
    """The culprit is cancelled, the innocent runs to its end (P2)."""
    from lionagi.session.signal import MessageAdded

    chunks = [{"type": "tool_use", "tool_name": "t", "tool_id": "1", "tool_input": {}}]
    end = {"type": "text", "content": "the end"}
    w = Watched(scripted_model([{"type": "stream", "chunks": [*chunks, end]}, "innocent"]))

    def policy(signal, _):
        if type(getattr(signal, "data", None)).__name__ == "ActionRequest":
            w.branch.control(CANCEL, reason="no tools")

    w.observe(MessageAdded, policy)

    async def culprit():
        got = []
        async for m in w.branch.run("a"):
            got.append(type(m).__name__)
            await until(lambda: not w.branch.turn_state.context.signal_tasks)  # the policy has seen it
        return got

    first, second = await asyncio.gather(culprit(), drain(w.branch.run("b")))
    assert first == ["Instruction", "ActionRequest"]
    assert second[-1].response == "innocent"
    w.check("RunEnd", "RunEnd")


async def test_a_directive_that_no_poll_point_took_is_logged_as_not_consumed(watch):
    """lionagi polls only in the streaming operation of command-line providers."""
    gate = Gate()
    w = watch("x", gate=gate)
    call = asyncio.create_task(w.branch.chat("q"))
    await gate.reached()
    assert w.branch.control(CANCEL, reason="too late") is True
    gate.open()
    assert await call == "x"
    last = [e for e in w.branch.turns.events() if e.kind == "control"][-1]
    assert (last.data["fate"], last.data["directive"], last.data["reason"]) == ("not consumed", "cancel", "too late")
    assert last.turn_id == str(w.seen[0].turn_id)
    assert await w.branch.chat("next") == "x"


async def test_a_control_from_another_thread_is_stored_and_logged_in_the_branchs_loop():
    import threading

    gate, seen = Gate(), []
    w = Watched(scripted_model(Reply("x", gate=gate)))
    w.branch.turns.listen(lambda e: seen.append((e.kind, e.data.get("fate"), threading.get_ident())))
    call = asyncio.create_task(w.branch.chat("q"))
    await gate.reached()
    assert await asyncio.to_thread(w.branch.control, CONTINUE) is True
    await until(lambda: [s for s in seen if s[0] == "control"])
    gate.open()
    await call
    assert await asyncio.to_thread(w.branch.control, CONTINUE) is False
    await until(lambda: len([s for s in seen if s[1] == "refused"]) == 1)
    assert {ident for kind, _, ident in seen if kind == "control"} == {threading.get_ident()}


async def test_a_stored_control_of_another_thread_is_taken_or_not_consumed_never_lost():
    """True means stored on that turn: the phase is read and the control written under one mutex."""
    import sys

    host = Host()
    stored, switch = [], sys.getswitchinterval()
    stop = asyncio.Event()
    seen = []
    host.turns.listen(lambda e: seen.append(e.data["fate"]) if e.kind == "control" else None)

    class Control:
        directive, reason = "cancel", None

    def hammer():
        while not stop.is_set():
            if host.turn_state.control(Control, None):
                stored.append(1)

    async def body(scope):
        await asyncio.sleep(0)
        return host.turn_state.take_control(None) is not None

    sys.setswitchinterval(1e-6)
    thread = asyncio.create_task(asyncio.to_thread(hammer))
    taken = 0
    try:
        for _ in range(300):
            taken += await run_in_turn(host, invoke=body)
    finally:
        stop.set()
        await thread
        sys.setswitchinterval(switch)
    assert stored, "the thread never met an active turn"
    assert taken + seen.count("not consumed") <= len(stored)
    assert host.turn_state.context is None


async def test_a_control_and_its_turn_are_in_one_event(watch):
    w = watch("x")
    w.branch.control(BREAK, reason="why")
    (event,) = [e for e in w.branch.turns.events() if e.kind == "control"]
    assert event.turn_id is None and event.data == {"fate": "refused", "directive": "break", "reason": "why"}


async def test_work_that_an_ended_turn_left_behind_takes_no_directive_of_a_later_one():
    """T6: lionagi's own streaming function polls without an id, and a child may run it that its turn never saw."""
    w, go, kids = Watched(scripted_model(["x", "y"])), Gate(), []

    async def middle(*_, **__):
        async def child():
            await go.wait()
            return w.branch.poll_control(), w.branch.poll_control(turn_id=w.seen[-1].turn_id)

        kids.append(asyncio.create_task(child()))
        return "done"

    await w.branch.operate(instruction="a", middle=middle)
    stream = w.branch.run("b")
    await anext(stream)
    assert w.branch.control(CONTINUE, reason="for b") is True
    go.open()
    unnamed, named = await kids[0]
    assert unnamed is None
    assert named is None or named.reason == "for b"
    if named is None:
        assert w.branch.poll_control().reason == "for b"
    await stream.aclose()
