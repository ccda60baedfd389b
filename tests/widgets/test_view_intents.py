"""What a page may say: exactly this, and everything else is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from lionnb.widgets.intents import FIELDS, Intent, Refusal, Since, parse

GOOD: dict[str, dict[str, Any]] = {
    "steer": {"text": "only after 2024", "key": "k1"},
    "cancel_turn": {"turn_id": "t"},
    "break_turn": {"turn_id": "t"},
    "stop": {},
    "withdraw": {"control_id": "c"},
    "resolve": {"control_id": "c", "claim": "leg-1:a", "outcome": "applied", "by": "ada"},
}


@pytest.mark.parametrize("kind", FIELDS)
def test_an_intent_keeps_exactly_its_own_fields(kind: str) -> None:
    said = parse({"intent": kind, "n": 7, **GOOD[kind], "extra": "x"}, can_steer=True)
    assert said == Intent(7, {"intent": kind, "n": 7, **GOOD[kind]})


@pytest.mark.parametrize("kind", FIELDS)
def test_a_view_that_only_shows_refuses_every_intent(kind: str) -> None:
    said = parse({"intent": kind, "n": 7, **GOOD[kind]}, can_steer=False)
    assert isinstance(said, Refusal) and said.n == 7 and "only shows" in said.sentence


@pytest.mark.parametrize("value", [None, 5, [], {}, "", "  ", "x" * 500])
@pytest.mark.parametrize(("kind", "field"), [(k, f) for k in FIELDS for f in FIELDS[k] if f != "text"])
def test_a_field_that_is_missing_blank_or_odd_is_named(kind: str, field: str, value: Any) -> None:
    """h19: a blank id must never widen an order to whatever happens to be active."""
    said = parse({"intent": kind, "n": 1, **GOOD[kind], field: value}, can_steer=True)
    assert isinstance(said, Refusal) and field in said.sentence and "Nothing was done" in said.sentence


@pytest.mark.parametrize("content", [None, 5, "x", [], {}, {"n": 1}, {"intent": "rm"}, {"intent": ["stop"], "n": 1}, {"intent": "stop"},
    {"intent": "stop", "n": True}, {"intent": "stop", "n": -1}, {"intent": "stop", "n": 2**60}, {"since": "0"}, {"since": -1}, {"since": None}])  # fmt: skip
def test_a_message_of_an_unknown_shape_is_a_sentence_not_an_exception(content: Any) -> None:
    said = parse(content, can_steer=True)
    assert isinstance(said, Refusal) and len(said.sentence) > 10


def test_the_text_is_not_judged_here() -> None:
    """Blank, huge, odd: the store's door has one rule for all roads, and its sentence comes back."""
    for text in ("", " ", "x" * 10**6, "\0"):
        assert isinstance(parse({"intent": "steer", "n": 1, "text": text, "key": "k"}, can_steer=True), Intent)


def test_an_outcome_is_one_of_two() -> None:
    said = parse({"intent": "resolve", "n": 1, **GOOD["resolve"], "outcome": "rejected"}, can_steer=True)
    assert isinstance(said, Refusal) and "applied, abandoned" in said.sentence


def test_a_question_for_missing_events_needs_no_right_to_steer() -> None:
    assert parse({"since": 3}, can_steer=False) == Since(3)
