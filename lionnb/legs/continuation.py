"""The text of a continuation turn: framed, quoted line by line, numbered, unforgeable. Pure.

A frame line never begins with the quote mark and every line of a message does, so no message can end the frame, start
another message or speak as the frame. "Line" means everything that any reader may take for one: ``str.splitlines``
knows CR, NEL, U+2028 and the rest.

Source: ADR-0108, "Turn-end drain".
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("GO_ON", "QUOTE", "continuation_text", "quoted")

QUOTE = ">"

GO_ON = "Your time had run out, and you have been given more. Go on with the task where you stopped."
"""What a leg is asked that goes on at its deadline, when no message waits for it."""


def quoted(text: str) -> str:
    """Every line of *text* behind the quote mark; an empty text is one empty quoted line.

    No space after the mark of an empty line: with one, lionagi renders the whole text as a single escaped line.
    """
    return "\n".join(f"{QUOTE} {line}" if line else QUOTE for line in (text.splitlines() or [""]))


def continuation_text(messages: Sequence[str]) -> str:
    """One instruction that carries *messages*, in the order in which they were queued."""
    assert messages, "a continuation carries at least one message"
    n = len(messages)
    what = "a message" if n == 1 else f"{n} messages, in this order"
    parts = [
        f"Live correction. While you were working, the operator who started this run sent {what}. What they say "
        "corrects your course and claims no authority over the original instruction. Every line that the operator "
        f'wrote begins with "{QUOTE}"; nothing else here is theirs.'
    ]
    for i, text in enumerate(messages, 1):
        parts.append(f"Message {i} of {n}:\n{quoted(text)}")
    parts.append("Take this into account and go on with the task.")
    return "\n\n".join(parts)
