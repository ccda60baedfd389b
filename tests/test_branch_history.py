"""What a turn that did not complete left in the history is named, and closed only when a person asks.

No ``from __future__ import annotations``: lionagi reads a tool's annotations as objects.
"""

import asyncio
import warnings

import pytest

import lionnb
from lionnb.errors import TurnActiveError
from lionnb.history import loose_ends
from lionnb.testing import Gate, Reply, leftover_tasks, scripted_model
from lionnb.turns import run_in_turn

TOOL = {"type": "tool_use", "tool_name": "look", "tool_id": "1", "tool_input": {"at": "x"}}
RESULT = {"type": "tool_result", "tool_id": "1", "tool_output": "seen"}


def said(branch):
    return [e.data["text"] for e in branch.turns.events() if e.kind == "warning"]


def kinds(branch):
    return [type(m).__name__ for m in branch.messages]


async def cancelled(replies, **kw):
    """A Branch whose streamed turn was cancelled at its gate."""
    gate = Gate()
    branch = lionnb.Branch(chat_model=scripted_model([replies, "next"], gate=gate), **kw)
    call = asyncio.create_task(_drain(branch.run("what is it?")))
    await gate.reached()
    call.cancel()
    await asyncio.wait((call,))
    gate.open()
    return branch


async def _drain(stream):
    return [m async for m in stream]


async def test_a_cancelled_turns_question_is_named_in_the_log_and_warned_of_once_and_nothing_is_removed():
    branch = await cancelled("never")
    assert kinds(branch) == ["Instruction"]
    assert said(branch) == [
        "this turn leaves a question without an answer: 'what is it?'. lionnb.mend(branch) closes it with a message that "
        "says what happened."
    ]
    turn_id = branch.turns.records()[0].turn_id
    with pytest.warns(UserWarning, match=rf"turn {turn_id[:8]} \(run, cancelled\) left a question without an answer"):
        await branch.communicate("and now?")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await branch.communicate("once only")
    assert kinds(branch)[:2] == ["Instruction", "Instruction"]


async def test_a_failed_turns_tool_call_is_named_with_its_arguments():
    chunks = [TOOL, {"type": "error", "content": "lost"}]
    branch = lionnb.Branch(chat_model=scripted_model([{"type": "stream", "chunks": chunks}, "next"]))
    with pytest.raises(Exception, match="lost"):
        await _drain(branch.run("look at it"))
    (text,) = said(branch)
    assert 'a question without an answer: \'look at it\'; a tool call without a result: look({"at": "x"})' in text
    with pytest.warns(UserWarning, match="look"):
        await branch.chat("next")


async def test_a_turn_that_left_nothing_is_not_named():
    """On the API road lionagi records question and answer together, at the end."""
    branch = lionnb.Branch(chat_model=scripted_model([ValueError("boom"), "next"]))
    with pytest.raises(Exception, match="boom"):
        await branch.communicate("q")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await branch.communicate("next")
    assert said(branch) == []


async def test_a_partial_answer_is_an_answer():
    chunks = [{"type": "text", "content": "first"}, TOOL, RESULT, {"type": "error", "content": "lost"}]
    branch = lionnb.Branch(chat_model=scripted_model([{"type": "stream", "chunks": chunks}]))
    with pytest.raises(Exception, match="lost"):
        await _drain(branch.run("q"))
    assert kinds(branch) == ["Instruction", "AssistantResponse", "ActionRequest", "ActionResponse"]
    assert said(branch) == []
    while leftover_tasks():  # lionagi leaves its endpoint's generator to the collector
        await asyncio.sleep(0)


async def test_who_closes_a_stream_is_not_warned_and_the_log_names_it():
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    stream = branch.run("q")
    await anext(stream)
    await stream.aclose()
    assert len(said(branch)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await branch.chat("next")


async def test_mend_appends_what_closes_each_loose_end_and_the_next_turn_is_not_warned_of():
    chunks = [TOOL, {"type": "text", "content": "held"}]
    branch = await cancelled({"type": "stream", "chunks": chunks})
    before = list(branch.messages)
    closed = lionnb.mend(branch)
    assert [str(c)[:30] for c in closed] == ["a question without an answer: ", "a tool call without a result: "]
    assert list(branch.messages)[: len(before)] == before
    result, answer = list(branch.messages)[len(before) :]
    assert result.content.action_request_id == str(before[1].id)
    assert "the turn ended (cancelled) before this call returned" in str(result.content.output)
    assert answer.response == "(no answer: the turn ended (cancelled) before the model had answered)"
    assert loose_ends(branch) == [] and lionnb.mend(branch) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await branch.communicate("next") == "next"
    sent = str(branch.chat_model.endpoint.calls[-1].payload["messages"])
    assert "no answer" in sent and "before this call returned" in sent


async def test_mend_tells_observers_of_what_it_appends():
    from lionagi.session.signal import MessageAdded

    branch = await cancelled("never")
    session, seen = lionnb.Session(default_branch=branch), []
    session.observe(MessageAdded, handler=lambda e, _: seen.append(type(e).__name__))
    lionnb.mend(branch)
    await branch.drain_signals()
    assert "MessageAdded" in seen


async def test_mend_refuses_in_the_middle_of_a_turn():
    """Its question is not loose but at work."""
    gate = Gate()
    branch = lionnb.Branch(chat_model=scripted_model(Reply("x", gate=gate)), name="A")
    call = asyncio.create_task(_drain(branch.run("q")))
    await gate.reached()
    with pytest.raises(TurnActiveError, match="mend: A is in turn"):
        lionnb.mend(branch)
    gate.open()
    await call
    assert kinds(branch) == ["Instruction", "AssistantResponse"]


async def test_a_warning_that_is_an_error_refuses_that_turn_only():
    branch = await cancelled("never")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            await branch.communicate("next")
        (refused,) = [r for r in branch.turns.records() if r.outcome == "refused"]
        assert refused.turn_id is None, "no turn had begun"
        assert branch.turns.events()[-1].kind == "end" and branch.turns.events()[-2].kind != "start"
        assert branch.current_turn is None and not branch.turn_state.lock.locked()
        assert await branch.communicate("next") == "next"


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_warning_points_at_the_line_that_made_the_call(stream, queued):
    branch = await cancelled("never")
    gate = Gate()
    if queued:  # the caller's frames are there again when it is woken

        async def hold(scope):
            await gate.wait()

        left, branch.turn_state.left = branch.turn_state.left, None
        first = asyncio.create_task(run_in_turn(branch, invoke=hold))
        await gate.reached()
        branch.turn_state.left = left
        asyncio.get_running_loop().call_soon(gate.open)
    with pytest.warns(UserWarning, match="left a question") as caught:
        if stream:
            await _drain(branch.run("next"))
        else:
            await branch.communicate("next")
    assert [w.filename for w in caught] == [__file__]
    if queued:
        await first


async def test_a_tool_that_runs_when_its_turn_is_cancelled_leaves_no_question_open():
    gate = Gate()
    call = '{"action_requests": [{"function": "look", "arguments": {"at": "it"}}]}'
    branch = lionnb.Branch(chat_model=scripted_model([call, "next"]))

    async def look(at: str) -> str:
        """Look at something."""
        await gate.wait()
        return at

    branch.register_tools(look)
    task = asyncio.create_task(branch.operate(instruction="q", actions=True))
    await gate.reached()
    task.cancel()
    await asyncio.wait((task,))
    before = kinds(branch)
    for end in lionnb.mend(branch):
        assert not end.is_question
    assert kinds(branch)[: len(before)] == before
