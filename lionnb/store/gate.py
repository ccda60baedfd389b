"""Which kind of run consumes which verb, and why a control is refused. Pure; imports records.

A verb that nobody reads would leave its row pending for ever, so it is refused at the door instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lionnb.records import ControlRecord, SessionRecord, Verdict

__all__ = (
    "CONSUMERS",
    "Refusal",
    "how_to_resume",
    "refuse_conflict",
    "refuse_dead",
    "refuse_resume",
    "refuse_session",
    "refuse_silent",
    "refuse_verb",
)

Refusal = tuple[str, str]
"""A stable reason (the vocabulary of `SteerRefusedError`) and a sentence that says what to do instead."""

CONSUMERS: Final[Mapping[str, frozenset[str]]] = {
    "message": frozenset({"agent", "flow"}),
    "pause": frozenset({"flow"}),
    "resume": frozenset({"flow"}),
    "stop": frozenset(),  # reserved: nobody consumes it
}
"""Source: ADR-0108, "Per-verb consumer gate"."""


def refuse_verb(verb: object) -> Refusal | None:
    """Why no run at all takes this verb; ``None`` when some kind does."""
    if not isinstance(verb, str) or verb not in CONSUMERS:
        known = ", ".join(name for name, kinds in CONSUMERS.items() if kinds)
        return "verb", f"there is no control of this name: the verbs are {known}. Nothing was queued."
    if not CONSUMERS[verb]:
        return "verb", f"the verb {verb!r} is reserved and nobody consumes it: end a leg with leg.stop()."
    return None


def how_to_resume(session: SessionRecord | None) -> str:
    """The words that resume a run in Python; for one that cannot be resumed, what to do instead."""
    if session is None or session.kind != "agent" or not session.run_id:
        return "a new run"
    return f'lionnb.resume("{session.run_id}", …)'


def refuse_session(session: SessionRecord | None, session_id: str, verb: str) -> Refusal | None:
    """Why this run does not take *verb*; ``None`` when it does."""
    if session is None:
        return "unknown", f"no run here has the id {session_id!r}: `lionnb legs` lists the runs of this store."
    run = session.run_id or session.id
    if session.terminal:
        return "ended", (
            f"run {run} has ended ({session.status.value}), so nothing can land in it any more: "
            f"{how_to_resume(session)} takes it up again."
        )
    if session.kind not in {kind for kinds in CONSUMERS.values() for kind in kinds}:
        return "kind", f"run {run} is of kind {session.kind!r}, and nothing in such a run reads controls."
    if session.kind not in CONSUMERS[verb]:
        return "verb", (
            f"run {run} is an agent leg: one operate() has no seam at which to {verb}. Send a message, which lands as "
            "a continuation turn, or end its turn from its own program: in Python, leg.cancel_turn()."
        )
    if session.kind == "agent" and not session.run_id:
        return "kind", (
            f"session {session.id} has no run id: it mirrors a tool that runs elsewhere, and no leg reads its controls."
        )
    return None


def refuse_dead(session: SessionRecord) -> Refusal:
    """Why a run whose leg is proven dead takes nothing; it has just been recorded lost."""
    return "dead", (
        f"the process that ran run {session.run_id or session.id} is gone (pid {session.pid}), so the run was recorded "
        f"lost and nothing was queued: {how_to_resume(session)} takes it up again; then send it there."
    )


def refuse_silent(session: SessionRecord, seen: str) -> Refusal:
    """Why a run takes nothing whose leg may be dead or may be slow: *seen* says what is known."""
    return "silent", (
        f"run {session.run_id or session.id} is {seen}: it may have died or be cut off, and nothing was queued. Say "
        "anyway=True (`--anyway`) to queue it all the same."
    )


def refuse_resume(
    session: SessionRecord | None, session_id: str, found: Verdict | None, *, anyway: bool
) -> Refusal | None:
    """Why no leg takes this run up; ``None`` when one may. *found* is what is known of the leg that owns it."""
    if session is None:
        return "unknown", f"no run here has the id {session_id!r}: `lionnb legs` lists the runs of this store."
    run = session.run_id or session.id
    if session.kind != "agent" or not session.run_id:
        return "kind", f"run {run} is no agent's leg (its kind is {session.kind!r}), and only such a run is resumed."
    match found:
        case Verdict.ALIVE:
            return "live", (
                f"run {run} is being worked on by {session.leg} (pid {session.pid} of this machine): steer that leg, "
                "or stop it first. Nothing was changed."
            )
        case Verdict.FRESH:
            return "live", (
                f"run {run} is being worked on by {session.leg}, on another host, whose heartbeat is fresh: steer that "
                "leg, or stop it first. Nothing was changed."
            )
        case Verdict.SILENT if not anyway:
            return "silent", (
                f"run {run} belongs to {session.leg}, which has been silent for longer than its lease and cannot be "
                "seen from here. If you know that it is gone, say anyway=True and your name (by=). Nothing was changed."
            )
    return None


def refuse_conflict(existing: ControlRecord, session_id: str) -> Refusal:
    """Why a key (or id) that was used before is refused: the text, verb or run is another one."""
    where = "another run" if existing.session_id != session_id else "this run, with another text"
    return (
        "key",
        f"this key was used before in {where} (control {existing.id}): choose another key. Nothing was queued.",
    )
