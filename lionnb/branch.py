"""`Branch`: lionagi's, turn-aware; and `wrap`, which makes an existing one so in place.

This is the only module that knows lionagi's private names; `PRIVATE_HOOKS` lists each with the version it was read in
and why no public way serves, and the contract tests say what to do when lionagi moves.

How it fits: every operation that calls a model enters the driver (`lionnb.turns`) and then runs lionagi's own method
through ``super()``. Inside a turn, one filter at `Branch.emit` drops lionagi's bare lifecycle signals (the driver owns
them), and `Branch.chat_model` reads and writes the model of the *call* this code runs in, so lionagi's assignment in
``run`` can never become durable. `act` is no model turn and stays as it is.

Source: ADR-0018.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from lionagi.operations._observe import StopStream, emit_message
from lionagi.protocols.generic import DataLogger
from lionagi.session.branch import Branch as StockBranch
from lionagi.session.control import LoopControl, LoopDirective
from lionagi.session.signal import Signal
from pydantic import PrivateAttr

from lionnb import taps
from lionnb._display import keep, mimebundle, show
from lionnb.errors import AdoptionError, WrongLoopError
from lionnb.history import log_loose_ends, warn_of_loose_ends
from lionnb.kernel import wake_on_signals
from lionnb.offline import QuietLogger, ensure_token_data, quiet_log_config
from lionnb.operations import Operations
from lionnb.records import TurnOutcome, TurnRecord, WaiterRecord
from lionnb.signals import UPSTREAM_LIFECYCLE, RunFailed, RunStart, build_run_end
from lionnb.turns import context as ctxs
from lionnb.turns.context import TurnExecutionContext
from lionnb.turns.driver import after_turn as _after_turn
from lionnb.turns.driver import schedule_signal
from lionnb.turns.finalize import release
from lionnb.turns.log import TurnLog
from lionnb.turns.state import TurnState, loop_name
from lionnb.turns.turn import Turn, control_data

__all__ = ("PRIVATE_HOOKS", "Branch", "after_turn", "check_adoptable", "wrap")

# name -> (read in, why)
PRIVATE_HOOKS: dict[str, tuple[str, str]] = {
    "Branch._observed_run": ("0.36.0", "inside a turn the driver owns the lifecycle; a second wrapper only costs"),
    "Branch._schedule_emit": ("0.36.0", "where a message becomes a signal task: the task must belong to its turn"),
    "Branch._last_context_report": ("0.36.0", "the only place to which a provider report is published"),
    "Branch._last_context_report_fallback": ("0.36.0", "the report a wrapped Branch already had"),
    "Branch._observer": ("0.36.0", "whether anybody observes; no public reader"),
    "Branch._signal_tasks": ("0.36.0", "wrap: emissions of a call that may still be in flight"),
    "Branch._log_manager": (
        "0.36.0",
        "the logger of a clone, or of a Session's snapshot, must not write into the current folder",
    ),
    "DataLogger._config": ("0.36.0", "clone: the logger's own settings"),
    "operations._observe.StopStream": ("0.36.0", "the clean control signal of the terminal matrix"),
    "operations._observe.emit_message": ("0.36.0", "what a message signal emits"),
    "operations.run.run.run": ("0.36.0", "the facade drops this generator unclosed; the driver must close it"),
}


def _quick_reads(cls: Any) -> Any:
    """Serve the private fields of *cls* by properties: lionagi reads 20 to 130 of them a turn.

    pydantic keeps them in a dictionary that it finds only after the normal lookup has failed, which takes 1.3 us a read
    against 0.1 us. Writes stay pydantic's. This pays for what a turn costs.
    """

    def reader(name: str) -> property:
        def read(self: Any) -> Any:
            try:
                return self.__pydantic_private__[name]
            except (KeyError, TypeError):  # not built yet
                raise AttributeError(name) from None

        return property(read)

    for name in cls.__private_attributes__:
        setattr(cls, name, reader(name))
    return cls


@_quick_reads
class Branch(Operations, StockBranch):
    """A lionagi Branch on which overlapping model calls queue instead of corrupting each other.

    Every call of chat, chat_and_record, parse, operate, communicate, interpret, ReAct, ReActStream and run is a *turn*:
    one at a time, in order of arrival, each with a ``turn_id`` and exactly one RunStart and one RunEnd or RunFailed.
    Cancelled while it waits, a call leaves nothing behind; cancelled later, it is finalized first.

    Threads: a Branch belongs to the event loop of its current turn; only `control` may be called from any thread.
    Serialises as lionagi's own Branch and carries no turn state into copies.

    Source: ADR-0018.
    """

    _turns: TurnState = PrivateAttr(default_factory=functools.partial(TurnState, keep))

    # ClassVar: without it pydantic would take the names for private attributes, which adopted objects lack
    _stops: ClassVar[tuple[type[BaseException], ...]] = (StopStream,)
    _adopted: ClassVar[type[Any]] = StockBranch  # the class whose name its snapshots carry

    def __init__(self, **kw: Any) -> None:
        quiet = kw.get("log_config") is None
        if quiet:
            kw["log_config"] = quiet_log_config()
        ensure_token_data()
        wake_on_signals()
        super().__init__(**kw)
        if quiet:  # lionagi's default writes ./data/logs: at 50 entries, after `async with`, and when the process ends
            self._log_manager = QuietLogger(logs=self.logs)
        self._last_context_report = taps.ReportSlot(self._turns)

    # ------------------------------------------------------------------ reading
    @property
    def turns(self) -> TurnLog:
        """The bounded log of this Branch's turns."""
        return self._turns.log

    @property
    def turn_queue(self) -> list[WaiterRecord]:
        """Who waits for this Branch, in the order in which they will enter."""
        return self._turns.queue()

    @property
    def current_turn(self) -> TurnRecord | None:
        """The active turn as it stands; ``None`` between turns."""
        turn = self._turns.turn
        return None if turn is None or turn.scope is None else turn.row.record()

    @property
    def _turn_lock(self) -> asyncio.Lock:
        return self._turns.lock

    @property
    def _active_turn_context(self) -> TurnExecutionContext | None:
        return self._turns.context

    @property
    def last_context_report(self) -> Any:
        """Provider report of the last terminal turn; ``None`` when it had no providers. Source: ADR-0018 D5."""
        return self._turns.report

    # ------------------------------------------------------------------ what the driver asks of its host
    @property
    def turn_state(self) -> TurnState:
        """For the driver."""
        return self._turns

    @property
    def turn_clean_stops(self) -> tuple[type[BaseException], ...]:
        """For the driver."""
        return self._stops

    def turn_label(self) -> tuple[str, str | None]:
        """For the driver."""
        return str(self.id), self.name

    def turn_model(self) -> Any:
        """For the driver: the configured chat model."""
        return self.mdls.chat

    def turn_model_name(self, model: Any) -> str:
        """For the driver."""
        return taps.model_name(model)

    def turn_observed(self) -> bool:
        """For the driver."""
        return self._observer is not None

    def turn_opened(self, turn: Turn) -> None:
        """For the driver: warn of what the last turn left; hold the model's streams, and listen to them if wanted."""
        state = self._turns
        if state.left is not None:
            left, state.left = state.left, None
            if left.outcome is not TurnOutcome.CLOSED:  # who closes a stream knows what it leaves; its log names it
                warn_of_loose_ends(self, left, self._turns.teller())
        turn.taps = taps.attach(turn.context.model, chunks=state.log.chunks_wanted > 0)

    def turn_closing(self, turn: Turn) -> None:
        """For the driver."""
        taps.detach(turn.taps)
        if self._turns.left is turn.row:
            log_loose_ends(self, turn)

    async def turn_emit_start(self, ctx: TurnExecutionContext) -> None:
        """For the driver."""
        await self.emit(RunStart(turn_id=ctx.turn_id))

    async def turn_emit_end(self, ctx: TurnExecutionContext, *, duration_ms: float, result: Any) -> None:
        """For the driver."""
        await self.emit(build_run_end(self, turn_id=ctx.turn_id, duration_ms=duration_ms, result=result))

    async def turn_emit_failed(self, ctx: TurnExecutionContext, exc: BaseException) -> None:
        """For the driver."""
        await self.emit(RunFailed(turn_id=ctx.turn_id, data=exc))

    # ------------------------------------------------------------------ control
    def control(
        self, directive: LoopDirective, *, reason: str | None = None, turn_id: UUID | str | None = None
    ) -> bool:
        """Store a directive on the active turn, or nowhere. From any thread.

        ``True`` means stored, not obeyed: lionagi polls for it in the streaming operation of CLI endpoints. A directive
        that no poll point took before the turn ended is logged as *not consumed*. It is never kept for a later turn.

        Args:
            directive: A `LoopDirective` of ``lionagi.session.control``, or its value: "continue", "break", "cancel".
            reason: A note for the log.
            turn_id: The turn it is meant for; ``None`` means whichever is active.

        Raises:
            ValueError: No such directive.

        Returns:
            ``False`` when no turn is active, it is finalizing, or it is another one.

        Source: ADR-0018 D3.
        """
        control = LoopControl(LoopDirective(directive), reason)
        # An empty string, say: an explicit value that names no turn never widens to "any".
        names_one = turn_id is None or (named := _turn_named(turn_id)) is not None
        stored = names_one and self._turns.control(lambda: control, None if turn_id is None else named)
        self._turns.tell_home(self._log_control, control, "stored" if stored else "refused")
        return stored

    def poll_control(self, *, turn_id: UUID | str | None = None) -> LoopControl | None:
        """Return and clear the active turn's directive; ``None`` for work that an ended turn left behind, unless it
        names the turn. Source: ADR-0018 D3.
        """
        if turn_id is None and ctxs.left_behind(self._turns):
            return None
        named = None if turn_id is None else _turn_named(turn_id)
        if turn_id is not None and named is None:
            return None
        found: LoopControl | None = self._turns.take_control(named)
        if found is not None:
            self._log_control(found, "taken")
        return found

    async def release_turn(self, turn_id: UUID | str, *, grace_s: float = 1.0) -> bool:
        """Let go of a turn that cannot end: a finalization that hangs, or a stream that was left open.

        A person's act, for the specification waits for an observer, a nested task or a close without limit. What hangs
        is cancelled; what refuses to be cancelled is left behind and named in the log; the lock is released. Twice is
        harmless. In the Branch's loop only.

        Args:
            turn_id: The turn that is meant.
            grace_s: Seconds that each thing which is cancelled gets to end.

        Returns:
            ``False``, and nothing is done, when it is not the active turn, or its operation is still at work: cancel
            the task that runs it instead.

        Raises:
            WrongLoopError: Called from another live loop than the turn's.
        """
        turn = self._turns.turn
        if turn is None or turn.scope is None or str(turn_id) != turn.row.turn_id:
            return False
        if turn.loop is not asyncio.get_running_loop():
            raise WrongLoopError(self.name or f"Branch {self.id}", loop_name(turn.loop), "this one")
        return await release(turn, grace_s)

    def _log_control(self, control: LoopControl, fate: str) -> None:
        ctx = self._turns.context
        self._turns.log.event("control", None if ctx is None else str(ctx.turn_id), fate=fate, **control_data(control))

    # ------------------------------------------------------------------ models
    @property
    def chat_model(self) -> Any:
        """The chat model: inside a call of a turn that call's own, elsewhere the configured one (`mdls.chat`)."""
        binding = ctxs.find_binding(self._turns, exported=False)
        return self.mdls.chat if binding is None or binding.model is None else binding.model

    @chat_model.setter
    def chat_model(self, value: Any) -> None:
        binding = ctxs.find_binding(self._turns, exported=False)
        if binding is None:
            self.mdls.register_imodel("chat", value)
            return
        if binding.model is value:
            return  # lionagi's own assignment in `run` writes what the call already has
        binding.model = value
        if not self._turns.warned_model:
            self._turns.warned_model = True
            warnings.warn(
                "branch.chat_model was assigned inside a turn: it changes this call only and ends with it. To change "
                "the Branch's configuration from the next turn on, use branch.mdls.register_imodel('chat', model).",
                stacklevel=4,  # pydantic's __setattr__ stands between
            )

    # ------------------------------------------------------------------ signals
    async def emit(self, event: Any) -> list[Any]:
        """Emit to the session's observer. Inside a turn lionagi's own lifecycle signals are dropped: ours stand."""
        if isinstance(event, Signal):
            binding = ctxs.find_binding(self._turns)
            if binding is not None and not binding.exported and type(event) in UPSTREAM_LIFECYCLE:
                return []
            turn_id = None if binding is None else binding.turn.row.turn_id
            self._turns.log.event("signal", turn_id, name=type(event).__name__)
        found: list[Any] = await super().emit(event)
        return found

    async def emit_and_log(self, event: Any) -> list[Any]:
        """As lionagi's; a provider call's usage is added to its turn, also when the call failed."""
        binding = ctxs.find_binding(self._turns, exported=False)
        if binding is not None:
            taps.provider_call(binding.turn, event)
        found: list[Any] = await super().emit_and_log(event)
        return found

    async def _observed_run(self, coro: Any) -> Any:
        return await (coro if ctxs.in_lineage(self._turns) else super()._observed_run(coro))

    def _schedule_emit(self, msg: Any) -> None:
        """Lionagi's on_message_added hook: one call per message, inside the turn that made it."""
        state = self._turns
        binding = ctxs.find_binding(state)
        taps.message(state.log, None if binding is None else binding.turn, msg)
        if self._observer is not None:
            schedule_signal(state, lambda: emit_message(self, msg))

    async def drain_signals(self) -> None:
        """Outside of a turn: wait for emissions that belong to none. Inside, the driver drains."""
        state = self._turns
        if state.detached and not ctxs.in_lineage(state):
            here = asyncio.get_running_loop()
            todo = [t for t in state.detached if t.get_loop() is here and not t.done() and t not in ctxs.inside_of()]
            if todo:
                await asyncio.wait(todo)

    # ------------------------------------------------------------------ copies
    @classmethod
    def class_name(cls, full: bool = False) -> str:
        """Lionagi's own class name, so that a snapshot is readable without lionnb, and the other way round."""
        stock: type[Any] | None = cls.__dict__.get("_adopted")
        return str(super().class_name(full) if stock is None else stock.class_name(full))

    def clone(self, sender: Any = None) -> Branch:
        """As lionagi's: a turn-aware Branch with the same messages, and no turn state."""
        made = super().clone(sender)
        made = made if isinstance(made, Branch) else _adopt(made)
        loud = not isinstance(self._log_manager, QuietLogger)
        made._log_manager = DataLogger.from_config(self._log_manager._config.model_copy()) if loud else QuietLogger()
        return made

    def __copy__(self) -> Branch:
        """A shallow copy shares the history with its original, as lionagi's does, but never the turn state."""
        made: Branch = super().__copy__()
        state = TurnState(keep)
        made._turns, made._last_context_report = state, taps.ReportSlot(state)
        return made

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return mimebundle(self, include, exclude)

    def _ipython_display_(self) -> None:
        show(self)


# The nine of ADR-0018 D2.
_MODEL_OPERATIONS = tuple(name for name in vars(Operations) if not name.startswith("_"))


def after_turn(branch: Branch, fn: Callable[[], Any]) -> None:
    """Run *fn*, detached, once the Branch's active turn has ended; at once when there is none.

    For observers: inside a turn's finalization a call on its Branch raises `TurnFinalizingError`.

    Args:
        branch: A turn-aware Branch.
        fn: A function without arguments, or a coroutine function; what it raises is logged.

    Raises:
        TypeError: *branch* is none, or *fn* cannot be called: ``f()`` was given instead of ``f``, say.
    """
    needs_branch(branch, "after_turn")
    if not callable(fn):
        if inspect.iscoroutine(fn):
            fn.close()
        raise TypeError(f"after_turn() takes the function to call later, not {type(fn).__name__}: pass f, not f().")
    _after_turn(branch.turn_state, fn)


def needs_branch(branch: Any, act: str) -> None:
    """Raise TypeError unless *branch* is a turn-aware one."""
    if not isinstance(branch, Branch):
        raise TypeError(
            f"{act}() takes a lionnb.Branch (lionnb.wrap makes one of lionagi's), not {type(branch).__name__}."
        )


def quieten(branch: Branch) -> None:
    """Let a Branch that lionagi built for us write no file, at no time; what it has logged stays in memory."""
    loud = branch._log_manager
    if not isinstance(loud, QuietLogger):
        branch._log_manager = QuietLogger(logs=loud.logs)
        atexit.unregister(loud.save_at_exit)


def _turn_named(turn_id: Any) -> UUID | None:
    """The turn of this id, as lionagi's signals have it or as logs, tables and views show it; ``None``: of no turn."""
    if isinstance(turn_id, UUID):
        return turn_id
    try:
        return UUID(turn_id) if isinstance(turn_id, str) else None
    except ValueError:
        return None


@functools.cache
def _adopting(cls: type[Any]) -> type[Branch]:
    return type(
        cls.__name__,
        (Branch, cls),
        {"_adopted": cls, "__module__": cls.__module__, "__annotations__": {"_adopted": ClassVar[Any]}},
    )


_OWN = ("run", "ReActStream", "control", "poll_control")


def check_adoptable(*branches: Any) -> None:
    """Raise unless `wrap` can make each of *branches* turn-aware; changes nothing.

    Raises:
        AdoptionError: The reason.
    """
    stock = [branch for branch in branches if not isinstance(branch, Branch)]
    for branch in stock:
        if not isinstance(branch, StockBranch):
            raise AdoptionError(f"wrap() takes a lionagi Branch, not {type(branch).__name__}.")
        cls = type(branch)
        if overridden := [n for n in _OWN if getattr(cls, n) is not getattr(StockBranch, n)]:
            raise AdoptionError(
                f"{cls.__name__} overrides {' and '.join(overridden)}, which a turn-aware Branch must own: that would "
                "be bypassed without a word. Derive the class from lionnb.Branch instead."
            )
        if any(not t.done() for t in branch._signal_tasks):
            raise _in_flight(branch)
    if stock and (branch := _called(stock)) is not None:
        raise _in_flight(branch)


def _in_flight(branch: Any) -> AdoptionError:
    return AdoptionError(
        f"a call is in flight on Branch {branch.name or branch.id}, and lionnb cannot know where it stands. Await it "
        "(or close its stream), then wrap the Branch."
    )


def _called(branches: list[Any]) -> Any:
    """One of *branches* on which a stock operation has begun, in whatever task, thread or suspended stream.

    lionagi keeps no record of its calls. Their coroutines and generators do, each in its argument ``self``; the
    collector knows them all. Some 10 ms, once per adoption.
    """
    codes = {inspect.unwrap(getattr(StockBranch, name)).__code__ for name in _MODEL_OPERATIONS}
    wanted = {id(branch) for branch in branches}
    for obj in gc.get_objects():
        kind = type(obj)
        if kind is types.CoroutineType and obj.cr_code in codes:
            frame = obj.cr_frame
        elif kind is types.AsyncGeneratorType and obj.ag_code in codes:
            frame = obj.ag_frame
        else:
            continue
        if frame is not None and id(frame.f_locals.get("self")) in wanted:
            return frame.f_locals["self"]
    return None


def wrap(branch: Any) -> Branch:
    """Make a lionagi Branch turn-aware in place: same object, id, Session and closures. Twice is harmless.

    Raises:
        AdoptionError: It is no Branch; a call is in flight on it; or its class overrides what the driver must own
            (`run` and `ReActStream`, whose generators it closes; `control` and `poll_control`). Nothing was changed.
    """
    if isinstance(branch, Branch):
        return branch
    check_adoptable(branch)
    return _adopt(branch)


def _adopt(branch: Any) -> Branch:
    cls, state = type(branch), TurnState(keep)
    state.report = branch._last_context_report_fallback
    object.__setattr__(branch, "__class__", Branch if cls is StockBranch else _adopting(cls))  # type: ignore[arg-type]
    private = branch.__pydantic_private__
    private["_turns"], private["_last_context_report"] = state, taps.ReportSlot(state)
    hooks = branch.on_message_added
    for i, hook in enumerate(hooks):
        if getattr(hook, "__func__", None) is cls._schedule_emit:
            hooks[i] = branch._schedule_emit
    ensure_token_data()
    wake_on_signals()
    assert isinstance(branch, Branch)
    return branch
