"""What a leg is doing, and what follows a turn, as tables. No I/O, no asyncio.

Source: ADR-0108, "Timeout budget".
"""

from __future__ import annotations

from enum import StrEnum

from lionnb.errors import IllegalTransitionError
from lionnb.records import RunStatus

__all__ = ("ESCALATION", "FOLLOWS", "TRANSITIONS", "LegPhase", "TurnEnd", "step")


class LegPhase(StrEnum):
    """Where a leg stands in this process. What the world reads is the session row's `RunStatus`."""

    WAITING = "waiting"  # for the legs it was queued behind
    STARTING = "starting"  # its run is being registered
    IN_TURN = "in turn"  # a turn waits for the Branch or holds it
    BETWEEN = "between turns"
    ENDING = "ending"
    ENDED = "ended"


TRANSITIONS: dict[LegPhase, frozenset[LegPhase]] = {
    LegPhase.WAITING: frozenset({LegPhase.STARTING, LegPhase.ENDING}),
    LegPhase.STARTING: frozenset({LegPhase.BETWEEN, LegPhase.ENDING}),
    LegPhase.BETWEEN: frozenset({LegPhase.IN_TURN, LegPhase.ENDING}),
    LegPhase.IN_TURN: frozenset({LegPhase.BETWEEN, LegPhase.ENDING}),
    LegPhase.ENDING: frozenset({LegPhase.ENDED}),
    LegPhase.ENDED: frozenset(),
}


def step(frm: LegPhase, to: LegPhase) -> LegPhase:
    """Return *to*, if the table has the step.

    Raises:
        IllegalTransitionError: It has not; the caller's state is unchanged.
    """
    if to not in TRANSITIONS[frm]:
        raise IllegalTransitionError("leg", frm.value, to.value)
    return to


class TurnEnd(StrEnum):
    """How a turn of a leg ended, as the leg must know it."""

    RETURNED = "returned"
    NOTHING = "nothing"  # a continuation found nothing to carry any more
    CLEAN_STOP = "clean stop"  # CANCEL took effect at a poll point
    TURN_CANCELLED = "turn cancelled"  # leg.cancel_turn() or leg.redirect()
    RAISED = "raised"  # an exception, BREAK included
    DEADLINE = "deadline"
    STOPPED = "stopped"  # leg.stop()
    TASK_CANCELLED = "task cancelled"  # somebody cancelled the leg's task: a closing loop, a kernel that shuts down


# None: drain what is pending and go on; otherwise the leg ends with this status and sweeps.
FOLLOWS: dict[TurnEnd, RunStatus | None] = {
    TurnEnd.RETURNED: None,
    TurnEnd.NOTHING: None,
    TurnEnd.CLEAN_STOP: None,
    TurnEnd.TURN_CANCELLED: None,
    TurnEnd.RAISED: RunStatus.FAILED,
    TurnEnd.DEADLINE: RunStatus.TIMED_OUT,
    TurnEnd.STOPPED: RunStatus.CANCELLED,
    TurnEnd.TASK_CANCELLED: RunStatus.CANCELLED,
}

# Why a turn is cancelled, weakest first. A stronger reason cancels once more: the operation may have swallowed the
# first cancellation, and a person's stop or the deadline must not be lost with it. The same one again does not.
ESCALATION: tuple[TurnEnd, ...] = (
    TurnEnd.TURN_CANCELLED,
    TurnEnd.DEADLINE,
    TurnEnd.STOPPED,
    TurnEnd.TASK_CANCELLED,
)
