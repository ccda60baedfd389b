"""`settle`: the last line of a run that nobody watches. Everything that was started has ended, and is written."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from lionnb.errors import LegFailedError, SettleTimeoutError
from lionnb.legs.budget import seconds_limit
from lionnb.legs.registry import legs
from lionnb.legs.states import LegPhase

if TYPE_CHECKING:
    from lionnb.legs.leg import Leg
    from lionnb.store.store import Store

__all__ = ("settle",)


async def settle(timeout_s: float | None = None, *, store: Store | None = None) -> tuple[Leg, ...]:
    """Wait until every leg of this kernel has ended, its record is written and every receipt is settled.

    For runs that nobody watches (nbclient, papermill, scripts): put it last. Legs that are started meanwhile are waited
    for too. A leg that fails is no failure here: look at its ``status`` and ``note``, or await it. As with ``await
    leg``, the cell that waits is also where the views of the legs are saved as they ended. Cancelled, or timed out, it
    leaves the legs alone; called again, it waits again.

    Args:
        timeout_s: Seconds to wait at most; ``None`` is no limit.
        store: Only the legs that are recorded there; ``None`` means all.

    Returns:
        The legs of this kernel, oldest first (of those that have ended, the last hundred).

    Raises:
        SettleTimeoutError: Not everything has ended in time. It names what has not, and is a ``TimeoutError``.
        TurnDeadlockError: Called by the owner of a turn that a leg waits for.
        ValueError, TypeError: *timeout_s* is no limit.
    """
    limit_s = seconds_limit("timeout_s", timeout_s)
    done: set[Leg] = set()
    try:
        async with asyncio.timeout(limit_s):
            while todo := [leg for leg in _legs(store) if leg.live or leg not in done]:
                for leg in todo:
                    await _settled(leg)
                    done.add(leg)
    except TimeoutError:
        assert limit_s is not None, "nothing else here raises it"
        left = [_doing(leg) for leg in _legs(store) if leg not in done]
        raise SettleTimeoutError(limit_s, left) from None
    return _legs(store)


def _legs(store: Store | None) -> tuple[Leg, ...]:
    return tuple(leg for leg in legs() if store is None or leg.store is store)


async def _settled(leg: Leg) -> None:
    with contextlib.suppress(LegFailedError):
        await leg.result()
    await leg.written()
    for receipt in leg.receipts:  # the run is over and the store has answered: each is settled, or about to be
        await receipt


def _doing(leg: Leg) -> str:
    """What it still does, in words."""
    name = f"{leg.name!r} ({leg.run_id})" if leg.name else leg.run_id
    if not leg.live:
        return f"{name} has ended, and the control database has not answered yet"
    if leg.phase is not LegPhase.IN_TURN:
        return f"{name}: {leg.phase.value}"
    n, turn_id = len(leg.turns) + 1, leg.turn_id
    return f"{name}: in turn {n} ({turn_id[:8]})" if turn_id else f"{name}: turn {n} waits for its Branch"
