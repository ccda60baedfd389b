"""One turn from the lock to its tombstone: what the driver knows of it, and the one place where it closes.

`Turn.close` is synchronous and idempotent: whatever happened before it, the report is published, the pointer cleared,
the turn made a tombstone and the lock released. What comes before it, when there is something to wait for, is
`lionnb.turns.finalize`.

Source: ADR-0018 D1, D4.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from lionnb.aio import own
from lionnb.records import TurnOutcome
from lionnb.turns.context import Binding, TurnExecutionContext, TurnScope, enter_inside
from lionnb.turns.phases import Phase, step

if TYPE_CHECKING:
    from lionnb.turns.consumer import ConsumerCall
    from lionnb.turns.finalize import Finalization
    from lionnb.turns.log import TurnRow
    from lionnb.turns.state import TurnState

__all__ = ("Turn", "TurnHost", "control_data", "unfinished")

log = logging.getLogger(__name__)

_DRIVERS_KEPT = 8
_FINALIZING = Phase.FINALIZING.value  # reading an enum's value is slow enough to be seen


class TurnHost(Protocol):
    """What the driver needs from a Branch. `lionnb.branch` fulfils it; the tests have a twenty-line fake."""

    @property
    def turn_state(self) -> TurnState:
        """The Branch's one state object."""

    @property
    def turn_clean_stops(self) -> tuple[type[BaseException], ...]:
        """Exceptions that end a turn cleanly (lionagi's StopStream)."""

    def turn_label(self) -> tuple[str, str | None]:
        """The Branch's id and name."""

    def turn_model(self) -> Any:
        """The configured model of a turn that names none. Raises when there is none."""

    def turn_model_name(self, model: Any) -> str:
        """How the log calls *model*."""

    def turn_observed(self) -> bool:
        """Whether somebody observes this Branch's signals."""

    def turn_opened(self, turn: Turn) -> None:
        """The turn holds the lock; its row has no id yet, and nothing was emitted. What it raises refuses the turn."""

    def turn_closing(self, turn: Turn) -> None:
        """The turn is about to become a tombstone; ``turn.state.left`` is its row when it did not complete.

        Also of a turn that was refused when it opened.
        """

    async def turn_emit_start(self, ctx: TurnExecutionContext) -> None:
        """Emit RunStart."""

    async def turn_emit_end(self, ctx: TurnExecutionContext, *, duration_ms: float, result: Any) -> None:
        """Emit RunEnd."""

    async def turn_emit_failed(self, ctx: TurnExecutionContext, exc: BaseException) -> None:
        """Emit RunFailed."""


class Turn:
    """The driver's record of one turn. After `close` it holds its row, ``scope = None`` and a weak `origin`."""

    __slots__ = (
        "_after", "_announced", "_starting", "abandoned", "asked", "binding", "calls", "drivers", "finalization",
        "foreign_wake", "host", "lock", "loop", "nested_streams", "observed", "origin", "progress", "row", "scope",
        "since", "sources", "state", "stream", "suspended", "taps",
    )  # fmt: skip

    def __init__(
        self, host: TurnHost, state: TurnState, ctx: TurnExecutionContext, lock: asyncio.Lock, row: TurnRow
    ) -> None:
        self.host: TurnHost | None = host
        self.state: TurnState | None = state
        self.origin = weakref.ref(state)  # what is left of it in a tombstone: whose turn this was
        self.lock: asyncio.Lock | None = lock
        self.loop = asyncio.get_running_loop()
        self.row: TurnRow = row
        self.scope: TurnScope | None = TurnScope(ctx, owns_lifecycle=True)
        self.binding: Binding | None = Binding(self, ctx.model)
        self.observed = host.turn_observed()
        self.abandoned = False  # its stream was dropped without being closed
        # Whether somebody asked for the cancellation that ends it, where its own code knows (`driver.outcome_of`).
        self.asked: bool | None = None
        self.suspended = False  # its stream stands at a yield
        self.since = 0.0  # monotonic: since when it is suspended, or finalizing
        self.stream: Any = None  # weak reference to the TurnStream, if it is one
        self.drivers: set[asyncio.Task[Any]] = {ctx.owner_task}  # tasks that drive it; never nested, never awaited
        # The task without which this turn cannot go on: the owner; of a stream, whoever drives the current step.
        self.progress: asyncio.Task[Any] | None = ctx.owner_task
        self.nested_streams: set[AsyncGenerator[Any, Any]] = set()
        self.sources: list[AsyncGenerator[Any, Any]] = []  # the provider's streams, which must not outlive it either
        self.calls: set[ConsumerCall] = set()  # those of the stream's consumer that are under way
        self.foreign_wake: asyncio.Future[None] | None = None
        self.taps: tuple[Any, ...] = ()  # what the host hung on the model for this turn
        self.finalization: Finalization | None = None
        self._announced = False  # RunStart is on its way to the observers
        self._starting: asyncio.Task[None] | None = None
        self._after: list[Callable[[], None]] = []

    @property
    def context(self) -> TurnExecutionContext:
        """The context of a turn that is not yet a tombstone."""
        assert self.scope is not None, "a closed turn has no context"
        return self.scope.context

    # ------------------------------------------------------------------ for people
    def describe(self) -> str:
        """In a sentence, what somebody who waits for this turn waits for."""
        scope = self.scope
        if scope is None:
            return "the call before it"
        age, name = time.monotonic() - self.since, f"turn {(self.row.turn_id or '')[:8]} ({self.row.operation})"
        if scope.context.phase is Phase.FINALIZING:
            return f"{name}, finalizing for {age:.0f} s: waiting for {self.stragglers()}"
        if self.abandoned:
            return f"{name}: it was dropped in the middle and is being closed"
        if self.suspended:
            return (
                f"{name}: its stream is open and nobody has asked for the next item for {age:.0f} s; close it with "
                "aclose()"
            )
        return f"{name}, {scope.context.phase.value}"

    def stragglers(self) -> str:
        """What finalization waits for, counted."""
        ctx = self.context
        counts = (
            (len(unfinished(ctx.nested_tasks)), "nested task(s)"),
            (len(unfinished(ctx.signal_tasks)), "observer task(s)"),
            (len(self.nested_streams), "open nested stream(s)"),
            (len(self.open_sources()), "open provider stream(s)"),
            (len(self.calls), "call(s) of its consumer"),
        )
        return ", ".join(f"{n} {what}" for n, what in counts if n) or "a close or a terminal observer"

    # ------------------------------------------------------------------ start
    async def start(self) -> None:
        """Emit RunStart. An observer that raises is logged; the turn proceeds.

        In a task of its own, which finalization waits for: in the caller's, an observer that fails or times out just
        when the caller is cancelled would take the cancellation with it (anyio's groups and scopes do, seen with 4.16),
        and a turn that nobody wants any more would go on.
        """
        if not self.observed:
            return
        self._send_start()
        try:
            while (task := self._starting) is not None and not task.done():
                await asyncio.wait((task,))
        except asyncio.CancelledError:
            if (task := self._starting) is not None:
                self.loop.call_soon(task.cancel)  # behind its first step: whoever sees RunFailed has seen RunStart
            raise
        if task is not None and not task.cancelled():
            task.result()  # an interrupt from the keyboard ends the turn

    def _send_start(self) -> None:
        self._starting = task = self.loop.create_task(self._emit_start(), name="lionnb-run-start")
        task.add_done_callback(self._start_sent)
        own(self.context.signal_tasks, task, "RunStart")

    def _start_sent(self, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never enters its body: send it again."""
        if task.cancelled() and not self._announced and self.scope is not None:
            self._send_start()

    async def _emit_start(self) -> None:
        host, me = self.host, asyncio.current_task()
        if host is None or me is None:
            return  # the turn was given up before this first step
        self._announced = True
        enter_inside(me)
        try:
            await host.turn_emit_start(self.context)
        except asyncio.CancelledError:
            if me.cancelling():
                raise
            log.exception("an observer was cancelled during RunStart; the turn proceeds")  # nobody cancelled this task
        except Exception:
            log.exception("an observer raised during RunStart; the turn proceeds")

    def driven_by(self, task: asyncio.Task[Any]) -> None:
        """A stream's step is driven by *task* now."""
        self.progress, self.suspended = task, False
        if task not in self.drivers:
            if len(self.drivers) > _DRIVERS_KEPT:  # each step may come from a task of its own
                self.drivers = {t for t in self.drivers if not t.done()}
            self.drivers.add(task)

    def stands(self) -> None:
        """A stream has handed out an item: nobody drives it."""
        self.progress, self.suspended, self.since = None, True, time.monotonic()

    # ------------------------------------------------------------------ nested work
    def adopt_nested(self, task: asyncio.Task[Any]) -> bool:
        """Register *task*, once, as nested work that must not outlive this turn; ``False`` once it is too late."""
        ctx = self.context
        if task in self.drivers or task in ctx.nested_tasks:
            return True
        if task.get_loop() is self.loop:
            own(ctx.nested_tasks, task, "nested task")
        else:
            assert self.state is not None
            with self.state.mutex:  # finalization leaves ``active`` under it: it sees this task, or the task its end
                if ctx.phase is not Phase.ACTIVE:
                    return False
                own(ctx.nested_tasks, task, "nested task")
            # It tells our loop when it is done, so that finalization need not poll.
            task.add_done_callback(lambda _: self.call_home(self._wake_foreign))
        enter_inside(task)
        return True

    def hold(self, source: AsyncGenerator[Any, Any]) -> None:
        """Close *source*, a stream of the provider's, with this turn, unless it has ended by itself.

        One on the loop of another thread can be closed only there: cancelling the nested task that drives it does that.
        """
        if asyncio.get_running_loop() is self.loop:
            self.sources = [*self.open_sources(), source]

    def open_sources(self) -> list[AsyncGenerator[Any, Any]]:
        """Those of the provider's streams that have not ended."""
        return [source for source in self.sources if getattr(source, "ag_frame", None) is not None]

    def call_home(self, fn: Callable[[], object], context: Context | None = None) -> None:
        """Run *fn* in the turn's loop, from wherever this is called; a closed loop takes nothing any more."""
        try:
            self.loop.call_soon_threadsafe(fn, context=context)
        except RuntimeError:
            log.debug("an event loop closed before it could be told of the end of a turn")

    def _wake_foreign(self) -> None:
        if self.foreign_wake is not None and not self.foreign_wake.done():
            self.foreign_wake.set_result(None)

    # ------------------------------------------------------------------ end
    def to_finalizing(self) -> None:
        """Synchronous: no await stands between the outcome and the phase, so no control and no entry slips in."""
        ctx, state = self.context, self.state
        assert state is not None
        with state.mutex:
            ctx.phase = step(ctx.phase, Phase.FINALIZING)
            unread, ctx.control = ctx.control, None
        self.since, turn_id = time.monotonic(), self.row.turn_id
        if unread is not None:
            state.log.event("control", turn_id, fate="not consumed", **control_data(unread))
        state.log.event("phase", turn_id, phase=_FINALIZING)

    def close(self, outcome: TurnOutcome, failed: BaseException | None = None) -> None:
        """Publish the report, close, clear the pointer, release the lock. Synchronous and idempotent."""
        state, scope = self.state, self.scope
        if scope is None or state is None:
            return
        ctx = scope.context
        if outcome is not TurnOutcome.COMPLETED:
            state.left = self.row
        try:
            if self.host is not None:
                self.host.turn_closing(self)
        except Exception:
            log.exception("a turn's host failed while the turn closed")
        finally:  # a listener may be interrupted from the keyboard: the Branch is free all the same
            try:
                state.log.ended(self.row, outcome, failed)
            finally:
                self._bury(state, ctx)

    def _bury(self, state: TurnState, ctx: TurnExecutionContext) -> None:
        state.report = ctx.provider_report
        with state.mutex:
            ctx.phase = step(ctx.phase, Phase.CLOSED)
            if state.turn is self:
                state.turn = None
        self.scope = None  # the tombstone: every copied binding is stale from here on
        lock, after, work = self.lock, self._after, self.finalization
        # A task that inherited a binding may live for ever (lionagi's rate limiter does): hold nothing through it.
        self.lock = self.host = self.state = self.binding = self.stream = self.progress = None
        self.finalization = self.foreign_wake = self._starting = None
        self.drivers, self._after, self.nested_streams, self.calls = set(), [], set(), set()
        self.sources, self.taps = [], ()
        self._wake(lock, None if work is None else work.closed)
        for fn in after:
            fn()

    def _wake(self, lock: asyncio.Lock | None, closed: asyncio.Future[None] | None) -> None:
        """Release the lock and whoever waits for the end, in the loop that they belong to."""

        def wake() -> None:
            if lock is not None and lock.locked():
                lock.release()
            if closed is not None and not closed.done():
                closed.set_result(None)

        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop:
            wake()
        else:  # closed from another thread, or by the collector outside of the loop
            self.call_home(wake)

    def lose_loop(self) -> None:
        """The loop is gone, so no terminal signal is possible; the log says so and the Branch is free again."""
        if self.scope is None:
            return
        log.warning(
            "turn %s was dropped: its event loop has closed, no terminal signal could be sent", self.row.turn_id
        )
        self.close(TurnOutcome.ABANDONED, RuntimeError("its event loop closed in the middle of the turn"))

    def after(self, fn: Callable[[], None]) -> None:
        """Call *fn* (synchronous) when this turn has closed and released the lock."""
        self._after.append(fn)


def control_data(control: Any) -> dict[str, Any]:
    """The JSON values of a LoopControl."""
    directive = getattr(control, "directive", None)
    return {"directive": str(getattr(directive, "value", directive)), "reason": getattr(control, "reason", None)}


def unfinished(tasks: set[asyncio.Task[Any]], exclude: set[Any] | None = None) -> list[asyncio.Task[Any]]:
    """Those of *tasks* but *exclude* that are still to end. A task whose loop has closed never will."""
    left = [t for t in tuple(tasks) if not t.done() and not t.get_loop().is_closed()]
    return left if not exclude else [t for t in left if t not in exclude]
