"""Records to DataFrames. Pure: records in, a DataFrame out. Columns and dtypes are declared once, and hold when empty.

Instants are UTC (``datetime64[ns, UTC]``), durations are seconds (``_s``), counts that may be unknown are nullable, and
words from a fixed list are categories in that list's order. One row an element, in the order given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lionnb.records import (
    Chip,
    ControlRecord,
    ControlState,
    Fate,
    RunStatus,
    SessionRecord,
    TurnOutcome,
    TurnRecord,
    Verdict,
    chip_of,
)

__all__ = ("CONTROLS", "LEGS", "TURNS", "ControlRow", "LegRow", "controls_frame", "legs_frame", "turns_frame")

INSTANT = pd.DatetimeTZDtype("ns", "UTC")
TEXT = pd.StringDtype()
COUNT = pd.Int64Dtype()
NUMBER = pd.Float64Dtype()
FLAG = pd.BooleanDtype()


def _words(words: type[Any]) -> pd.CategoricalDtype:
    return pd.CategoricalDtype([w.value for w in words], ordered=False)


@dataclass(frozen=True, slots=True)
class ControlRow:
    """A control with what is known of its run."""

    control: ControlRecord
    fate: Fate
    run_id: str


@dataclass(frozen=True, slots=True)
class LegRow:
    """A run with what is known of its leg: ``status`` reads *lost* where the leg is proven dead, recorded or not."""

    session: SessionRecord
    status: RunStatus
    leg: Verdict | None  # None: the run has ended
    starved_s: float | None = None  # None: nobody measured


Column = tuple[Any, Callable[[Any], Any]]  # dtype, how it is read


def _minus(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


CONTROLS: dict[str, Column] = {
    "seq": (COUNT, lambda r: r.control.seq),
    "run_id": (TEXT, lambda r: r.run_id),
    "verb": (TEXT, lambda r: r.control.verb),
    "text": (TEXT, lambda r: r.control.text),
    "fate": (_words(Fate), lambda r: r.fate.value),
    "chip": (_words(Chip), lambda r: chip_of(r.fate, r.control).value),
    "state": (_words(ControlState), lambda r: r.control.state.value),
    "turn_id": (TEXT, lambda r: r.control.turn_id),
    "turn_outcome": (_words(TurnOutcome), lambda r: r.control.turn_outcome),
    "in_history": (FLAG, lambda r: r.control.in_history),
    "created_at": (INSTANT, lambda r: r.control.created_at),
    "created_by": (TEXT, lambda r: r.control.created_by),
    "handed_over_at": (INSTANT, lambda r: r.control.handed_over_at),
    "closed_at": (INSTANT, lambda r: r.control.closed_at),
    "closed_by": (TEXT, lambda r: r.control.closed_by),
    "waited_s": (NUMBER, lambda r: _minus(r.control.handed_over_at, r.control.created_at)),
    "note": (TEXT, lambda r: r.control.note),
    "late_report": (TEXT, lambda r: r.control.late_report),
    "claim": (TEXT, lambda r: r.control.claim),
    "resent_from": (TEXT, lambda r: r.control.resent_from),
    "key": (TEXT, lambda r: r.control.key),
    "control_id": (TEXT, lambda r: r.control.id),
}

TURNS: dict[str, Column] = {
    "turn_id": (TEXT, lambda t: t.turn_id),
    "branch": (TEXT, lambda t: t.branch_name),
    "operation": (TEXT, lambda t: t.operation),
    "model": (TEXT, lambda t: t.model),
    "outcome": (_words(TurnOutcome), lambda t: t.outcome.value),
    "queued_at": (INSTANT, lambda t: t.queued_at),
    "started_at": (INSTANT, lambda t: t.started_at),
    "ended_at": (INSTANT, lambda t: t.ended_at),
    "waited_s": (NUMBER, lambda t: t.waited_s),
    "duration_s": (NUMBER, lambda t: t.duration_s),
    "starved_s": (NUMBER, lambda t: t.starved_s),
    "input_tokens": (COUNT, lambda t: t.usage.input_tokens),
    "output_tokens": (COUNT, lambda t: t.usage.output_tokens),
    "cost_usd": (NUMBER, lambda t: t.usage.cost_usd),
    "blocks": (COUNT, lambda t: len(t.blocks)),
    "block_tokens": (COUNT, lambda t: sum(b.get("tokens") or 0 for b in t.blocks)),
    "providers_skipped": (COUNT, lambda t: len(t.skipped)),
    "providers_failed": (COUNT, lambda t: len(t.failed)),
    "steers": (COUNT, lambda t: len(t.carried)),
    "error": (TEXT, lambda t: t.error),
    "task": (TEXT, lambda t: t.task),
    "session_id": (TEXT, lambda t: t.session_id),
    "branch_id": (TEXT, lambda t: t.branch_id),
}

LEGS: dict[str, Column] = {
    "run_id": (TEXT, lambda r: r.session.run_id),
    "name": (TEXT, lambda r: r.session.name),
    "status": (_words(RunStatus), lambda r: r.status.value),
    "leg": (_words(Verdict), lambda r: None if r.leg is None else r.leg.value),
    "instruction": (TEXT, lambda r: r.session.instruction),
    "created_at": (INSTANT, lambda r: r.session.created_at),
    "created_by": (TEXT, lambda r: r.session.created_by),
    "ended_at": (INSTANT, lambda r: r.session.ended_at),
    "duration_s": (NUMBER, lambda r: _minus(r.session.ended_at, r.session.created_at)),
    "starved_s": (NUMBER, lambda r: r.starved_s),
    "timeout_s": (NUMBER, lambda r: r.session.timeout_s),
    "note": (TEXT, lambda r: r.session.ended_note),
    "session_id": (TEXT, lambda r: r.session.id),
    "branch_id": (TEXT, lambda r: r.session.branch_id),
}


def _series(values: list[Any], dtype: Any) -> pd.Series[Any]:
    if dtype == INSTANT:
        values = list(pd.to_datetime(pd.Series(values, dtype="float64"), unit="s", utc=True))
    made: pd.Series[Any] = pd.Series(values, dtype=dtype)
    return made


def _frame(columns: dict[str, Column], rows: Sequence[Any]) -> pd.DataFrame:
    return pd.DataFrame({name: _series([read(row) for row in rows], dtype) for name, (dtype, read) in columns.items()})


def controls_frame(rows: Sequence[ControlRow]) -> pd.DataFrame:
    """One row a control; ordered as given (by ``seq``)."""
    return _frame(CONTROLS, rows)


def turns_frame(rows: Sequence[TurnRecord]) -> pd.DataFrame:
    """One row a turn, or a wait that never became one; ordered as given (by entry)."""
    return _frame(TURNS, rows)


def legs_frame(rows: Sequence[LegRow]) -> pd.DataFrame:
    """One row a run; ordered as given (by registration)."""
    return _frame(LEGS, rows)
