"""The form of a view that reads without a kernel: in a saved notebook, an export, a diff, a terminal. Pure.

HTML is built from `html.escape` alone and coloured by what surrounds it (``currentColor``), so it is right in light and
dark. Plain text shows control characters as pictures: a terminal must not obey what a model wrote.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import escape
from typing import Any

from lionnb.plain import CONTROLS
from lionnb.widgets.state import State

__all__ = ("html", "text")

HTML_LINES, HTML_CHARS = 300, 4_000  # of transcript, and of one text: a notebook file is not an archive
TEXT_LINES, TEXT_CHARS = 60, 300

_ROLES = {"user": "prompt", "assistant": "model", "action": "tool"}
_MARKS = {"queued": "○", "delivering": "◐", "applied": "✓", "not delivered": "✕", "needs you": "!"}
_BOX = "border:1px solid color-mix(in srgb,currentColor 25%,transparent);border-radius:4px;padding:8px 12px"
_AS_IS = "mathjax_ignore tex2jax_ignore"  # two dollar signs are no formula
_CELL = "text-align:left;vertical-align:top;padding:1px 10px 1px 0"
_WRAP = "white-space:pre-wrap;overflow-wrap:anywhere"


# ---------------------------------------------------------------------- words, the same in both forms
def _clock(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _duration(s: float | None) -> str:
    if s is None:
        return ""
    if s < 60:
        return f"{s:.1f} s"
    minutes, seconds = divmod(round(s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


def _tokens(given: int | None, made: int | None) -> str:
    if given is None and made is None:
        return ""
    return f"{'?' if given is None else f'{given:,}'} in / {'?' if made is None else f'{made:,}'} out"


def _join(*parts: Any) -> str:
    return " · ".join(str(p) for p in parts if p not in (None, ""))


def _short(turn: str | None) -> str:
    return (turn or "none")[:8]


def _head(state: State) -> tuple[str, list[str]]:
    """The title, and the lines under it."""
    run, turn = state["run"], state["turn"]
    lines = []
    if run is not None:
        lines.append(_join(run["status"].replace("_", " "), run["run_id"], run["sentence"]))
        if run["timeout_s"] is not None:
            lines.append(f"budget {_duration(run['timeout_s'])}")
    if turn is not None:
        lines.append(_join(f"turn {_short(turn['id'])}", turn["operation"], turn["model"], turn["phase"]))
    lines += [f"{w['operation']} ({w['task'] or 'a call'}) waits behind {w['behind']}" for w in state["waiters"][:10]]
    lines.append(_tokens(state["tokens"]["input"], state["tokens"]["output"]))
    lines.append(f"as of {_clock(state['at'])} UTC" if state["at"] else "nothing has happened yet")
    return (run and run["name"]) or state["title"], [x for x in lines if x]


def _spoken(e: dict[str, Any]) -> tuple[str, str, int]:
    """Who, what, and how much of it this view never had."""
    kind, turn = e["kind"], _short(e["turn"])
    if kind == "text":
        said = "".join(p[1] for p in e["pieces"]) if "pieces" in e else e["text"]
        who = _ROLES.get(e["role"], e["role"])
        # a part came before its turn ended, and was recorded nowhere; not said in the text, which may be shortened
        return f"{who} (cut off, not in the history)" if e.get("part") else who, said, e["cut"]
    if kind == "tool":
        done = "running" if e["done_at"] is None else e["output"] or "(no output)"
        result = f"failed: {e['error']}" if e["error"] is not None else done
        return "tool", f"{e['name']}({e['args'] or ''})\n→ {result}", e["args_cut"] + e["output_cut"] + e["error_cut"]
    if kind == "start":
        return "turn", _join(turn, e["operation"], e["model"]), 0
    if kind == "end":
        spent = _tokens(e["input_tokens"], e["output_tokens"])
        told = _join(e["outcome"].replace("_", " "), turn, _duration(e["duration_s"]), spent, e["error"])
        return "end", told, e["error_cut"]
    if kind == "steer":
        return "steer", f"{e['text']}\n{_join(e['chip'], e['sentence'])}", e["text_cut"]
    if kind == "leg":
        return "leg", _join(e["status"].replace("_", " "), e["sentence"]), 0
    if kind == "control":
        return "control", _join(e["directive"], e["fate"], e["reason"]), 0
    return e.get("name", kind), e["text"], e["cut"]


def _lines(state: State, most: int, chars: int) -> tuple[int, list[tuple[str, str, str]]]:
    """How many lines are left out before, and (time, who, text) of the rest."""
    entries = state["entries"]
    shown = entries["items"][-most:]
    out = []
    for e in shown:
        who, what, cut = _spoken(e)
        cut += max(0, len(what) - chars)
        out.append((_clock(e["at"]), who, what[:chars] + (f" … {cut:,} more characters not shown" if cut else "")))
    return entries["first"] + len(entries["items"]) - len(shown), out


def _steer_rows(state: State) -> list[tuple[str, str, str]]:
    return [
        (
            f"{_MARKS.get(s['chip'], '?')} {s['chip']}",
            s["text"][:TEXT_CHARS] + ("…" if len(s["text"]) > TEXT_CHARS else ""),
            _join(s["sentence"], f"by {s['created_by']}" if s["created_by"] else "", s["note"]),
        )
        for s in state["steers"]["items"][-100:]
    ]


def _block_rows(state: State) -> list[tuple[str, str, str]]:
    blocks = state["blocks"]
    if blocks is None:
        return []
    rows = [
        ("fired", b["name"], f"{b['tokens']:,} tokens" if b["tokens"] is not None else "") for b in blocks["blocks"]
    ]
    return rows + [(word, p["name"], p["reason"]) for word in ("failed", "degraded", "skipped") for p in blocks[word]]


def _turn_rows(state: State) -> list[tuple[str, str, str, dict[str, Any]]]:
    rows = []
    for lane in state["lanes"]["items"][-50:]:
        start, end = lane["start_at"], lane["end_at"]
        waited = start - lane["wait_at"] if start is not None else None
        took = end - start if start is not None and end is not None else None
        said = _join(f"waited {_duration(waited)}" if waited else "", _duration(took), lane["outcome"] or "not ended")
        rows.append((_short(lane["turn"]) if lane["turn"] else "–", lane["operation"], said, lane))
    return rows


# ---------------------------------------------------------------------- HTML
def html(state: State) -> str:
    """The view as one self-contained piece of HTML: no script, no style sheet, no link, nothing remote."""
    title, lines = _head(state)
    left_out, spoken = _lines(state, HTML_LINES, HTML_CHARS)
    parts = [
        f'<div class="{_AS_IS}" style="{_BOX};font-size:13px;line-height:1.45">',
        f"<div><b>{escape(title)}</b></div>",
    ]
    parts += [f'<div style="opacity:.75">{escape(x)}</div>' for x in lines]
    if left_out:
        parts.append(f'<div style="opacity:.75">… {left_out:,} earlier lines not shown</div>')
    parts.append(_table("", spoken))
    parts.append(_table("Steers", _steer_rows(state)))
    parts.append(_table("Context providers", _block_rows(state)))
    turns = _turn_rows(state)
    t0 = min((lane["wait_at"] for *_, lane in turns), default=0.0)
    span = max(max((lane["end_at"] or state["at"] for *_, lane in turns), default=0.0) - t0, 0.001)
    parts.append(
        _table("Turns", [(a, b, c) for a, b, c, _ in turns], [_bar(lane, state, t0, span) for *_, lane in turns])
    )
    return "".join(parts) + "</div>"


def _table(caption: str, rows: list[tuple[str, str, str]], more: list[str] | None = None) -> str:
    if not rows:
        return ""
    head = f'<div style="margin-top:8px"><b>{escape(caption)}</b></div>' if caption else ""
    body = []
    for i, (a, b, c) in enumerate(rows):
        cells = (
            f'<td style="{_CELL};opacity:.75;white-space:nowrap">{escape(a)}</td><td style="{_CELL}">{escape(b)}</td>'
        )
        body.append(
            f'<tr>{cells}<td style="{_CELL};{_WRAP}">{escape(c)}</td>{f"<td>{more[i]}</td>" if more else ""}</tr>'
        )
    return f'{head}<table style="border-collapse:collapse;margin-top:4px">{"".join(body)}</table>'


def _bar(lane: dict[str, Any], state: State, t0: float, span: float) -> str:
    """Waiting as a line, the turn as a bar: numbers only, so nothing to escape."""

    def x(at: float) -> float:
        return round(240 * (at - t0) / span, 1)

    end = lane["end_at"] or state["at"]
    start = lane["start_at"] if lane["start_at"] is not None else end
    rect = '<rect x="{}" y="{}" width="{}" height="{}" fill="currentColor" opacity="{}"/>'
    wait = rect.format(x(lane["wait_at"]), 6, max(0.0, round(x(start) - x(lane["wait_at"]), 1)), 2, 0.5)
    active = (
        "" if lane["start_at"] is None else rect.format(x(start), 2, max(1.0, round(x(end) - x(start), 1)), 10, 0.6)
    )
    return f'<svg width="244" height="14" role="img" aria-hidden="true">{wait}{active}</svg>'


# ---------------------------------------------------------------------- plain text
def text(state: State) -> str:
    """The view as plain text."""
    title, lines = _head(state)
    left_out, spoken = _lines(state, TEXT_LINES, TEXT_CHARS)
    out = [title, *("  " + x for x in lines)]
    if left_out:
        out.append(f"… {left_out:,} earlier lines not shown")
    for at, who, what in spoken:
        out.append(f"{at} {who:>8}  " + what.replace("\n", "\n" + " " * 19))
    for caption, rows in (("steers", _steer_rows(state)), ("context providers", _block_rows(state))):
        out += [caption, *("  " + _join(*row) for row in rows)] if rows else []
    return CONTROLS.sub(_picture, "\n".join(out))


def _picture(found: re.Match[str]) -> str:
    code = ord(found.group())
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "\ufffd"
