"""How a run stands, and what became of everything that was sent to it: as lines for a person, and as JSON. Pure.

Every fate is computed here from the rows and from what is known of the leg now, so it holds also when the end of a run
could not be written.

Source: ADR-0108, "Forced-consumer honesty".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from shlex import quote
from typing import Any

from lionnb.fates import ago, sentence_of
from lionnb.records import Chip, ControlRecord, Fate, RunStatus, SessionRecord, chip_of, fate_of
from lionnb.store.lease import RunView, claim_is_dead, leg_of, process_of
from lionnb.terminal import clip, table

__all__ = ("Told", "legs_json", "legs_table", "status_json", "status_lines", "told")

TEXT_CELLS = 72


@dataclass(frozen=True, slots=True)
class Told:
    """A control with what is true of it now. ``owner`` is the leg of its claim, as long as that is open."""

    control: ControlRecord
    fate: Fate
    chip: Chip
    sentence: str
    owner: str | None
    claim_age_s: float | None


def told(controls: Sequence[ControlRecord], session: SessionRecord, view: RunView, now: float) -> list[Told]:
    """What is true now of *controls*, which are the run's, in their order."""
    found, before = [], 0
    for control in controls:
        dead = claim_is_dead(control, session, view.verdict)
        fate = fate_of(control, run_ended=session.terminal, leg_dead=dead)
        is_open = control.closed_at is None
        owner = leg_of(control.claim) if is_open and control.claim is not None else None
        held = (
            max(0.0, now - control.handed_over_at) if owner is not None and control.handed_over_at is not None else None
        )
        sentence = _sentence(control, fate, owner, view, before, now)
        found.append(Told(control, fate, chip_of(fate, control), sentence, owner, held))
        before += is_open
    return _pointed(found)


def _pointed(found: list[Told]) -> list[Told]:
    """Say of what was not delivered which control sends it again: the advice to resume has been followed."""
    again = {one.control.resent_from: one for one in found if one.control.resent_from is not None}
    for at, one in enumerate(found):
        new = again.get(one.control.id)
        if new is not None and one.fate in (Fate.REJECTED, Fate.NEVER_LANDED):
            said = f"not delivered; sent again as control {_short(new.control.id)}, which is {_FATES[new.fate]}"
            found[at] = replace(one, sentence=said)
    return found


def _sentence(control: ControlRecord, fate: Fate, owner: str | None, view: RunView, before: int, now: float) -> str:
    if fate is Fate.PENDING and control.verb == "message":
        ahead = f"; {before} before it" if before else ""
        silent = f"; but its leg is {view.sentence}" if view.word == "silent" else ""
        return sentence_of(control, fate, now=now) + ahead + silent
    if fate is Fate.PENDING:
        return "queued: it applies when the flow reads it"
    if owner is None or control.handed_over_at is None:
        return sentence_of(control, fate, now=now)
    held = f"handed over to {owner} {ago(now - control.handed_over_at)} ago"
    if fate is Fate.DELIVERING:
        return f"{held}: its continuation turn runs"
    return (
        f"{held}, which never reported back: whether it reached the model nobody knows. Look at the transcript, then "
        f"`lionnb ctl resolve {quote(control.id)} --claim {quote(control.claim or '')} --as applied|abandoned`"
    )


# ---------------------------------------------------------------------- one run


def status_lines(session: SessionRecord, view: RunView, controls: Sequence[Told], now: float) -> list[str]:
    """The run and its controls, for a person: each line is ours, and what others wrote is clipped within it."""
    name = f"  {clip(session.name)}" if session.name else ""
    by = f", by {clip(session.created_by, 40)}" if session.created_by else ""
    lines = [
        f"run {clip(session.run_id)}{name}",
        f"  status    {clip(view.sentence, 200)}",
        f"  began     {ago(now - session.created_at)} ago{by}",
    ]
    if session.ended_at is not None:
        ended_by = f", by {clip(session.ended_by, 40)}" if session.ended_by else ""
        lines.append(f"  ended     {ago(now - session.ended_at)} ago{ended_by}")
    elif session.deadline_at is not None and view.status is RunStatus.RUNNING:  # a lost run has none any more
        left = session.deadline_at - now
        lines.append(f"  deadline  {f'in {ago(left)}' if left > 0 else f'passed {ago(-left)} ago'}")
    lines.append(f"  process   {process_of(session)}")
    lines.append(f"  asked     {clip(session.instruction, TEXT_CELLS)}")
    lines.append(f"  session   {clip(session.id)}   branch {clip(session.branch_id)}")
    lines += ["", _counted(controls)]
    for one in controls:
        sent = f"{ago(now - one.control.created_at)} ago by {clip(one.control.created_by or 'unknown', 40)}"
        what = f'"{clip(one.control.text, TEXT_CELLS)}"' if one.control.verb == "message" else one.control.verb
        if (origin := one.control.resent_from) is not None:
            sent += f"; sends {clip(_short(origin), 40)} again"
        lines.append(f"  {clip(_short(one.control.id), 40)}  {_FATES[one.fate]}  {what}  ({sent})")
        lines.append(f"      {clip(one.sentence, 400)}")
    return lines


# ADR-0108's words for what is computed; the stored ones are their own.
_FATES = {fate: fate.value for fate in Fate} | {
    Fate.NEVER_LANDED: "never landed",
    Fate.NEVER_REPORTED: "never reported back",
}


def _counted(controls: Sequence[Told]) -> str:
    if not controls:
        return "nothing was sent to it"
    counts = {chip: sum(one.chip is chip for one in controls) for chip in Chip}
    return "steers: " + ", ".join(f"{n} {chip.value}" for chip, n in counts.items() if n)


def _short(control_id: str) -> str:
    """Eight characters of an id that is ours; all of one that a caller chose."""
    ours = len(control_id) == 32 and all(ch in "0123456789abcdef" for ch in control_id)
    return control_id[:8] if ours else control_id


def status_json(session: SessionRecord, view: RunView, controls: Sequence[Told]) -> dict[str, Any]:
    """The same, for a program: texts to the letter, instants in Unix seconds."""
    return {
        "run": session.model_dump(mode="json") | _view_json(view),
        "controls": [
            one.control.model_dump(mode="json")
            | {
                "fate": one.fate.value,
                "chip": one.chip.value,
                "sentence": one.sentence,
                "owner": one.owner,
                "claim_age_s": one.claim_age_s,
            }
            for one in controls
        ],
    }


def _view_json(view: RunView) -> dict[str, Any]:
    verdict = None if view.verdict is None else view.verdict.value
    return {"word": view.word, "sentence": view.sentence, "verdict": verdict}


# ---------------------------------------------------------------------- many runs

LegLine = tuple[SessionRecord, RunView, int, int]
"""A run, what is true of it, how many controls are queued, and how many need a person."""


def legs_table(legs: Sequence[LegLine], now: float) -> str:
    """One line a run."""
    rows = [
        (
            clip(session.run_id, 30),
            clip(session.name or "", 30),
            view.word,
            str(queued),
            str(needs_you),
            ago(now - session.created_at),
        )
        for session, view, queued, needs_you in legs
    ]
    return table(("RUN", "NAME", "STATUS", "QUEUED", "NEEDS YOU", "AGE"), rows)


def legs_json(legs: Sequence[LegLine], now: float) -> dict[str, Any]:
    """The same, for a program."""
    return {
        "legs": [
            {
                "run_id": session.run_id,
                "session_id": session.id,
                "branch_id": session.branch_id,
                "name": session.name,
                "status": view.word,
                "queued": queued,
                "needs_you": needs_you,
                "age_s": max(0.0, now - session.created_at),  # written by another machine's clock, perhaps
                "created_at": session.created_at,
                "created_by": session.created_by,
            }
            for session, view, queued, needs_you in legs
        ]
    }


def utc(at: float) -> str:
    """An instant, as a person reads it."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
