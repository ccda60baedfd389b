"""Faults that people met elsewhere when calls overlap (group a). Each is told on every road that can meet it.

a07 (two runs on one database) is in tests/legs/test_leg_cases.py.

No ``from __future__ import annotations``: lionagi reads a tool's annotations as objects.
"""

import asyncio
import json
import warnings

import pytest
from lionagi.protocols.messages import ActionRequest, ActionResponse, AssistantResponse, Instruction
from lionagi.session.control import LoopDirective
from turnkit import drain, until

import lionnb
from lionnb.testing import Gate, scripted_model
from lionnb.widgets import twin
from lionnb.widgets.state import fresh, reduce
from lionnb.widgets.wire import encode

USE_TOOL = json.dumps({"action_requests": [{"function": "slow_tool", "arguments": {"at": "x"}}]})


def with_tool(branch, gate):
    async def slow_tool(at: str) -> str:
        """Look at something."""
        await gate.wait()
        return f"seen {at}"

    branch.register_tools(slow_tool)


def kinds(branch):
    return [type(m) for m in branch.messages]


def asked(branch):
    return [m.content.instruction for m in branch.messages if isinstance(m, Instruction)]


def pairs_are_whole(branch):
    """Each tool request is directly followed by its result."""
    messages = list(branch.messages)
    for i, m in enumerate(messages):
        if isinstance(m, ActionRequest):
            after = messages[i + 1] if i + 1 < len(messages) else None
            if not isinstance(after, ActionResponse) or after.content.action_request_id != str(m.id):
                return False
    return True


def echo(payload):
    """What was asked last."""
    return str(payload["messages"][-1]["content"]).rpartition("Instruction: ")[2].strip()


async def test_a_call_during_a_tool_comes_after_the_tools_result(watch):
    """a01: a message that was queued in the middle of a tool call was stored between the call and its result."""
    gate = Gate()
    w = watch([USE_TOOL, "and you?"])
    with_tool(w.branch, gate)
    first = asyncio.create_task(w.branch.operate(instruction="use slow_tool", actions=True))
    await gate.reached()
    second = asyncio.create_task(w.branch.communicate("meanwhile"))
    await until(lambda: w.branch.turn_queue)
    gate.open()
    await asyncio.gather(first, second)
    assert pairs_are_whole(w.branch)
    order = kinds(w.branch)
    assert order[-2:] == [Instruction, AssistantResponse] and asked(w.branch) == ["use slow_tool", "meanwhile"]
    assert order.index(ActionResponse) < len(order) - 2
    w.check("RunEnd", "RunEnd")


async def test_a_turn_stopped_in_the_middle_of_a_tool_says_what_it_left_and_the_next_one_works(watch, road):
    """a02: a tool request without a result made every later call fail. Nothing is rolled back here: the log and a
    warning name it, the next request holds no half of a pair, and `mend` closes it, marked, when a person asks.
    """
    gate = Gate()
    if road.name == "cli":  # the provider runs the tool, and lionagi records the request as it comes
        chunks = [{"type": "tool_use", "tool_name": "slow_tool", "tool_id": "1", "tool_input": {"at": "x"}}]
        end = {"type": "text", "content": "never"}
        w = watch([{"type": "stream", "chunks": [*chunks, end]}, "still there", "and mended"], gate=gate)
        call = asyncio.create_task(drain(w.branch.run("use slow_tool")))
    else:
        w = watch([USE_TOOL, "still there", "and mended"])
        with_tool(w.branch, gate)
        call = asyncio.create_task(w.branch.operate(instruction="use slow_tool", actions=True))
    await gate.reached()
    call.cancel()
    await asyncio.wait((call,))
    gate.open()
    left = not pairs_are_whole(w.branch)
    assert left == (road.name == "cli"), "on the API road lionagi records request and result together"
    told = [e.data["text"] for e in w.branch.turns.events() if e.kind == "warning"]
    assert any("a tool call without a result: slow_tool" in text for text in told) == left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert await w.branch.communicate("still there?") == "still there"
    assert bool(caught) == bool(told)
    assert {m["role"] for m in road.requests(w.branch.mdls.chat)[-1]["messages"]} <= {"system", "user", "assistant"}
    w.check("RunFailed", "RunEnd")


async def test_mend_closes_an_open_tool_request_with_a_marked_result():
    """a02: the other way out."""
    gate = Gate()
    chunks = [{"type": "tool_use", "tool_name": "slow_tool", "tool_id": "1", "tool_input": {"at": "x"}}]
    end = {"type": "text", "content": "never"}
    branch = lionnb.Branch(chat_model=scripted_model([{"type": "stream", "chunks": [*chunks, end]}, "fine"], gate=gate))
    call = asyncio.create_task(drain(branch.run("use slow_tool")))
    await gate.reached()
    call.cancel()
    await asyncio.wait((call,))
    gate.open()
    lionnb.mend(branch)
    assert pairs_are_whole(branch)
    assert "cancelled" in str(
        [m.content.error or m.content.output for m in branch.messages if isinstance(m, ActionResponse)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await branch.communicate("go on") == "fine"


async def test_a_result_whose_request_is_gone_is_sent_as_context_and_never_refused(watch, road):
    """a04: a result without its request was sent again and again and always refused. lionagi sends results as context
    of the next question, on both roads, so there is no pair for a provider to refuse: the turn works.
    """
    gate = Gate(opened=True)
    w = watch([USE_TOOL, "fine"])
    with_tool(w.branch, gate)
    await w.branch.operate(instruction="use slow_tool", actions=True)
    (request,) = [m for m in w.branch.messages if isinstance(m, ActionRequest)]
    w.branch.messages.exclude(request)
    w.branch.progression.exclude(request)
    assert not any(isinstance(m, ActionRequest) for m in w.branch.messages)
    assert await w.branch.communicate("go on") == "fine"
    sent = road.requests(w.branch.mdls.chat)[-1]["messages"]
    assert {m["role"] for m in sent} <= {"system", "user", "assistant"}
    assert not any(m.get("tool_calls") or m.get("tool_call_id") for m in sent)
    assert "seen x" in str(sent[-1]["content"])
    w.check("RunEnd", "RunEnd")


async def test_a_branch_that_was_wrapped_twice_has_one_queue(road):
    """a06: a lock made anew for each wrapper protected nothing. The queue is the Branch's, whoever wraps it."""
    from lionagi import Branch

    gate = Gate()
    stock = Branch(chat_model=road.model(echo, gate=gate))
    one, two = lionnb.wrap(stock), lionnb.wrap(stock)
    assert one is two is stock
    calls = [asyncio.create_task((one, two)[i % 2].communicate(f"call {i}")) for i in range(20)]
    for _ in calls:
        await gate.reached()
        assert gate.waiting == 1, "two model calls are in flight"
        gate.open()
        gate.close()
        await gate.left()
    assert await asyncio.gather(*calls) == [f"call {i}" for i in range(20)]
    said = [m.response if isinstance(m, AssistantResponse) else m.content.instruction for m in stock.messages]
    assert said == [f"call {i // 2}" for i in range(40)]


def view_of(branch):
    """A view of the Branch from here on, as the page keeps it."""
    state = fresh(uid="u", title="Branch", can_steer=False)
    return state, branch.turns.listen(lambda event: reduce(state, encode(event)), chunks=True)


def texts(state, role="assistant"):
    return [e for e in state["entries"]["items"] if e["kind"] == "text" and e["role"] == role]


def text_of(entry):
    return "".join(p[1] for p in entry["pieces"]) if "pieces" in entry else entry["text"]


async def test_text_of_a_stopped_turn_that_is_in_the_history_is_in_the_next_request():
    """a09: partial text was shown, yet left out of what the model saw next. A polled CANCEL keeps what had come."""
    gate = Gate()
    model = scripted_model(["one two three", "next"], gate=gate)
    branch = lionnb.Branch(chat_model=model)
    state, stop = view_of(branch)
    call = asyncio.create_task(drain(branch.run("count to 9")))
    await gate.reached()
    assert branch.control(LoopDirective.CANCEL, turn_id=branch.turn_state.context.turn_id)
    gate.open()
    await call
    await branch.communicate("go on")
    (shown, _) = texts(state)
    assert text_of(shown) == "one two three" and shown["id"] and not shown.get("part")
    assert "one two three" in str(model.endpoint.calls[-1].payload["messages"])
    stop()


async def test_text_of_a_cancelled_turn_that_is_not_in_the_history_is_marked_so():
    """a09: what a cancelled task had streamed is in no history and in no request, and every view says so."""
    gate = Gate()
    model = scripted_model(["one two three", "next"], gate=gate)
    branch = lionnb.Branch(chat_model=model)
    state, stop = view_of(branch)
    call = asyncio.create_task(drain(branch.run("count to 9")))
    await gate.reached()
    call.cancel()
    await asyncio.wait((call,))
    gate.open()
    (shown,) = texts(state)
    assert (text_of(shown), shown["id"], shown["part"]) == ("one two", None, True)
    for form in (twin.text(state), twin.html(state)):
        assert "one two" in form and "not in the history" in form
    with pytest.warns(UserWarning, match="left a question without an answer"):
        await branch.communicate("go on")
    assert "one two" not in str(model.endpoint.calls[-1].payload["messages"])
    stop()


async def test_callers_of_one_branch_have_turns_and_messages_of_their_own(watch):
    """a11: one agent object shared by several callers mixed up their steps and memory."""
    w = watch(echo)
    callers = [f"user{i}" for i in range(3)]
    assert await asyncio.gather(*map(w.branch.communicate, callers)) == callers
    turns = [r.turn_id for r in w.branch.turns.records()]
    assert len(set(turns)) == 3
    told = {}
    for event in w.branch.turns.events():
        if event.kind == "text":
            told.setdefault(event.turn_id, []).append((event.data["role"], event.data["text"], event.data["id"]))
    assert list(told) == turns
    for turn_id, name in zip(turns, callers, strict=True):
        assert [(role, text) for role, text, _ in told[turn_id]] == [("user", name), ("assistant", name)]
    assert [i for said in told.values() for _, _, i in said] == [str(m.id) for m in w.branch.messages]


def test_every_reported_case_of_the_groups_a_b_and_c_is_named_in_a_test():
    """The ids; tests say in their docstrings which of them they tell."""
    import ast
    from pathlib import Path

    numbers = {
        "a": (1, 2, 4, 6, 7, 9, 11),
        "b": (1, 3, 4, 6, 7, 9, 11, 13, 15, 16, 18, 20),
        "c": (1, 2, 3, 4, 6, 8, 10),
    }
    cases = {f"{group}{n:02}" for group, found in numbers.items() for n in found}
    named = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words = (ast.get_docstring(node) or "").replace(",", " ").replace(":", " ").replace(".", " ").split()
                named |= cases & set(words)
    assert cases - named == set()
