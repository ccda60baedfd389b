"""The asyncio idioms this package rests on, each with its why. Imports `errors` only.

- `settle` / `finish`: cleanup that must reach its end. A bare ``finally: await x`` loses *x* at the second cancel, and
  a single ``asyncio.shield`` leaves it running with nobody waiting. Both were measured.
- `OwnedTasks`: ``create_task`` with a name and an owner, so that no task is collected half-way and none fails silently.
- `LoopThread`: one daemon thread with its own loop, for what must go on while the main loop is blocked by a cell.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio

from lionnb.errors import LionnbError

__all__ = ("LoopThread", "OwnedTasks", "Settled", "end_tasks", "finish", "own", "settle", "wait_for_thread")

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Settled(Generic[T]):
    """What became of a piece of work, and the cancellation that arrived while it was awaited."""

    result: T | None
    error: BaseException | None
    cancelled: asyncio.CancelledError | None

    def unwrap(self) -> T:
        """Return the result; an error is raised first, then the cancellation that arrived meanwhile."""
        if self.error is not None:
            raise self.error
        if self.cancelled is not None:
            raise self.cancelled
        return self.result  # type: ignore[return-value]


async def settle(work: Coroutine[Any, Any, T] | asyncio.Task[T], *, name: str | None = None) -> Settled[T]:
    """Await *work* to its end under any number of cancellations, and tell all three parts of what happened.

    The work runs in its own task, which nobody here cancels. A cancellation of the caller is remembered, not lost:
    it is in ``cancelled``, and the caller must raise it once its own state is clean. anyio's cancellation is level
    triggered, so without the shielded scope every ``await`` below would be cancelled again, in a busy loop.
    """
    task = work if isinstance(work, asyncio.Task) else asyncio.get_running_loop().create_task(work, name=name)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait((task,))  # `wait` never cancels what it waits for; awaiting the task would
            except asyncio.CancelledError as exc:
                cancelled = exc
    if task.cancelled():
        return Settled(None, asyncio.CancelledError(), cancelled)
    if (error := task.exception()) is not None:
        return Settled(None, error, cancelled)
    return Settled(task.result(), None, cancelled)


async def finish(work: Coroutine[Any, Any, T] | asyncio.Task[T], *, name: str | None = None) -> T:
    """Await *work* to its end, then raise the cancellation that arrived meanwhile, if any."""
    return (await settle(work, name=name)).unwrap()


def _observed(owner: set[asyncio.Task[Any]], what: str) -> Callable[[asyncio.Task[Any]], None]:
    def done(task: asyncio.Task[Any]) -> None:
        owner.discard(task)
        # Reading the exception is what keeps "exception was never retrieved" out of some later cell.
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.debug("%s %r failed: %r", what, task.get_name(), exc)

    return done


def own(owner: set[asyncio.Task[Any]], task: asyncio.Task[Any], what: str) -> None:
    """Put *task* into *owner* until it is done; its failure is consumed and logged at debug level."""
    owner.add(task)
    # Always through the callback, also for an eager task that is done already: the set must end empty.
    task.add_done_callback(_observed(owner, what))


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, cancel: bool = True) -> None:
    """Cancel (unless told not to) and await tasks of this loop until each is done."""
    todo = [t for t in tasks if not t.done()]
    if cancel:
        for t in todo:
            t.cancel()
    while todo := [t for t in todo if not t.done()]:
        # Not `gather`: on finished tasks it never yields on 3.12+, and a loop around it spins for ever.
        await asyncio.wait(todo)


class OwnedTasks:
    """A set of named tasks with one owner. Not thread-safe: one loop's."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def create(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start *coro* as a task that this set keeps alive and whose failure is logged."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        own(self._tasks, task, self._what)
        return task

    async def aclose(self) -> None:
        """Cancel and await all of them. Idempotent."""
        await end_tasks(tuple(self._tasks))


class LoopThread:
    """One daemon thread that runs one event loop; callable from any thread and any loop.

    Daemon, because ``threading`` joins the others before atexit handlers run, and a kernel that is being shut down
    would be killed before it could write anything.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether work can be handed to it (not closed, not inherited through fork)."""
        return self._pid == os.getpid() and self._thread.is_alive() and not self._loop.is_closed()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's own loop."""
        return self._loop

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for t in left:
                t.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run *coro* there. Returns at once; cancelling the future cancels the task.

        Raises:
            LionnbError: The thread is closed, or was inherited through ``fork``.
        """
        if not self.alive:
            coro.close()
            why = "belongs to the process it was forked from" if self._pid != os.getpid() else "is closed"
            raise LionnbError(f"the {self._name} thread {why}: open the store again in this process.")
        return asyncio.run_coroutine_threadsafe(coro, self._loop)

    async def call(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run *coro* there and await it here. Cancelled here, it still runs to its end there."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(coro)))

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop the loop, cancel what is left on it, and join the thread. Idempotent; never from its own thread."""
        if self._pid != os.getpid() or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)


def wait_for_thread(future: concurrent.futures.Future[T], timeout_s: float) -> T | None:
    """Block the calling thread for at most *timeout_s*; ``None`` when it took longer. Errors are raised."""
    try:
        return future.result(timeout_s)
    except concurrent.futures.TimeoutError:
        return None
