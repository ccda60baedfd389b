"""The kernel's side of a view's stream: number, batch, keep, and answer a page that missed something. Does no I/O.

Custom messages get lost around the creation of a view and at every page reload, and nobody is told. So each event has a
number, a page that sees a gap asks for what is missing, and gets either that or, when it is too old to be kept, a whole
snapshot. What the page cannot see as a gap (the last batch is the lost one) it learns from the next heartbeat.

The owner adds events from one thread. Snapshots are taken by whichever thread the front end's request arrives on (on
ipykernel 7 a subshell's), so a lock guards the state; nothing is awaited or sent while it is held.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from itertools import islice
from typing import Any

from lionnb.records import FeedEvent
from lionnb.widgets import state as st
from lionnb.widgets.wire import TEXT_LIMIT, Event, encode

__all__ = ("KEEP", "Feed")

KEEP = 4_000  # events a page may have missed and still be caught up without a whole snapshot


class Feed:
    """The state of one view and the events that led to it.

    Args:
        state: From `state.fresh`.
        keep: How many past events can be sent again.
    """

    def __init__(self, state: st.State, *, keep: int = KEEP) -> None:
        self._state = state
        self._pending: list[Event] = []
        self._past: deque[Event] = deque(maxlen=keep)
        self._lock = threading.Lock()

    @property
    def sent(self) -> int:
        """How many events have been numbered."""
        return int(self._state["n"])

    @property
    def live(self) -> bool:
        """Whether something goes on in it."""
        return st.is_live(self._state)

    def add(self, event: FeedEvent) -> None:
        """Take one event in; the page sees it with the next `take`."""
        wire = encode(event)
        with self._lock:
            if not self._joined(wire):
                self._pending.append(wire)

    def _joined(self, wire: Event) -> bool:
        """Whether a piece of text went into the piece before it: a token is a word in a hundred bytes of envelope."""
        last = self._pending[-1] if self._pending else None
        if last is None or not wire["kind"] == last["kind"] == "chunk" or wire["turn"] != last["turn"]:
            return False
        if last["size"] + wire["size"] > TEXT_LIMIT:
            return False
        last["data"]["text"] += wire["data"]["text"]
        last["data"]["text_cut"] += wire["data"]["text_cut"]
        last["size"] += wire["size"]
        return True

    def take(self) -> dict[str, Any] | None:
        """Number what is pending and return it as a batch; ``None`` when nothing is."""
        with self._lock:
            events, self._pending = self._pending, []
            i0 = self.sent
            for event in events:
                st.reduce(self._state, event)
            self._past.extend(events)
        return {"i0": i0, "ev": events} if events else None

    def since(self, i: int) -> dict[str, Any]:
        """What a page needs that has the first *i* events: a batch, or a snapshot. Any thread."""
        with self._lock:
            first = self.sent - len(self._past)
            if first <= i <= self.sent:
                return {"i0": i, "ev": list(islice(self._past, i - first, None))}
            return {"snapshot": self._dump()}

    def snapshot(self) -> str:
        """The state as JSON text: one string cannot be torn by an event that is added while it is sent. Any thread."""
        with self._lock:
            return self._dump()

    def state(self) -> st.State:
        """A copy of the state, for the static form. Any thread."""
        copy: st.State = json.loads(self.snapshot())
        return copy

    def _dump(self) -> str:
        return json.dumps(self._state, ensure_ascii=False, separators=(",", ":"))
