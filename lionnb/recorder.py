"""Every turn that ends becomes one row of this process's default store, behind the caller's back.

The turn log is bounded and dies with the kernel; the table survives it. A turn never waits for its row: it is put into
a queue, and the control thread writes what has gathered there in one transaction. What cannot be written stays queued
for the next turn's attempt, up to a bound, and is said once. A process that is killed loses what it had not written
yet: the last fraction of a second.

The turns of a leg are written by the leg, into its own store. An in-memory store gets none: nobody else could read
them, and they would grow for ever.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import itertools
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from lionnb.kernel import in_kernel
from lionnb.store.store import default_store

if TYPE_CHECKING:
    from lionnb.store.core import StoreCore
    from lionnb.turns.log import TurnRow

__all__ = ("Recorder", "flush", "keep")

log = logging.getLogger(__name__)

GATHER_S = 0.05  # a burst of turns is one transaction, and one wait for the disk
AT_ONCE = 200  # rows in one transaction: a steer's write queues behind it
MOST = 10_000  # rows that wait for a store that does not answer


class Recorder:
    """The queue of one process. Thread-safe; nothing here raises."""

    def __init__(self) -> None:
        self._rows: deque[TurnRow] = deque()
        self._lock = threading.Lock()
        self._writing = False
        self._closed = False
        self._written: concurrent.futures.Future[None] | None = None
        self._dropped = 0
        self._said: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many rows are not written yet."""
        return len(self._rows)

    def keep(self, row: TurnRow) -> None:
        """Let the turn that ended be written; returns at once, from any thread."""
        if row.session_id is not None or self._closed:
            return
        with self._lock:
            if len(self._rows) >= MOST:
                self._dropped += 1
                return
            self._rows.append(row)
            if self._writing:
                return
            self._writing = True
        self._write()

    def flush(self, timeout_s: float) -> None:
        """Block until what was kept is written, or has failed to be, or the time is over. Not on the control thread."""
        if self._written is not None:
            concurrent.futures.wait((self._written,), timeout=timeout_s)

    def close(self, timeout_s: float) -> None:
        """Take no more, and write what is left; for a process that ends.

        A turn that ends later could only open a store that outlives its own handler.
        """
        self._closed = True
        with self._lock:
            again, self._writing = bool(self._rows) and not self._writing, bool(self._rows)
        if again:  # the last attempt failed
            self._write()
        self.flush(timeout_s)

    def _write(self) -> None:
        """Start a writer; whoever calls this has set ``_writing``."""
        try:
            store = default_store()
            if store.location.kind == "memory":
                with self._lock:
                    self._rows.clear()
                    self._writing = False
                return
            self._written = store.submit(self._write_all)
            self._written.add_done_callback(lambda done: self._over(_problem_of(done)))
        except Exception as exc:  # no store at all: `LIONNB_DB` names none, or the interpreter ends
            self._over(exc)

    async def _write_all(self, core: StoreCore) -> None:
        await asyncio.sleep(GATHER_S)
        while True:
            with self._lock:
                some = list(itertools.islice(self._rows, AT_ONCE))
                if not some:
                    self._writing = False  # in the lock: who adds a row after this starts a writer
                    return
            await core.put_turns([row.record() for row in some], time.time())
            with self._lock:  # only now: what was not written stays
                for _ in some:
                    self._rows.popleft()

    def _over(self, problem: BaseException | None) -> None:
        if problem is None:
            return
        with self._lock:
            self._writing = False
            waiting, dropped = len(self._rows), self._dropped
        sentence = str(problem) or type(problem).__name__
        if sentence not in self._said and not self._closed:
            self._said.add(sentence)
            log.warning(
                "turns could not be recorded in the control database (%d wait for the next attempt, %d were dropped): "
                "%s The turn log of each Branch is not affected.",
                waiting, dropped, sentence,
            )  # fmt: skip


def _problem_of(done: concurrent.futures.Future[None]) -> BaseException | None:
    return concurrent.futures.CancelledError("the store was closed") if done.cancelled() else done.exception()


_recorder = Recorder()


def keep(row: TurnRow) -> None:
    """Let the turn that ended be written by this process's recorder; as `Recorder.keep`."""
    _recorder.keep(row)


def flush(timeout_s: float = 30.0) -> None:
    """Block until the rows of this process's ended turns are written; as `Recorder.flush`."""
    _recorder.flush(timeout_s)


@atexit.register
def _close() -> None:
    """Write what is left before the stores close. A kernel that ends has little time, and its legs come first."""
    _recorder.close(0.5 if in_kernel() else 10.0)


def _after_fork() -> None:
    """The parent's rows are the parent's to write, and its writer runs there."""
    global _recorder
    _recorder = Recorder()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
