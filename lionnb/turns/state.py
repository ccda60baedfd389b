"""What a Branch carries of its turns: the lock, the queue, the pointer to the active turn, the last report.

One plain object per Branch, because each read of a pydantic private attribute costs about 2 us and the driver reads
this one at every entry. It is runtime state: copies, pickles and clones of a Branch get a fresh one.

Threads: everything here belongs to the Branch's home loop, except `control` and `take_control`, which any thread may
call, and the pointer, which two loops may race for; both are guarded by ``mutex``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio

from lionnb.errors import WrongLoopError
from lionnb.records import WaiterRecord
from lionnb.turns.context import inside_turns
from lionnb.turns.deadlock import check_cycle, possible_cycles, waiting
from lionnb.turns.log import TurnLog
from lionnb.turns.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from lionnb.turns.context import TurnExecutionContext
    from lionnb.turns.log import TurnRow
    from lionnb.turns.turn import Turn

__all__ = ("TurnState", "Waiter")


class Waiter:
    """A caller in the queue. Lives exactly as long as its wait."""

    __slots__ = ("__weakref__", "inside", "row", "since", "state", "task", "timed")

    def __init__(self, state: TurnState, row: TurnRow, task: asyncio.Task[Any]) -> None:
        self.state, self.row, self.task, self.since = state, row, task, time.time()
        self.inside = inside_turns()  # turns that cannot end before this wait does, if they wait for this code
        self.timed = anyio.current_effective_deadline() != math.inf


class TurnState:
    """See the module. ``turn`` is the specification's active pointer; ``lock`` its turn lock."""

    __slots__ = (
        "__weakref__", "_entering", "detached", "left", "lock", "log", "loop", "mutex", "report", "tellers", "turn",
        "waiters", "warned_model",
    )  # fmt: skip

    def __init__(self, keep: Callable[[TurnRow], None] | None = None) -> None:
        self.lock = asyncio.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop that `lock` may be bound to
        self.turn: Turn | None = None
        self.report: Any = None  # provider report of the last terminal turn
        self.detached: set[asyncio.Task[Any]] = set()  # emissions that belong to no turn
        self.waiters: dict[int, Waiter] = {}  # insertion order is the order in which the lock will be handed over
        self.log = TurnLog(keep=keep)
        self.left: TurnRow | None = None  # the last turn, if it did not complete: it may have left loose ends
        # Tasks whose turns nobody can answer a Python warning for (a leg's), and what is told instead.
        self.tellers: dict[asyncio.Task[Any], Callable[[str], None]] = {}
        self.warned_model = False  # said once that an assignment inside a turn changes that call only
        # Re-entrant: dropping a turn of a dead loop closes it while the Branch is being re-homed.
        self.mutex = threading.RLock()
        self._entering = False  # a caller holds the lock and has not set `turn` yet

    def teller(self) -> Callable[[str], None] | None:
        """What the current task's turn is told instead of a Python warning; ``None``: nothing instead."""
        task = asyncio.current_task()
        return None if task is None else self.tellers.get(task)

    def __copy__(self) -> TurnState:
        return TurnState(self.log.keep)

    def __deepcopy__(self, memo: Any) -> TurnState:
        return TurnState(self.log.keep)

    def __reduce__(self) -> Any:
        return (TurnState, (self.log.keep,))

    @property
    def context(self) -> TurnExecutionContext | None:
        """The context of the active turn; ``None`` between turns."""
        turn = self.turn
        scope = None if turn is None else turn.scope
        return None if scope is None else scope.context

    # ------------------------------------------------------------------ entry
    async def acquire(self, row: TurnRow, branch: str) -> asyncio.Lock:
        """Wait for the lock of this loop, visibly. Cancelled, it leaves nothing but *row*.

        The caller sets the pointer with `begin`, or gives up with `forsake`, before its next await.

        Raises:
            WrongLoopError: The Branch is in a turn, or has callers waiting, on another live loop.
            TurnDeadlockError: The wait would close a cycle of turns.
        """
        loop = asyncio.get_running_loop()
        while True:
            lock = self._home(loop, branch)
            if lock.locked() or self.waiters:
                await self._wait(lock, row)
            else:
                await lock.acquire()  # does not suspend
            with self.mutex:
                if lock is self.lock:
                    self._entering = True
                    return lock
            lock.release()  # the Branch was re-homed while this call waited; contend again

    def begin(self, turn: Turn) -> None:
        """Set the active pointer; the entry is complete."""
        self.turn, self._entering = turn, False

    def forsake(self, lock: asyncio.Lock) -> None:
        """Undo an entry that has failed after `acquire`."""
        self.turn, self._entering = None, False
        lock.release()

    def _home(self, loop: asyncio.AbstractEventLoop, branch: str) -> asyncio.Lock:
        """The lock for *loop*. What a closed loop left is dropped, for it can never end."""
        with self.mutex:
            home = self.loop
            if home is not loop:
                if home is not None and not home.is_closed() and (self._entering or self.turn or self.waiters):
                    raise WrongLoopError(branch, loop_name(home), loop_name(loop))
                if self.turn is not None:
                    self.turn.lose_loop()
                self.waiters, self._entering = {}, False
                # An asyncio.Lock stays bound to the first loop in which somebody had to wait for it.
                self.lock, self.loop = asyncio.Lock(), loop
                self.log.at_home(loop)
            return self.lock

    async def _wait(self, lock: asyncio.Lock, row: TurnRow) -> None:
        task = asyncio.current_task()
        assert task is not None, "a turn is entered from a task"
        waiter, queue = Waiter(self, row, task), self.waiters
        check_cycle(waiter)
        queue[id(waiter)] = waiter
        try:
            self.log.waiting(row, self.behind())
            with waiting(waiter):
                await lock.acquire()
        finally:
            queue.pop(id(waiter), None)

    def behind(self) -> str:
        """In a sentence, what a caller waits for now."""
        turn = self.turn
        return "the call before it" if turn is None else turn.describe()

    def queue(self) -> list[WaiterRecord]:
        """The waiting callers in the order in which they will enter."""
        waiters, context, behind = list(self.waiters.values()), self.context, self.behind()
        stuck = possible_cycles(waiters)
        return [
            WaiterRecord(
                operation=w.row.operation,
                task=w.task.get_name(),
                since_at=w.since,
                behind_turn_id=None if context is None else str(context.turn_id),
                behind=behind,
                deadlock=stuck.get(w),
            )
            for w in waiters
        ]

    # ------------------------------------------------------------------ control (any thread)
    def control(self, make: Callable[[], Any], turn_id: UUID | None) -> bool:
        """Store a control on the active turn it is meant for, or nowhere (ADR-0018 D3).

        The phase is read and the control written under the mutex that finalization takes to leave ``active``: so
        ``True`` from another thread never means a control that a finished turn has swallowed unseen.
        """
        with self.mutex:
            ctx = self._addressed(turn_id)
            if ctx is None:
                return False
            ctx.control = make()
            return True

    def take_control(self, turn_id: UUID | None) -> Any:
        """Return and clear the active turn's control; ``None`` when there is none."""
        ctx = self.context
        if ctx is None or ctx.control is None:  # the common case, without the mutex
            return None
        with self.mutex:
            ctx = self._addressed(turn_id)
            if ctx is None:
                return None
            found, ctx.control = ctx.control, None
            return found

    def tell_home(self, fn: Callable[..., object], *args: Any) -> None:
        """Call *fn* in the Branch's home loop: the log and its listeners are that loop's. Here, when there is none."""
        home = self.loop
        if home is not None and not home.is_closed() and home is not _here():
            with contextlib.suppress(RuntimeError):  # closed meanwhile: nobody listens there any more
                home.call_soon_threadsafe(fn, *args)
                return
        fn(*args)

    def _addressed(self, turn_id: UUID | None) -> TurnExecutionContext | None:
        ctx = self.context
        if ctx is None or ctx.phase is not Phase.ACTIVE:
            return None
        return ctx if turn_id is None or turn_id == ctx.turn_id else None


def _here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def loop_name(loop: asyncio.AbstractEventLoop) -> str:
    return f"{type(loop).__name__} at {id(loop):#x}"
