"""`Feed`: a bounded list of what happened, and whoever listens to it.

Written and listened to in one loop. What falls out is counted. A listener that raises is dropped with a log line: a
view must never change the outcome of a turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lionnb.records import FeedEvent

__all__ = ("MAX_EVENTS", "Feed")

log = logging.getLogger(__name__)

MAX_EVENTS = 10_000

Listener = Callable[[FeedEvent], None]


class Feed:
    """See the module. `events` may be read from any thread."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._events: deque[FeedEvent] = deque(maxlen=max_events)
        self._listeners: list[Listener] = []
        self._next = 0
        self.chunks_wanted = 0  # how many listeners want text as it comes

    @property
    def dropped_events(self) -> int:
        """How many events have fallen out."""
        return self._next - len(self._events)

    def events(self) -> list[FeedEvent]:
        """The events that are still kept, oldest first."""
        return list(self._events)

    def listen(self, fn: Listener, *, chunks: bool = False) -> Callable[[], None]:
        """Call *fn* with each event from now on; returns what ends it (idempotent)."""
        self._listeners.append(fn)
        self.chunks_wanted += chunks

        def stop() -> None:
            if fn in self._listeners:
                self._listeners.remove(fn)
                self.chunks_wanted -= chunks

        return stop

    def event(self, kind: str, turn_id: str | None, /, *, keep: bool = True, **data: Any) -> None:
        """Record one event and tell the listeners; ``keep=False`` only tells."""
        ev = FeedEvent(self._next, time.time(), kind, turn_id, data)
        if keep:
            self._next += 1
            self._events.append(ev)
        for fn in tuple(self._listeners):
            try:
                fn(ev)
            except (Exception, asyncio.CancelledError):  # a listener awaits nothing: it met a future that was cancelled
                log.exception("a listener failed and was dropped; the turn goes on")
                if fn in self._listeners:
                    self._listeners.remove(fn)
