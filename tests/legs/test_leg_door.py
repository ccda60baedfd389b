"""What may come in: a steer is refused with a sentence and leaves no row, a limit is refused where it is given."""

from __future__ import annotations

import math

import pytest

import lionnb
from lionnb.errors import SteerRefusedError
from lionnb.records import Fate


class Shouting(str):
    """A text that answers differently every time it is asked."""

    calls = 0

    def __str__(self):
        type(self).calls += 1
        return f"shout {self.calls}"

    def encode(self, *args):
        return b"small"

    def splitlines(self, *args):
        return ["forged"]


BAD = {
    "empty": ("", "blank"),
    "spaces": (" \t\n\u00a0\u3000", "blank"),
    "zero width": ("\u200b\u200d\ufeff\u2060", "blank"),
    "invisible": ("\u3164\u2800", "blank"),
    "none": (None, "type"),
    "number": (7, "type"),
    "bytes": (b"only sources after 2020", "type"),
    "list": (["a"], "type"),
    "a megabyte": ("x" * 2**20, "size"),
    "one byte too long": ("x" * (64 * 1024 + 1), "size"),
    "long in bytes": ("é" * (32 * 1024 + 1), "size"),
    "nul": ("before\x00after", "nul"),
    "lone surrogate": ("half \ud800 a character", "surrogate"),
    "bad key": ("text", "key"),
}


@pytest.mark.parametrize("name", list(BAD))
async def test_a_bad_steer_is_refused_with_a_sentence_and_leaves_no_row(scene, name):
    s = scene()
    leg = s.leg()
    await s.working()
    text, reason = BAD[name]
    with pytest.raises(SteerRefusedError) as caught:
        leg.steer(text, key="" if reason == "key" else None)
    assert caught.value.reason == reason and str(caught.value)[-1] == "." and len(str(caught.value)) < 300
    with pytest.raises(SteerRefusedError):
        leg.redirect(text, key="" if reason == "key" else None)
    assert leg.turn_id is not None and leg.receipts == ()  # the turn goes on
    s.answer_all()
    await leg
    assert s.rows(leg) == [] and len(s.requests) == 1


@pytest.mark.parametrize(
    "text", ["x" * 64 * 1024, "\u2028", "👩‍👩‍👧", "a\tb", "ـ", "<b>&amp;</b>", "'; DROP TABLE sessions; --"][::1]
)
async def test_what_can_be_seen_and_kept_is_taken_to_the_letter(scene, text):
    s = scene()
    leg = s.leg()
    await s.working()
    if text == "\u2028":
        with pytest.raises(SteerRefusedError):
            leg.steer(text)
        text = f"a{text}b"
    leg.steer(text)
    s.answer_all()
    await leg
    (row,) = s.rows(leg)
    assert row.text == text and row.state == "applied"


async def test_a_subclass_of_str_is_read_once(scene):
    """What was checked is what is stored and sent."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer(Shouting("plain"))
    assert type(receipt.text) is str
    s.answer_all()
    await leg
    assert s.rows(leg)[0].text == "plain" and "> plain" in s.last(1) and Shouting.calls == 0


@pytest.mark.parametrize("how", ["steer", "redirect"])
async def test_a_finished_leg_refuses_and_says_what_to_do(scene, how):
    s = scene()
    leg = s.leg()
    s.answer_all()
    await leg
    with pytest.raises(SteerRefusedError, match=r"has ended \(completed\).*leg\.resume") as caught:
        getattr(leg, how)("too late")
    assert caught.value.reason == "ended" and s.rows(leg) == []


async def test_a_leg_that_is_ending_refuses(scene):
    """d14."""
    s = scene()
    leg = s.leg()
    await s.working()
    end = s.store.hold("end")
    leg.stop()
    await end.reached()
    with pytest.raises(SteerRefusedError, match="is ending"):
        leg.steer("too late")
    end.open()
    await leg


async def test_who_speaks_is_on_the_row(scene, monkeypatch):
    """The hub's user, else the account; or whom the caller names."""
    s = scene()
    leg = s.leg()
    await s.working()
    monkeypatch.setenv("JUPYTERHUB_USER", "hub-ana")
    receipts = [leg.steer("a"), leg.steer("b", by="bob")]
    s.answer_all()
    await leg
    assert [row.created_by for row in s.rows(leg)] == ["hub-ana", "bob"] and len(receipts) == 2


LIMITS = {
    "timeout_s": [math.nan, 0, -1, True, "60", 10**12],
    "max_turns": [0, -1, True, 1.5, math.inf, math.nan, "3"],
    "max_tokens": [0, -5, False, 2.0, "many"],
    "heartbeat_s": [0, -1, math.nan, True, "60"],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in LIMITS.items() for v in values])
@pytest.mark.parametrize("road", ["cli"], indirect=True)
async def test_a_limit_that_is_none_is_refused_where_it_is_given(scene, name, value):
    s = scene()
    with pytest.raises((TypeError, ValueError), match=name):
        s.leg(**{name: value})
    assert all(leg.branch is not s.branch for leg in lionnb.legs()) and not s.requests


async def test_no_limit_is_none_or_infinity(scene):
    s = scene()
    leg = s.leg(timeout_s=math.inf, max_turns=None, max_tokens=None, heartbeat_s=None)
    await s.working()
    receipt = leg.steer("more")
    assert leg.budget.left_s is None and "left" not in receipt.sentence
    s.answer_all()
    await leg
    assert (await receipt).fate is Fate.APPLIED and s.run(leg).deadline_at is None
