"""The door for text: known shapes, limits that are counted, and nothing that cannot be encoded."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lionnb.records import FeedEvent
from lionnb.widgets import wire
from tests.widgets import scenes


def encoded(kind: str, turn: str | None = "T", **data: Any) -> wire.Event:
    return wire.encode(FeedEvent(0, 1.0, kind, turn, data))


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


ODD = [
    None,
    True,
    0,
    -1,
    10**40,
    math.nan,
    math.inf,
    "",
    "x" * 50_000,
    "\ud83d",
    b"\xff",
    [],
    {},
    [[[]]],
    {1: {2: 3}},
    object(),
    Unprintable(),
    (1, None),
]


@pytest.mark.parametrize("kind", [*wire.FIELDS, "a kind from elsewhere", "", "__class__"])
def test_whatever_is_in_an_event_it_has_a_known_shape_and_can_be_sent(kind: str) -> None:
    known = wire.FIELDS.get(kind, wire.FIELDS["line"])
    for odd in ODD:
        out = encoded(kind, **dict.fromkeys(wire.FIELDS.get(kind, {"x": 0}), odd))
        assert out["data"].keys() - known.keys() == {f"{k}_cut" for k in known if f"{k}_cut" in out["data"]}
        text = json.dumps(out, ensure_ascii=False, allow_nan=False)
        assert len(text.encode("utf-8")) < 120_000
    assert wire.encode(FeedEvent(0, math.nan, kind, "t", None))["at"] == 0  # type: ignore[arg-type]


def test_a_long_text_is_cut_and_the_rest_counted() -> None:
    data = encoded("text", role="user", text="é" * (wire.TEXT_LIMIT + 7), id=None)["data"]
    assert (len(data["text"]), data["text_cut"]) == (wire.TEXT_LIMIT, 7)
    assert (
        encoded("tool_call", id="1", name="n" * 999, arguments="")["data"]["name"] == "n" * (wire.NAME_LIMIT - 1) + "…"
    )


@pytest.mark.parametrize("text", [t for t in scenes.HOSTILE if len(t) < 100])
def test_characters_are_never_changed_for_safety(text: str) -> None:
    """Escaping is the views' work, by the way they show text: a quoted text here would be shown wrong there."""
    assert encoded("warning", text=text)["data"]["text"] == text


def test_a_lone_surrogate_costs_one_character_not_the_message() -> None:
    assert encoded("chunk", text="cut \ud83d here")["data"]["text"] == "cut \ufffd here"
    assert encoded("chunk", text="whole 😀")["data"]["text"] == "whole 😀"


def test_an_unknown_kind_becomes_a_plain_line() -> None:
    out = encoded("retry", attempt=2)
    assert (out["kind"], out["data"]["name"], out["data"]["text"]) == ("line", "retry", '{"attempt": 2}')


def test_a_signal_costs_about_150_bytes() -> None:
    out = encoded("signal", scenes.TURN, name="NodeCreated")
    assert len(json.dumps(out, separators=(",", ":"))) <= 150
