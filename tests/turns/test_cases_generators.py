"""Faults that people met elsewhere with streams that were left (group c), over every streaming operation and road.

c10 (closings that race) is in tests/turns/test_consumer.py.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import pytest
from turnkit import STREAMS, drain, on_both_roads, until

import lionnb
from lionnb.testing import Gate, scripted_model
from lionnb.turns import context as ctxs

every_stream = on_both_roads(STREAMS)


@pytest.fixture
def loop_errors():
    """Gives what starts to listen to the loop's exception handler, into the list that it returns."""

    def start():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        return told

    return start


@every_stream
async def test_a_stream_that_is_kept_in_a_variable_is_named_to_who_waits_behind_it(operation, watch, loop_errors):
    """c01: `break` closes nothing while a variable holds the generator. The consumer's own call is part of the turn;
    from another task it waits, and the queue says behind what and how to end it. No error, no silent wait.
    """
    errors = loop_errors()
    w = watch([*operation.replies, "next"])
    stream = operation.open(w.branch)
    async for _ in stream:
        break
    assert w.branch.current_turn.turn_id == stream.turn_id
    other = asyncio.get_running_loop().create_task(w.branch.chat("next"), context=ctxs.outside())  # another cell
    await until(lambda: w.branch.turn_queue)
    (waiter,) = w.branch.turn_queue
    assert waiter.behind_turn_id == stream.turn_id
    assert "nobody has asked for the next item" in waiter.behind and "aclose()" in waiter.behind
    (told,) = [e for e in w.branch.turns.events() if e.kind == "wait"]
    assert stream.turn_id[:8] in told.data["behind"]
    await stream.aclose()
    assert await other is not None
    w.check("RunEnd", "RunEnd")
    assert errors == []


@pytest.mark.filterwarnings("ignore:turn .* left a question")
@every_stream
async def test_who_looks_at_the_first_item_and_walks_away_leaves_no_token_and_no_error(operation, watch, loop_errors):
    """c02: the collector closed the stream in a foreign task, and tokens of its context leaked."""
    errors = loop_errors()
    w = watch(operation.replies[-1])

    async def peek():
        async for item in operation.open(w.branch):
            return item

    for _ in range(20):
        await asyncio.create_task(peek())
    gc.collect()
    await until(lambda: w.branch.turn_state.turn is None)
    assert w.outcomes == ["abandoned"] * 20
    w.check(*["RunEnd"] * 20)
    assert errors == []


@every_stream
async def test_a_stream_may_be_begun_in_one_task_and_finished_in_another(operation, watch, loop_errors):
    """c03: 'token was created in a different Context'."""
    errors = loop_errors()
    w = watch(list(operation.replies))
    stream = aiter(operation.open(w.branch))
    await asyncio.create_task(anext(stream))
    await drain(stream)
    assert w.branch.current_turn is None and not w.branch.turn_state.lock.locked()
    w.check("RunEnd")
    assert errors == []


@every_stream
async def test_a_stream_may_be_closed_in_another_task_than_it_was_read_in(operation, watch, loop_errors):
    """c04: the cleanup left a cancel scope in the wrong task."""
    errors = loop_errors()
    w = watch(list(operation.replies))
    stream = operation.open(w.branch)
    async for _ in stream:
        break
    await asyncio.create_task(stream.aclose())
    assert w.branch.current_turn is None
    w.check("RunEnd")
    assert w.outcomes == ["closed"]
    assert errors == []


@every_stream
async def test_after_an_early_break_the_turn_is_over_on_the_first_line_behind_the_block(operation, watch):
    """c06: the result said 'not complete' for ever. The row has its end and its word, and the log what was said."""
    w = watch(list(operation.replies))
    async with aclosing(operation.open(w.branch)) as stream:
        async for _ in stream:
            break
    assert w.branch.current_turn is None and stream.turn_id is None
    (row,) = w.branch.turns.records()
    assert (row.outcome, row.ended_at is not None) == ("closed", True)
    w.check("RunEnd")


async def test_what_had_come_before_an_early_break_is_told():
    """c06: the part that was read is in the log, event by event, also when the history gets none of it."""
    gate = Gate()
    tools = [{"type": "tool_use", "tool_name": "t", "tool_id": str(i), "tool_input": {}} for i in range(3)]
    end = {"type": "text", "content": "the end"}
    branch = lionnb.Branch(chat_model=scripted_model([{"type": "stream", "chunks": [*tools, end]}], gate=gate))
    got = []
    async with aclosing(branch.run("q")) as stream:
        async for item in stream:
            got.append(item)
            if len(got) == 3:
                break
    told = [e for e in branch.turns.events() if e.kind in ("text", "tool_call")]
    assert [e.data["id"] for e in told] == [str(m.id) for m in got]


@every_stream
async def test_a_break_fills_no_log(operation, watch, loop_errors, caplog, capfd):
    """c08: 'exception was never retrieved', although nothing had gone wrong for the user."""
    errors = loop_errors()
    w = watch(list(operation.replies))
    async for _ in operation.open(w.branch):
        break
    gc.collect()
    await until(lambda: w.branch.turn_state.turn is None)
    gc.collect()
    await asyncio.sleep(0)
    assert errors == []
    assert capfd.readouterr().err == ""
    assert [r for r in caplog.records if r.levelname in ("WARNING", "ERROR") and "took" not in r.message] == []
