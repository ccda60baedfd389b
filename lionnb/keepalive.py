"""Keep-alive: a kernel in which a leg works is not idle, whatever a server that culls idle kernels sees of it.

Such a server looks at the messages that a kernel sends to its front ends, and takes some of them as activity: no text,
no output and no status, but what widgets say. A leg that nobody looks at sends nothing. So while one lives, its kernel
sends one empty message a minute to a widget that does not exist: front ends drop it, and no cell and no saved notebook
shows it.

The messages come from the control thread. Nothing is scheduled while no leg lives, and nothing outside of a kernel.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from typing import Any

from lionnb.kernel import in_kernel

__all__ = ("EVERY_S", "VARIABLE", "interval_s", "tell")

log = logging.getLogger(__name__)

VARIABLE = "LIONNB_KEEP_ALIVE_S"
EVERY_S = 60.0
COMM = "lionnb-keep-alive"

_lock = threading.Lock()
_told_at = float("-inf")  # monotonic; one message serves all legs of the process
_comm: Any = None


def interval_s() -> float | None:
    """Seconds between two messages, as the environment says; ``None``: none are sent.

    ``LIONNB_KEEP_ALIVE_S`` is a number of seconds, or ``0`` or ``off``. What is neither is logged and not followed.
    """
    said = os.environ.get(VARIABLE, "").strip()
    if not said:
        return EVERY_S
    if said.lower() == "off":
        return None
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds <= 24 * 3600:  # NaN is not
        return seconds or None
    log.warning("%s is %.40r: give seconds up to a day, 0 or off; %.0f s it is", VARIABLE, said, EVERY_S)
    return EVERY_S


async def tell(every_s: float) -> None:
    """Send the message every *every_s* seconds, for ever; for the control thread. Cancelled, nothing is left."""
    global _told_at
    while True:
        await asyncio.sleep(every_s)
        with _lock:
            now = time.monotonic()
            due = now - _told_at >= every_s / 2  # another leg's may just have been sent
            if due:
                _told_at = now
        if due and in_kernel():
            _send()


def _send() -> None:
    """One comm message: no output, no busy and idle, and no front end knows its comm."""
    global _comm
    try:
        if _comm is None:
            from comm import create_comm

            _comm = create_comm(target_name=COMM, comm_id=COMM, primary=False)  # not primary: no opening is announced
        _comm.send({})
    except Exception as exc:  # a kernel of another make: then nothing is kept alive, and the leg goes on
        log.debug("the keep-alive message could not be sent: %r", exc)
