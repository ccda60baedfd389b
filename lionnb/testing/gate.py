"""A gate that tests and notebooks hold in front of a provider. Imports nothing of lionnb."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ("Gate",)


@dataclass(eq=False, slots=True)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]
    when: Callable[[int], bool] = bool  # of those who watch: whether this many at the gate is what they wait for

    def wake(self) -> None:
        try:
            here: Any = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop:
            self._set()
            return
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody is left there to be woken
            self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Gate:
    """A gate that any loop and any thread may wait at, open and close; nobody polls.

    Open, `wait` returns at once. Closed, it waits until somebody calls `open`: those who wait at that moment
    pass, even when it is closed again at once (``gate.open(); gate.close()`` lets one batch through). A
    cancelled waiter leaves nothing behind.

    Args:
        opened: Start open instead of closed.
        name: Shown by ``repr``.
    """

    def __init__(self, *, opened: bool = False, name: str = "gate") -> None:
        self.name = name
        self._lock = threading.Lock()
        self._opened = opened
        self._waiters: list[_Waiter] = []
        self._watchers: list[_Waiter] = []

    def __repr__(self) -> str:
        return f"<Gate {self.name!r} {'open' if self._opened else 'closed'}, {self.waiting} waiting>"

    @property
    def opened(self) -> bool:
        """Whether `wait` returns at once."""
        return self._opened

    @property
    def waiting(self) -> int:
        """How many wait at the gate now."""
        return len(self._waiters)

    def open(self) -> None:
        """Let everyone pass, now and from now on. Idempotent; from any thread."""
        with self._lock:
            self._opened = True
            passing, self._waiters = self._waiters, []
            passing += self._seen()
        for waiter in passing:
            waiter.wake()

    def close(self) -> None:
        """Hold whoever comes from now on. Idempotent; from any thread."""
        with self._lock:
            self._opened = False

    async def wait(self) -> None:
        """Pass when the gate is open, else wait for it. Cancelled here, it is as if nobody had come."""
        with self._lock:
            if self._opened:
                return
            me = self._join(self._waiters)
            seen = self._seen()
        for watcher in seen:
            watcher.wake()
        await self._stand(me)

    async def reached(self, n: int = 1) -> None:
        """Return once *n* callers wait at the closed gate. A caller that passed an open gate is not one of them."""
        await self._watch(lambda waiting: waiting >= n)

    async def left(self, n: int = 0) -> None:
        """Return once no more than *n* callers wait: they passed, or were cancelled."""
        await self._watch(lambda waiting: waiting <= n)

    async def _watch(self, when: Callable[[int], bool]) -> None:
        with self._lock:
            if when(len(self._waiters)):
                return
            me = self._join(self._watchers, when)
        await self._stand(me)

    @staticmethod
    def _join(queue: list[_Waiter], when: Callable[[int], bool] = bool) -> _Waiter:
        loop = asyncio.get_running_loop()
        me = _Waiter(loop, loop.create_future(), when)
        queue.append(me)
        return me

    def _seen(self) -> list[_Waiter]:
        """Take out those who watch for the number of waiters that there is now; under the lock."""
        seen = [w for w in self._watchers if w.when(len(self._waiters))]
        self._watchers = [w for w in self._watchers if w not in seen]
        return seen

    async def _stand(self, me: _Waiter) -> None:
        try:
            await me.future
        finally:
            with self._lock:
                for queue in (self._waiters, self._watchers):
                    if me in queue:
                        queue.remove(me)
                seen = self._seen()
            for watcher in seen:
                watcher.wake()
