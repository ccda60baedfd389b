"""The model of a call: inside it `branch.chat_model` is that model; nothing of it lasts (P4; ADR-0018 D3).

No ``from __future__ import annotations``: lionagi reads a tool's annotations as objects.
"""

import asyncio
import warnings

import pytest
from turnkit import ANALYSIS, ANSWER, OPERATIONS, ROUND, Watched, drain, every_operation

from lionnb.testing import Gate, scripted_model


@every_operation
async def test_a_call_specific_model_serves_the_call_and_never_becomes_the_branchs(operation, watch, road):
    if operation.model_argument is None:
        return
    w = watch("configured")
    configured, other = w.branch.mdls.chat, road.model(list(operation.replies))
    await operation.call(w.branch, other)
    assert w.branch.chat_model is w.branch.mdls.chat is configured
    assert road.requests(other) and not road.requests(configured)
    assert w.branch.turns.records()[0].model == f"{other.endpoint.config.provider}/{other.model_name}"


@every_operation
async def test_not_even_when_the_call_fails(operation, watch, road):
    if operation.model_argument is None:
        return
    w = watch("configured")
    configured, other = w.branch.mdls.chat, road.model([ValueError("boom")])
    with pytest.raises(Exception, match=r"boom|500"):
        await operation.call(w.branch, other)
    assert w.branch.chat_model is w.branch.mdls.chat is configured


async def test_an_endpoint_that_cannot_stream_fails_the_call_and_leaves_the_configuration(road):
    from lionnb.testing import LoopbackServer

    with LoopbackServer("x") as server:
        w = Watched(scripted_model("configured"))
        configured = w.branch.mdls.chat
        with pytest.raises(ValueError, match="CLI endpoints"):
            await drain(w.branch.run("q", chat_model=server.model()))
        w.check("RunFailed")
        assert w.branch.mdls.chat is configured
        assert (await drain(w.branch.run("q")))[-1].response == "configured"


async def test_a_cancelled_call_leaves_the_configuration(watch, road):
    gate, w = Gate(), watch("configured")
    configured = w.branch.mdls.chat
    call = asyncio.create_task(w.branch.communicate("q", chat_model=road.model("x", gate=gate)))
    await gate.reached()
    call.cancel()
    await asyncio.wait((call,))
    assert w.branch.chat_model is w.branch.mdls.chat is configured


# --- inside a call ---------------------------------------------------------------------------------------------------


class Inside:
    """A middle that looks at `branch.chat_model` and then does what it is told."""

    def __init__(self, then=None):
        self.saw, self.then = [], then

    async def __call__(self, branch, *_, **__):
        self.saw.append(branch.chat_model)
        result = None if self.then is None else await self.then(branch)
        self.saw.append(branch.chat_model)
        return result

    async def operate(self, branch, model=None):
        return await branch.operate(instruction="q", middle=self, skip_validation=True, chat_model=model)


async def test_inside_a_call_chat_model_is_that_calls_model():
    w, other, look = Watched(scripted_model("x")), scripted_model("y"), Inside()
    await look.operate(w.branch, other)
    await look.operate(w.branch)
    assert look.saw == [other, other, w.branch.mdls.chat, w.branch.mdls.chat]


async def test_a_nested_call_without_a_model_starts_with_the_one_of_its_caller():
    w, other = Watched(scripted_model("configured")), scripted_model("other")
    look = Inside(then=lambda branch: branch.communicate("inner"))
    assert await look.operate(w.branch, other) == "other"


async def test_a_nested_call_with_a_model_has_its_own_and_its_caller_keeps_its():
    w, other, third = Watched(scripted_model("configured")), scripted_model("other"), scripted_model("third")
    inner = Inside()
    look = Inside(then=lambda branch: inner.operate(branch, third))
    await look.operate(w.branch, other)
    assert inner.saw == [third, third] and look.saw == [other, other]


async def test_three_levels_of_overrides_each_see_their_own():
    models = [scripted_model(str(i)) for i in range(3)]
    w = Watched(scripted_model("configured"))
    looks = [Inside(), Inside(), Inside()]
    looks[0].then = lambda b: looks[1].operate(b, models[1])
    looks[1].then = lambda b: looks[2].operate(b, models[2])
    await looks[0].operate(w.branch, models[0])
    assert [look.saw for look in looks] == [[m, m] for m in models]


async def test_concurrent_nested_calls_do_not_see_each_others_model():
    w = Watched(scripted_model("configured"))
    gate, looks, models = Gate(), [Inside(), Inside()], [scripted_model("a"), scripted_model("b")]

    async def meet(branch):
        await gate.wait()

    for look in looks:
        look.then = meet

    async def both(branch):
        await asyncio.gather(*(look.operate(branch, m) for look, m in zip(looks, models, strict=True)))

    outer = asyncio.create_task(Inside(then=both).operate(w.branch))
    await gate.reached(2)
    gate.open()
    await outer
    assert [look.saw for look in looks] == [[m, m] for m in models]


async def test_the_rounds_and_tools_of_react_see_its_model(watch, road):
    import json

    call = json.dumps({"action_requests": [{"function": "look", "arguments": {"at": "it"}}], "extension_needed": True})
    w, other = watch("configured"), road.model([call, ANALYSIS, ANSWER])
    saw = []

    def look(at: str) -> str:
        """Look at something."""
        saw.append(w.branch.chat_model)
        return at

    w.branch.register_tools(look)
    assert await w.branch.ReAct({"instruction": "q"}, analysis_model=other, max_extensions=1) == "yes"
    assert saw == [other]
    assert len(road.requests(other)) == 3 and not road.requests(w.branch.mdls.chat)


async def test_interpret_and_parse_inside_react_use_the_models_they_are_given(watch, road):
    w, analysis, interpret = watch("configured"), road.model([ANALYSIS, ANSWER]), road.model("clearer")
    got = await w.branch.ReAct(
        {"instruction": "q"},
        interpret=True,
        interpret_model=interpret,
        analysis_model=analysis,
        extension_allowed=False,
    )
    assert got == "yes"
    assert len(road.requests(interpret)) == 1 and len(road.requests(analysis)) == 2
    assert not road.requests(w.branch.mdls.chat)


async def test_parse_uses_the_parse_model_and_reads_the_chat_model_as_configured(road):
    chat, parse = road.model("chat"), road.model(ANSWER)
    w = Watched(chat, parse_model=parse)
    op, saw = OPERATIONS["parse"], []
    from lionagi.session.signal import RunStart

    w.observe(RunStart, lambda *_: saw.append(w.branch.chat_model))
    assert (await op.call(w.branch)).answer == "yes"
    assert set(saw) == {chat}
    assert len(road.requests(parse)) == 1 and not road.requests(chat)
    assert w.branch.turn_state.log.records()[0].model == f"{parse.endpoint.config.provider}/{parse.model_name}"


async def test_a_parse_model_of_a_call_does_not_last(watch, road):
    w, parse = watch("no json"), road.model(ANSWER)
    from turnkit import Answer

    configured = w.branch.mdls.parse
    got = await w.branch.communicate("q", response_format=Answer, parse_model=parse)
    assert got.answer == "yes" and w.branch.parse_model is configured
    assert len(road.requests(parse)) == 1


# --- assignment ----------------------------------------------------------------------------------------------------------


async def test_an_assignment_inside_a_call_changes_that_call_only_and_is_warned_of_once():
    w, other = Watched(scripted_model("configured")), scripted_model("other")
    configured = w.branch.mdls.chat

    async def assign(branch):
        branch.chat_model = other
        return await branch.communicate("inner")

    with pytest.warns(UserWarning, match="register_imodel") as told:
        assert await Inside(then=assign).operate(w.branch) == "other"
        assert await Inside(then=assign).operate(w.branch) == "other"
    assert len(told) == 1 and told[0].filename == __file__
    assert w.branch.chat_model is w.branch.mdls.chat is configured
    assert await w.branch.communicate("next") == "configured"


async def test_an_assignment_outside_of_a_call_is_the_configuration():
    w, other = Watched(scripted_model("configured")), scripted_model("other")
    w.branch.chat_model = other
    assert w.branch.mdls.chat is other and await w.branch.communicate("q") == "other"


async def test_the_configuration_changed_inside_a_turn_serves_the_next_one():
    """Through `mdls`, as the warning says; the running turn keeps its snapshot."""
    w, other = Watched(scripted_model("configured")), scripted_model("other")

    async def reconfigure(branch):
        branch.mdls.register_imodel("chat", other)
        return await branch.communicate("inner")

    assert await Inside(then=reconfigure).operate(w.branch) == "configured"
    assert await w.branch.communicate("next") == "other"


async def test_the_configuration_changed_while_a_call_waits_serves_that_call():
    """Source: ADR-0018 D1: resolved after the lock."""
    gate = Gate()
    w = Watched(scripted_model("configured", gate=gate))
    first = asyncio.create_task(w.branch.chat("first"))
    await gate.reached()
    second = asyncio.create_task(w.branch.chat("second"))
    await asyncio.sleep(0)
    w.branch.chat_model = scripted_model("changed")
    gate.open()
    assert await asyncio.gather(first, second) == ["configured", "changed"]


# --- streams ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "ReActStream"])
async def test_the_consumer_of_a_stream_is_outside_between_items(name):
    w, other = Watched(scripted_model("configured")), scripted_model([ROUND, ANALYSIS, ANSWER])
    configured, op = w.branch.mdls.chat, OPERATIONS[name]
    async for _ in op.open(w.branch, other):
        assert w.branch.chat_model is configured
        assert w.branch.turn_state.context.model is other
    assert w.branch.chat_model is configured


async def test_an_assignment_by_the_consumer_between_items_is_the_configuration_and_spares_the_stream():
    w, other, later = Watched(scripted_model("configured")), scripted_model("other"), scripted_model("later")
    got = []
    async for msg in w.branch.run("q", chat_model=other):
        w.branch.chat_model = later
        got.append(getattr(msg, "response", None))
    assert got[-1] == "other" and w.branch.mdls.chat is later


async def test_lionagis_own_assignment_is_no_reason_for_a_warning():
    """`run` assigns the model of the call; a command-line model through operate, ReAct and run ends there."""
    w = Watched(scripted_model("configured"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("operate", "ReAct", "ReActStream", "run"):
            op = OPERATIONS[name]
            await op.call(w.branch, scripted_model(list(op.replies)))
    assert not w.branch.turn_state.warned_model


async def test_the_bus_and_the_log_name_the_model_that_served():
    w, other = Watched(scripted_model("x")), scripted_model("y", model="special")
    await w.branch.chat("q", imodel=other)
    assert w.branch.turns.records()[0].model == "lionnb-scripted/special"
