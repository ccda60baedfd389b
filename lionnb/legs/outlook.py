"""What a leg says of a steer that is still queued: when it lands, or why it will not fit. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lionnb.legs.budget import Budget
from lionnb.legs.receipt import LANDS, Outlook
from lionnb.legs.states import LegPhase

if TYPE_CHECKING:
    from lionnb.legs.turn import TurnRun

__all__ = ("outlook_of",)

_WORKING = frozenset({LegPhase.WAITING, LegPhase.STARTING, LegPhase.IN_TURN})  # one more turn is certain


def outlook_of(
    budget: Budget,
    phase: LegPhase,
    calls: int,
    *,
    queued_behind: bool,
    turn: TurnRun | None = None,
    waits: bool = False,
    along: bool = False,
) -> Outlook:
    """What happens to a steer that is queued now.

    Args:
        budget: The leg's.
        phase: Where the leg stands.
        calls: Turns of this budget that have called the Branch.
        queued_behind: Whether the leg was started behind another one.
        turn: Its turn, between that one's start and its end.
        waits: Whether that waits for the Branch, behind somebody else's call.
        along: Whether its first turn, which is still to come, takes along what is queued.
    """
    takes = along or (turn is not None and turn.takes)  # then what is queued now is no further turn
    left = budget.left_s
    said = "" if left is None else f"{_clock(left)} of {_clock(budget.timeout_s or 0.0)} left"
    if (why := budget.will_not_fit(calls + (phase in _WORKING and not takes))) is not None:
        return Outlook(f"will not land: {why}", said)
    if along:
        return Outlook("lands in this leg's first turn, which has not begun", said)
    if phase is LegPhase.WAITING and queued_behind:
        return Outlook("lands after this leg's first turn, which waits for another leg", said)
    if waits:
        own = "first" if not calls else "current"
        when = "lands in this leg's next turn" if takes else f"lands at the end of this leg's {own} turn"
        return Outlook(f"{when}, which waits for the Branch", said)
    return Outlook(LANDS, said)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
