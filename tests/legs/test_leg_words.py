"""What a leg takes and says: mistakes are sentences at the call, and what was lost is noticed by whoever looks."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lionnb.errors import LegExistsError, SteerRefusedError
from lionnb.legs import start_leg
from lionnb.records import Fate, RunStatus
from lionnb.store.door import who
from lionnb.testing import scripted_model
from tests.legs.story import ended


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"instruction": ["a"]}, "the instruction is a text"),
        ({"instruction": {"a": 1}}, "the instruction is a text"),
        ({"chat_model": "gpt"}, "chat_model is a lionagi iModel, not 'gpt'"),
        ({"snapshot": "no"}, "snapshot is True or False, not str"),
        ({"by": 5}, "by is a text or None, not int"),
        ({"resend": True}, "resend is an argument of lionnb.resume"),
    ],
)
async def test_what_start_leg_cannot_take_is_said_at_the_call(scene, arguments, sentence):
    s = scene()
    with pytest.raises(TypeError, match=sentence):
        s.leg(**({"instruction": "x"} | arguments))


async def test_what_resume_cannot_take_is_said_truly(scene):
    s = scene()
    s.answer_all()
    leg = s.leg()
    await leg
    for name, sentence in (("on_existing", "on_existing is start_leg's"), ("name", "the run keeps the name")):
        with pytest.raises(TypeError, match=sentence):
            leg.resume("x", **{name: "queue"})
    with pytest.raises(TypeError, match="chat_model is a lionagi iModel"):
        leg.resume("x", chat_model="gpt")


async def test_resume_beside_a_live_leg_says_what_can_be_done(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    with pytest.raises(LegExistsError, match=r"leg\.steer\(") as refused:
        leg.resume("x")
    assert "on_existing" not in str(refused.value) and "start_leg" not in str(refused.value)
    s.answer_all()
    await leg


async def test_a_turn_is_counted_from_one_and_a_sender_has_a_name(scene):
    s = scene()
    leg = s.leg()
    for turn, kind in ((0, ValueError), ("1", TypeError), (None, TypeError), (True, TypeError)):
        with pytest.raises(kind, match="turn") as refused:
            leg.steer_after(turn=turn, text="x")
        assert "no limit" not in str(refused.value)
    with pytest.raises(TypeError, match="by is a text or None, not int"):
        leg.steer("x", by=5)
    with pytest.raises(SteerRefusedError, match="up to 200"):
        leg.steer("x", by="a" * 201)
    assert leg.steer("x", by="  ").record.created_by == who()
    assert "stood still for" in repr(leg.lag)
    s.answer_all()
    await leg


async def test_a_legs_turn_tells_its_feed_what_the_turn_before_left(scene, recwarn):
    """Nobody can call mend between two turns of a leg."""
    s = scene()
    first = s.leg()
    await s.working()
    first.stop()
    await ended(first)
    s.answer_all()
    leg = s.leg("again")
    await leg
    told = [e.data["text"] for e in leg.feed.events() if e.kind == "warning"]
    assert len(told) == s.cli  # on an API model the question enters the history with its answer
    assert all("left a question without an answer" in text and "mend" not in text for text in told)
    assert not [w for w in recwarn if "left a question" in str(w.message)]


async def test_who_cancels_a_legs_task_is_told_what_was_cut_off(scene, caplog):
    s = scene()
    leg, stopped = s.leg(), None
    await s.working()
    leg.task.cancel()
    await ended(leg)
    said = [r.getMessage() for r in caplog.records if "cancelled together with its task" in r.getMessage()]
    assert len(said) == 1 and leg.run_id in said[0] and "lionnb.settle()" in said[0]
    caplog.clear()
    stopped = s.leg("more")
    stopped.stop()
    await ended(stopped)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_reading_a_leg_notices_that_its_loop_was_closed(store):
    import lionnb

    loop = asyncio.new_event_loop()

    async def begin():
        branch = lionnb.Branch(chat_model=scripted_model(["one"]))
        leg = start_leg(branch, "x", store=store)
        return leg, leg.steer("too late")

    leg, receipt = loop.run_until_complete(begin())
    loop.close()
    assert receipt.sentence.startswith(("not delivered", "never landed"))
    assert receipt.fate in (Fate.NEVER_LANDED, Fate.REJECTED)
    assert leg.status is RunStatus.LOST and leg.doing == "ended" and leg.note == "its event loop was closed"
    assert "lost" in repr(leg) and leg.over
