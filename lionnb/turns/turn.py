"""One turn from the lock to its tombstone. The only place where a turn ends.

Finalization (`_finalize`) runs in its own task and is awaited to its end under any number of cancellations, asyncio's
and anyio's. It never waits for a task that it runs inside of: an observer that closes the stream it observes must not
wait for itself. The last step, `close`, is synchronous and idempotent: whatever happens before it, the report is
published, the pointer cleared, the turn made a tombstone and the lock released.

Source: ADR-0018 D4.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from lionnb.aio import own
from lionnb.records import TurnOutcome
from lionnb.turns.context import Binding, TurnExecutionContext, TurnScope, enter_inside, inside_of
from lionnb.turns.phases import Phase, step

if TYPE_CHECKING:
    from lionnb.turns.log import TurnRow
    from lionnb.turns.state import TurnState

__all__ = ("Turn", "TurnHost", "close_quietly")

log = logging.getLogger(__name__)


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
        """The turn holds the lock; nothing was emitted yet. Must not raise."""

    def turn_closing(self, turn: Turn) -> None:
        """The turn is about to become a tombstone; undo what `turn_opened` did. Must not raise."""

    async def turn_emit_start(self, ctx: TurnExecutionContext) -> None:
        """Emit RunStart."""

    async def turn_emit_end(self, ctx: TurnExecutionContext, *, duration_ms: float, result: Any) -> None:
        """Emit RunEnd."""

    async def turn_emit_failed(self, ctx: TurnExecutionContext, exc: BaseException) -> None:
        """Emit RunFailed."""


Close = Callable[[], Awaitable[BaseException | None]]


class Turn:
    """The driver's record of one turn. After `close` it holds nothing but ``scope = None``."""

    __slots__ = (
        "_after", "_closed", "_finalizer", "_terminal_emitted", "abandoned", "binding", "drivers", "foreign_wake",
        "host", "lock", "loop", "nested_streams", "observed", "phase_since", "progress", "row", "scope", "state", "stream",
        "suspended", "tap",
    )  # fmt: skip

    def __init__(
        self, host: TurnHost, state: TurnState, ctx: TurnExecutionContext, lock: asyncio.Lock, row: TurnRow
    ) -> None:
        self.host: TurnHost | None = host
        self.state: TurnState | None = state
        self.lock: asyncio.Lock | None = lock
        self.loop = asyncio.get_running_loop()
        self.row: TurnRow = row
        self.scope: TurnScope | None = TurnScope(ctx, owns_lifecycle=True)
        self.binding: Binding | None = Binding(self, ctx.model)
        self.observed = host.turn_observed()
        self.abandoned = False  # its stream was dropped without being closed
        self.suspended = False  # its stream stands at a yield
        self.stream: Any = None  # weak reference to the TurnStream, if it is one
        self.drivers: set[asyncio.Task[Any]] = {ctx.owner_task}  # tasks that drove a step; never nested, never awaited
        # The task without which this turn cannot go on: the owner; of a stream, whoever drives the current step.
        self.progress: asyncio.Task[Any] | None = ctx.owner_task
        self.nested_streams: set[AsyncGenerator[Any, Any]] = set()
        self.foreign_wake: asyncio.Future[None] | None = None
        self.phase_since = time.monotonic()
        self.tap: Any = None  # what the host hung on the model for this turn
        self._terminal_emitted = False
        self._after: list[Callable[[], None]] = []
        self._finalizer: asyncio.Task[None] | None = None
        self._closed: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ reading
    @property
    def context(self) -> TurnExecutionContext:
        """The context of a turn that is not yet a tombstone."""
        assert self.scope is not None, "a closed turn has no context"
        return self.scope.context

    def describe(self) -> str:
        """In a sentence, what somebody who waits for this turn waits for."""
        if self.scope is None:
            return "the call before it"
        ctx, age = self.scope.context, time.monotonic() - self.phase_since
        name = f"turn {str(ctx.turn_id)[:8]} ({self.row.operation})"
        if ctx.phase is Phase.FINALIZING:
            return f"{name}, finalizing for {age:.0f} s: {self._stragglers()}"
        if self.abandoned:
            return f"{name}: its stream was dropped and is being closed"
        if self.suspended:
            return f"{name}: its stream is open and nobody has asked for the next item for {age:.0f} s; close it with aclose()"
        return f"{name}, {ctx.phase.value}"

    def _stragglers(self) -> str:
        ctx = self.context
        parts = [
            f"{n} {what}"
            for n, what in (
                (sum(not t.done() for t in ctx.nested_tasks), "nested task(s)"),
                (sum(not t.done() for t in ctx.signal_tasks), "observer task(s)"),
                (len(self.nested_streams), "open nested stream(s)"),
            )
            if n
        ]
        return "waiting for " + (", ".join(parts) or "a close or a terminal observer")

    # ------------------------------------------------------------------ start
    async def start(self) -> None:
        """Emit RunStart. An observer that raises is logged; the turn proceeds."""
        if not self.observed:
            return
        assert self.host is not None
        try:
            await self.host.turn_emit_start(self.context)
        except Exception:
            log.exception("an observer raised during RunStart; the turn proceeds")

    # ------------------------------------------------------------------ nested work
    def adopt_nested(self, task: asyncio.Task[Any]) -> None:
        """Register *task*, once, as nested work that must not outlive this turn."""
        ctx = self.context
        if task in self.drivers or task in ctx.nested_tasks:
            return
        enter_inside(task)
        own(ctx.nested_tasks, task, "nested task")
        if task.get_loop() is not self.loop:
            # A task of another thread's loop: it tells ours when it is done, so that finalization need not poll.
            task.add_done_callback(lambda _: self.call_home(self._wake_foreign))

    def call_home(self, fn: Callable[[], object]) -> None:
        """Run *fn* in the turn's loop, from wherever this is called; a closed loop takes nothing any more."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(fn)

    def _wake_foreign(self) -> None:
        if self.foreign_wake is not None and not self.foreign_wake.done():
            self.foreign_wake.set_result(None)

    # ------------------------------------------------------------------ end
    async def finish(
        self,
        outcome: TurnOutcome,
        failed: BaseException | None,
        *,
        result: Any = None,
        close: Close | None = None,
        unwinding: bool = False,
    ) -> BaseException | None:
        """Finalize exactly once; return what the caller must raise: a cancellation that arrived meanwhile, or a
        close-time BaseException that is not secondary to something that unwinds already.

        Args:
            outcome: The word for the log.
            failed: The exception RunFailed carries; ``None`` means RunEnd.
            result: What RunEnd carries.
            close: Closes the underlying stream; an Exception is suppressed there, a BaseException returned.
            unwinding: The caller re-raises an exception of its own, which stays primary.
        """
        ctx = self.context
        self._to_finalizing(ctx)
        exclude = {*inside_of(), *self.drivers, asyncio.current_task()}
        if not (
            self.observed or close or self.nested_streams or _unfinished(ctx.nested_tasks, exclude) or ctx.signal_tasks
        ):
            self.close(outcome, failed)  # nothing to wait for: no task, no await
            return None
        self._closed = closed = self.loop.create_future()
        extra: list[BaseException] = []
        work = self._finalize(outcome, failed, result, close, exclude, unwinding, extra)
        self._finalizer = self.loop.create_task(work, name=f"lionnb-finalize-{ctx.turn_id.hex[:8]}")
        cancelled = await _wait_through(closed)
        if unwinding:
            for exc in extra:  # secondary to what unwinds; a cancellation of the caller is not
                log.debug("closing the stream raised %r while another exception was unwinding", exc)
            return cancelled
        return cancelled or (extra[0] if extra else None)

    def _to_finalizing(self, ctx: TurnExecutionContext) -> None:
        """Synchronous: no await stands between the outcome and the phase, so no control and no entry slips in."""
        assert self.state is not None
        with self.state.mutex:
            ctx.phase = step(ctx.phase, Phase.FINALIZING)
            unread, ctx.control = ctx.control, None
        self.phase_since = time.monotonic()
        turn_id = str(ctx.turn_id)
        if unread is not None:
            self.state.log.event("control", turn_id, fate="not consumed", **control_data(unread))
        self.state.log.event("phase", turn_id, phase=Phase.FINALIZING.value)

    async def _finalize(
        self,
        outcome: TurnOutcome,
        failed: BaseException | None,
        result: Any,
        close: Close | None,
        exclude: set[asyncio.Task[Any] | None],
        unwinding: bool,
        extra: list[BaseException],
    ) -> None:
        """The steps, in the specification's order. Each may be interrupted (a loop that shuts down, `release`); the next follows.

        1. Close the underlying stream. 2. Cancel and await nested tasks. 3. Close nested streams: they are no tasks, and
        one that a nested task is iterating can be closed only once that task has gone. 4. Drain this turn's message
        signals. 5. Attempt the terminal signal. 6. Close, synchronously.
        """
        ctx = self.context
        exclude.add(asyncio.current_task())
        try:
            if close is not None:  # 1
                await self._stage(self._close_stream(close, extra))
                if extra and not unwinding:
                    outcome, failed = TurnOutcome.FAILED, failed or extra[0]
            await self._stage(self._settle(ctx.nested_tasks, exclude, cancel=True))  # 2
            await self._stage(self._close_nested_streams())  # 3
            await self._stage(self._settle(ctx.signal_tasks, exclude, cancel=False))  # 4
            await self._stage(self._terminal(failed, result))  # 5
        finally:
            self.close(outcome, failed)  # 6

    async def _stage(self, work: Awaitable[None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            log.debug("finalization was interrupted; the next step follows")

    async def _close_stream(self, close: Close, extra: list[BaseException]) -> None:
        exc = await close()
        if exc is not None:
            extra.append(exc)

    async def _close_nested_streams(self) -> None:
        for stream in list(self.nested_streams):
            await close_quietly(stream)

    async def _settle(
        self, tasks: set[asyncio.Task[Any]], exclude: set[asyncio.Task[Any] | None], *, cancel: bool
    ) -> None:
        """Wait until nothing of *tasks* but *exclude* is left. Tasks may belong to another thread's loop."""
        told: set[asyncio.Task[Any]] = set()  # cancelled once each: a task may need several steps to clean up
        while todo := _unfinished(tasks, exclude):
            local = [t for t in todo if t.get_loop() is self.loop]
            foreign = [t for t in todo if t.get_loop() is not self.loop]
            if cancel:
                for t in local:
                    if t not in told:
                        t.cancel()
                for t in foreign:
                    if t not in told:
                        t.get_loop().call_soon_threadsafe(t.cancel)
                told.update(todo)
            waits: list[asyncio.Future[Any]] = [*local]
            if foreign:
                self.foreign_wake = self.loop.create_future()
                if any(t.done() for t in foreign):
                    continue  # it ended before the wake-up was there to be set
                waits.append(self.foreign_wake)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED if foreign else asyncio.ALL_COMPLETED)

    async def _terminal(self, failed: BaseException | None, result: Any) -> None:
        if self._terminal_emitted or not self.observed:
            return
        self._terminal_emitted = True  # before the attempt: a terminal observer that fails gets no second one
        host, ctx = self.host, self.context
        assert host is not None
        try:
            if failed is None:
                ms = (time.monotonic() - self.row.started_mono) * 1000.0
                await host.turn_emit_end(ctx, duration_ms=ms, result=result)
            else:
                await host.turn_emit_failed(ctx, failed)
        except Exception:
            log.exception("an observer raised during the terminal signal; the outcome is preserved")

    def close(self, outcome: TurnOutcome, failed: BaseException | None = None) -> None:
        """Publish the report, close, clear the pointer, release the lock. Synchronous, idempotent, never raises."""
        state, scope = self.state, self.scope
        if scope is None or state is None:
            return
        ctx = scope.context
        try:
            if self.host is not None:
                self.host.turn_closing(self)
            state.log.ended(self.row, outcome, failed)
        finally:
            state.report = ctx.provider_report
            ctx.phase = step(ctx.phase, Phase.CLOSED)
            with state.mutex:
                if state.turn is self:
                    state.turn = None
            self.scope = None  # the tombstone: every copied binding is stale from here on
            lock, after, closed = self.lock, self._after, self._closed
            # A task that inherited a binding may live for ever (lionagi's rate limiter does): hold nothing through it.
            self.lock = self.host = self.state = self.binding = self.stream = self.tap = self.progress = None
            self.drivers, self._after, self.nested_streams = set(), [], set()
            self._release(lock)
            if closed is not None and not closed.done() and not self.loop.is_closed():
                closed.set_result(None)
            for fn in after:
                fn()

    def _release(self, lock: asyncio.Lock | None) -> None:
        if lock is None or not lock.locked():
            return
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop:
            lock.release()
        else:  # closed from another thread, or by the collector outside of the loop
            self.call_home(lock.release)

    def lose_loop(self) -> None:
        """The loop is gone, so no terminal signal is possible; the log says so and the Branch is free again."""
        log.warning(
            "turn %s was dropped: its event loop has closed, no terminal signal could be sent", self.context.turn_id
        )
        self.lock = None  # it is bound to the dead loop, and the Branch has already turned to a new one
        self.close(TurnOutcome.ABANDONED, RuntimeError("its event loop closed in the middle of the turn"))

    # ------------------------------------------------------------------ from outside
    def after(self, fn: Callable[[], None]) -> None:
        """Call *fn* (synchronous) when this turn has closed and released the lock."""
        self._after.append(fn)

    async def release(self) -> None:
        """Let go of a finalization that hangs: cancel the stragglers, finish the steps. A person's act (DESIGN T5).

        Work that refuses to be cancelled is left behind, named in the log; the lock is released all the same.
        """
        ctx, finalizer = self.context, self._finalizer
        log.warning("turn %s is let go of by hand: %s", ctx.turn_id, self._stragglers())
        for t in _unfinished(ctx.signal_tasks | ctx.nested_tasks, set()):
            t.cancel()
        for _ in range(64):  # each cancellation moves it on by at least one step, unless a step refuses
            if self.scope is None or finalizer is None or finalizer.done():
                break
            finalizer.cancel()
            await asyncio.sleep(0)
        self.close(TurnOutcome.ABANDONED, RuntimeError("let go of by hand"))


def control_data(control: Any) -> dict[str, Any]:
    """The JSON values of a LoopControl."""
    directive = getattr(control, "directive", None)
    return {"directive": str(getattr(directive, "value", directive)), "reason": getattr(control, "reason", None)}


def _unfinished(tasks: set[asyncio.Task[Any]], exclude: set[asyncio.Task[Any] | None]) -> list[asyncio.Task[Any]]:
    return [t for t in list(tasks) if t not in exclude and not t.done() and not t.get_loop().is_closed()]


async def _wait_through(closed: asyncio.Future[None]) -> asyncio.CancelledError | None:
    """Wait for *closed* under any number of cancellations; return the last one that arrived.

    The future, not the finalizer task: `Turn.release` may end a turn whose finalizer refuses to end.
    """
    cancelled: asyncio.CancelledError | None = None
    # anyio's cancellation is level triggered: without the shield each await here is cancelled again, in a busy loop.
    with anyio.CancelScope(shield=True):
        while not closed.done():
            try:
                await asyncio.wait((closed,))
            except asyncio.CancelledError as exc:
                cancelled = exc
    return cancelled


async def close_quietly(agen: Any) -> BaseException | None:
    """``aclose()``: an Exception is logged and suppressed, a BaseException returned (ADR-0018 D4)."""
    aclose = getattr(agen, "aclose", None)
    if aclose is None:
        return None
    try:
        await aclose()
    except RuntimeError as exc:
        if "already running" in str(exc):
            # Somebody else is inside of it; cancelling nested tasks, the next step, is what ends that somebody.
            return None
        log.debug("closing a stream raised %r", exc)
    except Exception as exc:
        log.debug("closing a stream raised %r", exc)
    except BaseException as exc:
        return exc
    return None
