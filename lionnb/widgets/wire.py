"""What goes over the wire: a `FeedEvent` becomes a small JSON object of a known shape. Pure; imports records only.

This is the one door for text from models, tools and operators. Behind it, both reducers (Python and JS) and both
views (live and static) can rely on three things: every field of a known kind is there and has its type, no text is
longer than its limit (what was cut is counted in ``<field>_cut``), and everything can be encoded (no lone surrogates,
no NaN). Characters themselves are never changed for safety: they are shown as text, not as markup.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from lionnb.records import FeedEvent

__all__ = ("LINE_LIMIT", "NAME_LIMIT", "TEXT_LIMIT", "TOOL_LIMIT", "Event", "clean", "encode", "line")

Event = dict[str, Any]

TEXT_LIMIT = 20_000  # characters of a message shown; the Branch holds the rest
TOOL_LIMIT = 4_000  # of a tool's arguments or result, and of a provider block
LINE_LIMIT = 600  # of a sentence
NAME_LIMIT = 120  # of a name or an id
LIST_LIMIT = 50  # items of a list

_SURROGATES = re.compile("[\ud800-\udfff]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")  # embeddings, overrides, isolates


def clean(text: str) -> str:
    """The text, with lone surrogates replaced: they cannot be encoded, and one would lose the whole message."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text


def line(value: Any, limit: int = LINE_LIMIT) -> str:
    """A short text; a longer one ends in an ellipsis.

    It becomes a part of sentences, so what would turn round the words of others behind it is made visible.
    """
    text = _BIDI.sub("\ufffd", _string(value))
    return clean(text if len(text) <= limit else text[: limit - 1] + "…")


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return str(value) if isinstance(value, BaseException) else json.dumps(value, ensure_ascii=False, default=str)
    except Exception as exc:  # an object that cannot even be printed must not take the view down
        return f"({type(value).__name__} that cannot be shown: {type(exc).__name__})"


def _name(value: Any) -> str:
    return line(value, NAME_LIMIT)


def _opt_name(value: Any) -> str | None:
    return None if value is None else _name(value)


def _opt_line(value: Any) -> str | None:
    return None if value is None else line(value)


def _number(value: Any) -> float | int | None:
    """A finite number, to the millisecond; everything else is unknown."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None  # beyond that a browser counts differently
    return round(value, 3) if math.isfinite(value) else None


class _Text:
    """A field that may be huge: cut at *limit*, with the rest counted beside it."""

    def __init__(self, limit: int, *, optional: bool = False) -> None:
        self.limit, self.optional = limit, optional

    def put(self, out: Event, key: str, value: Any) -> int:
        """Write the field and its count into *out*; returns the characters kept."""
        if value is None and self.optional:
            out[key], out[f"{key}_cut"] = None, 0
            return 0
        text = _string(value)
        kept = clean(text[: self.limit])
        out[key], out[f"{key}_cut"] = kept, max(0, len(text) - self.limit)
        return len(kept)


def _block(value: Any) -> Event:
    given = value if isinstance(value, Mapping) else {"text": value}
    out: Event = {"name": _name(given.get("name")), "tokens": _number(given.get("tokens"))}
    _Text(TOOL_LIMIT).put(out, "text", given.get("text"))
    return out


def _why(value: Any) -> Event:
    """A provider and why it is listed; both spellings that reports use are understood."""
    if not isinstance(value, Mapping):
        return {"name": _name(value), "reason": ""}
    return {
        "name": _name(value.get("provider_name") or value.get("name")),
        "reason": line(value.get("reason") or value.get("error")),
    }


def _list_of(one: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def many(value: Any) -> list[Any]:
        return [one(v) for v in value[:LIST_LIMIT]] if isinstance(value, (list, tuple)) else []

    return many


_MESSAGE, _TOOL = _Text(TEXT_LIMIT), _Text(TOOL_LIMIT)

FIELDS: dict[str, dict[str, Any]] = {
    "wait": {"operation": _name, "task": _opt_name, "behind": line},
    "start": {
        "operation": _name, "task": _opt_name, "model": _name, "instruction": _MESSAGE, "waited_s": _number,
    },
    "phase": {"phase": _name},
    "end": {
        "operation": _opt_name, "task": _opt_name, "outcome": _name, "error": _Text(TOOL_LIMIT, optional=True),
        "duration_s": _number, "input_tokens": _number, "output_tokens": _number,
    },
    "text": {"role": _name, "text": _MESSAGE, "id": _opt_name},
    "chunk": {"text": _MESSAGE},
    "tool_call": {"id": _name, "name": _name, "arguments": _TOOL},
    "tool_result": {"id": _name, "name": _name, "output": _TOOL, "error": _Text(TOOL_LIMIT, optional=True)},
    "blocks": {
        "blocks": _list_of(_block), "skipped": _list_of(_why), "failed": _list_of(_why), "degraded": _list_of(_why),
    },
    "control": {"directive": _name, "reason": _opt_line, "fate": _name},
    "signal": {"name": _name},
    "warning": {"text": _TOOL},
    "steer": {
        "control_id": _opt_name, "seq": _number, "text": _Text(TOOL_LIMIT), "fate": _name, "chip": _name,
        "sentence": line, "note": _opt_line, "turn_id": _opt_name, "created_at": _number, "created_by": _opt_name,
        "claim": _opt_name, "handed_over_at": _number, "closed_at": _number,
    },
    "leg": {
        "run_id": _name, "name": _opt_name, "status": _name, "sentence": line, "timeout_s": _number,
        "started_at": _number, "deadline_at": _number, "queued": _number,
    },
    "beat": {"text": line},
    "line": {"name": _name, "text": _TOOL},
}  # fmt: skip
"""Kind → field → how it is read. A field that is not listed does not travel."""


def encode(event: FeedEvent) -> Event:
    """One event as ``{at, kind, turn, size, data}``. Never raises; an unknown kind becomes a plain ``line``."""
    kind, data = event.kind, event.data
    if kind not in FIELDS:
        kind, data = "line", {"name": event.kind, "text": event.data}
    given = data if isinstance(data, Mapping) else {}
    if kind == "tool_result" and isinstance(given.get("error"), bool):  # a flag: then the output is the error's text
        failed = given["error"]
        given = {
            **given,
            "error": given.get("output") if failed else None,
            "output": "" if failed else given.get("output"),
        }
    out: Event = {}
    size = 0
    for key, read in FIELDS[kind].items():
        if isinstance(read, _Text):
            size += read.put(out, key, given.get(key))
        else:
            out[key] = read(given.get(key))
    turn = None if event.turn_id is None else _name(event.turn_id)
    return {"at": _number(event.at) or 0, "kind": kind, "turn": turn, "size": size, "data": out}
