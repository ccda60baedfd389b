"""Frozen records and enums shared by turns, store, frames and widgets. No I/O, no asyncio.

Instants are Unix seconds (UTC) and end in ``_at``; durations are seconds and end in ``_s``. A record is a copy of
what its owner knew when it was made, never a live handle. What can be computed from facts is computed here
(`fate_of`), not stored twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = (
    "CHIP_OF_FATE",
    "LATE_APPLIED",
    "LATE_GIVEN_BACK",
    "Chip",
    "ControlRecord",
    "ControlState",
    "Fate",
    "FeedEvent",
    "RunStatus",
    "SessionRecord",
    "SessionSpec",
    "TurnOutcome",
    "TurnRecord",
    "Usage",
    "Verdict",
    "WaiterRecord",
    "chip_of",
    "fate_of",
)


class ControlState(StrEnum):
    """What the row of a control says."""

    PENDING = "pending"
    DELIVERING = "delivering"
    APPLIED = "applied"
    RESOLVED = "resolved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"


class Fate(StrEnum):
    """What became of a steer, as it is told. The last two are computed when read, never stored."""

    REFUSED = "refused"
    PENDING = "pending"
    DELIVERING = "delivering"
    APPLIED = "applied"
    RESOLVED = "resolved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    NEVER_LANDED = "never_landed"
    NEVER_REPORTED = "never_reported"


class Chip(StrEnum):
    """The five words in the face of the user."""

    QUEUED = "queued"
    DELIVERING = "delivering"
    APPLIED = "applied"
    NOT_DELIVERED = "not delivered"
    NEEDS_YOU = "needs you"


CHIP_OF_FATE: dict[Fate, Chip] = {
    Fate.REFUSED: Chip.NOT_DELIVERED,
    Fate.PENDING: Chip.QUEUED,
    Fate.DELIVERING: Chip.DELIVERING,
    Fate.APPLIED: Chip.APPLIED,
    Fate.RESOLVED: Chip.APPLIED,  # `chip_of` looks at the row: what its leg reported late, else what a person found
    Fate.REJECTED: Chip.NOT_DELIVERED,
    Fate.WITHDRAWN: Chip.NOT_DELIVERED,
    Fate.NEVER_LANDED: Chip.NOT_DELIVERED,
    Fate.NEVER_REPORTED: Chip.NEEDS_YOU,
}


LATE_APPLIED = "applied in turn "
LATE_GIVEN_BACK = "given back, the Branch was never called"
"""How a late report goes on behind its instant and a colon: what the leg knows of the delivery, and no person could."""


class RunStatus(StrEnum):
    """Status of a session row; everything but ``running`` is terminal."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"


class Verdict(StrEnum):
    """What is known of the leg of a run that reads running. Computed when read (``store.lease``), never stored."""

    ALIVE = "alive"  # its process was seen
    DEAD = "dead"  # its process is proven gone, for ever
    FRESH = "fresh"  # it cannot be seen from here, and its lease has not lapsed
    SILENT = "silent"  # it cannot be seen from here, and its lease has lapsed: unknown


class TurnOutcome(StrEnum):
    """How a turn, or a wait for one, ended."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    CLOSED = "closed"  # the consumer closed the stream
    ABANDONED = "abandoned"  # the stream was dropped and collected, or its loop is gone
    CANCELLED_WAITING = "cancelled while waiting"
    REFUSED = "refused"  # the entry raised: no model, deadlock, another loop


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Usage(_Record):
    """Tokens as the provider reported them; ``None`` is unknown, never 0. Money only where it was reported."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        def plus(a: Any, b: Any) -> Any:
            return b if a is None else a if b is None else a + b

        return Usage(
            input_tokens=plus(self.input_tokens, other.input_tokens),
            output_tokens=plus(self.output_tokens, other.output_tokens),
            cost_usd=plus(self.cost_usd, other.cost_usd),
        )

    @property
    def total_tokens(self) -> int | None:
        """Input and output together; ``None`` when neither is known."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)


class TurnRecord(_Record):
    """One row a turn (or a wait that never became one)."""

    turn_id: str | None  # None: it never took the lock
    branch_id: str
    branch_name: str | None = None
    session_id: str | None = None  # the run of the leg that made it
    operation: str
    model: str | None = None
    task: str | None = None
    queued_at: float
    started_at: float | None = None
    ended_at: float | None = None
    outcome: TurnOutcome
    error: str | None = None
    usage: Usage = Usage()
    blocks: tuple[dict[str, Any], ...] = ()  # {"name", "tokens", "text"} per rendered provider block
    skipped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    degraded: tuple[dict[str, str], ...] = ()
    carried: tuple[str, ...] = ()  # control ids this turn carried
    starved_s: float | None = None  # for which its loop stood still; None where nobody measured: no leg's turn

    @property
    def waited_s(self) -> float | None:
        """Seconds between entry and the lock; ``None`` while waiting."""
        return None if self.started_at is None else self.started_at - self.queued_at

    @property
    def duration_s(self) -> float | None:
        """Seconds past the lock; ``None`` while it runs or when it never got there."""
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at


class WaiterRecord(_Record):
    """A caller in the queue of a Branch."""

    operation: str
    task: str
    since_at: float
    behind_turn_id: str | None = None
    behind: str | None = None  # a sentence: what it waits for, and whether that is suspended or abandoned
    deadlock: str | None = None  # set when the wait may never end


class SessionSpec(_Record):
    """What a leg says of itself when it registers its run."""

    id: str
    run_id: str
    kind: str = "agent"
    name: str | None = None
    branch_id: str
    leg: str  # token: unique per start, never reused
    instruction: str = ""
    created_at: float
    created_by: str | None = None
    deadline_at: float | None = None
    timeout_s: float | None = None
    host: str | None = None
    pid: int | None = None
    pid_start: str | None = None
    ttl_s: float | None = None
    resent_from: str | None = None


class SessionRecord(SessionSpec):
    """A run as its row says it."""

    leg: str | None = None  # type: ignore[assignment]  # NULL once terminal
    status: RunStatus
    heartbeat_at: float | None = None
    ended_at: float | None = None
    ended_by: str | None = None
    ended_note: str | None = None

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.status is not RunStatus.RUNNING


class ControlRecord(_Record):
    """A control as its row says it. ``seq`` is the order; a clock is not."""

    seq: int
    id: str
    session_id: str
    verb: str
    payload: dict[str, Any]
    created_at: float
    created_by: str | None = None
    key: str | None = None
    state: ControlState
    claim: str | None = None
    handed_over_at: float | None = None
    closed_at: float | None = None
    closed_by: str | None = None
    note: str | None = None
    turn_id: str | None = None
    turn_outcome: str | None = None
    in_history: bool | None = None
    late_report: str | None = None
    resent_from: str | None = None

    @property
    def text(self) -> str:
        """The message, for verb ``message``."""
        text = self.payload.get("text")
        return text if isinstance(text, str) else ""

    @property
    def late_delivery(self) -> bool | None:
        """Whether it was delivered, as its leg said after a person had resolved it; ``None`` where it said nothing."""
        told = (self.late_report or "").partition(": ")[2]
        if told.startswith(LATE_APPLIED):
            return True
        return False if told.startswith(LATE_GIVEN_BACK) else None


def fate_of(control: ControlRecord, *, run_ended: bool, leg_dead: bool) -> Fate:
    """The fate to tell, from the row and from what is known of its run *now* (ADR-0108, forced-consumer honesty).

    Args:
        control: The row.
        run_ended: The session's stored status is terminal.
        leg_dead: The leg named in the claim (or owning the session) is proven dead.
    """
    if control.state is ControlState.PENDING and (run_ended or leg_dead):
        return Fate.NEVER_LANDED
    if control.state is ControlState.DELIVERING and (run_ended or leg_dead):
        return Fate.NEVER_REPORTED
    return Fate(control.state.value)


def chip_of(fate: Fate, control: ControlRecord | None = None) -> Chip:
    """The chip for a fate; of a resolved row, what is known of its delivery.

    A row resolved as abandoned reads *not delivered*. But a person finds out from a transcript, and the leg knows: what
    it reported afterwards counts, whatever the person found.
    """
    if fate is Fate.RESOLVED and control is not None:
        late = control.late_delivery
        delivered = control.note != "abandoned" if late is None else late
        return Chip.APPLIED if delivered else Chip.NOT_DELIVERED
    return CHIP_OF_FATE[fate]


@dataclass(slots=True, frozen=True)
class FeedEvent:
    """One line of what happened, as the turn log and a leg tell it to whoever listens.

    ``kind`` is one of: wait, start, phase, end (a turn's life); text, chunk, tool_call, tool_result, blocks
    (what is inside it); control, signal, warning; steer, leg, beat (a leg's own).
    ``data`` holds JSON values only. A dataclass, not pydantic: one is made per message of every turn.
    """

    i: int
    at: float
    kind: str
    turn_id: str | None
    data: dict[str, Any] = field(default_factory=dict)
