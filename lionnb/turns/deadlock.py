"""Waits that can never end: a cycle of turns, each of which cannot go on before the next one has ended.

Two readings, and only the first one raises:

- *Certain.* From the wanted turn over the task without which it cannot go on (`Turn.progress`: its owner; of a stream,
  whoever drives the current step), as long as that task is itself waiting. A task waits for one lock at a time, so the
  walk is a straight line, and the entry that would close a cycle is the last moment at which it can be refused.
- *Possible.* The same walk over every waiter that runs *inside* a turn: its child tasks, its observers, the consumer
  of its open stream. Nobody may be waiting for a child, and somebody may close the stream: it is shown, never raised.

A cycle in which one wait is under a timeout ends by itself: it is a possible one. anyio tells the deadline of the
current scope. asyncio keeps no register of its timeouts; `_under_asyncio_timeout` asks the collector for them, once,
when a certain cycle has already been found. What cannot be known is a parent that will cancel the waiting task
(``wait_for`` on 3.11 is one): when such a task owns its turn, the entry raises.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from lionnb.errors import TurnDeadlockError

if TYPE_CHECKING:
    from lionnb.turns.state import Waiter
    from lionnb.turns.turn import Turn

__all__ = ("check_cycle", "possible_cycles", "waiting")

log = logging.getLogger(__name__)

# Who waits, over all Branches of the process. Entries live as long as the wait, and hold neither task nor Branch.
_waits: WeakKeyDictionary[asyncio.Task[Any], ReferenceType[Waiter]] = WeakKeyDictionary()


@contextmanager
def waiting(waiter: Waiter) -> Iterator[None]:
    """Record the wait. Held over the acquisition only, never over a yield of a stream."""
    _waits[waiter.task] = ref(waiter)
    try:
        yield
    finally:
        _waits.pop(waiter.task, None)


def _waiter_of(task: asyncio.Task[Any] | None) -> Waiter | None:
    found = None if task is None else _waits.get(task)
    return None if found is None else found()


def _label(turn: Turn) -> str:
    return f"turn {(turn.row.turn_id or '')[:8]} ({turn.row.operation} on {_branch(turn.row)})"


def _branch(row: Any) -> str:
    return row.branch_name or f"Branch {row.branch_id[:8]}"


def check_cycle(waiter: Waiter) -> None:
    """Raise if this wait would close a certain cycle; log it, once, if it would close a possible one.

    Raises:
        TurnDeadlockError: Naming the cycle, in the order of the waits.
    """
    cycle = _certain_cycle(waiter)
    if cycle is not None:
        waits, names = cycle
        if not any(w.timed for w in waits) and not _under_asyncio_timeout({w.task for w in waits}):
            raise TurnDeadlockError(names)
    elif not waiter.inside:
        return  # it holds nothing that anybody could wait for
    text = possible_cycles([waiter]).get(waiter)
    if text is not None:
        log.warning("%s", text)
        waiter.state.log.event("warning", None, text=text)


def _certain_cycle(waiter: Waiter) -> tuple[list[Waiter], tuple[str, ...]] | None:
    turn = waiter.state.turn
    waits, names, seen = [waiter], [f"{waiter.row.operation} on {_branch(waiter.row)}"], set[int]()
    while turn is not None and turn.scope is not None and id(turn) not in seen:
        seen.add(id(turn))
        names.append(_label(turn))
        if turn.progress is waiter.task:
            return waits, (*names, names[0])
        found = _waiter_of(turn.progress)
        if found is None:
            return None  # it moves, or nobody can say what it waits for
        waits.append(found)
        turn = found.state.turn
    return None


def possible_cycles(asked: list[Waiter]) -> dict[Waiter, str]:
    """For each waiter that runs inside of a turn that cannot end before its wait does: the sentence to show."""
    inside = [w for w in asked if w.inside]
    if not inside:
        return {}
    holds: dict[Turn, list[Waiter]] = {}  # turn -> the waits of what runs inside of it
    for entry in list(_waits.values()):
        w = entry()
        for turn in () if w is None else w.inside:
            assert w is not None
            holds.setdefault(turn, []).append(w)
    found = {w: _path(w, holds) for w in inside}
    return {
        w: "this wait may never end: " + " → ".join((f"{w.row.operation} on {_branch(w.row)}", *map(_label, path)))
        for w, path in found.items()
        if path
    }


def _path(waiter: Waiter, holds: dict[Turn, list[Waiter]]) -> list[Turn]:
    """The turns on the way from what *waiter* waits for back to a turn it is inside of; empty when there is none."""
    start = waiter.state.turn
    came: dict[Turn, Turn | None] = {} if start is None else {start: None}
    todo = list(came)
    for turn in todo:  # grows while it is walked: breadth first, so the shortest way is told
        if turn.scope is None:
            continue
        if turn in waiter.inside:
            path: list[Turn] = [turn]
            while (before := came[path[-1]]) is not None:
                path.append(before)
            return path[::-1]
        for w in holds.get(turn, ()):
            after = w.state.turn
            if after is not None and after not in came:
                came[after] = turn
                todo.append(after)
    return []


def _under_asyncio_timeout(tasks: set[asyncio.Task[Any]]) -> bool:
    """Whether one of *tasks* is inside of a running ``asyncio.timeout`` (from 3.12 on, ``wait_for`` is one).

    A Timeout that runs holds its task and a timer that is not cancelled; neither is asked for by a private name.
    """
    for obj in gc.get_objects():
        if type(obj) is not asyncio.Timeout or obj.when() is None:
            continue
        held = list(vars(obj).values())  # not `obj._task`: the name is asyncio's own affair
        if any(v in tasks for v in held if isinstance(v, asyncio.Task)) and any(
            isinstance(v, asyncio.Handle) and not v.cancelled() for v in held
        ):
            return True
    return False
