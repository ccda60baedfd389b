"""A person in a notebook who may or may not be there."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from lionnb.errors import SteerRefusedError

if TYPE_CHECKING:
    from lionnb.legs import Leg
    from lionnb.records import FeedEvent

__all__ = ("person_or",)


class _Person:
    """See `person_or`. It listens from the moment it is made until the leg has a steer or has ended."""

    def __init__(self, leg: Leg, text: str, after_s: float) -> None:
        self._leg, self._text, self._after_s = leg, text, after_s
        self._settled = asyncio.Event()
        self._sent: list[str] = []
        # The turn's own context would mark the steer as the turn's.
        self._context = contextvars.copy_context()
        self._stops = [leg.feed.listen(self._on_leg), leg.branch.turns.listen(self._on_branch)]
        if not leg.live or self._steers():
            self._settle()

    def _steers(self) -> list[str]:
        return [event.data["control_id"] for event in self._leg.feed.events() if event.kind == "steer"]

    def _settle(self) -> None:
        self._settled.set()
        for stop in self._stops:
            stop()

    def _on_leg(self, event: FeedEvent) -> None:
        if event.kind == "steer" or (event.kind == "leg" and event.data.get("status") != "running"):
            self._settle()

    def _on_branch(self, event: FeedEvent) -> None:
        if event.kind == "phase" and event.turn_id is not None and event.turn_id == self._leg.turn_id:
            self._context.run(self._instead)

    def _instead(self) -> None:
        if not self._settled.is_set():
            self._settle()
            with contextlib.suppress(SteerRefusedError):  # it has ended in this moment
                self._sent.append(self._leg.steer(self._text).control_id)

    def __await__(self) -> Generator[Any, None, bool]:
        return self._wait().__await__()

    async def _wait(self) -> bool:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._after_s):
                    await self._settled.wait()
        except asyncio.CancelledError:
            self._settle()
            raise
        self._instead()
        return any(control_id not in self._sent for control_id in self._steers())


def person_or(leg: Leg, text: str, *, after_s: float = 5.0) -> _Person:
    """Watch for a person's steer from now on; awaited, return once the leg has one: theirs, or *text* in their place.

    It is sent *after_s* seconds after it is awaited, or earlier when the leg's turn is about to end: a leg that has
    nothing pending then is over, and a model that is quick leaves nobody the time to type. So call it in the cell that
    starts the leg, and await it where a person should have typed. For notebooks that must also run without anybody.
    Cancelled, it has sent nothing and sends nothing; never awaited, it still steps in when the turn ends.

    Args:
        leg: A live leg. One that has ended meanwhile is not steered.
        text: What to send when nobody does.
        after_s: Seconds to wait for a person, from the await on.

    Returns:
        Awaited: whether a person has steered it.
    """
    return _Person(leg, text, after_s)
