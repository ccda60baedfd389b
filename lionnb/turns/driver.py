"""The turn driver: entry, the coroutine shape, and the scheduling of message signals.

Entry (ADR-0018 D2):

    call ── live binding, phase active ──────▶ nested scope: no lock, no signals
         ── live binding, phase finalizing ──▶ TurnFinalizingError: no wait, no signals
         ── no live binding ─────────────────▶ wait for the lock, visibly
                                                ├ cancelled while waiting ─▶ one row in the log, nothing else
                                                └ acquired ─▶ context, pointer, binding, RunStart, body

Nothing here knows lionagi: `TurnHost` is what a Branch gives. Everything runs in the Branch's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from uuid import uuid4

from lionnb.aio import own
from lionnb.errors import TurnFinalizingError
from lionnb.records import TurnOutcome
from lionnb.turns import context as ctxs
from lionnb.turns.consumer import as_consumer
from lionnb.turns.context import Binding, TurnExecutionContext, TurnScope
from lionnb.turns.finalize import finish, finish_later
from lionnb.turns.log import TurnRow, clip
from lionnb.turns.phases import Phase
from lionnb.turns.state import TurnState
from lionnb.turns.turn import Turn, TurnHost

__all__ = ("after_turn", "enter_nested", "open_turn", "run_in_turn", "schedule_signal")

T = TypeVar("T")
log = logging.getLogger(__name__)
PROMPT_LIMIT = 2_000
_NOTHING = contextlib.nullcontext()


# ---------------------------------------------------------------------- entry
def enter_nested(state: TurnState) -> Turn | None:
    """The turn this call is nested work of, with its task registered; ``None`` for a top-level contender.

    Raises:
        TurnFinalizingError: The turn is finalizing.
    """
    turn = state.turn
    if turn is None or turn.scope is None:
        return None
    ctx, task = turn.scope.context, asyncio.current_task()
    if ctxs.find_binding(state) is None and (task is not ctx.owner_task or turn.abandoned):
        # The exception: a wiped context (Context().run, a raw callback) inside the owner's own task is still inside
        # the turn, and a wait for the lock there could never end.
        return None
    if ctx.phase is Phase.FINALIZING or (task is not None and not turn.adopt_nested(task)):
        raise TurnFinalizingError(str(ctx.turn_id))
    return turn


def nested_binding(state: TurnState, turn: Turn, model: Any) -> Binding:
    """The binding of a nested call: its own model, or the one its caller's call has."""
    if model is None:
        outer = ctxs.find_binding(state, exported=False)
        model = outer.model if outer is not None else turn.context.model
    return Binding(turn, model)


def new_row(host: TurnHost, operation: str, prompt: str) -> TurnRow:
    """A row in the log, before the first await: a cancelled wait keeps it."""
    task = asyncio.current_task()
    assert task is not None, "a turn is entered from a task"
    branch_id, name = host.turn_label()
    row = TurnRow(operation, branch_id, name, task.get_name(), clip(prompt, PROMPT_LIMIT))
    host.turn_state.log.enter(row)
    return row


async def open_turn(
    host: TurnHost, state: TurnState, row: TurnRow, model: Any, resolve: Callable[[], Any] | None
) -> Turn:
    """Wait for the lock and open the turn. Cancelled or refused, it leaves the row and nothing else."""
    task = asyncio.current_task()
    assert task is not None, "a turn is entered from a task"
    try:
        lock = await state.acquire(row, row.branch_name or f"Branch {row.branch_id[:8]}")
    except asyncio.CancelledError as exc:
        state.log.ended(row, TurnOutcome.CANCELLED_WAITING, exc)
        raise
    except BaseException as exc:
        state.log.ended(row, TurnOutcome.REFUSED, exc)
        raise
    turn: Turn | None = None
    try:  # no await from here to the end: the lock is ours, and nobody may see it without a pointer
        chosen = model if model is not None else (resolve or host.turn_model)()
        ctx = TurnExecutionContext(uuid4(), chosen, task)
        turn = Turn(host, state, ctx, lock, row)
        if resolve is not None and turn.binding is not None:
            turn.binding.model = host.turn_model()  # what `chat_model` reads there; the operation has its own
        host.turn_opened(turn)  # it may refuse, and then no turn has begun
        state.begin(turn)
        state.log.started(row, str(ctx.turn_id), host.turn_model_name(chosen))
    except BaseException as exc:
        try:
            if turn is not None:
                host.turn_closing(turn)  # takes back what it had done when it opened
        finally:
            state.forsake(lock)
            state.log.ended(row, TurnOutcome.REFUSED, exc)
        raise
    return turn


# ---------------------------------------------------------------------- coroutines
async def run_in_turn(
    host: TurnHost,
    *,
    invoke: Callable[[TurnScope], Awaitable[T]],
    model: Any = None,
    operation: str = "turn",
    prompt: str = "",
    resolve: Callable[[], Any] | None = None,
) -> T:
    """Run *invoke* inside a turn of *host*: a new one, or nested in the one this code is already inside of.

    Cancelled while waiting, it leaves no turn; cancelled later, it is finalized first, under any number of further
    cancellations, and then raises. A cancellation that arrives after the result is fixed keeps RunEnd.

    Args:
        host: The Branch.
        invoke: The operation; it gets the scope.
        model: The call-specific model; ``None`` takes the Branch's at the moment the lock is acquired.
        operation: How log and queue name it.
        prompt: What the log shows as the turn's instruction.
        resolve: Another way to find the model (`parse` has its own).

    Raises:
        TurnFinalizingError: Called from inside a turn that is finalizing.
        TurnDeadlockError: The wait would close a cycle of turns.
        WrongLoopError: The Branch is in a turn on another live loop.

    Source: ADR-0018 D2, D4.
    """
    state = host.turn_state
    outer = enter_nested(state)
    if outer is not None:
        return await _run_nested(state, outer, model, invoke)
    turn = await open_turn(host, state, new_row(host, operation, prompt), model, resolve)
    binding = turn.binding
    assert binding is not None
    before = ctxs.push_binding(binding)
    try:
        try:
            await turn.start()
            assert turn.scope is not None
            result = await invoke(turn.scope)
        except GeneratorExit as exc:  # this coroutine was destroyed at an await: nothing may be awaited
            finish_later(turn, TurnOutcome.ABANDONED, exc)
            raise
        except BaseException as exc:
            # A clean control is RunEnd, and the caller still learns of it.
            clean = isinstance(exc, host.turn_clean_stops)
            outcome = TurnOutcome.CANCELLED if clean else outcome_of(turn, exc)
            extra = await finish(turn, outcome, None if clean else exc, unwinding=True)
            if extra is not None and isinstance(exc, Exception):
                raise extra from exc  # cancelled while a failure was finalized: the caller gets the cancellation
            raise
        extra = await finish(turn, TurnOutcome.COMPLETED, None, result=result)
        if extra is not None:
            raise extra
        return result
    finally:
        ctxs.restore_chain(binding, before)


async def _run_nested(state: TurnState, turn: Turn, model: Any, invoke: Callable[[TurnScope], Awaitable[T]]) -> T:
    call = as_consumer(turn)  # asked before the binding is pushed, which would answer for it
    binding = nested_binding(state, turn, model)
    before = ctxs.push_binding(binding)
    try:
        with call or _NOTHING:
            return await invoke(TurnScope(turn.context, owns_lifecycle=False))
    finally:
        ctxs.restore_chain(binding, before)


def outcome_of(turn: Turn, exc: BaseException) -> TurnOutcome:
    """The word for a turn that ended with *exc*, in the task that ran it.

    A CancelledError that nobody has asked this task for is a failure like any other: a provider's own, or that of a
    child that was awaited. The task's count of requests tells them apart, but anyio's task groups lose it when two come
    within one step (seen with 4.16); who knows better says so in ``turn.asked``.
    """
    task, asked = asyncio.current_task(), turn.asked
    if asked is None:
        asked = task is not None and task.cancelling() > 0
    return TurnOutcome.CANCELLED if asked and isinstance(exc, asyncio.CancelledError) else TurnOutcome.FAILED


# ---------------------------------------------------------------------- message signals
async def _emission(make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    task = asyncio.current_task()
    if task is not None:
        ctxs.enter_inside(task)
    await make()  # made here: a task that is cancelled before its first step would leave it never awaited


def schedule_signal(state: TurnState, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Emit a message signal as a task of the turn this code is inside of, or detached (ADR-0018 D3).

    A stale child's message is drained by nobody's turn. Without a running loop nothing is scheduled. Nested work on the
    loop of another thread emits in the turn's own, where the observers live: the turn drains it like any other.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    binding = ctxs.find_binding(state)
    turn, ctx = (None, None) if binding is None else (binding.turn, binding.turn.context)
    home = loop if turn is None else turn.loop
    ours = ctx is not None and ctx.phase is Phase.ACTIVE

    def begin() -> None:
        owner = ctx.signal_tasks if ours and ctx is not None and ctx.phase is not Phase.CLOSED else state.detached
        own(owner, home.create_task(_emission(make), name="lionnb-signal"), "message signal")

    if turn is None or home is loop:
        begin()
    else:
        turn.call_home(begin, contextvars.copy_context())


def after_turn(state: TurnState, fn: Callable[[], Any]) -> None:
    """Run *fn* detached, outside of every turn, once the active turn (if any) has ended.

    For observers: a call on the Branch from inside its own finalization can only fail. What *fn* raises is logged.
    It runs in the turn's loop, also when this is called by nested work on another thread's.
    """
    turn = state.turn
    loop = asyncio.get_running_loop() if turn is None or turn.scope is None else turn.loop
    context = ctxs.outside()

    async def run() -> None:
        try:
            if inspect.isawaitable(result := fn()):
                await result
        except Exception:
            log.exception("what was to run after a turn failed")

    def start() -> None:
        own(state.detached, loop.create_task(run(), name="lionnb-after-turn", context=context), "after_turn")

    if turn is None or turn.scope is None:
        start()
    else:
        turn.after(lambda: turn.call_home(start))
