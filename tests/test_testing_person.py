"""The stand-in for a person: it steps in before the turn ends, and never beside somebody who is there."""

from __future__ import annotations

import asyncio

import lionnb
from lionnb.testing import Gate, person_or


def texts(leg) -> list[str]:
    return list(lionnb.frames.controls(leg)["text"])


async def test_a_model_that_is_quicker_than_the_next_cell_is_steered_all_the_same(road):
    branch = lionnb.Branch(chat_model=road.model(["one", "two"]))
    leg = lionnb.start_leg(branch, "work")
    person = person_or(leg, "and this", after_s=3600)
    await leg
    assert await person is False
    assert texts(leg) == ["and this"]
    assert [t.outcome for t in (await leg).turns] == ["completed", "completed"]


async def test_somebody_who_is_there_is_not_spoken_for(road):
    gate = Gate()
    branch = lionnb.Branch(chat_model=road.model(["one", "two"], gate=gate))
    leg = lionnb.start_leg(branch, "work")
    person = person_or(leg, "and this", after_s=3600)
    await gate.reached()
    leg.steer("my own words")
    assert await person is True
    gate.open()
    await leg
    assert texts(leg) == ["my own words"]


async def test_nobody_is_there(road):
    gate = Gate()
    branch = lionnb.Branch(chat_model=road.model(["one", "two"], gate=gate))
    leg = lionnb.start_leg(branch, "work")
    await gate.reached()
    assert await person_or(leg, "and this", after_s=0) is False
    gate.open()
    await leg
    assert texts(leg) == ["and this"]


async def test_cancelled_it_has_sent_nothing_and_a_leg_that_has_ended_is_left_alone(road):
    gate = Gate()
    branch = lionnb.Branch(chat_model=road.model(["one"], gate=gate))
    leg = lionnb.start_leg(branch, "work")
    await gate.reached()
    person = person_or(leg, "and this", after_s=3600)
    waiting = asyncio.ensure_future(person)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert texts(leg) == []
    leg.stop()
    gate.open()
    await leg
    assert await person_or(leg, "and this", after_s=3600) is False
    assert texts(leg) == []
