"""A person's finding about a steer is about the hand-over that they looked at, whichever way they say it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lionnb
from lionnb.errors import ResolveRefusedError
from lionnb.notebook import view_of
from tests.legs.story import heard

pytestmark = pytest.mark.databases


async def handed_over_twice(scene: Any) -> tuple[Any, Any, str]:
    """A leg whose continuation holds a row that was given back and claimed again since its view was drawn."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("more")
    await s.answer()
    await s.working()
    shown = await heard(leg.feed, lambda e: e.kind == "steer" and e.data["fate"] == "delivering")
    seen = shown.data["claim"]
    assert seen == s.rows(leg)[0].claim and shown.data["handed_over_at"] == s.rows(leg)[0].handed_over_at
    s.store.ask(lambda core: core.give_back(seen, 5.0))
    token = s.run(leg).leg
    assert len(s.store.ask(lambda core: core.claim_all(leg.session_id, token, 6.0)).rows) == 1
    return s, leg, receipt.control_id


async def test_python_refuses_a_finding_about_a_hand_over_that_is_not_the_present_one(scene):
    """V4. Without a claim it is about the one that this call reads."""
    s, leg, cid = await handed_over_twice(scene)
    seen = next(e.data["claim"] for e in leg.feed.events() if e.kind == "steer" and e.data["claim"])
    with pytest.raises(ResolveRefusedError, match="handed over anew") as caught:
        lionnb.resolve(cid, "abandoned", by="Ada", claim=seen, store=s.store)
    assert caught.value.reason == "anew" and s.states(leg) == ["delivering"]
    now = s.rows(leg)[0].claim
    assert lionnb.resolve(cid, "abandoned", by="Ada", store=s.store).claim == now
    s.answer_all()
    await leg


async def test_a_button_of_the_view_closes_the_hand_over_that_it_was_drawn_for_or_nothing(scene, monkeypatch):
    """V4: what the page sends is what the view told it, claim included."""
    s, leg, cid = await handed_over_twice(scene)
    view, loop, answers = view_of(leg), asyncio.get_running_loop(), asyncio.Queue()

    def send(message: dict[str, Any], buffers: Any = None) -> None:
        if "ack" in message:
            loop.call_soon_threadsafe(answers.put_nowait, message)

    monkeypatch.setattr(view, "send", send)
    shown = [e.data for e in leg.feed.events() if e.kind == "steer" and e.data["claim"]]

    async def press(n: int, claim: str) -> tuple[bool, str]:
        content = {"intent": "resolve", "n": n, "control_id": cid, "claim": claim, "outcome": "abandoned", "by": "Ada"}
        view._handle_custom_msg(content, [])
        answer = await answers.get()
        return answer["ok"], answer["sentence"]

    ok, sentence = await press(1, shown[0]["claim"])
    assert not ok and "handed over anew" in sentence and s.states(leg) == ["delivering"]
    ok, sentence = await press(2, s.rows(leg)[0].claim)
    assert ok and sentence == "recorded as abandoned by Ada" and s.states(leg) == ["resolved"]
    s.answer_all()
    await leg
    view.close()
