"""Text from models, tools, providers and people, where it is printed or logged: nothing in it acts on a terminal.

One place for that: the terminal, the log, and what an exception of ours quotes. Imports nothing of lionnb.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ("CONTROLS", "first_line", "plain")

CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but newline and tab, and those that reverse the direction of text."""

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def plain(text: str) -> str:
    """*text* with nothing in it on which a terminal acts: each such character becomes U+FFFD. Lines stay lines."""
    return CONTROLS.sub(_REPLACEMENT, text)


def first_line(text: str, limit: int = 300) -> str:
    """The first line of *text* that says something, plain and at most *limit* characters long."""
    lines = text.strip().splitlines()  # every kind of line end: what is logged must not look like two lines
    return plain(lines[0].strip())[:limit] if lines else ""
