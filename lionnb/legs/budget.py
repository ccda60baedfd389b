"""A leg's limits, checked in one place. Pure but for the clock it is given.

For every limit ``None`` means *no limit*, and so does an infinite timeout. Zero, negative numbers and NaN are refused:
each of them has been read as "off" and as "at once" by somebody.
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ("Budget", "CountOrSame", "SecondsOrSame", "count_limit", "seconds_limit")

SecondsOrSame = float | None | Literal["same"]
CountOrSame = int | None | Literal["same"]

_LONGEST_S = 365 * 24 * 3600.0  # beyond it some loops' timers overflow


def seconds_limit(name: str, value: float | None) -> float | None:
    """A duration in seconds; ``None`` or infinity is no limit.

    Raises:
        TypeError: Not a number.
        ValueError: NaN, zero, negative, or more than a year.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is a number of seconds or None (no limit), not {type(value).__name__}.")
    if value == math.inf:
        return None
    if not 0 < value <= _LONGEST_S:  # NaN is not; and no conversion, for an int may be too large for a float
        raise ValueError(f"{name}={value!r}: give a number of seconds above 0 and up to a year, or None for no limit.")
    return float(value)


def count_limit(name: str, value: int | None) -> int | None:
    """A count; ``None`` is no limit.

    Raises:
        TypeError: Not an integer.
        ValueError: Zero or negative.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is a whole number or None (no limit), not {type(value).__name__}.")
    if value <= 0:
        raise ValueError(f"{name}={value!r}: give a whole number above 0, or None for no limit.")
    return int(value)


@dataclass(slots=True)
class Budget:
    """The original budget of a leg. Continuations spend what is left of it, and none extends it (ADR-0108)."""

    timeout_s: float | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    clock: Callable[[], float] = time.monotonic
    started: float | None = None
    _turns: int = 0  # spent on the budget before this one
    _tokens: int = 0

    def __post_init__(self) -> None:
        self.timeout_s = seconds_limit("timeout_s", self.timeout_s)
        self.max_turns = count_limit("max_turns", self.max_turns)
        self.max_tokens = count_limit("max_tokens", self.max_tokens)

    def start(self) -> None:
        """The clock begins to run; once."""
        if self.started is None:
            self.started = self.clock()

    def renew(self, turns: int, tokens: int | None) -> None:
        """Begin anew, with as much again, after so many turns and tokens: for a leg that goes on at its deadline."""
        self.started, self._turns, self._tokens = self.clock(), turns, tokens or 0

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; ``None`` without a timeout. Never negative."""
        if self.timeout_s is None:
            return None
        if self.started is None:
            return self.timeout_s
        return max(0.0, self.started + self.timeout_s - self.clock())

    @property
    def deadline_at(self) -> float | None:
        """The instant (Unix seconds) at which the time is up; ``None`` without a timeout, and before `start`."""
        left = self.left_s
        return None if left is None or self.started is None else time.time() + left

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed: no new provider work may start."""
        return self.left_s == 0.0

    def will_not_fit(self, turns: int) -> str | None:
        """In a sentence, why no turn can follow *turns* turns any more; ``None`` when one can.

        The tokens of a turn are known when it has ended, so their cap is not foreseen.
        """
        if self.expired:
            return "the deadline has passed"
        if self.max_turns is not None and turns - self._turns >= self.max_turns:
            return f"max_turns={self.max_turns} is reached with the current turn"
        return None

    def cap_reached(self, turns: int, tokens: int | None) -> str | None:
        """In a sentence, which cap ends the leg between turns; ``None`` while none does."""
        if self.max_turns is not None and turns - self._turns >= self.max_turns:
            return f"max_turns={self.max_turns} was reached"
        if self.max_tokens is not None and tokens is not None and tokens - self._tokens >= self.max_tokens:
            return f"max_tokens={self.max_tokens} was reached ({tokens - self._tokens} used)"
        return None
