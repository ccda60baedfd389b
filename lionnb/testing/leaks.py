"""What a piece of work has left behind: tasks, threads, sockets. Imports nothing of lionnb."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ("Resources", "assert_no_leaks", "leftover_tasks", "no_leaks")

# A model's rate limiter sleeps in a task for as long as the model lives; only ``iModel.close`` ends it, and
# nobody closes the copies that lionagi makes.
_BACKGROUND = frozenset({"RateLimitedAPIProcessor.start_replenishing"})

# The control thread of the process-wide default store lives until the process ends.
ALLOWED_THREADS = frozenset({"lionnb-control"})


def leftover_tasks(loop: asyncio.AbstractEventLoop | None = None) -> list[asyncio.Task[Any]]:
    """The unfinished tasks of *loop* (by default the running one) that somebody should have ended.

    The current task and lionagi's rate limiters are not among them.
    """
    current = asyncio.current_task() if loop is None else None
    return [
        task
        for task in asyncio.all_tasks(loop)
        if task is not current and getattr(task.get_coro(), "__qualname__", "") not in _BACKGROUND
    ]


@dataclass(frozen=True, slots=True)
class Resources:
    """The threads and sockets of this process at one moment."""

    threads: frozenset[threading.Thread]
    sockets: frozenset[str]

    @classmethod
    def now(cls) -> Resources:
        """Take stock. Sockets are told apart by inode where ``/proc`` exists, and are empty elsewhere."""
        return cls(frozenset(threading.enumerate()), frozenset(_sockets()))


def _sockets() -> Iterator[str]:
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is gone by now
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                yield link


def assert_no_leaks(before: Resources, *, allow: frozenset[str] = ALLOWED_THREADS, join_s: float = 2.0) -> None:
    """Fail when threads or sockets are there that were not there *before*.

    Threads count when they would keep the process from ending (not daemon: aiosqlite's, an executor's) or are
    lionnb's own; one that is about to end is waited for.

    Args:
        before: What was there when the work began.
        allow: Names of threads that may stay; while one of them is new, sockets are not judged, for it has
            its own.
        join_s: Seconds that each new thread is given to end.

    Raises:
        AssertionError: Names what was left.
    """
    new = Resources.now().threads - before.threads
    ours = [t for t in new if t.name not in allow and (not t.daemon or t.name.startswith("lionnb"))]
    for thread in ours:
        thread.join(join_s)
    left = sorted(t.name for t in ours if t.is_alive())
    assert not left, f"threads were left running: {left}"
    if any(t.name in allow for t in new):
        return
    if Resources.now().sockets - before.sockets:
        gc.collect()  # a socket in a reference cycle is closed by the collector, with a ResourceWarning
    sockets = Resources.now().sockets - before.sockets
    assert not sockets, f"sockets were left open: {sorted(sockets)}"


@contextlib.contextmanager
def no_leaks(*, allow: frozenset[str] = ALLOWED_THREADS) -> Iterator[None]:
    """Fail at the end of the block when it left threads or sockets; a block that raises is not judged."""
    before = Resources.now()
    yield
    assert_no_leaks(before, allow=allow)
