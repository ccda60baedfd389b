"""The turn log: a bounded record of turns and of what happened in them. An observer of the driver, never its state.

A row is written at entry, before the first await, so that a wait that is cancelled has its row too. Everything is
bounded: what falls out is counted. Listeners are called synchronously, in the Branch's loop (`lionnb.feed`).

Cost without a listener: one small object an event, nothing that grows per turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lionnb._display import mimebundle
from lionnb.errors import told
from lionnb.feed import MAX_EVENTS, Feed
from lionnb.records import TurnOutcome, TurnRecord, Usage

__all__ = ("MAX_EVENTS", "MAX_TURNS", "TurnLog", "TurnRow")

MAX_TURNS = 1_000
TEXT_LIMIT = 20_000  # characters of one text kept in the log; the history itself is the Branch's


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its beginning with a note of what was left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def _plus(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


class TurnRow:
    """The row of one entry while it is being written. `record` gives the frozen copy."""

    __slots__ = (
        "blocks", "branch_id", "branch_name", "carried", "cost_usd", "counted", "degraded", "ended_at", "error",
        "failed", "input_tokens", "model", "operation", "outcome", "output_tokens", "prompt", "queued_at", "session_id",
        "skipped", "started_at", "started_mono", "starved_s", "task", "turn_id",
    )  # fmt: skip

    def __init__(self, operation: str, branch_id: str, branch_name: str | None, task: str, prompt: str) -> None:
        self.operation, self.branch_id, self.branch_name, self.task = operation, branch_id, branch_name, task
        self.prompt = prompt
        self.queued_at = time.time()
        self.started_at: float | None = None
        self.started_mono = 0.0
        self.ended_at: float | None = None
        self.turn_id: str | None = None
        self.session_id: str | None = None
        self.model: str | None = None
        self.outcome = TurnOutcome.WAITING
        self.error: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cost_usd: float | None = None
        self.blocks: tuple[dict[str, Any], ...] = ()
        self.skipped: tuple[str, ...] = ()
        self.failed: tuple[str, ...] = ()
        self.degraded: tuple[dict[str, str], ...] = ()
        self.carried: tuple[str, ...] = ()
        self.starved_s: float | None = None
        self.counted: list[Any] | None = None  # provider responses of a running turn whose usage was counted already

    def add_usage(self, input_tokens: int | None, output_tokens: int | None, cost_usd: float | None) -> None:
        """Add what one provider call reported; unknown stays unknown."""
        self.input_tokens = _plus(self.input_tokens, input_tokens)
        self.output_tokens = _plus(self.output_tokens, output_tokens)
        self.cost_usd = _plus(self.cost_usd, cost_usd)

    @property
    def usage(self) -> Usage:
        """The turn's own share of usage so far."""
        return Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cost_usd=self.cost_usd)

    def record(self) -> TurnRecord:
        """A frozen copy of what is known now."""
        names = ("turn_id", "branch_id", "branch_name", "session_id", "operation", "model", "task", "queued_at")
        more = ("started_at", "ended_at", "outcome", "error", "usage", "blocks", "skipped", "failed", "degraded")
        return TurnRecord(**{n: getattr(self, n) for n in (*names, *more, "carried", "starved_s")})


class TurnLog(Feed):
    """Bounded rows and events of one Branch. Written from the Branch's loop; read from any thread.

    Args:
        max_turns: How many rows it holds.
        max_events: How many events.
        keep: Gets each row once, when it has ended, to keep it longer. It must return at once and raise nothing.
    """

    def __init__(
        self,
        max_turns: int = MAX_TURNS,
        max_events: int = MAX_EVENTS,
        *,
        keep: Callable[[TurnRow], None] | None = None,
    ) -> None:
        super().__init__(max_events)
        self.keep = keep
        self._rows: deque[TurnRow] = deque(maxlen=max_turns)
        self._entered = 0

    @property
    def dropped_turns(self) -> int:
        """How many rows have fallen out."""
        return self._entered - len(self._rows)

    def records(self) -> list[TurnRecord]:
        """Frozen copies of the rows, oldest first."""
        return [row.record() for row in list(self._rows)]

    @property
    def last(self) -> TurnRow | None:
        """The newest row; ``None`` before the first entry."""
        return self._rows[-1] if self._rows else None

    def __repr__(self) -> str:
        kept = self.records()
        out = f", {self.dropped_turns} older ones forgotten" if self.dropped_turns else ""
        lines = [f"  {(t.turn_id or 'no turn ')[:8]} {t.operation}: {t.outcome.value}" for t in kept[-10:]]
        return "\n".join([f"<turn log: {len(kept)} rows{out}>", *lines])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return mimebundle(self, include, exclude)

    def enter(self, row: TurnRow) -> None:
        """A contender arrived."""
        self._entered += 1
        self._rows.append(row)

    def waiting(self, row: TurnRow, behind: str) -> None:
        """The contender has to wait."""
        self.event("wait", None, operation=row.operation, task=row.task, behind=behind)

    def started(self, row: TurnRow, turn_id: str, model: str) -> None:
        """The contender holds the lock: a turn has begun."""
        row.turn_id, row.model, row.outcome = turn_id, model, TurnOutcome.RUNNING
        row.started_at, row.started_mono = time.time(), time.monotonic()
        self.event(
            "start",
            turn_id,
            operation=row.operation,
            task=row.task,
            model=model,
            instruction=row.prompt,
            waited_s=row.started_at - row.queued_at,
        )

    def ended(self, row: TurnRow, outcome: TurnOutcome, error: BaseException | None) -> None:
        """The turn, or the wait for it, is over. The first word stands."""
        if row.ended_at is not None:
            return
        row.outcome, row.counted = outcome, None
        if error is not None:
            row.error = clip(told(error), 2_000)
        if row.started_at is None:
            row.ended_at = time.time()
            duration = None
        else:  # the monotonic clock measures; the wall clock only dates
            duration = time.monotonic() - row.started_mono
            row.ended_at = row.started_at + duration
        self.event(
            "end", row.turn_id, outcome=outcome.value, error=row.error, duration_s=duration,
            input_tokens=row.input_tokens, output_tokens=row.output_tokens, operation=row.operation, task=row.task,
        )  # fmt: skip
        if self.keep is not None:
            self.keep(row)
