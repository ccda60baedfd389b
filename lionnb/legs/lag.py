"""`Lag`: what a leg knows of the standstills of its loop, by turn, and who is told while one lasts.

Belongs to the leg's loop, but for `stands`. A leg's time is divided among its turns: a standstill before a turn begins
(the cell that started the leg went on computing) is that turn's, so that the leg's share is the sum of its turns'.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lionnb.feed import Feed
from lionnb.legs.standstill import watch

if TYPE_CHECKING:
    from lionnb.store.store import Store
    from lionnb.turns.log import TurnRow

__all__ = ("SAYS_S", "SHOWS_S", "Lag", "blocked", "is_timeout")

log = logging.getLogger(__name__)

SHOWS_S = 5.0  # what a view shows while it lasts
SAYS_S = 10.0  # what is worth a line afterwards: the first import of a large library is not

OnStanding = Callable[[float, str], None]


class Lag:
    """See the module.

    Args:
        store: On whose control thread the loop is watched.
        loop: The leg's.
        feed: Where a standstill is told that is over.
        turn_id: The leg's running turn.
    """

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, feed: Feed, turn_id: Callable[[], str | None]
    ) -> None:
        self._feed, self._turn_id = feed, turn_id
        self._since = time.monotonic()
        self._before = 0.0  # of the turns that have ended
        self._turn = 0.0  # since the last of them
        self._cause = ""
        self._listeners: list[OnStanding] = []
        self._watch, self._leave = watch(store, loop, self)

    @property
    def current_s(self) -> float:
        """Seconds of standstill since the last turn ended, with what is under way. From any thread."""
        return self._turn + self._mine(self._watch.seconds)

    @property
    def total_s(self) -> float:
        """Seconds of standstill in the leg's life. From any thread."""
        return self._before + self.current_s

    def __repr__(self) -> str:
        return f"<lag: the loop stood still for {self.total_s:.1f} s, {self.current_s:.1f} s of it since the last turn>"

    def begin(self) -> None:
        """The leg's time begins only now: it has waited for another leg."""
        self._since, self._turn = time.monotonic(), 0.0

    def when_standing(self, fn: OnStanding) -> None:
        """Call *fn* with the seconds and the cause about once a second while the loop stands still; any thread's."""
        self._listeners.append(fn)

    def turn_ended(self, row: TurnRow | None) -> tuple[float, str]:
        """A turn of the leg has ended: its row learns its share. Returns that, and what the longest was caused by."""
        self._watch.moves()
        seconds, cause = self._turn, self._cause
        self._before, self._turn, self._cause = self._before + seconds, 0.0, ""
        if row is not None:
            row.starved_s = seconds
        return seconds, cause

    def close(self) -> None:
        """The leg has ended. From any thread, twice too."""
        self._leave()

    # ------------------------------------------------------------------ what the watch says
    def stands(self, seconds: float, cause: str) -> None:
        """On the control thread: tell the views, for the loop cannot."""
        if (mine := self._mine(seconds)) < SHOWS_S:
            return
        for fn in tuple(self._listeners):
            try:
                fn(mine, cause)
            except Exception:
                log.exception("a view could not be told that the loop stands still")

    def stood(self, seconds: float, cause: str) -> None:
        """In the loop: count it, and say it where it is read later."""
        seconds = self._mine(seconds)
        self._turn += seconds
        self._cause = cause
        if seconds >= SAYS_S:
            self._feed.event(
                "warning", self._turn_id(), text=f"starved {seconds:.0f} s by {cause}: the leg stood still meanwhile"
            )

    def _mine(self, seconds: float) -> float:
        """What of it happened since this leg's time began."""
        return min(seconds, time.monotonic() - self._since)


def blocked(seconds: float, cause: str, error: BaseException | None) -> str | None:
    """What a leg says of a turn that failed by a timeout while its loop stood still; ``None`` of all others."""
    if not seconds or error is None or not is_timeout(error):
        return None
    return f"the loop was blocked for {seconds:.0f} s meanwhile by {cause}"


def is_timeout(error: BaseException) -> bool:
    """Whether *error*, or what it was raised from, is a timeout; providers' libraries each have their own."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        words = f"{type(at).__name__} {at}".lower()
        if isinstance(at, TimeoutError) or "timeout" in words or "timed out" in words:
            return True
        at = at.__cause__ or at.__context__
    return False
