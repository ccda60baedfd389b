"""What a leg says of a loop that a cell keeps: in its view while it lasts, in feed, tables and failure afterwards."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pandas as pd
import pytest

import lionnb
from lionnb.errors import LegFailedError
from lionnb.legs import lag, standstill
from lionnb.legs.lag import is_timeout
from tests.legs.story import ended


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is small here, and counts all the same."""
    monkeypatch.setattr(standstill, "TICK_S", 0.01)
    monkeypatch.setattr(standstill, "COUNTS_S", 0.0)
    monkeypatch.setattr(lag, "SHOWS_S", 0.0)
    monkeypatch.setattr(lag, "SAYS_S", 0.0)


def compute(leg: Any) -> list[tuple[float, str]]:
    """Keep the loop, as a cell that computes does, until the view was told; gives what it was told."""
    told, heard = threading.Event(), []

    def fn(seconds: float, cause: str) -> None:
        heard.append((seconds, cause))
        told.set()

    leg.lag.when_standing(fn)
    assert told.wait(60), "the control thread said nothing"
    return heard


async def test_a_cell_that_computes_is_told_while_it_lasts_and_counted_after(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    heard = compute(leg)
    assert heard[0][0] > 0 and "blocks the event loop" in heard[0][1]
    assert leg.lag.current_s >= heard[0][0]
    s.answer_all()
    result = await leg
    (turn,) = result.turns
    assert leg.lag.total_s >= turn.starved_s >= heard[0][0]  # a leg takes a moment to end, too
    said = [e.data["text"] for e in leg.feed.events() if e.kind == "warning"]
    assert said and all(x.startswith("starved ") for x in said)
    assert s.stored_turns(leg)[0].starved_s == turn.starved_s
    assert list(lionnb.frames.turns(leg)["starved_s"]) == [turn.starved_s]


async def test_what_is_short_is_counted_and_not_worth_a_line(scene, monkeypatch):
    """A notebook that imports a large library must read the same when it is run again."""
    monkeypatch.setattr(lag, "SAYS_S", 60.0)
    s = scene()
    leg = s.leg()
    await s.working()
    compute(leg)
    s.answer_all()
    assert (await leg).turns[0].starved_s > 0
    assert not [e for e in leg.feed.events() if e.kind == "warning"]


async def test_it_is_the_turns_in_which_it_happened_and_the_legs_is_their_sum(scene):
    s = scene()
    leg = s.leg()
    leg.steer_after(1, "more")
    await s.answer()
    await s.working()
    before = leg.turns[0].starved_s
    compute(leg)
    s.answer_all()
    result = await leg
    assert result.turns[1].starved_s > 0 and leg.turns[0].starved_s == before
    await lionnb.settle(store=s.store)
    rows = lionnb.frames.legs(s.store)
    assert rows["starved_s"][0] == pytest.approx(sum(t.starved_s for t in result.turns))


async def test_a_cell_that_starts_a_leg_and_goes_on_computing_is_its_first_turns(scene):
    """The leg has not begun, because it could not."""
    s = scene()
    s.answer_all()
    leg = s.leg()
    heard = compute(leg)
    assert leg.phase == "waiting" and lionnb.frames.legs(leg)["starved_s"][0] >= heard[0][0]
    (turn,) = (await leg).turns
    assert turn.starved_s >= heard[0][0]


async def test_a_leg_that_waited_for_another_counts_from_its_own_beginning(scene):
    s = scene()
    first = s.leg()
    second = s.leg(on_existing="queue")
    await s.working()
    compute(first)
    s.answer_all()
    await first
    assert first.turns[0].starved_s > 0
    (turn,) = (await second).turns
    assert turn.starved_s < first.turns[0].starved_s


async def test_a_turn_of_no_leg_is_not_measured(scene):
    s = scene()
    s.answer_all()
    await s.branch.communicate("hello")
    frame = lionnb.frames.turns(s.branch)
    assert frame["starved_s"].isna().all() and frame["starved_s"].dtype == pd.Float64Dtype()


async def test_a_timeout_in_such_a_window_says_so(scene):
    async def slow(branch, *args, **kwargs):
        compute(leg)
        raise ConnectionError("the provider closed the line") from TimeoutError("read timed out")

    s = scene()
    leg = s.leg(middle=slow)
    with pytest.raises(LegFailedError) as failed:
        await leg
    assert " s meanwhile by a tool or provider of a leg). The history is safe" in str(failed.value)
    assert "(the loop was blocked for 0 s meanwhile" in str(failed.value)


async def test_another_failure_and_a_timeout_without_it_do_not(scene):
    async def computes_and_fails(branch, *args, **kwargs):
        compute(leg)
        raise ValueError("no such model")

    s = scene()
    leg = s.leg(middle=computes_and_fails)
    await ended(leg)
    assert "blocked" not in leg.note and leg.turns[0].starved_s > 0


class ReadTimeout(Exception):
    """As an HTTP library has its own."""


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (TimeoutError(), True),
        (ReadTimeout(""), True),
        (ConnectionError("the request timed out"), True),
        (ValueError("no such model"), False),
        (ExceptionGroup("two", [ValueError("x")]), False),
    ],
)
def test_what_a_timeout_is(error, means):
    assert is_timeout(error) is means
    wrapped = RuntimeError("the provider failed")
    wrapped.__cause__, error.__context__ = error, wrapped  # a circle, too
    assert is_timeout(wrapped) is means


async def test_nothing_is_watched_once_no_leg_lives(scene):
    s = scene()
    leg = s.leg()
    assert len(standstill._watches) == 1
    s.answer_all()
    await leg
    assert not standstill._watches


async def test_the_loop_moves_again_before_the_probe_is_answered(scene):
    """A turn that ends first takes its share with it: the answer that comes later adds nothing to the next."""
    s = scene()
    leg = s.leg()
    await s.working()
    compute(leg)
    seconds, _ = leg.lag.turn_ended(None)
    assert seconds > 0 and leg.lag._turn == 0.0
    await asyncio.sleep(0)
    assert leg.lag.total_s >= seconds
    s.answer_all()
    await leg
