"""Waits that can never end: a cycle of turns, each of whose owner tasks waits for the next one.

A call knows the turns it is inside of; the driver knows which Branch each waiting task waits for. A walk from the
wanted turn over the tasks whose progress each turn needs (`Turn.progress`), as long as those are themselves waiting, is a
straight line, for a task waits for one lock at a time. When it comes back to the calling task, this entry would close a cycle and raises; the others go on.

Only the owner counts (for a stream: the task that drives the current step; none while it is suspended). A child task of a turn may be awaited by nobody,
and a wait under a timeout ends by itself: such cycles are shown in the queue, never raised.

Source: DESIGN section 4, "Deadlock is an error, not a silence".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lionnb.errors import TurnDeadlockError

if TYPE_CHECKING:
    from lionnb.turns.log import TurnRow
    from lionnb.turns.state import TurnState

__all__ = ("check_cycle", "waiting_for")

# Which Branch each task waits for, over all Branches of the process. Entries live as long as the wait.
_waits: WeakKeyDictionary[asyncio.Task[Any], TurnState] = WeakKeyDictionary()


@contextmanager
def waiting_for(state: TurnState, task: asyncio.Task[Any]) -> Iterator[None]:
    """Record the wait. Held over the acquisition only, never over a yield of a stream."""
    _waits[task] = state
    try:
        yield
    finally:
        _waits.pop(task, None)


def check_cycle(state: TurnState, me: asyncio.Task[Any], row: TurnRow) -> None:
    """Raise if waiting for *state* would close a cycle of owner tasks.

    Raises:
        TurnDeadlockError: Naming the cycle, in the order of the waits.
    """
    turn, names = state.turn, [f"{row.operation} on {row.branch_name or row.branch_id[:8]}"]
    seen: set[int] = set()
    while turn is not None and turn.scope is not None and id(turn) not in seen:
        seen.add(id(turn))
        ctx = turn.scope.context
        names.append(
            f"turn {str(ctx.turn_id)[:8]} ({turn.row.operation} on {turn.row.branch_name or turn.row.branch_id[:8]})"
        )
        if turn.progress is me:
            raise TurnDeadlockError((*names, names[0]))
        if turn.progress is None or turn.progress not in _waits:
            return  # it moves, or nobody can say what it waits for
        turn = _waits[turn.progress].turn
