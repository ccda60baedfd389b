"""Who wants to hear of a run's controls. Thread-safe; knows nothing of the database.

Callbacks run on the control thread, after the commit, in commit order. They get a record and must hand over at once
(``loop.call_soon_threadsafe``): while one runs, nothing else of the store does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from lionnb.records import ControlRecord

__all__ = ("Watchers",)

log = logging.getLogger(__name__)
Watcher = Callable[[ControlRecord], object]


class Watchers:
    """The callbacks by run id; ``None`` stands for every run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_run: dict[str | None, tuple[tuple[object, Watcher], ...]] = {}
        self.noted: Callable[[ControlRecord], object] | None = None  # who keeps account of what was told

    def add(self, session_id: str | None, fn: Watcher) -> Callable[[], None]:
        """Call *fn* for every change from now on; returns what stops it (idempotent, any thread)."""
        mark = object()  # one function may watch twice, and each unwatch ends its own
        with self._lock:
            self._by_run[session_id] = (*self._by_run.get(session_id, ()), (mark, fn))

        def unwatch() -> None:
            with self._lock:
                left = tuple(entry for entry in self._by_run.get(session_id, ()) if entry[0] is not mark)
                if left:
                    self._by_run[session_id] = left
                else:
                    self._by_run.pop(session_id, None)

        return unwatch

    def watched(self) -> frozenset[str | None]:
        """The run ids that somebody watches."""
        with self._lock:
            return frozenset(self._by_run)

    def tell(self, changes: Iterable[ControlRecord]) -> None:
        """Tell every watcher of each change; a watcher's error is logged and harms nobody."""
        for record in changes:
            if self.noted is not None:
                self.noted(record)
            with self._lock:
                told = self._by_run.get(record.session_id, ()) + self._by_run.get(None, ())
            for _, fn in told:
                try:
                    fn(record)
                except Exception:
                    log.exception("a watcher of run %s failed; the write stands", record.session_id)
