"""`Feed`: a bounded list of what happened, and whoever listens to it.

Written and listened to in one loop; what another thread tells it is sent there (`at_home`). What falls out is counted.
A listener that raises is dropped with a log line: a view must never change the outcome of a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
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
        self._listeners: list[tuple[Listener, bool]] = []
        self._home: tuple[asyncio.AbstractEventLoop, int] | None = None
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
        listener = (fn, chunks)
        self._listeners.append(listener)
        self.chunks_wanted += chunks
        return lambda: self._drop(listener)

    def _drop(self, listener: tuple[Listener, bool]) -> None:
        for i, found in enumerate(self._listeners):
            if found is listener:  # the same function may listen twice
                del self._listeners[i]
                self.chunks_wanted -= listener[1]
                return

    def at_home(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say that *loop*, which runs in this thread, is the one in which it is written and listened to."""
        self._home = (loop, threading.get_ident())

    def event(self, kind: str, turn_id: str | None, /, *, keep: bool = True, **data: Any) -> None:
        """Record one event and tell the listeners; ``keep=False`` only tells.

        From another thread than the home loop's it is sent there, in its order, unless that loop has closed.
        """
        if self._home is not None and self._home[1] != threading.get_ident() and not self._home[0].is_closed():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._home[0].call_soon_threadsafe(lambda: self._record(kind, turn_id, keep, data))
                return
        self._record(kind, turn_id, keep, data)

    def _record(self, kind: str, turn_id: str | None, keep: bool, data: dict[str, Any]) -> None:
        ev = FeedEvent(self._next, time.time(), kind, turn_id, data)
        if keep:
            self._next += 1
            self._events.append(ev)
        for listener in tuple(self._listeners):
            try:
                listener[0](ev)
            except (Exception, asyncio.CancelledError):  # a listener awaits nothing: it met a future that was cancelled
                log.exception("a listener failed and was dropped; the turn goes on")
                self._drop(listener)
