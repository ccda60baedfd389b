"""What a Branch carries of its turns: the lock, the queue, the pointer to the active turn, the last report.

One plain object per Branch, because each read of a pydantic private attribute costs about 2 us and the driver reads
this one at every entry. It is runtime state: copies, pickles and clones of a Branch get a fresh one.

Threads: everything here belongs to the Branch's home loop, except `control` and `take_control`, which any thread may
call, and the pointer, which two loops may race for; both are guarded by ``mutex``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from lionnb.errors import WrongLoopError
from lionnb.records import WaiterRecord
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

    __slots__ = ("deadlock", "row", "since", "task")

    def __init__(self, row: TurnRow, task: asyncio.Task[Any]) -> None:
        self.row, self.task, self.since = row, task, time.time()
        self.deadlock: str | None = None


class TurnState:
    """See the module. ``turn`` is the specification's active pointer; ``lock`` its turn lock."""

    __slots__ = ("detached", "lock", "log", "loop", "mutex", "report", "turn", "waiters", "warned_model")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop that `lock` may be bound to
        self.turn: Turn | None = None
        self.report: Any = None  # provider report of the last terminal turn
        self.detached: set[asyncio.Task[Any]] = set()  # emissions that belong to no turn
        self.waiters: dict[int, Waiter] = {}  # insertion order is the order in which the lock will be handed over
        self.log = TurnLog()
        self.warned_model = False  # said once that an assignment inside a turn changes that call only
        self.mutex = (
            threading.RLock()
        )  # re-entrant: dropping a turn of a dead loop closes it while the queue is re-homed

    def __copy__(self) -> TurnState:
        return TurnState()

    def __deepcopy__(self, memo: Any) -> TurnState:
        return TurnState()

    def __reduce__(self) -> Any:
        return (TurnState, ())

    @property
    def context(self) -> TurnExecutionContext | None:
        """The context of the active turn; ``None`` between turns."""
        turn = self.turn
        scope = None if turn is None else turn.scope
        return None if scope is None else scope.context

    # ------------------------------------------------------------------ entry
    async def acquire(self, row: TurnRow, branch: str) -> asyncio.Lock:
        """Wait for the lock of this loop, visibly. Cancelled, it leaves nothing but *row*.

        Raises:
            WrongLoopError: The Branch is in a turn on another live loop.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "a turn is entered from a task"
        while True:
            lock = self._home(loop, branch)
            if not lock.locked() and not self.waiters:
                await lock.acquire()  # does not suspend
            else:
                await self._wait(lock, row, task)
            if lock is self.lock:
                return lock
            lock.release()  # the Branch was re-homed while this call waited; contend again

    def _home(self, loop: asyncio.AbstractEventLoop, branch: str) -> asyncio.Lock:
        """The lock for *loop*; a turn whose loop has closed is dropped, for it can never end."""
        with self.mutex:
            if self.loop is not loop:
                turn = self.turn
                if turn is not None:
                    if not turn.loop.is_closed():
                        raise WrongLoopError(branch, _loop_name(turn.loop), _loop_name(loop))
                    turn.lose_loop()
                # An asyncio.Lock stays bound to the first loop in which somebody had to wait for it.
                self.lock, self.loop = asyncio.Lock(), loop
            return self.lock

    async def _wait(self, lock: asyncio.Lock, row: TurnRow, task: asyncio.Task[Any]) -> None:
        waiter = Waiter(row, task)
        self.waiters[id(waiter)] = waiter
        try:
            self.log.waiting(row, self.behind())
            await lock.acquire()
        finally:
            self.waiters.pop(id(waiter), None)

    def behind(self) -> str:
        """In a sentence, what a caller waits for now."""
        turn = self.turn
        return "the call before it" if turn is None else turn.describe()

    def queue(self) -> list[WaiterRecord]:
        """The waiting callers in the order in which they will enter."""
        turn = self.turn
        turn_id = None if turn is None or turn.scope is None else str(turn.scope.context.turn_id)
        return [
            WaiterRecord(
                operation=w.row.operation,
                task=w.task.get_name(),
                since_at=w.since,
                behind_turn_id=turn_id,
                behind=self.behind(),
                deadlock=w.deadlock,
            )
            for w in list(self.waiters.values())
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

    def _addressed(self, turn_id: UUID | None) -> TurnExecutionContext | None:
        ctx = self.context
        if ctx is None or ctx.phase is not Phase.ACTIVE:
            return None
        return ctx if turn_id is None or turn_id == ctx.turn_id else None


def _loop_name(loop: asyncio.AbstractEventLoop) -> str:
    return f"{type(loop).__name__} at {id(loop):#x}"
