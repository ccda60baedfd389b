"""Observers: they may raise, be slow, call back or never end; the turn's outcome and order stand (ADR-0018 D3, D4)."""

from __future__ import annotations

import asyncio

import pytest
from lionagi.protocols.messages import Instruction
from lionagi.session.signal import MessageAdded, RunEnd, RunFailed, RunStart
from turnkit import Watched, drain, finalizing, outcome_of, until

import lionnb
from lionnb.errors import TurnFinalizingError
from lionnb.testing import Gate, Reply, scripted_model


@pytest.mark.parametrize("signal", [RunStart, RunEnd, MessageAdded])
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError], ids=["raises", "is cancelled"])
async def test_an_observer_that_fails_changes_no_outcome(signal, error, watch):
    w = watch("fine")

    async def bad(event, _):
        raise error

    w.observe(signal, bad)
    assert await w.branch.communicate("q") == "fine"
    w.check("RunEnd")


async def test_an_observer_of_a_failure_that_fails_keeps_the_callers_exception(watch):
    w = watch([ValueError("boom")])

    def bad(event, _):
        raise RuntimeError("observer")

    w.observe(RunFailed, bad)
    with pytest.raises(Exception, match=r"boom|500"):
        await w.branch.communicate("q")
    w.check("RunFailed")


async def test_message_signals_come_before_the_terminal_of_their_own_turn(watch):
    """However slow an observer is, and with another turn waiting behind (P3)."""
    w = watch(["one", "two"])
    gate, order = Gate(), []

    async def slow(signal, _):
        if isinstance(signal, MessageAdded):
            await gate.wait()
            order.append(f"{type(signal.data).__name__}, {w.kinds.count('RunEnd')} ended")

    w.observe(MessageAdded, slow)
    calls = [asyncio.create_task(w.branch.communicate(q)) for q in "ab"]
    await gate.reached(2)
    assert w.kinds == ["RunStart"]  # the second turn waits for the observers of the first
    gate.open()
    await asyncio.gather(*calls)
    assert order == [
        "Instruction, 0 ended",
        "AssistantResponse, 0 ended",
        "Instruction, 1 ended",
        "AssistantResponse, 1 ended",
    ]
    w.check("RunEnd", "RunEnd")


async def test_a_terminal_observer_that_calls_the_branch_fails_fast_and_later_may(watch):
    """A wait for the lock there would be for itself."""
    w = watch(["one", "two"])
    caught, later = [], []

    async def on_end(event, _):
        if isinstance(event, RunEnd) and not later:
            try:
                await w.branch.chat("again")
            except TurnFinalizingError as exc:
                caught.append(exc)
            lionnb.after_turn(w.branch, call_later)
            later.append(asyncio.get_running_loop().create_future())

    async def call_later():
        later[0].set_result(await w.branch.chat("again"))

    w.observe(RunEnd, on_end)
    assert await w.branch.communicate("q") == "one"
    assert [e.turn_id for e in caught] == [str(w.seen[0].turn_id)]
    assert await later[0] == "two"
    await until(lambda: w.branch.current_turn is None)
    w.check("RunEnd", "RunEnd")


async def test_a_terminal_observer_of_a_dropped_stream_that_calls_the_branch_fails_fast():
    w = Watched(scripted_model("x"))
    caught = []

    async def on_end(event, _):
        if isinstance(event, RunEnd):
            caught.append(await outcome_of(w.branch.chat("again")))

    w.observe(RunEnd, on_end)
    async for _ in w.branch.run("q"):
        break
    await until(lambda: caught)
    assert isinstance(caught[0], TurnFinalizingError)
    await until(lambda: w.branch.current_turn is None)
    w.check("RunEnd")


async def test_a_message_observer_may_call_the_branch_while_the_turn_is_active():
    """The call is nested work: it starts no turn, and cannot outlive this one."""
    gate, got = Gate(), []
    w = Watched(scripted_model([Reply("streamed", gate=gate), "from the observer"]))

    async def on_message(signal, _):
        if isinstance(signal, MessageAdded) and isinstance(signal.data, Instruction) and not got:
            got.append(await w.branch.chat("what now?"))

    w.observe(MessageAdded, on_message)
    run = asyncio.create_task(drain(w.branch.run("q")))
    await until(lambda: got)
    gate.open()
    await run
    assert got == ["from the observer"]
    w.check("RunEnd")


async def test_a_message_observer_may_close_the_stream_that_it_observes():
    """Finalization never waits for a task that it runs inside of."""
    w = Watched(scripted_model("x"))
    gate, closed = Gate(), asyncio.Event()
    stream = w.branch.run("q")

    async def on_message(signal, _):
        if isinstance(signal, MessageAdded) and isinstance(signal.data, Instruction):
            await gate.wait()
            await stream.aclose()
            closed.set()

    w.observe(MessageAdded, on_message)
    await anext(stream)
    await gate.reached()
    gate.open()
    await closed.wait()
    w.check("RunEnd")


async def test_an_observer_that_never_ends_holds_the_branch_and_says_so():
    """Source: ADR-0018 D3: there is no drain timeout; it is named, with its age."""
    w, gate = Watched(scripted_model("x")), Gate()

    async def stuck(*_):
        await gate.wait()

    w.observe(MessageAdded, stuck)
    call = asyncio.create_task(w.branch.communicate("q"))
    await finalizing(w.branch)
    call.cancel()
    waiter = asyncio.create_task(w.branch.chat("behind"))
    await until(lambda: w.branch.turn_queue)
    (waiting,) = w.branch.turn_queue
    assert waiting.behind.startswith(f"turn {str(w.seen[0].turn_id)[:8]} (communicate), finalizing for 0 s")
    assert waiting.behind.endswith("waiting for 2 observer task(s)")
    assert not call.done()
    gate.open()
    assert isinstance(await outcome_of(call), asyncio.CancelledError)
    await waiter
    w.check("RunEnd", "RunEnd")


def test_an_observer_that_never_ends_is_cut_by_the_end_of_the_loop():
    w = Watched(scripted_model("x"))

    async def stuck(*_):
        await asyncio.Event().wait()

    w.observe(MessageAdded, stuck)

    async def main():
        call = asyncio.create_task(w.branch.communicate("q"))
        await finalizing(w.branch)
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()

    asyncio.run(main())
    w.check("RunEnd")


async def test_lifecycle_observers_of_lionagis_own_classes_match_and_their_names_are_unchanged():
    """lionagi persists the class name as the signal's kind."""
    w = Watched(scripted_model("x"))
    await w.branch.chat("q")
    stored = [i for i in w.session.observer.flow.items if isinstance(i, RunStart | RunEnd)]
    assert [type(i).__name__ for i in stored] == ["RunStart", "RunEnd"]
    assert all(type(i).__module__ == "lionnb.signals" for i in stored)
    from lionagi.session.signal import lane_for

    assert lane_for(stored) == "succeeded"


async def test_the_turn_id_is_in_the_payload_that_lionagi_persists():
    from lionagi.session.observer import _sanitize_signal_payload

    w = Watched(scripted_model("x"))
    await w.branch.chat("q")
    (end,) = [i for i in w.session.observer.flow.items if isinstance(i, RunEnd)]
    assert _sanitize_signal_payload(end)["turn_id"] == str(w.seen[0].turn_id)


# --- after_turn ---------------------------------------------------------------------------------------------------------


async def test_after_turn_runs_at_once_when_there_is_no_turn_and_outside_of_any():
    w = Watched(scripted_model("x"))
    done = asyncio.get_running_loop().create_future()

    async def fn():
        done.set_result(await w.branch.chat("q"))

    lionnb.after_turn(w.branch, fn)
    assert await done == "x"
    await until(lambda: w.branch.current_turn is None)
    w.check("RunEnd")


async def test_after_turn_waits_for_the_end_and_its_work_is_a_turn_of_its_own(watch):
    w = watch(["one", "two"])
    done = asyncio.get_running_loop().create_future()

    async def fn():
        assert w.kinds == ["RunStart", "RunEnd"]
        done.set_result(await w.branch.chat("later"))

    async def middle(*_, **__):
        lionnb.after_turn(w.branch, fn)
        return await w.branch.chat("now")

    assert await w.branch.operate(instruction="q", middle=middle, skip_validation=True) == "one"
    assert await done == "two"
    await until(lambda: w.branch.current_turn is None)
    w.check("RunEnd", "RunEnd")


async def test_what_fails_after_a_turn_is_logged(caplog):
    w = Watched(scripted_model("x"))

    async def fn():
        raise ValueError("after")

    lionnb.after_turn(w.branch, fn)
    await until(lambda: "what was to run after a turn failed" in caplog.text)


@pytest.mark.parametrize(
    "garbled",
    [
        {"usage": {"input_tokens": "many", "output_tokens": None}},
        {"usage": {"input_tokens": float("nan")}},
        {"usage": {"output_tokens": [1]}},
    ],
    ids=["words", "nan", "list"],
)
async def test_usage_that_a_provider_has_garbled_costs_no_turn_its_terminal(garbled, caplog):
    """lionagi sums it over the history: this turn's RunEnd and every later one would be missing."""
    w = Watched(scripted_model(["x", "y"]))
    await w.branch.communicate("q")
    w.branch.messages[-1].metadata["model_response"] = garbled
    await w.branch.communicate("q")
    w.check("RunEnd", "RunEnd")
    assert "its RunEnd reports none" in caplog.text
