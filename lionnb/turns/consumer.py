"""The calls that the consumer of an open stream makes between two items.

Such a call is nested work of the stream's turn, in a task that drives the stream and therefore is no nested task:
nobody may cancel that for having been the consumer once. But another task, or the collector, may close the stream while
the call is under way, and no nested work outlives its turn. So each call is recorded for as long as it lasts, and
finalization cuts it: the task is cancelled, the call ends, and the consumer gets `TurnFinalizingError`, for nobody
cancelled *it*.

Source: ADR-0018 D2 (nested work is cancelled and awaited before the terminal).
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from lionnb.errors import TurnFinalizingError
from lionnb.turns.context import enter_inside, find_binding, leave_inside

if TYPE_CHECKING:
    from typing import Any

    from lionnb.turns.turn import Turn

__all__ = ("ConsumerCall", "as_consumer")


def as_consumer(turn: Turn) -> ConsumerCall | None:
    """The record of the call that begins here, if it is one of a consumer's; enter it around what can suspend."""
    task, state = asyncio.current_task(), turn.state
    if task is None or state is None or task is turn.progress or task not in turn.drivers:
        return None
    binding = find_binding(state)
    return ConsumerCall(turn, task) if binding is None or binding.exported else None


class ConsumerCall:
    """See the module. Never held over a yield."""

    __slots__ = ("_cut", "_earlier", "ended", "task", "turn")

    def __init__(self, turn: Turn, task: asyncio.Task[Any]) -> None:
        self.turn, self.task = turn, task
        self.ended: asyncio.Future[None] = turn.loop.create_future()
        self._cut, self._earlier = False, task.cancelling()

    def done(self) -> bool:
        """Whether it has ended."""
        return self.ended.done()

    def cut(self) -> None:
        """Cancel it. It is suspended somewhere inside of itself, so the cancellation arrives nowhere else."""
        self._cut = True
        self.task.cancel()

    def __enter__(self) -> ConsumerCall:
        self.turn.calls.add(self)
        enter_inside(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.turn.calls.discard(self)
        leave_inside(self)
        if not self.ended.done():
            self.ended.set_result(None)
        if not self._cut:
            return
        # Ours is taken back; a cancellation that somebody else has sent meanwhile stays one.
        others = self.task.uncancel() > self._earlier
        if isinstance(exc, asyncio.CancelledError) and not others:
            raise TurnFinalizingError(self.turn.row.turn_id or "") from None
