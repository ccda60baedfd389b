"""The stream shape of the driver: a turn that lasts over every yield.

What makes it hold when it is iterated in one task, continued in another and closed in a third, by the collector, in
another thread, or after its loop has gone:

- The binding is pushed around each *step*, in whichever task drives it; nothing with an exit spans a yield.
- Between items the consumer sees a separate, exported binding: its own calls on the Branch are nested work.
- The inner generator is hidden from the loop's asyncgen hooks, so that the driver alone closes it; the outer one stays
  a native generator the loop knows, so that `asyncio.run` and the collector close it through the driver.
- Dropping the stream (`break`, a lost reference) marks the turn abandoned at once, in `TurnStream.__del__`, although
  the loop closes it only in a later callback: a call right after the `break` queues.

Source: ADR-0018 D2, D4 (terminal matrix).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from lionnb.errors import TurnFinalizingError, WrongLoopError
from lionnb.records import TurnOutcome
from lionnb.turns import context as ctxs
from lionnb.turns.consumer import as_consumer
from lionnb.turns.context import Binding, TurnScope, enter_inside, inside_of, leave_inside
from lionnb.turns.driver import enter_nested, nested_binding, new_row, open_turn, outcome_of
from lionnb.turns.finalize import Close, close_quietly, finish, finish_later
from lionnb.turns.phases import Phase
from lionnb.turns.state import loop_name
from lionnb.turns.turn import Turn, TurnHost

__all__ = ("TurnStream", "stream_in_turn")

T = TypeVar("T")
_NOTHING = contextlib.nullcontext()
Invoke = Callable[[TurnScope], AsyncIterator[T]]


class TurnStream(AsyncGenerator[T, Any]):
    """What a streaming operation returns. Making one acquires nothing; the turn is entered at the first step.

    Whoever started it exhausts it or closes it (``async with contextlib.aclosing(stream)``): until then the Branch is
    in this turn. Closing twice is harmless.
    """

    __slots__ = ("__weakref__", "_agen", "_closing", "_slot")

    def __init__(
        self,
        host: TurnHost,
        invoke: Invoke[T],
        model: Any,
        operation: str,
        prompt: str,
        resolve: Callable[[], Any] | None,
    ) -> None:
        self._slot: list[Turn] = []
        self._closing: asyncio.Future[None] | None = None
        # A strong reference to self there would be a cycle, and a dropped stream would live until the collector runs.
        ref = weakref.ref(self)
        self._agen: AsyncGenerator[T, Any] = _drive(ref, self._slot, host, invoke, model, operation, prompt, resolve)

    def __aiter__(self) -> TurnStream[T]:
        return self

    # Coroutines, not plain pass-through: the frame keeps a temporary stream alive for the step, and `__del__` away.
    async def __anext__(self) -> T:
        self._check_loop()
        try:
            return await self._agen.__anext__()
        except GeneratorExit:
            self._lose_step()
            raise

    async def asend(self, value: Any) -> T:
        """As a generator's; the value is ignored."""
        return await self.__anext__()

    async def athrow(self, *exc: Any) -> T:
        """As a generator's: the exception ends the turn as failed."""
        self._check_loop()
        try:
            return await self._agen.athrow(*exc)
        except GeneratorExit:
            self._lose_step()
            raise

    async def aclose(self) -> None:
        """Close the underlying stream, end the turn (RunEnd), release the Branch.

        Somebody else is closing it already: wait until that is done; what goes wrong there is raised there. Cancelled
        in that wait, it leaves the other one at work.

        Raises:
            TurnFinalizingError: Called by what that closing waits for, an observer for instance.
            RuntimeError: Another task is in the middle of a step; cancel that task.
        """
        self._check_loop()
        under_way = self._under_way()
        if under_way is not None:
            await asyncio.wait((under_way,))
            return
        self._closing = closing = asyncio.get_running_loop().create_future()
        enter_inside(closing)
        try:
            await self._agen.aclose()
        finally:
            leave_inside(closing)
            closing.set_result(None)

    def _under_way(self) -> asyncio.Future[None] | None:
        """The end of a closing that somebody else has begun; ``None`` when nobody has.

        Raises:
            TurnFinalizingError: This code runs inside of it, and would wait for itself.
        """
        turn, under_way, inside = self._slot[0] if self._slot else None, self._closing, inside_of()
        within = under_way in inside
        if turn is not None and turn.scope is not None and (work := turn.finalization) is not None:
            ctx, under_way = turn.context, work.closed  # however it came to end
            assert turn.state is not None
            within = within or ctxs.in_lineage(turn.state)
            within = within or any(t in ctx.signal_tasks or t in ctx.nested_tasks for t in inside)
        if under_way is None or under_way.done() or under_way.get_loop() is not asyncio.get_running_loop():
            return None
        if within:
            raise TurnFinalizingError("" if turn is None else turn.row.turn_id or "")
        return under_way

    def _lose_step(self) -> None:
        """The coroutine that drove a step was destroyed. Before Python 3.13 the generator is not told, and stays
        "running" for ever: nobody else would end its turn.
        """
        if self._slot and self._slot[0].scope is not None:
            finish_later(self._slot[0], TurnOutcome.ABANDONED, None)

    def _check_loop(self) -> None:
        """Refuse a step from another live loop before the generator sees it: a generator that raises is finished,
        and its turn could then not be closed by anybody.
        """
        turn, here = self._slot[0] if self._slot else None, asyncio.get_running_loop()
        if turn is not None and turn.scope is not None and turn.loop is not here and not turn.loop.is_closed():
            label = turn.row.branch_name or f"Branch {turn.row.branch_id[:8]}"
            raise WrongLoopError(label, loop_name(turn.loop), loop_name(here))

    @property
    def turn_id(self) -> str | None:
        """The id of the turn while it runs; ``None`` before the first step, nested, and after the end."""
        turn = self._slot[0] if self._slot else None
        return None if turn is None or turn.scope is None else str(turn.scope.context.turn_id)

    def __del__(self) -> None:
        if self._slot and self._slot[0].scope is not None:
            self._slot[0].abandoned = True


def stream_in_turn(
    host: TurnHost,
    *,
    invoke: Invoke[T],
    model: Any = None,
    operation: str = "stream",
    prompt: str = "",
    resolve: Callable[[], Any] | None = None,
) -> TurnStream[T]:
    """The stream of *invoke* inside a turn of *host*; arguments as `driver.run_in_turn`. Enters at the first step."""
    return TurnStream(host, invoke, model, operation, prompt, resolve)


def _first_step(inner: Any) -> Awaitable[Any]:
    """The first step, with the asyncgen hooks off: neither collector nor loop may close *inner* behind our back."""
    old = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        step: Awaitable[Any] = inner.__anext__()
        return step
    finally:
        sys.set_asyncgen_hooks(*old)


async def _drive(
    ref: weakref.ref[TurnStream[T]],
    slot: list[Turn],
    host: TurnHost,
    invoke: Invoke[T],
    model: Any,
    operation: str,
    prompt: str,
    resolve: Callable[[], Any] | None,
) -> AsyncGenerator[T, Any]:
    state = host.turn_state
    outer = enter_nested(state)
    if outer is not None:
        nested = _drive_nested(outer, nested_binding(state, outer, model), invoke)
        try:
            async for item in nested:
                yield item
        finally:
            await nested.aclose()
        return
    turn = await open_turn(host, state, new_row(host, operation, prompt), model, resolve)
    turn.stream = ref
    slot.append(turn)
    binding, exported = turn.binding, Binding(turn, None, exported=True)
    assert binding is not None
    inner: Any = None
    before: tuple[Binding, ...] = ()

    def bind() -> None:
        nonlocal before
        before = ctxs.pop_binding(exported, binding)
        ctxs.set_chain((*before, binding))
        task = asyncio.current_task()
        assert task is not None
        turn.driven_by(task)

    primary: BaseException | None = None  # what unwinds: stays primary over anything that closing raises
    outcome, failed = TurnOutcome.COMPLETED, None
    try:
        bind()
        await turn.start()
        assert turn.scope is not None
        inner = invoke(turn.scope)
        step = _first_step(inner)
        while True:
            try:
                item = await step
            except StopAsyncIteration:
                inner = None  # it ended by itself: nothing is left to close
                break
            ctxs.set_chain((*before, exported))
            turn.stands()
            yield item
            if turn.scope is None or turn.loop is not asyncio.get_running_loop():
                raise RuntimeError("this stream's turn was let go of, or its event loop has closed: start a new one")
            bind()
            step = inner.__anext__()
    except GeneratorExit as exc:
        primary = exc
        if not turn.suspended:  # the driving coroutine was destroyed, not closed: nothing may be awaited
            finish_later(turn, TurnOutcome.ABANDONED, None, close=_closer(inner))
            raise
        outcome = TurnOutcome.ABANDONED if turn.abandoned else TurnOutcome.CLOSED
    except host.turn_clean_stops:
        outcome = TurnOutcome.CANCELLED
    except BaseException as exc:
        failed = primary = exc
        outcome = outcome_of(turn, exc)
    turn.suspended = False
    await _end(turn, inner, binding, exported, outcome, failed, primary)


def _closer(inner: Any) -> Close | None:
    return None if inner is None else (lambda: close_quietly(inner))


async def _end(
    turn: Turn,
    inner: Any,
    binding: Binding,
    exported: Binding,
    outcome: TurnOutcome,
    failed: BaseException | None,
    primary: BaseException | None,
) -> None:
    """Finalize in whatever task and context closes the stream, and raise what is to be raised."""
    before = ctxs.pop_binding(exported, binding)
    if turn.scope is not None and turn.loop.is_closed():
        turn.lose_loop()
    if turn.scope is None:
        ctxs.set_chain(before)
        if inner is not None:
            await close_quietly(inner)
        if primary is not None:
            raise primary
        return
    turn.progress = asyncio.current_task()
    ctxs.set_chain((*before, binding))  # the finalizer task inherits it: an observer's call there is inside the turn
    try:
        extra = await finish(turn, outcome, failed, close=_closer(inner), unwinding=primary is not None)
    finally:
        ctxs.set_chain(before)
    if extra is not None and (primary is None or isinstance(primary, Exception | GeneratorExit)):
        raise extra from primary  # cancelled while it was finalized, or a close-time BaseException
    if primary is not None:
        raise primary


async def _drive_nested(turn: Turn, binding: Binding, invoke: Invoke[T]) -> AsyncGenerator[T, Any]:
    """A stream inside a turn: no lifecycle of its own, and closed with the turn, for no nested work outlives it."""
    scope = TurnScope(turn.context, owns_lifecycle=False)
    inner: Any = invoke(scope)
    turn.nested_streams.add(inner)
    step: Awaitable[Any] | None = None
    try:
        while True:
            task = asyncio.current_task()  # another task than the one that began may drive this step
            if scope.context.phase is not Phase.ACTIVE or (task is not None and not turn.adopt_nested(task)):
                raise TurnFinalizingError(str(scope.context.turn_id))
            call = as_consumer(turn)
            before = ctxs.push_binding(binding)
            try:
                step = _first_step(inner) if step is None else inner.__anext__()
                with call or _NOTHING:
                    item = await step
            except StopAsyncIteration:
                return
            finally:
                ctxs.restore_chain(binding, before)
            yield item
    finally:
        turn.nested_streams.discard(inner)
        if (exc := await close_quietly(inner)) is not None and sys.exc_info()[1] is None:
            raise exc
