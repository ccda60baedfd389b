"""The test kit itself: it must hold where tests hold on to it, and must not be able to pass by doing nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest
from lionagi import Branch
from lionagi.testing import ScriptExhaustedError

from lionnb.testing import (
    Gate,
    LoopbackServer,
    Reply,
    calls_of,
    cancel_at_every_step,
    no_leaks,
    scripted_model,
)

ASK = [{"role": "user", "content": "hello there"}]


def _in_thread(work):
    """Run *work* in a thread of its own and return what it returned."""
    box = []
    thread = threading.Thread(target=lambda: box.append(work()))
    thread.start()
    thread.join()
    return box[0]


async def _text(model, **how):
    return "".join([c.content or "" async for c in model.stream(messages=ASK, **how) if c.type == "text"])


# --- Gate --------------------------------------------------------------------------------------------------------


async def test_a_closed_gate_holds_until_it_is_opened_and_tells_who_waits():
    gate = Gate()
    held = [asyncio.create_task(gate.wait()) for _ in range(3)]
    await gate.reached(3)
    assert gate.waiting == 3 and not any(t.done() for t in held)
    gate.open()
    await asyncio.gather(*held)
    assert gate.waiting == 0 and gate.opened
    await gate.wait()  # open: nobody is held


async def test_opening_and_closing_at_once_lets_only_those_pass_who_waited():
    gate = Gate()
    first = asyncio.create_task(gate.wait())
    await gate.reached()
    gate.open()
    gate.close()
    second = asyncio.create_task(gate.wait())
    await first
    await gate.reached()
    assert not second.done() and gate.waiting == 1
    gate.open()
    await second


async def test_a_cancelled_waiter_leaves_nothing_at_the_gate():
    gate = Gate()
    task = asyncio.create_task(gate.wait())
    watcher = asyncio.create_task(gate.reached(2))
    await gate.reached()
    task.cancel()
    watcher.cancel()
    await asyncio.wait((task, watcher))
    assert gate.waiting == 0
    gate.open()  # must not trip over a future that is gone


async def test_a_gate_works_across_threads_and_loops():
    gate = Gate()
    there = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(gate.wait())))
    await gate.reached()  # it waits in another loop, and we are told in ours
    assert gate.waiting == 1
    _in_thread(gate.open)
    await there
    gate.close()
    here = asyncio.create_task(gate.wait())
    await gate.reached()
    _in_thread(gate.open)
    await here


def test_a_waiter_whose_loop_is_gone_does_not_stop_the_gate():
    gate = Gate()

    async def leave_it():
        task = asyncio.ensure_future(gate.wait())
        await gate.reached()
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(leave_it())
    loop.close()
    gate.open()
    assert gate.opened
    task.get_coro().close()
    task._log_destroy_pending = False  # it was left on purpose


# --- the scripted model, and what both roads promise ---------------------------------------------------------------


def test_the_roads_differ_in_what_lionagi_makes_of_them(road):
    assert road.model("x").is_cli is (road.name == "cli")


async def test_replies_come_in_order_and_the_last_repeats(road):
    branch = Branch(chat_model=road.model(["one", "two"]))
    assert [await branch.chat("say") for _ in range(3)] == ["one", "two", "two"]


async def test_a_script_without_repeat_runs_out(road):
    model = road.model(["one"], repeat_last=False)
    branch = Branch(chat_model=model)
    await branch.chat("say")
    with pytest.raises(Exception, match=r"script exhausted|500"):
        await branch.chat("again")


async def test_a_gate_holds_the_provider_inside_a_call_on_both_roads(road):
    gate = Gate()
    model = road.model("held", gate=gate)
    task = asyncio.create_task(Branch(chat_model=model).communicate("hi"))
    await gate.reached()
    assert len(road.requests(model)) == 1 and not task.done()
    gate.open()
    assert await task == "held"


async def test_a_call_cancelled_at_the_gate_counts_and_the_next_one_goes_on(road):
    gate = Gate()
    model = road.model(["lost", "kept"], gate=gate)
    branch = Branch(chat_model=model)
    task = asyncio.create_task(branch.chat("hi"))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    assert await branch.chat("hi again") == "kept"
    assert len(road.requests(model)) == 2


async def test_a_reply_may_have_a_gate_of_its_own(road):
    mine = Gate()
    branch = Branch(chat_model=road.model([Reply("slow", gate=mine), "quick"]))
    task = asyncio.create_task(branch.chat("a"))
    await mine.reached()
    assert await branch.clone().chat("b") == "quick"
    mine.open()
    assert await task == "slow"


async def test_a_callable_sees_the_request_and_an_exception_is_the_providers_failure(road):
    seen = []
    branch = Branch(chat_model=road.model([lambda p: seen.append(p) or "read it", ValueError("boom")]))
    assert await branch.chat("find me 7") == "read it"
    assert "find me 7" in str(seen[0]["messages"])
    with pytest.raises(Exception, match=r"boom|500"):
        await branch.chat("now fail")


async def test_structured_replies_are_parsed_by_lionagi(road):
    from pydantic import BaseModel

    class Answer(BaseModel):
        n: int

    branch = Branch(chat_model=road.model([{"type": "structured", "data": {"n": 7}}]))
    answer = await branch.communicate("how many?", response_format=Answer)
    assert answer.n == 7


async def test_conditional_replies_are_matched_by_lionagis_rule(road):
    model = road.model(["by order", {"type": "text", "content": "by word", "when": {"prompt_contains": "magic"}}])
    branch = Branch(chat_model=model)
    assert await branch.chat("the magic word") == "by word"
    assert await branch.chat("plain") == "by order"


async def test_copies_share_the_script_and_the_calls(road):
    model = road.model(["one", "two", "three"])
    branch = Branch(chat_model=model)
    assert await branch.chat("a") == "one"
    assert await branch.clone().chat("b") == "two"
    assert await Branch(chat_model=model.copy()).chat("c") == "three"
    assert len(road.requests(model)) == 3


async def test_usage_is_reported_on_both_roads_and_can_be_unknown(road):
    model = road.model(["two words", Reply("x", usage=(11, 5)), Reply("x", usage=None)])
    seen = []
    for _ in range(3):
        usages = [c.metadata.get("usage") async for c in model.stream(messages=ASK) if c.type == "result"]
        seen.append(next((tuple(u.values())[:2] for u in usages if u), None))
    assert seen[0][1] == 2 and seen[0][0] > 0
    assert seen[1:] == [(11, 5), None]


@pytest.mark.parametrize(("where", "before"), [("first", 0), ("last", 2)])
async def test_a_text_streams_word_by_word_and_the_gate_stands_where_it_was_put(road, where, before):
    gate = Gate()
    model = road.model("one two three", gate=gate, gate_at=where)
    words = []

    async def follow():
        async for chunk in model.stream(messages=ASK):
            if chunk.type == "text":
                words.append(chunk.content)

    task = asyncio.create_task(follow())
    await gate.reached()
    if road.name == "cli":  # over a socket, what was sent need not have been read yet
        assert len(words) == before
    gate.open()
    await task
    assert words == ["one", " two", " three"]


async def test_the_streaming_operation_takes_the_scripted_model_with_thoughts_tools_and_usage():
    chunks = [
        {"type": "thinking", "content": "hm"},
        {"type": "tool_use", "tool_name": "look", "tool_id": "1", "tool_input": {"at": "x"}},
        {"type": "tool_result", "tool_id": "1", "tool_output": "seen"},
        {"type": "text", "content": "done"},
    ]
    branch = Branch(chat_model=scripted_model([{"type": "stream", "chunks": chunks}]))
    kinds = [type(m).__name__ async for m in branch.run("go")]
    assert kinds == ["Instruction", "ActionRequest", "ActionResponse", "AssistantResponse"]
    usage = branch.messages[-1].metadata["model_response"]["usage"]
    assert usage["output_tokens"] == 1 and usage["input_tokens"] > 0


async def test_an_exception_of_the_script_reaches_the_stream_unchanged():
    boom = RuntimeError("boom")
    model = scripted_model([boom])
    with pytest.raises(ValueError, match="boom") as caught:
        await _text(model)
    assert caught.value.__cause__ is boom
    assert calls_of(model)[0].was_streamed


def test_each_chunk_is_a_point_at_which_a_stream_can_be_cancelled():
    class Stream:
        def __init__(self):
            self.got = []

        async def run(self):
            model = scripted_model("one two three")
            try:
                async for chunk in model.stream(messages=ASK):
                    self.got.append(chunk.content)
            finally:
                await model.close()

        def check(self, outcome):
            seen.add(len(self.got))

    async def scenario():
        return Stream()

    seen = set()
    cancel_at_every_step(scenario)
    assert seen == {0, 1, 2, 4}  # the last chunk and the usage that follows it come in one step


async def test_a_snapshot_of_a_scripted_branch_is_plain_json_and_can_be_read_back():
    import json

    branch = Branch(chat_model=scripted_model("kept"), log_config={"auto_save_on_exit": False})
    await branch.communicate("hi")
    again = Branch.from_dict(json.loads(json.dumps(branch.to_dict(mode="json"))))
    assert again.messages[-1].rendered == "kept"
    assert await again.chat("more") == "(no script)"


async def test_an_exhausted_script_says_so():
    model = scripted_model(["x"], repeat_last=False)
    await _text(model)
    with pytest.raises(ValueError) as caught:
        await _text(model)
    assert isinstance(caught.value.__cause__, ScriptExhaustedError)


def test_a_script_is_checked_where_it_is_written():
    with pytest.raises(ValueError, match="unknown response type"):
        scripted_model([{"type": "txt", "content": "typo"}])
    with pytest.raises(ValueError, match="at least one"):
        scripted_model([])


# --- faults of the loopback server -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(status=429, retry_after_s=2), "429"),
        (Reply(status=500), "500"),
        (Reply("never whole", hang_up=True), "peer closed connection"),
        (Reply("x", malformed=True), "Expecting value"),
    ],
    ids=["rate limit", "server error", "hang-up", "malformed"],
)
async def test_a_fault_of_the_server_is_the_calls_failure_and_not_the_next_ones(reply, told):
    with LoopbackServer([reply, "fine"]) as server:
        branch = Branch(chat_model=server.model())
        with pytest.raises(Exception, match=told):
            await branch.chat("x")
        assert await branch.chat("y") == "fine"
        assert len(server.requests) == 2  # no retry in between


async def test_a_rate_limit_says_when_to_come_again():
    with LoopbackServer(Reply(status=429, retry_after_s=2)) as server:
        endpoint = server.model().endpoint
        with pytest.raises(Exception, match="429") as caught:
            await endpoint.call({"messages": ASK})
    assert caught.value.headers["retry-after"] == "2"


async def test_a_stream_that_is_cut_fails():
    with LoopbackServer(Reply("a b c", hang_up=True)) as server, pytest.raises(ValueError, match="peer closed"):
        await _text(server.model())


async def test_tool_calls_are_served_in_openais_shape_whole_and_streamed():
    with LoopbackServer([{"type": "tool_call", "name": "look", "arguments": {"at": "x"}}]) as server:
        model = server.model()
        call = await model.invoke(messages=ASK)
        function = call.response["choices"][0]["message"]["tool_calls"][0]["function"]
        assert function == {"name": "look", "arguments": '{"at": "x"}'}
        chunks = [c async for c in model.stream(messages=ASK)]
        assert [c.tool_name for c in chunks if c.type == "tool_use"] == ["look"]


async def test_a_client_that_goes_away_frees_the_gate():
    gate = Gate()
    with LoopbackServer("x", gate=gate) as server:
        task = asyncio.create_task(server.model().invoke(messages=ASK))
        await gate.reached()
        task.cancel()
        await asyncio.wait((task,))
        await gate.left()
        assert gate.waiting == 0


async def test_closing_the_server_cuts_off_who_is_being_served():
    gate = Gate()
    with no_leaks():
        server = LoopbackServer("x", gate=gate)
        task = asyncio.create_task(server.model().invoke(messages=ASK))
        await gate.reached()
        server.close()
        server.close()
        call = await task
        assert call.execution.error is not None
