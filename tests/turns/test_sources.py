"""What a turn hangs on a model while it runs: its provider's streams end with it, and the model is left as it was."""

from __future__ import annotations

import asyncio

import pytest
from turnkit import Watched, drain, outcome_of

import lionnb
from lionnb.testing import Gate, scripted_model

left_open = pytest.mark.filterwarnings("ignore:turn .* left a question without an answer:UserWarning")


def hung(model) -> list[str]:
    """What hangs on the model and on its endpoint."""
    found = ["stream"] if "stream" in vars(model.endpoint) else []
    return [*found, *(["chunks"] if model.streaming_process_func is not None else [])]


def listen(branch) -> None:
    branch.turns.listen(lambda event: None, chunks=True)


@left_open
@pytest.mark.parametrize("wanted", [False, True], ids=["alone", "listened to"])
@pytest.mark.parametrize("end", ["ends", "closed", "cancelled", "raises"])
async def test_nothing_hangs_on_a_model_when_its_turn_is_over(end, wanted):
    gate = Gate()
    model = scripted_model([ValueError("no")] if end == "raises" else ["one two"], gate=gate)
    branch = lionnb.Branch(chat_model=model)
    if wanted:
        listen(branch)
    stream = branch.run("q")
    await anext(stream)
    assert hung(model) == (["stream", "chunks"] if wanted else ["stream"])
    if end == "closed":
        await stream.aclose()
    else:
        task = asyncio.create_task(drain(stream))
        await asyncio.sleep(0)
        task.cancel() if end == "cancelled" else gate.open()
        await outcome_of(task)
    assert hung(model) == []


@left_open
async def test_turns_of_two_branches_share_what_hangs_on_their_model_and_the_last_takes_it_off():
    gate = Gate()
    model = scripted_model(["one", "two"], gate=gate)
    branches = [lionnb.Branch(chat_model=model) for _ in range(2)]
    for branch in branches:
        listen(branch)
    streams = [branch.run("q") for branch in branches]
    for stream in streams:
        await anext(stream)
    await streams[0].aclose()
    assert hung(model) == ["stream", "chunks"]
    gate.open()
    await drain(streams[1])
    assert hung(model) == []


async def test_a_stream_function_of_somebody_elses_is_called_and_put_back():
    model, calls = scripted_model(["one", "two"]), []
    theirs = model.endpoint.stream

    def counted(*args, **kw):
        calls.append(1)
        return theirs(*args, **kw)

    model.endpoint.stream = counted
    branch = lionnb.Branch(chat_model=model)
    await branch.operate(instruction="q")
    await branch.operate(instruction="q")
    assert len(calls) == 2 and model.endpoint.stream is counted


@left_open
async def test_what_somebody_puts_in_its_place_during_a_turn_is_left_alone():
    model = scripted_model(["one"])
    branch = lionnb.Branch(chat_model=model)
    stream = branch.run("q")
    await anext(stream)
    model.endpoint.stream = theirs = type(model.endpoint).stream.__get__(model.endpoint)
    await stream.aclose()
    assert model.endpoint.stream is theirs


@left_open
async def test_a_source_is_closed_before_the_terminal_signal_and_by_nobody_twice(observed):
    """Also one whose closing takes its time, and raises."""
    model, said = scripted_model(["one"]), []
    w = Watched(model, observed=observed)
    if observed:
        for signal in (lionnb.signals.RunEnd, lionnb.signals.RunFailed):
            w.observe(signal, lambda *_: said.append("terminal"))

    async def source(*_args, **_kw):
        from lionagi.service.types.stream_chunk import StreamChunk

        try:
            yield StreamChunk(type="text", content="one ")
            yield StreamChunk(type="tool_use", tool_name="look", tool_id="t", tool_input={})
            yield StreamChunk(type="text", content="two")
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            said.append("closed")
            raise ValueError("it does not close well")

    model.endpoint.stream = source
    stream = w.branch.run("q")
    for _ in range(3):
        await anext(stream)
    await stream.aclose()
    assert said == ["closed", "terminal"][: 1 + observed]
    w.check("RunEnd")


@left_open
async def test_a_source_that_does_not_close_is_named_and_let_go():
    model, held = scripted_model(["one"]), asyncio.Event()
    branch = lionnb.Branch(chat_model=model)

    async def source(*_args, **_kw):
        from lionagi.service.types.stream_chunk import StreamChunk

        try:
            yield StreamChunk(type="tool_use", tool_name="look", tool_id="t", tool_input={})
            yield StreamChunk(type="text", content="two")
        finally:
            while not held.is_set():
                await held.wait()

    model.endpoint.stream = source
    stream = branch.run("q")
    for _ in range(2):
        await anext(stream)
    closing = asyncio.create_task(stream.aclose())
    while branch.current_turn is None or "finalizing" not in str(branch.turn_state.turn.describe()):
        await asyncio.sleep(0)
    assert "1 open provider stream(s)" in branch.turn_state.turn.describe()
    assert await branch.release_turn(branch.turn_state.turn.row.turn_id, grace_s=0.01)
    await closing
    assert branch.current_turn is None
    held.set()
