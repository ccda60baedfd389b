"""Cancellation at every step: the test that finds what a cancelled task leaves behind. Needs asyncio only.

How a step is counted
    A step is one callback that the event loop runs: a task's step or wake-up, a future's callback, a timer, a
    hand-over from another thread. Callbacks are what asyncio interleaves, so "before callback *k*" is every
    point at which some other code could have cancelled: also the points where the result is there, the task
    is woken, and has not run yet. Those lose a lock that was just handed over, or a row that was just
    claimed, and they never show when a task is only cancelled between its own awaits. Readers of sockets are
    not counted (nobody can know how many bytes arrive at once); what they wake is.

    The count uses no clock, and is taken on the loop's public methods, under asyncio's own C tasks, which are
    cancelled with ``Task.cancel`` as anybody would. With other threads in play the order of callbacks may
    differ between runs, the set of points hardly: each hand-over is one callback, whenever it comes.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from lionnb.testing.leaks import leftover_tasks

__all__ = ("Outcome", "World", "cancel_at_every_step")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of a scenario ended.

    ``delivered`` is how many cancellations reached the task before it was done: 0 is the run that finished
    first.
    """

    step: int
    delivered: int
    value: Any = None
    error: BaseException | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the run ended with the cancellation."""
        return isinstance(self.error, asyncio.CancelledError)


class World(Protocol):
    """What a scenario makes: everything fresh, for one run.

    It may have a ``victim()`` besides, which returns the task to cancel, or ``None`` while there is none yet;
    without it the task that runs `run` is cancelled. It may have an ``aclose()``, awaited last.
    """

    def run(self) -> Coroutine[Any, Any, Any]:
        """The work that is cancelled at every step."""

    def check(self, outcome: Outcome) -> Any:
        """Assert what must hold however `run` ended; may be async, and is not cancelled."""


class _SteppingLoop(asyncio.SelectorEventLoop):
    """A loop that tells how many callbacks it has begun, and calls ``before`` ahead of each."""

    before: Callable[[], None] | None = None

    def _counted(self, callback: Callable[..., Any], *args: Any) -> None:
        if self.before is not None:
            self.before()
        callback(*args)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._counted, callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._counted, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._counted, callback, *args, context=context)


@dataclass(eq=False)
class _Plan:
    """Cancels *victim* before the callbacks number ``step``, ``step + gap``, … and counts."""

    step: int
    cancels: int
    gap: int
    seen: int = 0
    delivered: int = 0
    victim: Callable[[], asyncio.Task[Any] | None] = lambda: None

    def __call__(self) -> None:
        ahead, self.seen = self.seen - self.step, self.seen + 1
        if ahead < 0 or ahead % self.gap or ahead // self.gap >= self.cancels:
            return
        task = self.victim()
        if task is not None and task.cancel(f"step {self.seen - 1}"):
            self.delivered += 1


def cancel_at_every_step(
    scenario: Callable[[], Awaitable[World]],
    *,
    cancels: int = 1,
    gap: int = 1,
    stride: int = 1,
    max_steps: int = 2000,
    hang_s: float = 20.0,
    debug: bool = False,
) -> int:
    """Run a scenario again and again, cancelled one step later each time, until it finishes before that.

    After each run `World.check` is called, and the run must have left no task and no complaint to the loop's
    exception handler (an exception nobody retrieved, a task destroyed while pending). Every run has a loop
    and a world of its own. Called while a loop runs in this thread, it works in a thread of its own and
    blocks until it is done.

    Args:
        scenario: Makes a fresh world. Not cancelled.
        cancels: How many cancellations each run gets.
        gap: Steps between them.
        stride: Steps between the points of successive runs; more than 1 is a sample.
        max_steps: More steps than this are a failure: the scenario is too large to be tried at every step.
        hang_s: Seconds after which a run that does not end fails, with what it waits for. Never decides what
            passes.
        debug: asyncio's debug mode (ten times slower).

    Returns:
        How many points were tried, so that a test can assert that it did something.

    Raises:
        AssertionError: A check failed, or the run hung or left something; a note names the step.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return _in_thread(
            lambda: cancel_at_every_step(
                scenario,
                cancels=cancels,
                gap=gap,
                stride=stride,
                max_steps=max_steps,
                hang_s=hang_s,
                debug=debug,
            )
        )
    tried = 0
    complaints: list[str] = []
    for step in range(0, max_steps, stride):
        plan = _Plan(step, cancels, gap)
        try:
            _run_once(scenario, plan, complaints, hang_s=hang_s, debug=debug)
            assert not complaints, f"the loop's exception handler was told: {complaints}"
        except BaseException as exc:
            exc.add_note(f"at cancellation step {step}: {cancels} cancellation(s), {gap} step(s) apart")
            raise
        tried += plan.delivered > 0
        if plan.seen <= step:
            gc.collect()  # what only the collector would have complained about
            assert not complaints, f"the loop's exception handler was told: {complaints}"
            return tried
    raise AssertionError(f"the scenario had not finished after {max_steps} steps; {tried} points were tried.")


def _in_thread(work: Callable[[], T]) -> T:
    box: list[T | BaseException] = []

    def run() -> None:
        try:
            box.append(work())
        except BaseException as exc:
            box.append(exc)

    thread = threading.Thread(target=run, name="cancel-at-every-step")
    thread.start()
    thread.join()
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]


def _run_once(
    scenario: Callable[[], Awaitable[World]],
    plan: _Plan,
    complaints: list[str],
    *,
    hang_s: float,
    debug: bool,
) -> None:
    loop = _SteppingLoop()
    loop.set_debug(debug)
    loop.set_exception_handler(
        lambda _loop, context: complaints.append(f"{context.get('message')} {context.get('exception')!r}")
    )
    try:
        loop.run_until_complete(_drive(loop, scenario, plan, hang_s))
    finally:
        loop.before = None
        loop.run_until_complete(_wind_down(loop))
        loop.close()


async def _drive(loop: _SteppingLoop, scenario: Callable[[], Awaitable[World]], plan: _Plan, hang_s: float) -> None:
    world = await scenario()
    task = loop.create_task(world.run(), name="scenario")
    victim = getattr(world, "victim", None)
    plan.victim = victim if victim is not None else lambda: task
    loop.before = plan
    # Not `await task`: a cancellation must reach the task alone, never this driver.
    done, _ = await asyncio.wait((task,), timeout=hang_s)
    loop.before = None
    assert done, f"run() hangs, {plan.delivered} cancellation(s) delivered; it waits here:\n{_where(loop)}"
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    outcome = Outcome(plan.step, plan.delivered, None if error is not None else task.result(), error)
    try:
        checked = world.check(outcome)
        if inspect.isawaitable(checked):
            await checked
    finally:
        if (aclose := getattr(world, "aclose", None)) is not None:
            await aclose()
    left = leftover_tasks()
    assert not left, f"tasks were left behind: {left}"


def _where(loop: asyncio.AbstractEventLoop) -> str:
    lines = []
    for task in asyncio.all_tasks(loop) - {asyncio.current_task()}:
        at: Any = cast(Any, task.get_coro())
        trail = []
        while at is not None:
            frame = getattr(at, "cr_frame", None) or getattr(at, "ag_frame", None)
            trail.append(f"{getattr(at, '__qualname__', at)}:{frame.f_lineno if frame else '?'}")
            at = getattr(at, "cr_await", None) or getattr(at, "ag_await", None)
        lines.append(f"  {task.get_name()}: " + " → ".join(trail))
    return "\n".join(lines)


async def _wind_down(loop: asyncio.AbstractEventLoop) -> None:
    # Bounded, unlike asyncio.Runner: a task that cannot be cancelled is the failure to report, not a reason
    # to hang.
    left = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=1.0)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
