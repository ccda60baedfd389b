"""What a browser may say, read with suspicion. Pure.

Any script in the page can send a message in a view's name, and so can an old page after an upgrade. A message that does
not have a known shape becomes a `Refusal` with a sentence, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lionnb.widgets.wire import NAME_LIMIT, line

__all__ = ("FIELDS", "Intent", "Refusal", "Since", "parse")

FIELDS: dict[str, tuple[str, ...]] = {
    "steer": ("text", "key"),
    "cancel_turn": ("turn_id",),
    "break_turn": ("turn_id",),
    "stop": (),
    "withdraw": ("control_id",),
    "resolve": ("control_id", "claim", "outcome", "by"),
}
"""Intent → the text fields it must have. Only ``text`` may be long or blank: the store's door decides about it."""

OUTCOMES = ("applied", "abandoned")


@dataclass(frozen=True, slots=True)
class Since:
    """The page has the first ``i`` events and asks for the rest."""

    i: int


@dataclass(frozen=True, slots=True)
class Intent:
    """Something a person pressed. ``message`` holds exactly the fields of its kind, plus ``intent`` and ``n``."""

    n: int
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not understood, or not offered here. ``n`` is ``None`` when the message did not even say its number."""

    n: int | None
    sentence: str


def parse(content: Any, *, can_steer: bool) -> Since | Intent | Refusal:
    """Read one custom message."""
    if not isinstance(content, dict):
        return Refusal(None, f"a message of an unknown shape was ignored: {line(content, 80)}")
    if "since" in content:
        return Since(content["since"]) if _whole(content["since"]) else Refusal(None, "a resync without a number")
    n = content["n"] if _whole(content.get("n")) else None
    kind = content.get("intent")
    if not isinstance(kind, str) or kind not in FIELDS:
        return Refusal(n, f"a message of an unknown kind was ignored: {line(kind, 80) or 'no intent'}")
    if n is None:
        return Refusal(None, f"{kind}: the message has no number, so nobody could be told what came of it; ignored")
    if not can_steer:
        return Refusal(n, "this view only shows. Steer through the view of the leg.")
    wrong = _wrong(kind, content)
    if wrong is not None:
        return Refusal(n, f"{kind}: {wrong}. Nothing was done.")
    return Intent(n, {"intent": kind, "n": n, **{key: content[key] for key in FIELDS[kind]}})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _wrong(kind: str, content: dict[str, Any]) -> str | None:
    for key in FIELDS[kind]:
        value = content.get(key)
        if not isinstance(value, str):
            return f"{key} is missing"
        if key != "text" and not value.strip():
            return f"{key} is blank"
        if key != "text" and len(value) > NAME_LIMIT:
            return f"{key} is too long"
    if kind == "resolve" and content["outcome"] not in OUTCOMES:
        return f"the outcome is one of {', '.join(OUTCOMES)}"
    return None
