"""Standstill: how long an event loop did not turn, measured from the control thread while a leg lives in it.

Once a second the control thread hands the loop a probe, and the next only when that was answered. An answer that takes
longer than a second is a standstill: a cell computes, and every leg of the loop waits. What is measured is what was
seen: the loop may have stood still for up to a second more before the probe was sent.

Not every gap is the loop's. A machine that sleeps, or a process that is stopped, stops the control thread as well; so a
gap in the control thread's own ticks counts only as far as the process has computed in it (code that keeps Python's
lock for long stops that thread too). A loop that nobody runs is not measured.

Threads: the coroutine `probe` is the control thread's, `moves` the loop's. What both touch is guarded by a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

from lionnb.store.store import Store

__all__ = ("COUNTS_S", "Watch", "Watcher", "cause_of", "watch")

TICK_S = 1.0  # between two probes, and between two looks at one that is not answered
COUNTS_S = 1.0  # a shorter wait is what any busy loop has

CELL, TURN, CODE = "a cell", "a tool or provider of a leg", "code that blocks the event loop"


class Watcher(Protocol):
    """Who wants to know."""

    def stands(self, seconds: float, cause: str) -> None:
        """The loop stands still, for *seconds* by now. On the control thread, once a tick."""

    def stood(self, seconds: float, cause: str) -> None:
        """The loop moves again, after *seconds*. In the loop."""


def cause_of(loop: asyncio.AbstractEventLoop) -> str:
    """What keeps *loop*, as far as its current task tells; from another thread, while it stands still."""
    task = asyncio.current_task(loop)
    if task is None:
        return CODE
    if task.get_name().startswith(("lionnb-turn-", "lionnb-leg-")):
        return TURN
    # A cell without await runs in the task in which ipykernel takes messages, one with it in a task of IPython's.
    made_by = getattr(task.get_coro(), "__qualname__", "")
    return CELL if made_by.startswith(("Kernel.", "IPythonKernel.", "InteractiveShell.")) else CODE


class Watch:
    """The standstills of one loop. Use `watch`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float] = time.monotonic,
        computed: Callable[[], float] = time.process_time,
    ) -> None:
        self.loop, self._clock, self._computed = loop, clock, computed
        self._lock = threading.Lock()
        self._watchers: list[Watcher] = []
        self._sent = False  # a probe is on its way
        self._asked = False  # and nothing else has said that the loop moves
        self._seconds, self._cause = 0.0, CODE
        self._looked = self._had_computed = 0.0
        self.stop: Callable[[], None] = lambda: None

    @property
    def seconds(self) -> float:
        """How long it stands still by now; 0 while it moves. From any thread."""
        with self._lock:
            self._look()
            return self._seconds if self._seconds > COUNTS_S else 0.0

    def moves(self) -> None:
        """The loop turns: called in it. A standstill that was under way is over."""
        with self._lock:
            self._look()
            seconds, cause, self._asked, self._seconds = self._seconds, self._cause, False, 0.0
            watchers = tuple(self._watchers)
        if seconds > COUNTS_S:
            for each in watchers:
                each.stood(seconds, cause)

    # ------------------------------------------------------------------ the control thread
    async def probe(self) -> None:
        """Ask the loop again and again whether it turns, until cancelled, or until it is closed."""
        while not self.loop.is_closed():
            await asyncio.sleep(TICK_S)  # not a wait for the answer: on 3.11 `wait_for` can lose a cancellation
            if self._sent:
                self._tell()
            elif self.loop.is_running():
                self._send()

    def _send(self) -> None:
        with self._lock:
            self._sent = self._asked = True
            self._seconds, self._cause = 0.0, CODE
            self._looked, self._had_computed = self._clock(), self._computed()
        with contextlib.suppress(RuntimeError):  # closed since
            self.loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self.moves()
        self._sent = False

    def _look(self) -> None:
        """Count what has passed since the last look; under the lock."""
        if not self._asked:
            return
        now, computed = self._clock(), self._computed()
        gap, work = now - self._looked, computed - self._had_computed
        self._looked, self._had_computed = now, computed
        if not self.loop.is_running():
            return
        self._seconds += gap if gap <= 2 * TICK_S else max(TICK_S, min(gap, work))

    def _tell(self) -> None:
        with self._lock:
            self._look()
            if not self._asked or self._seconds <= COUNTS_S:
                return
            if self._cause == CODE:
                self._cause = cause_of(self.loop)
            seconds, cause, watchers = self._seconds, self._cause, tuple(self._watchers)
        for each in watchers:
            each.stands(seconds, cause)

    # ------------------------------------------------------------------ who watches
    def add(self, watcher: Watcher) -> None:
        """Tell *watcher* from now on."""
        with self._lock:
            self._watchers.append(watcher)

    def remove(self, watcher: Watcher) -> bool:
        """No more; ``True`` when nobody is left."""
        with self._lock:
            if watcher in self._watchers:
                self._watchers.remove(watcher)
            return not self._watchers


_watches: dict[tuple[Store, asyncio.AbstractEventLoop], Watch] = {}
_watches_lock = threading.RLock()


def watch(store: Store, loop: asyncio.AbstractEventLoop, watcher: Watcher) -> tuple[Watch, Callable[[], None]]:
    """Have *loop* watched by the control thread of *store*, once for all who want to know, and only while one does.

    Returns the watch, and what ends this watcher's part in it (from any thread, idempotent).
    """
    with _watches_lock:
        found = _watches.get((store, loop))
        if found is None:
            found = _watches[store, loop] = Watch(loop)
            found.stop = store.beside(found.probe)
        found.add(watcher)

    def leave() -> None:
        with _watches_lock:
            if found.remove(watcher) and _watches.get((store, loop)) is found:
                del _watches[store, loop]
                found.stop()

    return found, leave
