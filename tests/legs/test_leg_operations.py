"""Each operation that a leg runs: its arguments reach every turn, its tools are called, its mistakes are said at once."""

# No `from __future__ import annotations`: lionagi makes a tool's schema of its annotations, and takes no strings.

import asyncio
import json

import pytest
from pydantic import BaseModel

import lionnb
from lionnb.legs.states import TurnEnd
from lionnb.records import Fate, RunStatus


class Found(BaseModel):
    n: int


FOUND = [json.dumps({"n": i}) for i in (1, 2)]
THOUGHT = json.dumps({"analysis": "think", "extension_needed": False})


def acting(**more):
    return json.dumps({"action_requests": [{"function": "add", "arguments": {"a": 1, "b": 2}}], **more})


ACT = acting(action_required=True)
REACT = acting(action_required=True, analysis="think", extension_needed=False)
ANSWER = json.dumps({"answer": "final"})


def on_both_roads(*ops):
    """Each operation on each road; lionagi's `run` is for command-line endpoints only."""
    pairs = [(road, op) for op in ops for road in ("cli", "api") if (road, op) != ("api", "run")]
    return pytest.mark.parametrize(("road", "op"), pairs, indirect=["road"])


@on_both_roads("operate", "communicate", "ReAct", "run")
async def test_every_operation_carries_a_steer_into_its_continuation(scene, op):
    """The instruction stands in the history of the continuation, and the row says so."""
    s = scene((THOUGHT, ANSWER, THOUGHT, ANSWER) if op == "ReAct" else ("one", "two"))
    leg = s.leg(op=op)
    await s.working()
    receipt = leg.steer("only sources after 2020")
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED] * 2 and result.status is RunStatus.COMPLETED
    (carrier,) = (m for m in s.branch.messages if m.metadata.get("lionnb_controls"))
    assert carrier.metadata["lionnb_controls"] == [receipt.control_id]
    assert "> only sources after 2020" in str(carrier.content.instruction)
    assert receipt.record.in_history is True and result.value == ("final" if op == "ReAct" else "two")
    assert [t.operation for t in s.branch.turns.records()] == [op] * 2  # two turns, however many provider calls


@on_both_roads("operate", "communicate", "run")
async def test_guidance_and_context_reach_continuations_too(scene, op):
    s = scene()
    leg = s.leg(op=op, guidance="answer in Latin", context=["the year is 2026"])
    await s.working()
    leg.steer("more")
    s.answer_all()
    await leg
    assert all("answer in Latin" in s.last(n) and "the year is 2026" in s.last(n) for n in (0, 1))


@on_both_roads("operate", "communicate")
async def test_a_response_format_reaches_continuations_too(scene, op):
    s = scene(FOUND)
    leg = s.leg(op=op, response_format=Found)
    await s.working()
    leg.steer("more")
    s.answer_all()
    result = await leg
    assert [t.value.n for t in result.turns] == [1, 2] and isinstance(result.value, Found)


@pytest.mark.parametrize(("op", "replies", "calls"), [("operate", [ACT] * 2, 2), ("ReAct", [REACT, ANSWER] * 2, 2)])
async def test_tools_are_called_in_every_turn(scene, op, replies, calls):
    called = []

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        called.append((a, b))
        return a + b

    s = scene(replies)
    leg = s.leg(op=op, tools=[add], **({"actions": True} if op == "operate" else {}))
    await s.working()
    leg.steer("again")
    s.answer_all()
    await leg
    assert called == [(1, 2)] * calls
    results = [m for m in s.branch.messages if type(m).__name__ == "ActionResponse"]
    assert [m.content.output for m in results] == [3] * calls


async def test_a_call_specific_model_serves_every_turn_and_stays_the_legs(scene, road):
    """ADR-0018 D2: an override never becomes the Branch's model."""
    s = scene()
    other = road.model(["other one", "other two"], gate=s.gate, model="gpt-4o")
    leg = s.leg(chat_model=other)
    await s.working()
    leg.steer("more")
    s.answer_all()
    assert (await leg).value == "other two"
    assert len(road.requests(other)) == 2 and not s.requests
    assert s.branch.chat_model is s.model and all("gpt-4o" in t.model for t in s.branch.turns.records())


async def test_the_history_is_cleared_for_the_first_turn_only(scene):
    """A continuation lands with its context intact: clearing it there would forget what it corrects."""
    s = scene()
    s.answer_all()
    await s.branch.communicate("before the leg")
    s.gate.close()
    leg = s.leg(op="communicate", clear_messages=True)
    await s.working()
    leg.steer("more")
    s.answer_all()
    await leg
    assert "before the leg" not in s.sent(1) and "Survey X" in s.sent(2)


async def test_an_instruction_that_is_no_text_is_taken_as_it_is(scene):
    s = scene()
    leg = s.leg({"task": "survey", "of": ["X", "Y"]}, op="communicate")
    await s.working()
    receipt = leg.steer("more")
    s.answer_all()
    await leg
    assert "survey" in s.last(0) and (await receipt).fate is Fate.APPLIED
    assert "survey" in s.run(leg).instruction


@pytest.mark.parametrize(
    ("op", "wrong", "right"),
    [
        ("operate", "respone_format", "response_format"),
        ("operate", "guidence", "guidance"),
        ("communicate", "contexts", "context"),
        ("ReAct", "tool", "tools"),
        ("ReAct", "max_extension", "max_extensions"),
        ("operate", "time_out_s", "timeout_s"),
        ("operate", "max_turn", "max_turns"),
    ],
)
async def test_a_misspelt_argument_fails_where_the_leg_is_started(scene, op, wrong, right):
    """lionagi would hand it to the provider, and the run would fail, or not, in the background."""
    s = scene()
    with pytest.raises(TypeError, match=f"{op} takes no argument '{wrong}': did you mean '{right}'"):
        s.leg(op=op, **{wrong: None})
    assert all(leg.branch is not s.branch for leg in lionnb.legs())


async def test_a_providers_own_argument_goes_through_to_it(scene):
    s = scene()
    leg = s.leg(temperature=0.25)
    await s.working()
    leg.steer("more")
    s.answer_all()
    await leg
    assert [r.get("temperature") for r in s.requests] == [0.25, 0.25]


@pytest.mark.parametrize("given", ["instruction", "instruct"])
async def test_the_instruction_is_given_once(scene, given):
    s = scene()
    with pytest.raises(TypeError, match="second argument" if given == "instruct" else "multiple values"):
        lionnb.start_leg(s.branch, "Survey X", **{given: "another one"})


@pytest.mark.parametrize("instruction", [None, "", " \n\t"])
async def test_a_leg_needs_an_instruction(scene, instruction):
    with pytest.raises(ValueError, match="needs an instruction"):
        scene().leg(instruction)


async def test_an_unknown_operation_or_word_is_refused(scene):
    s = scene()
    with pytest.raises(ValueError, match="operate, communicate, ReAct, run"):
        s.leg(op="chat")
    with pytest.raises(ValueError, match='"attach"'):
        s.leg(on_existing="replace")


@pytest.mark.parametrize("road", ["api"], indirect=True)
async def test_run_on_a_model_that_does_not_stream_is_refused_at_the_start(scene):
    with pytest.raises(ValueError, match="command-line endpoint"):
        scene().leg(op="run")


@pytest.mark.parametrize("road", ["cli"], indirect=True)
async def test_a_stock_branch_is_made_turn_aware_in_place(scene):
    from lionagi import Branch as StockBranch

    s = scene()
    s.branch = branch = StockBranch(chat_model=s.model, log_config={"auto_save_on_exit": False})
    leg = s.leg()
    assert leg.branch is branch and isinstance(branch, lionnb.Branch)
    s.answer_all()
    assert (await leg).value == "one"


@pytest.mark.parametrize("road", ["cli"], indirect=True)
def test_a_leg_needs_a_running_loop(scene):
    from lionnb.errors import NoRunningLoopError

    with pytest.raises(NoRunningLoopError):
        scene().leg()
    assert asyncio.run(_value(scene())) == "one"


async def _value(s):
    s.answer_all()
    return (await s.leg()).value
