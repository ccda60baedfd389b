"""How a turn ends when there is something to wait for.

Finalization runs in a task of its own and is awaited to its end under any number of cancellations, asyncio's and
anyio's. It never waits for a task that it runs inside of: an observer that closes the stream it observes must not wait
for itself. Whatever a step meets, the next one follows, and the last one is `Turn.close`.

Source: ADR-0018 D4.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from lionnb.aio import own
from lionnb.records import TurnOutcome
from lionnb.turns.context import inside_of, outside, push_binding
from lionnb.turns.phases import Phase
from lionnb.turns.turn import unfinished

if TYPE_CHECKING:
    from lionnb.turns.consumer import ConsumerCall
    from lionnb.turns.turn import Turn

__all__ = ("Close", "Finalization", "close_quietly", "finish", "finish_later", "release")

log = logging.getLogger(__name__)

Close = Callable[[], Awaitable[BaseException | None]]

# A nested task of another thread's loop tells ours when it is done; a loop that is closed under it cannot.
_FOREIGN_LOOK_S = 1.0


class Finalization:
    """The steps, in the specification's order.

    1. Close the underlying stream. 2. Cancel and await nested tasks, and the calls that a consumer makes between items:
    another task may close the stream meanwhile. 3. Close nested streams, and those that the provider still has open:
    they are no tasks, and one that a nested task is iterating can be closed only once that task has gone. 4. Drain this
    turn's message signals. 5. Attempt the terminal signal; it is attempted once, whatever its observers do. Then close,
    synchronously.
    """

    __slots__ = (
        "_began", "_calls", "_close", "_cut", "_exclude", "_failed", "_outcome", "_result", "_step", "_task", "_turn",
        "_unwinding", "closed", "extra",
    )  # fmt: skip

    def __init__(
        self,
        turn: Turn,
        outcome: TurnOutcome,
        failed: BaseException | None,
        result: Any,
        close: Close | None,
        exclude: set[Any],
        calls: list[ConsumerCall],
        *,
        unwinding: bool,
    ) -> None:
        self._turn, self._outcome, self._failed, self._result = turn, outcome, failed, result
        self._close, self._exclude, self._unwinding = close, exclude, unwinding
        self._step, self._began = 0, False  # `_step` only moves forward: so no step, the terminal too, is made twice
        self._calls = calls
        self._cut: set[Any] = set()  # tasks and steps that `interrupt` has cancelled
        self._task: asyncio.Task[None] | None = None
        self.closed: asyncio.Future[None] = turn.loop.create_future()
        self.extra: BaseException | None = None  # a close-time BaseException

    def start(self) -> None:
        """Begin, or go on with the current step, in a new task."""
        name = f"lionnb-finalize-{(self._turn.row.turn_id or '')[:8]}"
        self._task, self._began = None, False
        self._task = task = self._turn.loop.create_task(self._run(), name=name)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never enters its body: begin again."""
        if task.cancelled() and self._task is task and not self._began and self._turn.scope is not None:
            self.start()

    async def _run(self) -> None:
        self._began = True
        turn, ctx, me = self._turn, self._turn.context, asyncio.current_task()
        self._exclude.add(me)
        steps: tuple[Callable[[], Awaitable[None]], ...] = (
            self._close_stream,  # 1
            self._end_nested,  # 2
            self._close_streams,  # 3
            lambda: self._settle(ctx.signal_tasks, cancel=False),  # 4
            self._terminal,  # 5
        )
        try:
            while self._step < len(steps) and turn.scope is not None:
                try:
                    await steps[self._step]()
                except asyncio.CancelledError:  # a loop that shuts down, or `interrupt`
                    log.debug("step %d of a finalization was interrupted; the next one follows", self._step + 1)
                if self._task not in (None, me):
                    return  # it was left behind and has come back: another task has gone on
                self._step += 1
        finally:
            if self._task in (None, me):
                turn.close(self._outcome, self._failed)

    async def _close_stream(self) -> None:
        if self._close is None:
            return
        extra = await self._close()
        me = asyncio.current_task()
        if isinstance(extra, asyncio.CancelledError) and me is not None and me.cancelling():
            raise extra  # this task was interrupted: that is not the stream's own failure
        self.extra = extra
        if extra is not None and not self._unwinding:
            self._outcome, self._failed = TurnOutcome.FAILED, self._failed or extra

    async def _end_nested(self) -> None:
        calls = [c for c in self._calls if not c.done()]
        for call in calls:
            call.cut()
        await self._settle(self._turn.context.nested_tasks, cancel=True)
        for call in calls:
            if not call.done():
                await asyncio.wait((call.ended,))

    async def _close_streams(self) -> None:
        for stream in (*self._turn.nested_streams, *self._turn.open_sources()):
            await close_quietly(stream)

    async def _settle(self, tasks: set[asyncio.Task[Any]], *, cancel: bool) -> None:
        """Wait until nothing of *tasks* is left. Tasks may belong to another thread's loop."""
        turn, told = self._turn, set[asyncio.Task[Any]]()  # cancelled once each: cleaning up may take several steps
        while todo := unfinished(tasks, self._exclude):
            if cancel:
                _cancel([t for t in todo if t not in told])
                told.update(todo)
            foreign = [t for t in todo if t.get_loop() is not turn.loop]
            if not foreign:
                await asyncio.wait(todo)
                continue
            turn.foreign_wake = turn.loop.create_future()
            if not any(t.done() for t in foreign):  # else it ended before the wake-up was there to be set
                waits = [turn.foreign_wake, *(t for t in todo if t.get_loop() is turn.loop)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=_FOREIGN_LOOK_S)
            await asyncio.sleep(0)  # what they had sent to this loop before they ended (message signals) comes first

    async def _terminal(self) -> None:
        turn = self._turn
        if not turn.observed:
            return
        host, ctx = turn.host, turn.context
        assert host is not None
        try:
            if self._failed is None:
                ms = (time.monotonic() - turn.row.started_mono) * 1000.0
                await host.turn_emit_end(ctx, duration_ms=ms, result=self._result)
            else:
                await host.turn_emit_failed(ctx, self._failed)
        except Exception:
            log.exception("an observer raised during the terminal signal; the outcome is preserved")

    def interrupt(self) -> None:
        """Move on by hand: cancel what the current step waits for; then the step; then leave the step behind."""
        if not self._began:
            return  # nothing hangs yet
        ctx = self._turn.context
        todo = [t for t in unfinished(ctx.nested_tasks | ctx.signal_tasks) if t not in self._cut]
        if todo:
            _cancel(todo)
            self._cut.update(todo)
        elif self._step not in self._cut and self._task is not None:
            self._cut.add(self._step)
            self._task.cancel()
        else:
            log.warning("turn %s: step %d refuses to end and is left behind", self._turn.row.turn_id, self._step + 1)
            self._step += 1
            self.start()


def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    here = asyncio.get_running_loop()
    for t in tasks:
        if t.get_loop() is here:
            t.cancel()
        else:
            with contextlib.suppress(RuntimeError):  # that loop has closed meanwhile
                t.get_loop().call_soon_threadsafe(t.cancel)


async def finish(
    turn: Turn,
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
        turn: The turn; its binding is innermost here, so that what its observers call knows where it is.
        outcome: The word for the log.
        failed: The exception RunFailed carries; ``None`` means RunEnd.
        result: What RunEnd carries.
        close: Closes the underlying stream; an Exception is suppressed there, a BaseException returned.
        unwinding: The caller re-raises an exception of its own, which stays primary.
    """
    interrupt: BaseException | None = None
    try:
        turn.to_finalizing()
    except BaseException as exc:  # a KeyboardInterrupt in a listener of the log: raised when the turn has ended
        interrupt = exc
    work = _begin(turn, outcome, failed, result, close, unwinding=unwinding)
    cancelled = None if work is None else await _wait_through(work.closed)
    if interrupt is not None:
        raise interrupt
    if work is None:
        return None
    if unwinding:
        if work.extra is not None:  # secondary to what unwinds; a cancellation of the caller is not
            log.debug("closing the stream raised %r while another exception was unwinding", work.extra)
        return cancelled
    return cancelled or work.extra


def _begin(
    turn: Turn,
    outcome: TurnOutcome,
    failed: BaseException | None,
    result: Any,
    close: Close | None,
    *,
    unwinding: bool,
) -> Finalization | None:
    ctx = turn.context
    me = asyncio.current_task()
    exclude: set[Any] = {*inside_of(), *turn.drivers, me}
    # No further one can begin. One that this code runs inside of waits for this code.
    calls = [c for c in turn.calls if c not in exclude and c.task is not me]
    waits = turn.observed or close or calls or turn.nested_streams or ctx.signal_tasks or turn.open_sources()
    if not (waits or unfinished(ctx.nested_tasks, exclude)):
        turn.close(outcome, failed)  # nothing to wait for: no task, no await
        return None
    work = Finalization(turn, outcome, failed, result, close, exclude, calls, unwinding=unwinding)
    turn.finalization = work
    work.start()
    return work


def finish_later(turn: Turn, outcome: TurnOutcome, failed: BaseException | None, *, close: Close | None = None) -> None:
    """Finalize a turn whose driving coroutine was destroyed at an await, where nothing can be awaited.

    From any thread: the collector destroys where it happens to run. On a closed loop no signal is possible.
    """
    if turn.loop.is_closed() or turn.binding is None:
        turn.lose_loop()
        return
    turn.abandoned = True
    context = contextvars.copy_context()
    context.run(push_binding, turn.binding)

    def begin() -> None:
        if turn.scope is not None and turn.context.phase is Phase.ACTIVE:
            turn.to_finalizing()
            work = Finalization(turn, outcome, failed, None, close, {*turn.drivers}, [*turn.calls], unwinding=True)
            turn.finalization = work
            work.start()

    turn.call_home(begin, context)


async def _wait_through(closed: asyncio.Future[None]) -> asyncio.CancelledError | None:
    """Wait for *closed* under any number of cancellations; return the last one that arrived.

    The future, not the task that finalizes: `Finalization.interrupt` may leave that one behind.
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
    except Exception as exc:
        # Also "already running": somebody else is inside of it, and cancelling nested tasks ends that somebody.
        log.debug("closing a stream raised %r", exc)
    except BaseException as exc:
        return exc
    return None


async def release(turn: Turn, grace_s: float) -> bool:
    """Let go of a turn that cannot end: close its suspended stream, or cut each finalization step that hangs.

    A person's act. Each thing that is cancelled gets *grace_s* seconds; what refuses is left behind, named
    in the log. ``False``, and nothing is done, while the turn's operation is still at work: cancel its task instead.
    """
    if turn.scope is None:
        return False
    if turn.context.phase is Phase.ACTIVE:
        stream = turn.stream() if turn.stream is not None else None
        if not turn.suspended or stream is None:
            return False
        log.warning("turn %s is let go of by hand: its stream was left open", turn.row.turn_id)
        assert turn.state is not None
        closing = turn.loop.create_task(stream.aclose(), name="lionnb-release", context=outside())
        own(turn.state.detached, closing, "release")
        await asyncio.wait((closing,), timeout=grace_s)
    if turn.scope is not None:
        log.warning("turn %s is let go of by hand: it waits for %s", turn.row.turn_id, turn.stragglers())
    while turn.scope is not None and (work := turn.finalization) is not None:
        work.interrupt()
        await asyncio.wait((work.closed,), timeout=grace_s)
    return turn.scope is None
