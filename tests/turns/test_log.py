"""The turn log: a row for every entry, its own usage, bounded, and nothing that grows with turns."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest
from turnkit import Host, Watched, drain, outcome_of, until

from lionnb.testing import Gate, Reply, leftover_tasks, scripted_model
from lionnb.turns import TurnLog, run_in_turn, stream_in_turn
from lionnb.turns.log import TurnRow, clip


def usages(w):
    return [(r.usage.input_tokens, r.usage.output_tokens) for r in w.branch.turns.records()]


# --- rows --------------------------------------------------------------------------------------------------------------


async def test_waits_cancellations_closes_and_drops_each_have_their_row():
    gate = Gate()
    w = Watched(scripted_model("x", gate=gate))
    first = asyncio.create_task(w.branch.chat("first"))
    await gate.reached()
    gone = asyncio.create_task(w.branch.chat("gone"))
    await until(lambda: w.branch.turn_queue)
    assert w.outcomes == ["running", "waiting"]
    gone.cancel()
    await outcome_of(gone)
    first.cancel()
    await outcome_of(first)
    stream = w.branch.run("closed")
    await anext(stream)
    await stream.aclose()
    async for _ in w.branch.run("dropped"):
        break
    await until(lambda: w.branch.current_turn is None)
    assert w.outcomes == ["cancelled", "cancelled while waiting", "closed", "abandoned"]
    rows = w.branch.turns.records()
    assert rows[1].turn_id is None and rows[1].duration_s is None and rows[1].ended_at >= rows[1].queued_at
    assert all(r.duration_s >= 0 for r in rows if r.turn_id)


async def test_a_failed_turns_row_names_the_error_in_one_bounded_text(watch):
    w = watch([ValueError("boom " + "x" * 5_000)])
    await outcome_of(w.branch.communicate("q"))
    (row,) = w.branch.turns.records()
    assert "boom" in row.error or "500" in row.error
    assert len(row.error) < 2_100


async def test_a_row_is_a_copy_and_frozen(watch):
    w = watch("x")
    await w.branch.chat("q")
    (row,) = w.branch.turns.records()
    with pytest.raises(Exception, match="frozen"):
        row.outcome = "failed"


async def test_the_events_of_a_turn_come_in_order_with_its_id(watch):
    w = watch("fine")
    await w.branch.communicate("what?")
    events = w.branch.turns.events()
    assert [e.kind for e in events if e.kind != "signal"] == ["start", "text", "text", "phase", "end"]
    assert {e.turn_id for e in events} == {w.branch.turns.records()[0].turn_id}
    assert [e.i for e in events] == list(range(len(events)))
    assert [(e.data["role"], e.data["text"]) for e in events if e.kind == "text"] == [
        ("user", "what?"),
        ("assistant", "fine"),
    ]
    assert [e.data["name"] for e in events if e.kind == "signal"] == [
        "RunStart",
        "MessageAdded",
        "MessageAdded",
        "RunEnd",
    ]


async def test_tool_calls_and_results_are_events_with_the_same_id():
    chunks = [
        {"type": "tool_use", "tool_name": "look", "tool_id": "1", "tool_input": {"at": "x"}},
        {"type": "tool_result", "tool_id": "1", "tool_output": "seen"},
        {"type": "text", "content": "done"},
    ]
    w = Watched(scripted_model([{"type": "stream", "chunks": chunks}]))
    await drain(w.branch.run("q"))
    call, result = (e for e in w.branch.turns.events() if e.kind.startswith("tool"))
    assert (call.kind, call.data["name"], call.data["arguments"]) == ("tool_call", "look", '{"at": "x"}')
    assert (result.kind, result.data["id"], result.data["output"], result.data["error"]) == (
        "tool_result",
        call.data["id"],
        "seen",
        False,
    )


async def test_text_as_it_comes_goes_to_those_who_ask_for_it_and_is_not_kept():
    w, chunks = Watched(scripted_model("one two three")), []
    stop = w.branch.turns.listen(lambda e: chunks.append(e.data["text"]) if e.kind == "chunk" else None, chunks=True)
    await drain(w.branch.run("q"))
    assert chunks == ["one", " two", " three"]
    assert not [e for e in w.branch.turns.events() if e.kind == "chunk"]
    stop()
    await drain(w.branch.run("q"))
    assert len(chunks) == 3
    assert w.branch.mdls.chat.streaming_process_func is None


async def test_a_listener_that_raises_is_dropped_and_changes_nothing(watch, caplog):
    w = watch("fine")

    def bad(event):
        raise ValueError("view")

    w.branch.turns.listen(bad)
    assert await w.branch.communicate("q") == "fine"
    w.check("RunEnd")
    assert caplog.text.count("a listener failed and was dropped") == 1


# --- usage ---------------------------------------------------------------------------------------------------------------


async def test_each_turn_has_its_own_share_of_usage(watch):
    w = watch([Reply("a", usage=(10, 1)), Reply("b", usage=(20, 2))])
    await w.branch.communicate("q")
    await w.branch.communicate("q")
    assert usages(w) == [(10, 1), (20, 2)]


async def test_calls_that_record_nothing_count_too(watch):
    w = watch([Reply("a", usage=(10, 1))])
    await w.branch.chat("q")
    await w.branch.interpret("q")
    assert usages(w) == [(10, 1), (10, 1)]


async def test_nested_calls_add_up_and_none_is_counted_twice(watch):
    """Also when several are under way at the same time."""
    w = watch([Reply(f"answer {i}", usage=(10**i, i)) for i in range(4)])

    async def middle(branch, *_, **__):
        await asyncio.gather(*(branch.communicate(str(i)) for i in range(3)))
        await branch.chat("not recorded")

    await w.branch.operate(instruction="q", middle=middle, skip_validation=True)
    assert usages(w) == [(1111, 6)]


async def test_unknown_usage_is_none_and_never_zero(watch):
    w = watch([Reply("a", usage=None)])
    await w.branch.communicate("q")
    assert usages(w) == [(None, None)]
    assert w.branch.turns.records()[0].usage.total_tokens is None


async def test_a_failed_turn_keeps_the_usage_of_the_calls_before_it(watch):
    w = watch([Reply("a", usage=(10, 1)), ValueError("boom")])

    async def middle(branch, *_, **__):
        await branch.communicate("works")
        await branch.communicate("fails")

    await outcome_of(w.branch.operate(instruction="q", middle=middle, skip_validation=True))
    assert usages(w) == [(10, 1)] and w.outcomes == ["failed"]


async def test_a_stream_that_fails_after_a_part_keeps_what_was_reported_before():
    chunks = [
        {"type": "text", "content": "first"},
        {"type": "tool_use", "tool_name": "t", "tool_id": "1", "tool_input": {}},
        {"type": "error", "content": "lost"},
    ]
    w = Watched(scripted_model([{"type": "stream", "chunks": chunks}]))
    assert await outcome_of(drain(w.branch.run("q"))) is not None
    assert usages(w) == [(None, None)]  # nothing was reported: unknown, not zero
    await until(lambda: not leftover_tasks())  # lionagi leaves its endpoint's generator to the collector


async def test_cost_is_kept_where_a_provider_reports_it():
    from lionnb.taps import counts_of

    assert counts_of({"usage": {"input_tokens": 1}, "total_cost_usd": 0.5}) == (1, None, 0.5)
    assert counts_of({"usage": {"prompt_tokens": True}}) is None
    assert counts_of("text") is None


# --- bounds ----------------------------------------------------------------------------------------------------------------


def test_rows_and_events_beyond_the_bound_fall_out_and_are_counted():
    log = TurnLog(max_turns=3, max_events=5)
    for i in range(10):
        log.enter(TurnRow("op", "id", None, "task", ""))
        log.event("signal", None, name=str(i))
    assert len(log.records()) == 3 and log.dropped_turns == 7
    assert [e.data["name"] for e in log.events()] == list("56789") and log.dropped_events == 5


def test_a_long_text_is_kept_by_its_beginning_with_a_note():
    assert clip("short") == "short"
    assert clip("x" * 30, 10) == "x" * 10 + "… (20 more characters)"


async def test_a_long_answer_is_clipped_in_the_log_and_whole_in_the_history():
    w = Watched(scripted_model("x" * 50_000))
    await w.branch.communicate("q" * 50_000)
    texts = [e.data["text"] for e in w.branch.turns.events() if e.kind == "text"]
    assert all(len(t) < 20_100 for t in texts)
    assert len(w.branch.turns.last.prompt) < 2_100
    assert len(w.branch.messages[-1].response) == 50_000


async def test_a_finished_turn_costs_no_memory_beyond_the_bound():
    asyncio.get_running_loop().set_debug(False)  # it keeps tracebacks of its own, and takes ten times as long
    host = Host()
    host.turn_state.log = TurnLog(max_turns=50, max_events=200)

    async def body(scope):
        await asyncio.sleep(0)

    async def turns(n):
        for _ in range(n):
            await run_in_turn(host, invoke=body)
            host.seen.clear()

    await turns(200)
    gc.collect()
    tracemalloc.start()
    try:
        await turns(100)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        await turns(500)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000, f"{(after - before) / 500:.0f} bytes a turn"


async def test_a_row_keeps_no_provider_response(watch):
    w = watch("x")
    await w.branch.chat("q")
    assert w.branch.turns.last.counted is None


# --- what listeners and texts may do -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
@pytest.mark.parametrize("kind", ["start", "text", "control", "phase", "end"])
async def test_a_listener_may_fail_at_any_event(kind, error, watch, caplog):
    """One that reads a future which was cancelled raises CancelledError: nobody has cancelled the turn."""
    from lionagi.session.control import LoopDirective

    w = watch("fine")

    def bad(event):
        if event.kind == kind:
            raise error("view")
        if event.kind == "text" or (event.kind == "start" and kind == "control"):
            w.branch.control(LoopDirective.CONTINUE)

    w.branch.turns.listen(bad)
    assert await w.branch.communicate("q") == "fine"
    w.check("RunEnd")
    assert caplog.text.count("a listener failed and was dropped") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "observed"), [("control", 1), ("control", 0), ("phase", 1), ("phase", 0), ("end", 0)])
async def test_a_keyboard_interrupt_in_a_listener_leaves_the_branch_free_and_its_terminal_sent(kind, stream, observed):
    """It may strike anywhere."""
    host = Host(observed=bool(observed))

    def bad(event):
        if event.kind == kind:
            stop()
            raise KeyboardInterrupt

    async def body(scope):
        host.turn_state.control(lambda: "unread", None)
        return 1

    async def items(scope):
        host.turn_state.control(lambda: "unread", None)
        yield 1

    async def call():
        made = stream_in_turn(host, invoke=items) if stream else run_in_turn(host, invoke=body)
        try:
            await (drain(made) if stream else made)
        except KeyboardInterrupt:  # a task that raised it would end the test's loop
            return "interrupted"

    stop = host.turns.listen(bad)
    assert await call() == "interrupted"
    host.check("RunEnd")


def test_a_keyboard_interrupt_in_the_finalizers_own_task_leaves_the_branch_free():
    host, loop = Host(), asyncio.new_event_loop()

    def bad(event):
        if event.kind == "end":
            stop()
            raise KeyboardInterrupt

    async def body(scope):
        return 1

    stop = host.turns.listen(bad)
    turn = loop.create_task(run_in_turn(host, invoke=body))
    with pytest.raises(KeyboardInterrupt):  # asyncio hands it to whoever runs the loop
        loop.run_until_complete(turn)
    assert loop.run_until_complete(turn) == 1
    host.check("RunEnd")
    loop.close()


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


async def test_an_error_without_a_readable_text_ends_its_turn_all_the_same(watch):
    w = watch("fine")

    async def middle(*_, **__):
        raise Unspeakable

    with pytest.raises(Unspeakable):
        await w.branch.operate(instruction="q", middle=middle)
    w.check("RunFailed")
    assert w.branch.turns.records()[0].error == "Unspeakable: (its text cannot be read)"
    assert await w.branch.chat("next") == "fine"


async def test_an_instruction_without_a_readable_text_is_lionagis_affair_and_no_fault_of_the_log():
    from lionnb import taps

    class Dumb:
        def __repr__(self):
            raise RuntimeError("no text")

    deep = []
    for _ in range(5_000):
        deep = [deep]
    assert taps.as_text(Dumb()) == "<Dumb>"
    assert taps.as_text({"a": Dumb()}) == "<dict>"
    assert isinstance(taps.as_text(deep), str)  # how deep is too deep is the interpreter's affair


async def test_start_and_end_name_the_task(watch):
    """A view matches who waits to what starts by the task's name."""
    w = watch("fine")
    await asyncio.create_task(w.branch.chat("q"), name="cell 7")
    told = {e.kind: e.data["task"] for e in w.branch.turns.events() if e.kind in ("start", "end")}
    assert told == {"start": "cell 7", "end": "cell 7"}


async def test_what_nested_work_on_another_thread_tells_is_told_in_the_branchs_loop_in_its_order():
    """Listeners draw views: they belong to one thread. Numbers stay one row."""
    import threading

    w, where = Watched(scripted_model("x")), []
    stop = w.branch.turns.listen(lambda e: where.append(threading.current_thread() is threading.main_thread()))

    async def adds():
        for i in range(20):
            w.branch.msgs.add_message(instruction=f"m{i}")

    async def middle(*_, **__):
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, adds()) for _ in range(3)))
        return "done"

    await w.branch.operate(instruction="q", middle=middle, skip_validation=True)
    stop()
    events = w.branch.turns.events()
    assert where and all(where)
    assert [e.i for e in events] == list(range(len(events)))
    assert sum(e.kind == "text" for e in events) == 60
    assert events[-1].kind == "end" and {e.turn_id for e in events} == {events[-1].turn_id}


async def test_a_listener_of_chunks_that_fails_wants_none_any_more():
    w = Watched(scripted_model("one two"))

    def bad(event):
        raise ValueError("view")

    stop = w.branch.turns.listen(bad, chunks=True)
    await drain(w.branch.run("q"))
    assert w.branch.turns.chunks_wanted == 0
    stop()
    assert w.branch.turns.chunks_wanted == 0


async def test_a_keyboard_interrupt_when_a_turn_opens_leaves_nothing_on_its_model():
    """The text was tapped already for whoever wants it as it comes."""
    w = Watched(scripted_model("one two"))

    def bad(event):
        if event.kind == "start":
            stop()
            raise KeyboardInterrupt

    stop = w.branch.turns.listen(bad, chunks=True)
    assert isinstance(await outcome_of(w.branch.chat("q")), KeyboardInterrupt)
    assert w.branch.mdls.chat.streaming_process_func is None
    assert w.outcomes == ["refused"]
    w.check()
    assert await w.branch.chat("q") == "one two"
    w.check("RunEnd")
