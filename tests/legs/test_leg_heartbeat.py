"""The heartbeat: a steer that was received while a turn runs is said to be queued, in every leg."""

from __future__ import annotations

import asyncio

import pytest

from lionnb.legs import leg as leg_module
from lionnb.legs.states import LegPhase
from tests.legs.story import heard


def beats(leg):
    return [e.data["text"] for e in leg.feed.events() if e.kind == "beat"]


def timer(leg):
    """When the next beat is due, in seconds from the last one."""
    return round(leg._beat.when() - asyncio.get_running_loop().time())


@pytest.mark.parametrize("timeout_s", [None, 600])
async def test_a_queued_steer_is_reported_with_and_without_a_timeout(scene, timeout_s):
    """ADR-0108: armed unconditionally, for a leg without a timeout is the one whose turns run long."""
    s = scene()
    leg = s.leg(timeout_s=timeout_s)
    await s.working()
    assert timer(leg) == 60 == leg_module.HEARTBEAT_S
    leg.steer("received?")
    leg._on_beat()
    said = await heard(leg.feed, lambda e: e.kind == "beat")
    assert said.data["text"].startswith("1 steer queued: lands at the end of the current turn")
    assert ("left" in said.data["text"]) is (timeout_s is not None) and said.turn_id == leg.turn_id
    leg.steer("and this?")
    leg._on_beat()
    await heard(leg.feed, lambda e: e.kind == "beat" and "2 steers queued" in e.data["text"])
    assert timer(leg) == 60
    s.answer_all()
    await leg


async def test_it_counts_what_other_programs_have_queued(scene):
    """They have no receipt here: the database is asked."""
    s = scene()
    leg = s.leg()
    await s.working()
    s.store.ask(lambda core: core.admit(leg.session_id, text="from a terminal", by="eve", now=1.0)).unwrap()
    leg._on_beat()
    assert (await heard(leg.feed, lambda e: e.kind == "beat")).data["text"].startswith("1 steer queued")
    s.answer_all()
    await leg


async def test_nothing_is_said_when_nothing_is_queued(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    leg._on_beat()
    s.store.ask(lambda core: core.get_session(leg.session_id))  # behind the beat's question
    await asyncio.sleep(0)
    assert beats(leg) == []
    s.answer_all()
    await leg


async def test_what_was_delivered_is_not_queued(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("carried")
    await s.answer()
    await s.working()
    leg._on_beat()
    s.store.ask(lambda core: core.get_session(leg.session_id))
    await asyncio.sleep(0)
    assert beats(leg) == []
    s.answer_all()
    await leg


async def test_a_store_that_does_not_answer_stops_no_heart(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("received?")
    s.store.fail("pending_count", RuntimeError("gone"))
    leg._on_beat()
    assert (await heard(leg.feed, lambda e: e.kind == "beat")).data["text"].startswith("1 steer queued")
    assert timer(leg) == 60
    s.answer_all()
    await leg


async def test_it_beats_by_itself_and_ends_with_its_leg(scene):
    s = scene()
    leg = s.leg(heartbeat_s=0.001)
    await s.working()
    leg.steer("received?")
    await heard(leg.feed, lambda e: e.kind == "beat" and len(beats(leg)) >= 3)
    beat = leg._beat
    s.answer_all()
    await leg
    assert leg._beat.cancelled() or beat.cancelled() or leg.phase is LegPhase.ENDED
    told = len(beats(leg))
    leg._on_beat()  # a timer that was due at the very end
    assert len(beats(leg)) == told and leg._beat.cancelled()


async def test_it_can_be_switched_off(scene):
    s = scene()
    leg = s.leg(heartbeat_s=None)
    await s.working()
    leg.steer("received?")
    assert leg._beat is None
    s.answer_all()
    await leg
    assert beats(leg) == []
