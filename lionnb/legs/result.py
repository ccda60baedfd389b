"""What a leg comes to. Frozen; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lionnb.errors import told
from lionnb.legs.states import TurnEnd
from lionnb.plain import first_line
from lionnb.records import RunStatus, TurnOutcome, Usage

__all__ = ("LegResult", "LegTurn")


@dataclass(frozen=True, slots=True)
class LegTurn:
    """One turn of a leg. ``turn_id`` is ``None`` when it was ended while it waited for the Branch."""

    turn_id: str | None
    end: TurnEnd
    outcome: TurnOutcome
    value: Any = None
    error: BaseException | None = None
    usage: Usage = field(default_factory=Usage)
    steers: tuple[str, ...] = ()  # control ids it carried
    starved_s: float = 0.0  # for which its event loop stood still, since the turn before it
    starved_by: str = ""  # by what, the last time

    @property
    def note(self) -> str | None:
        """Why a leg ended with it, in a sentence; ``None`` when there is nothing to add."""
        if self.error is not None:
            return first_line(told(self.error), 500)
        return {TurnEnd.DEADLINE: "the deadline passed", TurnEnd.STOPPED: "stopped"}.get(self.end)


@dataclass(frozen=True, slots=True)
class LegResult:
    """What ``await leg`` gives.

    ``value`` is that of the last turn that returned one; ``usage`` sums what the provider reported, failed turns
    included (``None`` is unknown, never 0).
    """

    run_id: str
    status: RunStatus
    value: Any
    turns: tuple[LegTurn, ...]
    usage: Usage
    note: str | None = None

    def __repr__(self) -> str:
        tokens = self.usage.total_tokens
        used = "tokens unknown" if tokens is None else f"{tokens} tokens"
        said = f", {self.note}" if self.note else ""
        head = f"leg {self.run_id}: {self.status.value}, {len(self.turns)} turn(s), {used}{said}"
        return f"<result of {head}: {self.value!r:.300}>"
