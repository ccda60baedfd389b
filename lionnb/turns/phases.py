"""The phases of a turn, as a table. No I/O, no asyncio.

Source: ADR-0018 D1 ("active", then "finalizing" exactly once, then "closed" before the lock is released).
"""

from __future__ import annotations

from enum import StrEnum

from lionnb.errors import IllegalTransitionError

__all__ = ("TRANSITIONS", "Phase", "step")


class Phase(StrEnum):
    """Where a turn stands once it holds the lock."""

    ACTIVE = "active"
    FINALIZING = "finalizing"
    CLOSED = "closed"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    # straight to closed: nothing is left to wait for, or nothing can be awaited any more (no loop)
    Phase.ACTIVE: frozenset({Phase.FINALIZING, Phase.CLOSED}),
    Phase.FINALIZING: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}


def step(frm: Phase, to: Phase) -> Phase:
    """Return *to*, if the table has the step.

    Raises:
        IllegalTransitionError: It has not; the caller's state is unchanged.
    """
    if to not in TRANSITIONS[frm]:
        raise IllegalTransitionError("turn", frm.value, to.value)
    return to
