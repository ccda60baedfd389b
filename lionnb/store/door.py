"""What may come in: one normaliser for the text of a steer, for every back end. Pure; imports errors only.

A text that PostgreSQL refuses and SQLite takes (a NUL, a lone surrogate) would give one steer two fates on two
machines, so both are refused here, with the position. What is accepted is accepted to the letter: nothing is
trimmed, folded or replaced.
"""

from __future__ import annotations

import getpass
import os
import re
import unicodedata
from typing import Final

from lionnb.errors import ResolveRefusedError, SteerRefusedError

__all__ = ("MAX_KEY_CHARS", "MAX_STEER_BYTES", "normalise", "normalise_key", "person", "sender", "who")

MAX_STEER_BYTES: Final = 64 * 1024
"""The longest steer, in bytes of UTF-8."""

MAX_KEY_CHARS: Final = 200
"""The longest idempotency key or control id: PostgreSQL's index refuses long ones that SQLite would take."""

MAX_NAME_CHARS: Final = 200
"""The longest name of a person who acts."""

_NO_NAME: Final = f"by is a name of up to {MAX_NAME_CHARS} plain characters."
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_INVISIBLE: Final = frozenset("\u2800\u3164\uffa0\u115f\u1160\u034f")  # blank by their glyph, not by their category


def _shows_nothing(text: str) -> bool:
    """Whether no character of *text* can be seen: spaces, controls, zero-width and other formatting characters."""
    return all(ch in _INVISIBLE or unicodedata.category(ch)[0] in "ZC" or _is_variation(ch) for ch in text)


def _is_variation(ch: str) -> bool:
    return "\ufe00" <= ch <= "\ufe0f" or "\U000e0100" <= ch <= "\U000e01ef"


def normalise(text: object) -> str:
    """Return the text of a steer unchanged, or refuse it with a sentence.

    Raises:
        SteerRefusedError: ``type`` (not a string), ``nul``, ``surrogate`` (both with the position), ``blank`` (nothing
            that can be seen), ``size`` (over `MAX_STEER_BYTES`).

    Source: ADR-0108.
    """
    if not isinstance(text, str):
        raise SteerRefusedError(
            "type", f"a steer is a string, and this is {_a(type(text).__name__)}: nothing was queued."
        )
    if (at := text.find("\x00")) >= 0:
        raise SteerRefusedError(
            "nul", f"the steer has a NUL character at position {at}, which no database keeps: remove it and send again."
        )
    if match := _SURROGATE.search(text):
        raise SteerRefusedError(
            "surrogate",
            f"the steer has half a character (a lone surrogate) at position {match.start()}: it comes from a broken "
            "copy or decoding. Remove it and send again.",
        )
    if _shows_nothing(text):
        raise SteerRefusedError(
            "blank", "the steer is blank: it would cost a provider turn and say nothing. Nothing was queued."
        )
    if (size := len(text.encode())) > MAX_STEER_BYTES:
        raise SteerRefusedError(
            "size",
            f"the steer has {size:,} bytes and the limit is {MAX_STEER_BYTES:,}: put the material where a tool can "
            "read it, and steer with a pointer to it.",
        )
    # A str subclass could answer differently next time.
    return str.__str__(text)


def normalise_key(key: object, what: str = "key") -> str:
    """Return an idempotency key (or a control id chosen by the caller) unchanged, or refuse it.

    Raises:
        SteerRefusedError: ``key``: not a string of 1 to `MAX_KEY_CHARS` characters that a database can keep.
    """
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS or "\x00" in key or _SURROGATE.search(key):
        raise SteerRefusedError(
            "key", f"a steer's {what} is a string of 1 to {MAX_KEY_CHARS} plain characters: nothing was queued."
        )
    return key


def person(by: object, act: str) -> str:
    """Return the name of who acts, or refuse: an act without a name recreates the dead end that it closes.

    Raises:
        ResolveRefusedError: ``by``: no name.

    Source: ADR-0108, "It records who resolved it".
    """
    if isinstance(by, str) and not _is_name(by):
        raise ResolveRefusedError("by", f"{_NO_NAME} Nothing was changed.")
    if not isinstance(by, str) or _shows_nothing(by):
        raise ResolveRefusedError(
            "by", f'{act} is a person\'s act and needs a name: say by="your name". Nothing was changed.'
        )
    return by


def sender(by: object) -> str:
    """Return the name of who sends or starts something; without one (``None``, or blank) it is `who`.

    Raises:
        SteerRefusedError: ``by``: too long for a name, or no database can keep it.
        TypeError: No text.
    """
    if by is not None and not isinstance(by, str):
        raise TypeError(f"by is a text or None, not {type(by).__name__}.")
    if by is None or _shows_nothing(by):
        return who()
    if not _is_name(by):
        raise SteerRefusedError("by", f"{_NO_NAME} Nothing was written.")
    return by


def _is_name(by: str) -> bool:
    return len(by) <= MAX_NAME_CHARS and "\x00" not in by and _SURROGATE.search(by) is None


def who() -> str:
    """The person who acts in this process: the hub's user, else the account."""
    if hub := os.environ.get("JUPYTERHUB_USER"):
        return hub[:MAX_NAME_CHARS]
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this uid, as in some containers
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
