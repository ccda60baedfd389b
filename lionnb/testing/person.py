"""A person in a notebook who may or may not be there."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import TYPE_CHECKING

from lionnb.errors import SteerRefusedError

if TYPE_CHECKING:
    from lionnb.legs import Leg
    from lionnb.records import FeedEvent

__all__ = ("person_or",)


async def person_or(leg: Leg, text: str, *, after_s: float = 5.0) -> bool:
    """Return once the leg has a steer: a person's, or *text*, sent in their place.

    It is sent after *after_s* seconds, or earlier when the leg's turn is about to end: a leg that has nothing pending
    then is over, and a model that is quick leaves nobody the time to type. For notebooks that must also run without
    anybody. Cancelled, it has sent nothing.

    Args:
        leg: A live leg. One that has ended meanwhile is not steered.
        text: What to send when nobody does.
        after_s: Seconds to wait for a person.

    Returns:
        Whether a person has steered it.
    """
    settled = asyncio.Event()
    # The turn's own context would mark the steer as the turn's.
    context = contextvars.copy_context()

    def instead() -> None:
        if not settled.is_set():
            settled.set()
            with contextlib.suppress(SteerRefusedError):  # it has ended in this moment
                sent.append(leg.steer(text).control_id)

    def on_leg(event: FeedEvent) -> None:
        if event.kind == "steer" or (event.kind == "leg" and event.data.get("status") != "running"):
            settled.set()

    def on_branch(event: FeedEvent) -> None:
        if event.kind == "phase" and event.turn_id == leg.turn_id:
            context.run(instead)

    sent: list[str] = []
    stops = [leg.feed.listen(on_leg), leg.branch.turns.listen(on_branch)]
    try:
        if not any(event.kind == "steer" for event in leg.feed.events()) and leg.live:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(after_s):
                    await settled.wait()
            instead()
    finally:
        for stop in stops:
            stop()
    return any(event.kind == "steer" and event.data["control_id"] not in sent for event in leg.feed.events())
