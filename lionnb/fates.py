"""Fates and durations in words: one wording for receipts, views and the terminal. Pure; imports records only."""

from __future__ import annotations

from lionnb.records import ControlRecord, Fate

__all__ = ("LANDS", "ago", "sentence_of")

LANDS = "lands at the end of the current turn"


def ago(seconds: float) -> str:
    """A duration as a person says it: one unit, rounded down, never negative."""
    left = max(0, int(seconds))
    for unit, size, until in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if left < until:
            return f"{left // size} {unit}"
    return f"{left // 86_400} days"


def sentence_of(control: ControlRecord, fate: Fate, *, now: float) -> str:
    """What became of a steer, in a sentence for its sender."""
    turn = (control.turn_id or "")[:8]
    held = f"{ago(now - control.handed_over_at)} ago" if control.handed_over_at is not None else ""
    match fate:
        case Fate.PENDING:
            return f"queued: {LANDS}"
        case Fate.DELIVERING:
            return f"handed over {held}: its continuation turn runs"
        case Fate.APPLIED:
            seen = {True: "", False: "; the instruction is not in the Branch's history", None: ""}[control.in_history]
            return f"applied in turn {turn}, which {_ended(control.turn_outcome)}{seen}"
        case Fate.RESOLVED:
            if control.late_report:
                found = f"resolved as {control.note} by {control.closed_by}"
                return f"{found}; later its leg reported: {control.late_report}"
            return f"recorded as {control.note} by {control.closed_by}"
        case Fate.REJECTED:
            return f"not delivered: {control.note or 'the run ended before it could land'}"
        case Fate.WITHDRAWN:
            return f"withdrawn by {control.closed_by} before it was handed over"
        case Fate.NEVER_LANDED:
            return "never landed: the run is over and nobody took it; resuming the run takes it along"
        case Fate.NEVER_REPORTED:
            return f"handed over {held}, and its leg never reported back: look at the transcript, then resolve it"
        case Fate.REFUSED:
            return "refused"


def _ended(outcome: str | None) -> str:
    words = {"completed": "completed", "failed": "failed", "timed_out": "ran out of time", "cancelled": "was cancelled"}
    return words.get(outcome or "", outcome or "ended")
