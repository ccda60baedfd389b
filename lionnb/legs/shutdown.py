"""The end of the process: every leg that is live is ended as cancelled, and what was told to the store is written.

A loop that ipykernel has stopped is not closed, and may hold one more stop request, so the first try can end at once.
Legs of a loop that runs in another thread are stopped there. The time is short (a kernel gets 2.5 s), so legs end
together, not one after the other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lionnb.kernel import in_kernel
from lionnb.legs.ledger import hand_over

if TYPE_CHECKING:
    from lionnb.legs.leg import Leg

__all__ = ("end_legs", "say_unfinished")

BUDGET_S = 2.0
_ROUND_S = 0.6


def end_legs(found: Iterable[Leg], budget_s: float = BUDGET_S) -> None:
    """End the live legs of *found*; block until their ends are written, or *budget_s* has passed. From no loop."""
    found, until = tuple(found), time.monotonic() + budget_s
    for loop in dict.fromkeys(leg.loop for leg in found if leg.live):
        mine = [leg for leg in found if leg.live and leg.loop is loop]
        if loop.is_running():
            _end_elsewhere(loop, mine, until)
        else:
            _end_here(loop, mine, until)
    for leg in found:
        if leg.loop.is_closed():
            leg.bury()
        leg.flush(max(0.0, until - time.monotonic()))


def _end_here(loop: asyncio.AbstractEventLoop, mine: list[Leg], until: float) -> None:
    while (todo := [leg.task for leg in mine if leg.live]) and time.monotonic() < until:
        for leg in mine:
            if leg.live:
                leg.cut_off()
        timeout_s = min(_ROUND_S, max(0.0, until - time.monotonic()))
        ended = loop.create_task(asyncio.wait(todo, timeout=timeout_s), name="lionnb-shutdown")
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):
            loop.run_until_complete(ended)


def _end_elsewhere(loop: asyncio.AbstractEventLoop, mine: list[Leg], until: float) -> None:
    ended: list[concurrent.futures.Future[None]] = []
    for leg in mine:
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        leg.when_ended(lambda done=done: done.set_result(None))  # type: ignore[misc]
        hand_over(loop, leg.cut_off)
        ended.append(done)
    concurrent.futures.wait(ended, timeout=max(0.0, until - time.monotonic()))


def say_unfinished(ended: Sequence[Leg]) -> None:
    """Say on standard error which legs were cut off by the end of the process, and what would have waited for them.

    On the process's own: a notebook's messages are read by nobody any more when its kernel ends.
    """
    if not ended or sys.__stderr__ is None:
        return
    with contextlib.suppress(OSError, ValueError):  # closed, or a pipe that nobody reads
        sys.__stderr__.write(unfinished(ended, "kernel" if in_kernel() else "process") + "\n")
        sys.__stderr__.flush()


def unfinished(ended: Sequence[Leg], what: str) -> str:
    """The sentence for it. *what* has ended: a kernel or a process."""
    one = len(ended) == 1
    names = ", ".join(f"{leg.name!r:.60} ({leg.run_id})" if leg.name else leg.run_id for leg in ended[:3])
    more = f" and {len(ended) - 3} more" if len(ended) > 3 else ""
    were = "was" if one else "were"
    known = [leg for leg in ended if leg.recorded]
    fates = sorted({leg.status.value for leg in known})
    recorded = f"{were} recorded {' or '.join(fates)}" if len(known) == len(ended) else "may not be recorded as ended"
    last = "in the last cell" if what == "kernel" else "at the end"
    return (
        f"lionnb: {'leg' if one else f'{len(ended)} legs:'} {names}{more} {were} still running when the {what} ended "
        f"and {recorded}; put `await lionnb.settle()` {last}."
    )
