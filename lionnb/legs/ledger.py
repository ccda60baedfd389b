"""A leg's line to the store: its calls in order, its run registered before the first of them, its waits unbreakable.

Why a line: the claim, the report and the end of one leg must reach the database in the order in which the leg decided
them, also when one of them is slow and the leg has stopped waiting for it. Why registration comes with the first call:
a store that cannot be opened now may answer later, and the leg becomes steerable then.

Why the waits here need no task: at the end of ``asyncio.run`` *every* task is cancelled, helpers included. A wait for
another thread's answer has nothing between it and the answer that anybody could cancel.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lionnb.errors import LionnbError
from lionnb.records import SessionSpec
from lionnb.store.store import Store

__all__ = ("TRIES", "Answer", "Ledger", "call_in", "hand_over", "outlast", "wait_for")

T = TypeVar("T")
log = logging.getLogger(__name__)

TRIES = 3  # answers, or waits for one, after which a leg takes it that the store will not do it
ASKED_AGAIN = "the control database is asked again: %s"
PAUSE_S = 0.5  # before the second try, and twice that before the third: a server that restarts needs a moment


def hand_over(loop: asyncio.AbstractEventLoop, fn: Callable[[], object]) -> None:
    """Call *fn* in *loop*, from any thread. On a closed loop nobody is left to be called."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(fn)


def call_in(loop: asyncio.AbstractEventLoop, fn: Callable[[], object]) -> None:
    """Call *fn* in *loop*, from any thread; at once, if this code runs in it."""
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        fn()
    else:
        hand_over(loop, fn)


async def wait_for(future: concurrent.futures.Future[T]) -> T:
    """Await another thread's answer. Cancelled here, the work and the answer are untouched; from any loop.

    Not ``shield(wrap_future(…))``: an abandoned one complains in the other thread when its loop has closed since.
    """
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    future.add_done_callback(lambda _: hand_over(loop, woken.set))
    await woken.wait()
    return future.result()


async def outlast(
    future: concurrent.futures.Future[Any], limit_s: float | None = None
) -> asyncio.CancelledError | None:
    """Wait until *future* is done or *limit_s* has passed, under any number of cancellations; return the last one.

    The caller must raise it once its own state is clean.
    """
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    future.add_done_callback(lambda _: hand_over(loop, woken.set))
    timer = None if limit_s is None else loop.call_later(limit_s, woken.set)
    cancelled: asyncio.CancelledError | None = None
    while not woken.is_set():
        try:
            await woken.wait()
        except asyncio.CancelledError as exc:
            cancelled = exc
    if timer is not None:
        timer.cancel()
    return cancelled


async def _pause(seconds: float) -> asyncio.CancelledError | None:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError as exc:
        return exc
    return None


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What the store answered, or in a sentence why it did not; and the cancellation that arrived meanwhile."""

    result: T | None
    problem: str | None
    cancelled: asyncio.CancelledError | None


def problem_of(future: concurrent.futures.Future[Any]) -> str | None:
    """In a sentence, why there is no result; ``None`` when there is one."""
    if not future.done():
        return "the control database has not answered yet"
    if future.cancelled():
        return "the control database was closed before it answered"
    error = future.exception()
    if error is None:
        return None
    if not isinstance(error, LionnbError):  # a bug, ours or a driver's: it must not end an agent's run
        log.error("the control database failed unexpectedly", exc_info=error)
        return f"the control database failed unexpectedly ({type(error).__name__})"
    return str(error)


class Ledger:
    """See the module. `submit` from any thread; the rest from the leg's loop.

    Args:
        store: Where it is all recorded.
        spec: Makes the run's row at the moment it is written.
        registered: The row is there already, and this leg's.
    """

    def __init__(self, store: Store, spec: Callable[[], SessionSpec], *, registered: bool = False) -> None:
        self._store, self._spec = store, spec
        self._line = asyncio.Lock()  # of the control thread's loop, which it meets at its first wait
        self._registered = registered
        self._asked_again = False
        self._said: str | None = None  # the problem that was told last, while nothing has succeeded since
        self._pending: set[concurrent.futures.Future[Any]] = set()

    @property
    def registered(self) -> bool:
        """Whether the run's row is written."""
        return self._registered

    def submit(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Run ``work(core)`` on the control thread, after everything submitted before. Never raises."""
        try:
            future = self._store.submit(lambda core: self._in_line(core, work))
        except LionnbError as exc:
            future = concurrent.futures.Future()
            future.set_exception(exc)
            return future
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    async def _in_line(self, core: Any, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        async with self._line:
            if not self._registered:
                await core.start_session(self._spec(), time.time())
                self._registered = True
            result = await work(core)
            self._said = None
            return result

    def register(self) -> concurrent.futures.Future[None]:
        """Write the run's row, if nothing else has done so yet."""

        async def nothing(_core: Any) -> None:
            return None

        return self.submit(nothing)

    async def ask(self, work: Callable[[Any], Coroutine[Any, Any, T]], limit_s: float | None = None) -> Answer[T]:
        """As `submit`, and await the answer for at most *limit_s* seconds. Raises nothing, also when cancelled."""
        future = self.submit(work)
        cancelled = await outlast(future, limit_s)
        problem = problem_of(future)
        return Answer(future.result() if problem is None else None, problem, cancelled)

    async def insist(
        self,
        work: Callable[[Any], Coroutine[Any, Any, T]],
        limit_s: float | None,
        *,
        sent: Callable[[concurrent.futures.Future[T]], object] = lambda _: None,
        enough: Callable[[], bool] = lambda: False,
        last: bool = False,
    ) -> Answer[T]:
        """As `ask`, and once more when the store fails: three times, with a second and a half between them.

        A store that does not answer is not asked twice (the second would only stand in line behind the first): it is
        waited for again. So with a limit of 10 this takes half a minute at most. Whoever cancels wants an end: what has
        been asked is waited for, and then it is over; only the *last* thing that a leg has to say is said once more
        where the store fails, without a pause.

        Args:
            work: As for `submit`; it must be harmless when it has been done before and only the answer was lost.
            limit_s: How long each wait lasts.
            sent: Told of every submission.
            enough: Asked before each new try: whether it is not wanted any more.
            last: Whether nobody says it again.
        """
        cancelled: asyncio.CancelledError | None = None
        left, future = TRIES, self.submit(work)
        sent(future)
        while True:
            cancelled = await outlast(future, limit_s) or cancelled
            left -= 1
            failed, problem = future.done(), problem_of(future)
            if problem is None or not left or (cancelled is not None and not (last and failed)):
                return Answer(future.result() if problem is None else None, problem, cancelled)
            if failed and cancelled is None and not self._store.closed:
                cancelled = await _pause(PAUSE_S * (TRIES - left))
            if enough() or self._store.closed or (cancelled is not None and not last):
                return Answer(None, problem, cancelled)
            if failed:
                # Once a leg: each of its last writes would say it twice more, and what failed is said at the end.
                log.log(logging.DEBUG if self._asked_again else self._level(problem), ASKED_AGAIN, problem)
                self._asked_again = True
                future = self.submit(work)
                sent(future)

    def keep_trying(self, works: Sequence[Callable[[Any], Coroutine[Any, Any, Any]]]) -> None:
        """Have *works* done, in their order and each until it does not fail, as long as the store is open.

        Nobody waits for it. For a leg that is over in this process and whose last words the store did not take: its
        process lives on, so nothing else would ever end its run.
        """
        left = list(works)

        async def rest(core: Any) -> None:
            while left:
                await self._in_line(core, left[0])
                del left[0]

        self._store.keep_trying(rest)

    def _level(self, problem: str | None) -> int:
        """Of a line about *problem*: a warning the first time, and again after something has succeeded."""
        told, self._said = self._said == problem, problem
        return logging.DEBUG if told else logging.WARNING

    def warn(self, sentence: str, problem: str) -> None:
        """Log a *sentence* about *problem*; bookkeeping that fails for the same reason is not told again."""
        self._said = problem
        log.warning("%s: %s", sentence, problem)

    def note(self, work: Callable[[Any], Coroutine[Any, Any, Any]], what: str) -> None:
        """As `submit`, for bookkeeping that nobody waits for: a failure is logged, with *what* it was."""

        def done(future: concurrent.futures.Future[Any]) -> None:
            if (problem := problem_of(future)) is not None:
                log.log(self._level(problem), "%s could not be recorded: %s", what, problem)

        self.submit(work).add_done_callback(done)

    async def idle(self) -> None:
        """Return once everything that was submitted is answered, whatever the answer. Cancelled, nothing changes."""
        loop = asyncio.get_running_loop()
        while pending := tuple(self._pending):
            woken = asyncio.Event()
            pending[0].add_done_callback(lambda _, woken=woken: hand_over(loop, woken.set))  # type: ignore[misc]
            await woken.wait()

    def flush(self, timeout_s: float) -> None:
        """Block this thread until what was submitted is done; for a process that is about to end."""
        concurrent.futures.wait(tuple(self._pending), timeout=timeout_s)
