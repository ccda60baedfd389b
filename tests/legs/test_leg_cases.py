"""Faults that people met elsewhere with runs in the background, among those about overlap and interrupts (a, b).

b13 (a process that is killed) is in test_leg_shutdown.py and tests/test_frames.py.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from lionnb import frames
from lionnb.records import Fate, RunStatus
from tests.legs.story import Scene, ended


async def test_two_legs_on_one_database_keep_their_steers_apart(road, store):
    """a07: two sessions on one file interleaved each other's rows."""
    scenes = [Scene(road, store, "done") for _ in range(2)]
    legs = [s.leg(f"job {i}") for i, s in enumerate(scenes)]
    for s in scenes:
        await s.working()
    sent = {leg: [f"s{i} for {n}" for i in range(20)] for n, leg in enumerate(legs)}
    for texts in zip(*sent.values(), strict=True):
        for leg, text in zip(legs, texts, strict=True):
            leg.steer(text)
    for s in scenes:
        s.answer_all()
    await asyncio.gather(*legs)
    for s, leg in zip(scenes, legs, strict=True):
        table = frames.controls(leg)
        assert table["text"].tolist() == sent[leg]
        assert table["fate"].tolist() == ["applied"] * 20
        asked = "\n".join(str(m["content"]) for m in s.requests[-1]["messages"])
        (other,) = set(legs) - {leg}
        assert all(text in asked for text in sent[leg]) and not any(text in asked for text in sent[other])


async def test_a_leg_that_lives_is_stopped_whatever_its_record_says(scene):
    """b11: a run was written off while its process lived on, and the stop button refused because the record was final.
    There is no limit here within which a leg must be ready; a record that somebody else has ended stops no stop.
    """
    s = scene()
    leg = s.leg()
    await s.working()
    s.store.ask(lambda core: core.mark_lost(leg.session_id, leg._run.token, "no sign of life", "reaper", 9.0))
    assert leg.live
    leg.stop()
    await ended(leg)
    assert not leg.live and s.run(leg).status is RunStatus.LOST
    assert [t.outcome for t in leg.turns] == ["cancelled"]


async def test_a_leg_whose_registration_is_slow_is_stopped_too(scene):
    """b11: nothing had been written yet."""
    s = scene()
    start = s.store.hold("start_session")
    leg = s.leg()
    leg.stop()
    await asyncio.sleep(0)
    start.open()
    await ended(leg)
    assert leg.status is RunStatus.CANCELLED


async def test_who_gives_up_waiting_for_a_leg_knows_that_it_works_on(scene):
    """b15: a wait that ran into its limit told nothing about the run behind it."""
    s = scene()
    leg = s.leg()
    await s.working()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(leg.result(), 0)
    assert leg.live and leg.status is RunStatus.RUNNING
    receipt = leg.steer("hi")
    await asyncio.sleep(0)
    assert frames.legs(leg)["status"].tolist() == ["running"]
    s.answer_all()
    assert (await leg).value == "two"
    assert (await receipt).fate is Fate.APPLIED


async def test_a_leg_goes_through_its_states_once_and_in_one_direction(scene):
    """b20: a finished job was shown as running again while its final state was still being written."""
    s = scene()
    leg = s.leg()
    seen, read = [], []

    def look(*_):
        seen.append((leg.phase.value, leg.status.value))

    stop = leg.feed.listen(look)
    await s.working()
    end = s.store.hold("end")
    s.answer_all()
    await end.reached()
    look()
    read.append(s.run(leg).status)
    end.open()
    await leg
    look()
    stop()
    read.append(s.run(leg).status)
    phases, statuses = ([word for word, _ in itertools.groupby(words)] for words in zip(*seen, strict=True))
    assert statuses == ["running", "completed"]
    assert phases[-2:] == ["ending", "ended"] and phases.count("ending") == phases.count("ended") == 1
    assert read == [RunStatus.RUNNING, RunStatus.COMPLETED]
