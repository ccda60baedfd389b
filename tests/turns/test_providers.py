"""Provider blocks and report belong to their turn (P1; ADR-0018 D3, D5)."""

from __future__ import annotations

import asyncio

import pytest
from turnkit import Watched, outcome_of

from lionnb.testing import Gate, scripted_model


class Provider:
    def __init__(self, name="notes", gate=None):
        self.name, self.gate = name, gate

    async def provide(self, branch, instruction):
        if self.gate is not None:
            await self.gate.wait()
        return f"<{self.name} for {instruction.content.instruction}>"


class Broken(Provider):
    async def provide(self, branch, instruction):
        raise ValueError("no notes")


def with_providers(watch, *providers, replies="fine", **how):
    w = watch(replies, branch={"system": "be brief"}, **how)
    for provider in providers:
        w.branch.providers.register(provider)
    return w


async def test_each_turn_has_its_own_blocks_in_request_context_and_log(watch, road):
    w = with_providers(watch, Provider())
    for question in ("one", "two"):
        await w.branch.communicate(question)
    last = [r["messages"] for r in road.requests(w.branch.mdls.chat)]
    assert "<notes for one>" in str(last[0]) and "<notes for two>" not in str(last[0])
    assert "<notes for two>" in str(last[1])
    assert [r.blocks[0]["text"] for r in w.branch.turns.records()] == ["<notes for one>", "<notes for two>"]
    assert w.branch.turns.records()[0].blocks[0]["name"] == "notes"


async def test_blocks_and_report_are_in_the_context_while_the_turn_runs():
    gate = Gate()
    w = Watched(scripted_model("x", gate=gate), system="be brief")
    w.branch.providers.register(Provider())
    call = asyncio.create_task(w.branch.communicate("q"))
    await gate.reached()
    context = w.branch.turn_state.context
    assert context.provider_blocks == ("<notes for q>",) and context.provider_report.blocks == ["<notes for q>"]
    gate.open()
    await call
    assert context.provider_report is w.branch.last_context_report


async def test_a_running_turn_never_publishes_its_report(watch):
    gate = Gate()
    w = with_providers(watch, Provider(), replies=["first", "second"])
    await w.branch.communicate("one")
    before = w.branch.last_context_report
    held = Provider(gate=gate)
    w.branch.providers._entries.clear()
    w.branch.providers.register(held)
    call = asyncio.create_task(w.branch.communicate("two"))
    await gate.reached()
    assert w.branch.last_context_report is before
    gate.open()
    await call
    assert w.branch.last_context_report.blocks == ["<notes for two>"]


async def test_the_report_is_the_last_terminal_turns_whichever_task_ran_it(watch):
    w = with_providers(watch, Provider())
    await w.branch.communicate("mine")
    await asyncio.create_task(w.branch.communicate("another task's"))
    assert w.branch.last_context_report.blocks == ["<notes for another task's>"]


async def test_a_turn_without_providers_publishes_none(watch):
    w = with_providers(watch, Provider())
    await w.branch.communicate("one")
    w.branch.providers._entries.clear()
    await w.branch.communicate("two")
    assert w.branch.last_context_report is None


@pytest.mark.parametrize("how", ["fails", "is cancelled", "is closed"])
async def test_a_turn_that_does_not_complete_publishes_its_report_too(how):
    gate = Gate()
    w = Watched(scripted_model([ValueError("boom")] if how == "fails" else "x", gate=gate), system="be brief")
    w.branch.providers.register(Provider())
    if how == "is closed":
        stream = w.branch.run("q")
        await anext(stream)
        await stream.aclose()
    else:
        call = asyncio.create_task(w.branch.communicate("q"))
        await gate.reached()
        call.cancel() if how == "is cancelled" else gate.open()
        assert await outcome_of(call) is not None
    assert w.branch.last_context_report.blocks == ["<notes for q>"]


async def test_without_a_system_message_providers_are_skipped_and_report_and_log_say_so(watch):
    w = watch("fine")
    w.branch.providers.register(Provider())
    await w.branch.communicate("q")
    assert w.branch.last_context_report.skipped == ["notes"]
    (row,) = w.branch.turns.records()
    assert row.skipped == ("notes",) and row.blocks == ()


async def test_a_failing_provider_is_named_and_the_turn_goes_on_with_the_others(watch):
    w = with_providers(watch, Broken("bad"), Provider("good"))
    assert await w.branch.communicate("q") == "fine"
    (row,) = w.branch.turns.records()
    assert [b["name"] for b in row.blocks] == ["good"] and len(row.failed) == 1 and "bad" in str(row.failed)


async def test_several_gathers_of_one_turn_are_one_event_each_and_the_last_is_the_report(watch):
    w = with_providers(watch, Provider(), replies=["a", "b", "c"])

    async def middle(branch, *_, **__):
        await branch.chat("first")
        return await branch.chat("second")

    await w.branch.operate(instruction="q", middle=middle, skip_validation=True)
    told = [e.data["blocks"][0]["text"] for e in w.branch.turns.events() if e.kind == "blocks"]
    assert told == ["<notes for first>", "<notes for second>"]
    assert w.branch.last_context_report.blocks == ["<notes for second>"]


async def test_a_report_read_inside_the_turn_through_the_operations_slot_is_the_turns_own():
    """lionagi's own code reads what it has just set."""
    w, seen = Watched(scripted_model("x"), system="be brief"), []
    w.branch.providers.register(Provider())

    async def middle(branch, *_, **__):
        await branch.chat("first")
        seen.append(branch._last_context_report.get())
        return "x"

    await w.branch.operate(instruction="q", middle=middle, skip_validation=True)
    assert seen[0].blocks == ["<notes for first>"]


async def test_an_operation_function_called_outside_of_every_turn_keeps_lionagis_behaviour():
    from lionagi.operations.chat.chat import chat
    from lionagi.operations.types import ChatParam

    w = Watched(scripted_model("x"), system="be brief")
    w.branch.providers.register(Provider())
    await chat(w.branch, "q", ChatParam.from_branch(w.branch))
    assert w.branch.last_context_report.blocks == ["<notes for q>"]
    w.check()
