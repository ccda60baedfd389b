"""The typed context of one turn, and the binding by which code knows that it runs inside one.

Why no ContextVar token: a value set before a ``yield`` leaks into the consumer of the stream, and a
reset in another task raises. So the variable holds an immutable *chain* of `Binding` objects, pushed and removed by
identity. One slot is not enough: a turn on A may hold a turn on B that calls A again, and one task may drive two
streams in turn. When a turn closes it becomes a tombstone (``turn.scope is None``), so every copy of its bindings, in
every context that ever inherited one, is stale at once; nothing has to be undone anywhere else.

Live means: binding, pointer identity and phase agree. The key is the identity of the Branch's `TurnState`, not the
Branch's id, for a restored snapshot shares its id.

Source: ADR-0018 D1, D2.
"""

from __future__ import annotations

import asyncio
import contextvars
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from lionnb.turns.phases import Phase

if TYPE_CHECKING:
    from lionnb.turns.state import TurnState
    from lionnb.turns.turn import Turn

__all__ = (
    "Binding",
    "TurnExecutionContext",
    "TurnScope",
    "find_binding",
    "in_lineage",
    "inside_of",
    "inside_turns",
    "leave_inside",
    "left_behind",
    "live_context",
    "outside",
    "pop_binding",
    "push_binding",
    "restore_chain",
)


class Ends(Protocol):
    """A task, a future, or a call with an end."""

    def done(self) -> bool:
        """Whether it has ended."""


@dataclass(slots=True)
class TurnExecutionContext:
    """Everything that belongs to one turn while it runs. Runtime only: never serialised.

    Mutable, because providers, controls and signal tasks arrive during execution. ``phase`` moves only through
    `phases.step`, and only the driver moves it.
    """

    turn_id: UUID
    model: Any
    owner_task: asyncio.Task[Any]
    phase: Phase = Phase.ACTIVE
    provider_blocks: tuple[str, ...] = ()
    provider_report: Any = None
    control: Any = None
    signal_tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    nested_tasks: set[asyncio.Task[Any]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class TurnScope:
    """What an operation gets: the turn's context, and whether it owns the turn's lifecycle."""

    context: TurnExecutionContext
    owns_lifecycle: bool


class Binding:
    """One entry of the chain: one live *call* of a turn's lineage, with the model of that call.

    ``exported`` bindings are what the consumer of a stream sees between two items: a call there is nested work of the
    turn (a wait would be for itself), but the consumer is not inside any call.
    """

    __slots__ = ("exported", "model", "turn")

    def __init__(self, turn: Turn, model: Any, *, exported: bool = False) -> None:
        self.turn, self.model, self.exported = turn, model, exported


# Innermost last.
_chain: ContextVar[tuple[Binding, ...]] = ContextVar("lionnb_turn_chain", default=())
# What this code runs inside of (signal and nested tasks, calls of a consumer, closings) and must never wait for.
_inside: ContextVar[tuple[Ends, ...]] = ContextVar("lionnb_turn_inside", default=())


def chain() -> tuple[Binding, ...]:
    """The bindings of this context, innermost last; stale ones included."""
    return _chain.get()


def set_chain(bindings: tuple[Binding, ...]) -> None:
    """Replace the chain of this context."""
    _chain.set(bindings)


def push_binding(binding: Binding) -> tuple[Binding, ...]:
    """Make *binding* the innermost one here, and return the chain that was. Stale entries fall out."""
    before = _chain.get()
    _chain.set((*(b for b in before if b is not binding and b.turn.scope is not None), binding))
    return before


def pop_binding(*bindings: Binding) -> tuple[Binding, ...]:
    """Return the chain without *bindings* and without stale entries; sets nothing."""
    return tuple(b for b in _chain.get() if b not in bindings and b.turn.scope is not None)


def restore_chain(binding: Binding, before: tuple[Binding, ...]) -> None:
    """Put *before* back if *binding* is bound here. In another context there is nothing to undo."""
    if any(b is binding for b in _chain.get()):
        _chain.set(before)


def find_binding(state: TurnState, *, exported: bool = True) -> Binding | None:
    """The innermost binding whose turn is the active one of *state* (any phase); ``None`` outside of it."""
    bindings = _chain.get()
    if not bindings:
        return None
    for b in reversed(bindings):
        turn = b.turn
        if turn.scope is None or turn.state is not state or state.turn is not turn:
            continue
        # A dropped stream's consumer is no longer its consumer: the next call must queue behind the close.
        if b.exported and (turn.abandoned or not exported):
            continue
        return b
    return None


def live_context(state: TurnState, *phases: Phase) -> TurnExecutionContext | None:
    """The context this code runs in, if binding, active pointer and phase (default: active) agree."""
    b = find_binding(state)
    if b is None or b.turn.scope is None:
        return None
    ctx = b.turn.scope.context
    return ctx if ctx.phase in (phases or (Phase.ACTIVE,)) else None


def in_lineage(state: TurnState) -> bool:
    """Whether this code runs inside the turn's own body, children or finalizer (its stream's consumer does not)."""
    return find_binding(state, exported=False) is not None


def left_behind(state: TurnState) -> bool:
    """Whether this code is work that an ended turn of *state* left behind, and inside of no live one."""
    return any(b.turn.scope is None and b.turn.origin() is state for b in _chain.get()) and find_binding(state) is None


def inside_turns() -> tuple[Turn, ...]:
    """The turns this code runs inside of, of any Branch, outermost first; the consumer of an open stream is inside."""
    found = dict.fromkeys(
        b.turn for b in _chain.get() if b.turn.scope is not None and not (b.exported and b.turn.abandoned)
    )
    return tuple(found)


def inside_of() -> tuple[Ends, ...]:
    """What this code runs inside of, and whose end it must not wait for."""
    return _inside.get()


def enter_inside(what: Ends) -> None:
    """Record, in this context and what it spawns, that the code runs inside of *what*."""
    cur = _inside.get()
    if what not in cur:
        _inside.set((*(t for t in cur if not t.done()), what))


def leave_inside(what: Ends) -> None:
    """Undo `enter_inside` in this context."""
    _inside.set(tuple(t for t in _inside.get() if t is not what))


def outside() -> contextvars.Context:
    """A copy of this context that is inside of no turn and of no task: for work that must not belong to either."""
    copy = contextvars.copy_context()
    copy.run(_chain.set, ())
    copy.run(_inside.set, ())
    return copy
