"""Tables: columns and dtypes are declared once, and hold when there is nothing to show."""

from __future__ import annotations

import pandas as pd
import pytest

from lionnb import columns
from lionnb.fates import sentence_of
from lionnb.records import (
    ControlRecord,
    ControlState,
    Fate,
    RunStatus,
    SessionRecord,
    TurnOutcome,
    TurnRecord,
    Usage,
    Verdict,
    chip_of,
)

TABLES = [
    (columns.controls_frame, columns.CONTROLS),
    (columns.turns_frame, columns.TURNS),
    (columns.legs_frame, columns.LEGS),
]


def control(**changes) -> ControlRecord:
    given = {"seq": 1, "id": "c1", "session_id": "s1", "verb": "message", "payload": {"text": "hi"}, "created_at": 1e9}
    return ControlRecord(**(given | {"state": ControlState.PENDING} | changes))


def turn(**changes) -> TurnRecord:
    given = {"turn_id": "t1", "branch_id": "b1", "operation": "chat", "queued_at": 1e9, "outcome": TurnOutcome.RUNNING}
    return TurnRecord(**(given | changes))


def filled() -> list[pd.DataFrame]:
    session = SessionRecord(id="s", run_id="r", branch_id="b", leg="l", created_at=1e9, status="running")
    leg = columns.LegRow(session, RunStatus.RUNNING, Verdict.ALIVE)
    row = columns.ControlRow(control(), Fate.PENDING, "r")
    return [columns.controls_frame([row]), columns.turns_frame([turn()]), columns.legs_frame([leg])]


@pytest.mark.parametrize("i", range(3))
def test_an_empty_table_has_the_columns_and_dtypes_of_a_full_one(i):
    """`pd.DataFrame([])` has no columns at all, and an analyst's next line would fail."""
    make, declared = TABLES[i]
    empty, full = make([]), filled()[i]
    assert list(empty.columns) == list(full.columns) == list(declared)
    assert list(empty.dtypes) == list(full.dtypes) == [dtype for dtype, _ in declared.values()]
    assert len(empty) == 0


def test_unknown_usage_is_missing_and_never_zero():
    """`None` is unknown; a known zero stays a zero."""
    frame = columns.turns_frame([turn(), turn(turn_id="t2", usage=Usage(input_tokens=0, output_tokens=3))])
    assert frame["input_tokens"].isna().tolist() == [True, False]
    assert frame["input_tokens"].iloc[1] == 0 and frame["output_tokens"].iloc[1] == 3


def test_instants_are_utc_and_durations_are_seconds():
    """Unix seconds in, UTC timestamps and float seconds out."""
    frame = columns.turns_frame([turn(started_at=1e9 + 2, ended_at=1e9 + 5)])
    assert str(frame["queued_at"].iloc[0]) == "2001-09-09 01:46:40+00:00"
    assert frame["waited_s"].iloc[0] == 2 and frame["duration_s"].iloc[0] == 3
    assert columns.turns_frame([turn()])["ended_at"].isna().all()


def test_fates_are_categories_with_every_word():
    """Counting fates shows the zeroes too."""
    row = columns.ControlRow(control(), Fate.PENDING, "r")
    counts = columns.controls_frame([row])["fate"].value_counts()
    assert set(counts.index) == {f.value for f in Fate} and counts["pending"] == 1 and counts["applied"] == 0


def test_text_is_taken_to_the_letter():
    """A text that looks like a number, or like markup, stays that text."""
    for text in ("0.1", "<b>x</b>", "nan", " two  spaces ", "None"):
        row = columns.ControlRow(control(payload={"text": text}), Fate.PENDING, "r")
        assert columns.controls_frame([row])["text"].iloc[0] == text


def test_a_row_resolved_as_abandoned_reads_not_delivered():
    """The chip looks at what the person found."""
    for note, chip in (("applied", "applied"), ("abandoned", "not delivered")):
        done = control(state="resolved", claim="x", handed_over_at=1e9, closed_at=1e9, note=note)
        assert columns.controls_frame([columns.ControlRow(done, Fate.RESOLVED, "r")])["chip"].iloc[0] == chip


@pytest.mark.parametrize("found", ["applied", "abandoned"])
@pytest.mark.parametrize(
    ("late", "chip"),
    [
        ("2026-11-30T10:00:00+00:00: applied in turn t1 (failed; not in the history): why", "applied"),
        ("2026-11-30T10:00:00+00:00: given back, the Branch was never called", "not delivered"),
    ],
)
def test_what_its_leg_reported_late_counts_whatever_a_person_found(found, late, chip):
    """S3: no chip says "not delivered" of what was delivered, nor "applied" of what was not; the sentence has both."""
    done = control(state="resolved", claim="x", handed_over_at=1e9, closed_at=1e9, note=found, late_report=late)
    row = columns.controls_frame([columns.ControlRow(done.model_copy(update={"closed_by": "ana"}), Fate.RESOLVED, "r")])
    assert row["chip"].iloc[0] == chip == chip_of(Fate.RESOLVED, done).value
    said = sentence_of(done.model_copy(update={"closed_by": "ana"}), Fate.RESOLVED, now=2e9)
    assert said == f"resolved as {found} by ana; later its leg reported: {late}"
