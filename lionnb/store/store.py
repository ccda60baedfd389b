"""The store as the rest of the package uses it: from any thread and any loop. Imports no database library.

One daemon thread with one loop (the control thread) owns the engine, because the main loop is blocked whenever a cell
computes, and a steer must be recorded then too. SQLAlchemy is imported there, at the first use.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from lionnb.aio import LoopThread, finish
from lionnb.errors import StoreError
from lionnb.store.lease import TTL_S
from lionnb.store.leglock import LegLocks
from lionnb.store.location import Location, locate
from lionnb.store.watch import Watcher, Watchers

if TYPE_CHECKING:
    from lionnb.store.core import StoreCore
    from lionnb.store.wake import Wake

__all__ = ("Store", "default_store")

log = logging.getLogger(__name__)

AGAIN_S = 30.0  # between the tries of what must be written sometime
T = TypeVar("T")
Work = Callable[["StoreCore"], Coroutine[Any, Any, T]]


class Store:
    """A control database behind one thread. Costs nothing until its first use.

    Args:
        url: A path, ``:memory:`` or a ``postgresql://`` URL; ``None`` asks ``LIONNB_DB``, then takes the user data
            folder.
        wait_s: Seconds that an operation waits for another program's lock.
    """

    def __init__(self, url: str | os.PathLike[str] | None = None, *, wait_s: float = 10.0) -> None:
        self.location: Location = locate(url)
        self._wait_s = wait_s
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._hearts: set[concurrent.futures.Future[Any]] = set()
        self._watchers = Watchers()
        self._core: StoreCore | None = None
        self._wake: Wake | None = None
        self._opening = asyncio.Lock()  # of the control thread's loop, which it meets at its first wait

    def __repr__(self) -> str:
        return f"Store({self.location!r}{', closed' if self._closed else ''})"

    @property
    def closed(self) -> bool:
        """Whether it takes no more work: closed, or inherited through ``fork``."""
        return self._closed or self._pid != os.getpid()

    def submit(self, work: Work[T]) -> concurrent.futures.Future[T]:
        """Run ``work(core)`` on the control thread; returns at once, from any thread.

        Cancelling the future stops *work* between the core's operations; each of those still reaches its end.

        Raises:
            StoreError: The store is closed, or was inherited through ``fork``.
        """
        with self._lock:
            if self._pid != os.getpid():
                raise StoreError(
                    "this store belongs to the process that this one was forked from: open another one here, with "
                    "lionnb.store.Store(...)."
                )
            if self._closed:
                raise StoreError("this store is closed: open another one with lionnb.store.Store(...).")
            future = self._control_thread().submit(self._run(work))
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    async def run(self, work: Work[T]) -> T:
        """Run ``work(core)`` on the control thread and await it here. Cancelled here, it still runs to its end there.

        Raises:
            StoreError: The store is closed, or the database failed.
        """
        return await asyncio.shield(asyncio.wrap_future(self.submit(work)))

    def watch(self, session_id: str | None, fn: Watcher) -> Callable[[], None]:
        """Call *fn* with every control of the run (``None``: of any run) that changes, whoever changes it.

        It is called on the control thread and must hand over at once; what it raises is logged. Changes of this store
        are told in the order of their commits, and at once; those of other processes as soon as they are heard of, each
        state once (see ``store.wake``), from the first use of this store on. Returns what stops it, from any thread,
        idempotent.
        """
        unwatch = self._watchers.add(session_id, fn)
        self._watch_changed()

        def stop() -> None:
            unwatch()
            self._watch_changed()

        return stop

    def _watch_changed(self) -> None:
        with self._lock:
            if self.closed or self._thread is None:  # a store that nobody uses costs nothing
                return
            followed = self._thread.submit(self._follow())
            self._pending.add(followed)
        followed.add_done_callback(self._pending.discard)

    async def _follow(self) -> None:
        async with self._opening:
            if self._wake is not None:
                await self._wake.follow()

    def keep_alive(self, session_id: str, leg: str, *, ttl_s: float = TTL_S) -> Callable[[], None]:
        """Renew the lease of a run whose leg lives in this process, three times in each *ttl_s*, until told to stop.

        It beats on the control thread, so a main loop that is blocked by a cell changes nothing; and it stops by itself
        when the run was ended or taken over. Never raises; a store that fails is tried again at the next beat.
        Returns what stops it, from any thread, idempotent.
        """
        with self._lock:
            if self.closed or self.location.kind == "memory":  # where nobody else can ask
                return lambda: None
            heart = self._control_thread().submit(self._beat(session_id, leg, ttl_s / 3))
            self._hearts.add(heart)
        heart.add_done_callback(self._hearts.discard)

        def stop() -> None:
            heart.cancel()

        return stop

    def beside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        """Run ``work()`` on the control thread beside the store's own work, until it ends or is told to stop.

        For what must go on while a cell blocks the main loop. Opens no database. Never raises: where no thread can run
        it (a closed store), it does not run. Returns what stops it, from any thread, idempotent.
        """
        with self._lock:
            if self.closed:
                return lambda: None
            running = self._control_thread().submit(work())
            self._hearts.add(running)
        running.add_done_callback(self._hearts.discard)

        def stop() -> None:
            running.cancel()

        return stop

    def keep_trying(self, work: Work[T]) -> concurrent.futures.Future[T]:
        """Run ``work(core)`` on the control thread every half a minute until it does not fail, or the store closes.

        For what has to be written sometime although the database fails now: nothing waits for it, also not `close`.
        From any thread; never raises. *work* must be harmless when it was done before.
        """
        with self._lock:
            if self.closed:
                never: concurrent.futures.Future[T] = concurrent.futures.Future()
                never.cancel()
                return never
            trying = self._control_thread().submit(self._again_and_again(work))
            self._hearts.add(trying)
        trying.add_done_callback(self._hearts.discard)
        return trying

    async def _again_and_again(self, work: Work[T]) -> T:
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                return await self._run(work)
            except StoreError as exc:
                log.debug("the control database fails still: %s", exc)

    def close(self, timeout_s: float = 5.0) -> None:
        """Take no more work, let what was submitted finish (for at most *timeout_s* seconds), close the connections.

        Idempotent. A store inherited through ``fork`` is left alone.

        Raises:
            StoreError: Called on the control thread, which cannot wait for itself.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._thread is not None and self._thread.loop is _loop_here():
                raise StoreError(
                    "the control thread cannot close the store that it runs: close it from another thread."
                )
            self._closed = True
            thread, self._thread = self._thread, None
            pending, hearts = tuple(self._pending), tuple(self._hearts)
        if thread is None:
            return
        for heart in hearts:
            heart.cancel()
        until = time.monotonic() + timeout_s
        concurrent.futures.wait(pending, timeout=timeout_s)
        concurrent.futures.wait((thread.submit(self._dispose()),), timeout=max(0.1, until - time.monotonic()))
        thread.close()

    def _control_thread(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread("lionnb-control")
        return self._thread

    async def _beat(self, session_id: str, leg: str, every_s: float) -> None:
        locks = LegLocks(self.location.address) if self.location.kind == "file" else None
        held: int | None = None
        ours = False
        try:
            with contextlib.suppress(StoreError):
                await self._opened()  # the lock lies beside the database: its folder is made with that
            while True:
                # The first beat was the registration of the run.
                if held is None and locks is not None:
                    held = locks.try_hold(leg)
                await asyncio.sleep(every_s)
                try:
                    was_ours, ours = ours, await (await self._opened()).heartbeat(session_id, leg, time.time())
                except StoreError as exc:
                    log.debug("the lease of run %s could not be renewed: %s", session_id, exc)
                    continue
                if was_ours and not ours:
                    return  # ended, or taken over: it is nobody's heart any more
        finally:
            if locks is not None:
                locks.release(leg, held)

    async def _run(self, work: Work[T]) -> T:
        return await work(await self._opened())

    async def _opened(self) -> StoreCore:
        async with self._opening:
            if self._core is None:
                await finish(self._open(), name="store.open")  # half an opening would leave a connection behind
            assert self._core is not None
            return self._core

    async def _open(self) -> None:
        from lionnb.store.core import StoreCore

        core = await StoreCore.open(self.location, watchers=self._watchers, wait_s=self._wait_s)
        self._core, self._wake = core, core.make_wake()
        if self._wake is not None:
            await self._wake.follow()

    async def _dispose(self) -> None:
        async with self._opening:
            core, self._core = self._core, None
            wake, self._wake = self._wake, None
            if wake is not None:
                await wake.aclose()
            if core is not None:
                await core.aclose()


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_stores: dict[Location, Store] = {}
_stores_lock = threading.Lock()


def default_store(url: str | os.PathLike[str] | None = None) -> Store:
    """Return this process's store for *url*: the same one for the same database, from any thread.

    A closed one, or one inherited through ``fork``, is replaced.
    """
    where = locate(url)
    with _stores_lock:
        store = _stores.get(where)
        if store is None or store.closed:
            store = _stores[where] = Store(url)
        return store


@atexit.register
def _close_default_stores() -> None:
    """Close what the process leaves open. Registered before the legs' handler, so it runs after it: they write last."""
    with _stores_lock:
        stores = tuple(_stores.values())
    for store in stores:
        store.close(1.0)


def _after_fork() -> None:
    """Another thread may have held the lock at the fork; nobody would ever release it here."""
    global _stores_lock
    _stores_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
