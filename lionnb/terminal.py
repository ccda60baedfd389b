"""What is printed in a terminal, from any source: nothing in it acts, and nothing in it forges a line of ours."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer

from lionnb.plain import plain

__all__ = ("clip", "json_line", "say", "table")

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def say(text: str, *, err: bool = False) -> None:
    """Print *text* as it is: no markup, no wrapping, and nothing in it that a terminal would act on.

    Args:
        text: What to print, from any source.
        err: Print to standard error.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    shown = plain(text).encode(encoding, "replace").decode(encoding)
    typer.echo(shown, err=err)


def clip(text: object, width: int = 60) -> str:
    """*text* on one line of at most *width* cells, with "…" where something was left out; for a cell of a table.

    White space of every kind becomes one space, and what has no glyph is shown as such.
    """
    shown: list[str] = []
    used = 0
    for ch in " ".join(str(text).split()):
        visible = _REPLACEMENT if unicodedata.category(ch) in ("Cc", "Cf", "Cs", "Co", "Cn") else ch
        used += _cells(visible)
        if used > width or len(shown) > 4 * width:  # marks that pile up on one letter have no width
            return _cut("".join(shown), width - 1) + "…"
        shown.append(visible)
    return "".join(shown)


def _cells(ch: str) -> int:
    if unicodedata.combining(ch) or unicodedata.category(ch) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in "WF" else 1


def _cut(text: str, width: int) -> str:
    while sum(map(_cells, text)) > width:
        text = text[:-1]
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns, aligned by their cells, two spaces apart. What stands in them was clipped before."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(sum(map(_cells, cell)) for cell in column) for column in zip(*lines, strict=True)]

    def padded(cell: str, width: int) -> str:
        return cell + " " * (width - sum(map(_cells, cell)))

    return "\n".join("  ".join(map(padded, line, widths)).rstrip() for line in lines)


def json_line(value: Any) -> str:
    """*value* as JSON on one line, in ASCII: every text to the letter, and no character on which a terminal acts."""
    return json.dumps(value, ensure_ascii=True)
