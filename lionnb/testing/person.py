"""A person in a notebook who may or may not be there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lionnb.legs import Leg
    from lionnb.records import FeedEvent

__all__ = ("person_or",)


async def person_or(leg: Leg, text: str, *, after_s: float = 5.0) -> bool:
    """Return once the leg has a steer: a person's, or after *after_s* seconds *text*, sent in their place.

    For notebooks that must also run without anybody. Cancelled, it has sent nothing.

    Args:
        leg: A live leg. One that has ended meanwhile is not steered.
        text: What to send when nobody does.
        after_s: Seconds to wait for a person.

    Returns:
        Whether it was a person.
    """
    steered = asyncio.Event()

    def listen(event: FeedEvent) -> None:
        if event.kind == "steer" or (event.kind == "leg" and event.data.get("status") != "running"):
            steered.set()

    stop = leg.feed.listen(listen)
    try:
        if not any(event.kind == "steer" for event in leg.feed.events()) and leg.live:
            async with asyncio.timeout(after_s):
                await steered.wait()
        return True
    except TimeoutError:
        leg.steer(text)
        return False
    finally:
        stop()
