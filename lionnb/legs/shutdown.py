"""The end of the process: every leg that is live is ended as cancelled, and what was told to the store is written.

A loop that ipykernel has stopped is not closed, and may hold one more stop request, so the first try can end at once.
Legs of a loop that runs in another thread are stopped there. The time is short (a kernel gets 2.5 s), so legs end
together, not one after the other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lionnb.legs.ledger import hand_over

if TYPE_CHECKING:
    from lionnb.legs.leg import Leg

__all__ = ("end_legs",)

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
        for task in todo:
            task.cancel()
        timeout_s = min(_ROUND_S, max(0.0, until - time.monotonic()))
        ended = loop.create_task(asyncio.wait(todo, timeout=timeout_s), name="lionnb-shutdown")
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):
            loop.run_until_complete(ended)


def _end_elsewhere(loop: asyncio.AbstractEventLoop, mine: list[Leg], until: float) -> None:
    ended: list[concurrent.futures.Future[None]] = []
    for leg in mine:
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        leg.when_ended(lambda done=done: done.set_result(None))  # type: ignore[misc]
        hand_over(loop, leg.task.cancel)
        ended.append(done)
    concurrent.futures.wait(ended, timeout=max(0.0, until - time.monotonic()))
