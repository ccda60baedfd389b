"""Steers for runs that nobody watches: one is kept until a given turn of its leg has ended, and queued at that moment.

It is queued before the leg asks whether anything is pending, in the same step and on the same line to the store, so it
lands in the next turn however fast the turns are. Until then there is no row: a leg that ends first leaves none behind,
and the receipt says why.

Threads: `add` from any, the rest in the leg's loop (or in whichever thread buries the leg). What is kept is guarded by
a lock, so that each steer is queued once, or refused once.
"""

from __future__ import annotations

import numbers
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lionnb.feed import Feed
from lionnb.legs.receipt import Receipt

if TYPE_CHECKING:
    from lionnb.legs.steering import Steering

__all__ = ("Plans", "nth_turn")


def nth_turn(turn: int) -> int:
    """The number of a turn of a leg.

    Raises:
        TypeError: Not an integer.
        ValueError: Zero or negative.
    """
    if isinstance(turn, bool) or not isinstance(turn, numbers.Integral):
        raise TypeError(f"turn is a whole number, and 1 is the leg's first turn; not {type(turn).__name__}.")
    if turn <= 0:
        raise ValueError(f"turn={turn!r}: turns are counted from 1, the leg's first turn.")
    return int(turn)


@dataclass(frozen=True, slots=True)
class _Plan:
    turn: int
    receipt: Receipt
    author: str


class Plans:
    """The steers of one leg that wait for the end of a turn.

    Args:
        steering: Where they are queued.
        feed: Where it is told that one never was.
        run_id: The leg's, for sentences.
    """

    def __init__(self, steering: Steering, feed: Feed, run_id: str) -> None:
        self._steering, self._feed, self._run_id = steering, feed, run_id
        self._lock = threading.Lock()
        self._waiting: list[_Plan] = []
        self._past = 0  # turns that have ended and after which the leg went on
        self._over = False

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Those that are not queued yet, in the order in which they were asked for."""
        with self._lock:
            return tuple(plan.receipt for plan in self._waiting)

    def add(self, turn: int, text: str, key: str | None, by: str) -> Receipt | None:
        """Keep *text* until turn number *turn* has ended; ``None`` when it has already, or the leg has.

        Raises:
            SteerRefusedError: The text is none that can be queued.
            TypeError, ValueError: *turn* counts no turn.
        """
        n = nth_turn(turn)
        receipt, author = self._steering.draft(text, key, by)
        with self._lock:
            if self._over or n <= self._past:
                return None
            receipt.waits(f"waits for the end of turn {n}: queued then, and it lands in the turn after it")
            self._waiting.append(_Plan(n, receipt, author))
        return receipt

    def turn_ended(self, n: int) -> None:
        """Turn number *n* has ended and the leg goes on: what waited for it is queued now. Waits for nothing."""
        with self._lock:
            self._past = n
            due = [plan for plan in self._waiting if plan.turn <= n]
            self._waiting = [plan for plan in self._waiting if plan.turn > n]
        for plan in due:
            plan.receipt.waits(None)
            self._steering.send(plan.receipt, plan.author)

    def leg_ended(self, status: str, turns: int) -> None:
        """The leg has ended after *turns* turns: what still waits never was queued. From any thread, twice too."""
        with self._lock:
            self._over = True
            left, self._waiting = self._waiting, []
        for plan in left:
            when = f"with turn {turns}" if plan.turn <= turns else f"before its turn {plan.turn} ended"
            why = f"it never was queued, and there is no row: leg {self._run_id} ended ({status}) {when}"
            plan.receipt.refuse("ended", why)
            self._feed.event("warning", None, text=f"a steer for the end of turn {plan.turn} was not sent: {why}")
