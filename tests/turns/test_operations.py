"""What is a turn and what is not: the nine operations, and everything that happens inside them (ADR-0018 D2, D4).

No ``from __future__ import annotations``: lionagi reads a tool's annotations as objects.
"""

import asyncio
import json

import pytest
from turnkit import ANALYSIS, ANSWER, OPERATIONS, ROUND, Answer, Watched, drain, every_operation

from lionnb.testing import Gate, scripted_model


def calls_tool(name="look", **arguments):
    """What a model says that wants a tool to be called."""
    return json.dumps({"action_requests": [{"function": name, "arguments": arguments}], "action_required": True})


@every_operation
async def test_every_model_operation_is_a_turn_of_its_name(operation, watch):
    w = watch(list(operation.replies))
    await operation.call(w.branch)
    (row,) = w.branch.turns.records()
    assert (row.operation, row.outcome) == (operation.name, "completed")
    assert row.turn_id == str(w.seen[0].turn_id)
    assert w.branch.turns.last.prompt == (operation.positional["text"] if operation.name == "parse" else "q")


async def test_act_is_no_turn_and_does_not_wait_for_one():
    """Source: ADR-0018 D2: a direct act() is not serialised."""

    def look(at: str) -> str:
        """Look at something."""
        return f"seen {at}"

    gate = Gate()
    w = Watched(scripted_model("x", gate=gate), tools=[look])
    turn = asyncio.create_task(w.branch.chat("q"))
    await gate.reached()
    (result,) = await w.branch.act({"function": "look", "arguments": {"at": "it"}})
    assert result.output == "seen it" and not turn.done()
    gate.open()
    await turn
    assert w.outcomes == ["completed"]
    assert [s.kind for s in w.seen] == ["RunStart", "MessageAdded", "MessageAdded", "RunEnd"]


# --- nested calls emit nothing of their own -------------------------------------------------------------------------


async def test_a_tool_that_calls_its_branch_is_part_of_the_turn(watch):
    w = watch([calls_tool(at="it"), "inner answer"])

    async def look(at: str) -> str:
        """Look at something."""
        return await w.branch.chat(f"what is {at}?")

    w.branch.register_tools(look)
    result = await w.branch.operate(instruction="q", actions=True)
    assert result.action_responses[0].output == "inner answer"
    w.check("RunEnd")
    assert w.outcomes == ["completed"]


async def test_a_context_provider_that_calls_its_branch_is_part_of_the_turn(watch):
    class Provider:
        name = "summary"

        async def provide(self, branch, instruction):
            return await branch.chat("summarise")

    w = watch(["the summary", "the answer"], branch={"system": "be brief"})
    w.branch.providers.register(Provider())
    # the provider's own call would ask the provider again
    w.branch.providers.gather = _once(w.branch.providers.gather)
    assert await w.branch.communicate("q") == "the answer"
    assert w.branch.last_context_report.blocks == ["the summary"]
    w.check("RunEnd")


def _once(gather):
    from lionagi.protocols.context_providers import ProviderReport

    asked = []

    async def once(*args):
        asked.append(args)
        return await gather(*args) if len(asked) == 1 else ProviderReport()

    return once


async def test_a_middle_that_calls_its_branch_in_three_ways_is_part_of_the_turn():
    w = Watched(scripted_model(["a", "b", "c"]))

    async def middle(branch, instruction, *_, **__):
        said = [await branch.chat("1")]
        said += [m.response async for m in branch.run("2") if hasattr(m, "response")]
        said += await asyncio.gather(branch.communicate("3"))
        return said

    assert await w.branch.operate(instruction="q", middle=middle, skip_validation=True) == ["a", "b", "c"]
    w.check("RunEnd")


@pytest.mark.parametrize("name", ["ReAct", "ReActStream"])
async def test_the_rounds_of_react_are_one_turn(name, watch):
    w = watch([ROUND, ANALYSIS, ANSWER])
    op = getattr(w.branch, name)
    kw = {"instruct": {"instruction": "q"}, "max_extensions": 2}
    value = await op(**kw) if name == "ReAct" else (await drain(op(**kw)))[-1].answer
    assert value == "yes"
    w.check("RunEnd")
    assert w.outcomes == ["completed"]


async def test_a_parse_that_asks_the_model_again_is_part_of_the_turn(watch):
    w = watch(["no json", ANSWER])
    assert (await w.branch.communicate("q", response_format=Answer)).answer == "yes"
    w.check("RunEnd")


async def test_the_lifecycle_bus_carries_two_signals_a_turn_and_none_of_lionagis_own():
    """The filter drops lionagi's bare signals before the bus stores them."""
    for name in ("operate", "ReAct", "run"):
        op = OPERATIONS[name]
        w = Watched(scripted_model(list(op.replies)))
        await op.call(w.branch)
        stored = [i for i in w.session.observer.flow.items if type(i).__name__.startswith("Run")]
        assert [type(i).__name__ for i in stored] == ["RunStart", "RunEnd"]
        assert {i.turn_id for i in stored} == {w.seen[0].turn_id}


# --- another Branch ---------------------------------------------------------------------------------------------------


@every_operation
async def test_another_branch_inside_a_turn_is_its_own_turn_with_its_own_signals(operation, watch):
    """Upstream's suppression flag is task-wide, and would silence it (P5)."""
    other = watch(list(operation.replies))
    outer = watch(["outer"])

    async def middle(*_, **__):
        return await operation.call(other.branch)

    await outer.branch.operate(instruction="q", middle=middle, skip_validation=True)
    outer.check("RunEnd")
    other.check("RunEnd")
    assert outer.seen[0].turn_id != other.seen[0].turn_id


async def test_another_branch_inside_react_has_its_own_signals():
    other = Watched(scripted_model("x"))
    outer = Watched(scripted_model([calls_tool(at="it"), ANALYSIS, ANSWER]))

    async def look(at: str) -> str:
        """Look at something."""
        return (await drain(other.branch.run("q")))[-1].response

    outer.branch.register_tools(look)
    await outer.branch.ReAct({"instruction": "q"}, max_extensions=1)
    other.check("RunEnd")
    outer.check("RunEnd")
