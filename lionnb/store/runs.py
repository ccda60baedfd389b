"""A run's life: start, heartbeat, end with its sweep, resume, purge. Bodies of transactions.

A run belongs to the leg whose token its row holds. Every write of a leg is conditioned on that token, so a leg that
was recorded lost, or replaced, changes nothing any more and is told so.
"""
# ruff: noqa: D417  # `tx` is handed in by the decorator and no part of the signature

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from lionnb.errors import StoreError
from lionnb.records import RunStatus, SessionRecord, SessionSpec
from lionnb.store import statements as sql
from lionnb.store.gate import how_to_resume
from lionnb.store.results import EndResult, Purged
from lionnb.store.states import run_step
from lionnb.store.transact import Transactions, Tx, reads, writes

__all__ = ("Runs", "end_and_sweep", "take_run")

CAUSE_CHARS: Final = 200  # of why a run ended, on each row that its sweep rejects


class Runs(Transactions):
    """The operations on runs. All instants are Unix seconds and come from the caller."""

    @writes
    async def start_session(self, tx: Tx, spec: SessionSpec, now: float) -> SessionRecord:
        """Register a run as running and this leg's. Twice: the row is returned as it stands, also when it has ended.

        Raises:
            StoreError: The id is another leg's run.
        """
        row = spec.model_dump() | {"status": RunStatus.RUNNING.value, "heartbeat_at": now}
        found = await tx.sessions(sql.START, **row) or await tx.sessions(sql.SESSION, sid=spec.id)
        # The row loses the leg's token with its end, which may have come while the answer to the first was lost.
        ended = bool(found) and found[0].terminal and _registration(found[0]) == _registration(spec)
        if not found or (found[0].leg != spec.leg and not ended):
            raise StoreError(f"a run with the id {spec.id!r} is there already: nothing was written. Take a new id.")
        return found[0]

    @writes
    async def resume_session(
        self, tx: Tx, spec: SessionSpec, *, dead_leg: str | None = None, now: float
    ) -> SessionRecord | None:
        """Give an ended run a new leg, on the same row; ``None`` when the run is unknown or another leg's.

        What is pending there (an end without a sweep, a row given back late) is the new leg's to claim; what is
        delivering stays with the claim that holds it.

        Args:
            spec: The new leg: ``leg``, its Branch, process, lease and budget are taken over; the rest stays.
            dead_leg: Take the run also from this leg although it reads running. Only with proof that it is dead.
            now: The instant to record.
        """
        return await take_run(tx, spec, dead_leg=dead_leg, now=now)

    @reads
    async def get_session(self, tx: Tx, session_id: str) -> SessionRecord | None:
        """The run of this id; ``None`` when there is none."""
        return next(iter(await tx.sessions(sql.SESSION, sid=session_id)), None)

    @reads
    async def list_sessions(
        self,
        tx: Tx,
        ids: Collection[str] | None = None,
        *,
        branch_id: str | None = None,
        name: str | None = None,
        running: bool | None = None,
    ) -> list[SessionRecord]:
        """Runs in the order in which they were registered; each argument that is given narrows them."""
        statement = sql.SESSIONS
        if ids is not None:
            statement = statement.where(sql.s.id.in_(sorted(ids)))
        if branch_id is not None:
            statement = statement.where(sql.s.branch_id == branch_id)
        if name is not None:
            statement = statement.where(sql.s.name == name)
        if running is not None:
            statement = statement.where((sql.s.status == sql.RUNNING) if running else (sql.s.status != sql.RUNNING))
        return await tx.sessions(statement)

    @writes
    async def heartbeat(self, tx: Tx, session_id: str, leg: str, now: float) -> bool:
        """Renew the lease; ``False`` when the run is not running or not this leg's any more."""
        return bool(await tx.rows(sql.HEARTBEAT, sid=session_id, of_leg=leg, now=now))

    @writes
    async def clock_runs(self, tx: Tx, session_id: str, leg: str, deadline_at: float | None) -> bool:
        """Record until when a leg has time: one that was queued behind others starts later, and one may go on.

        The run stays running, and the leg's with what it holds, also where its deadline had passed.

        ``False`` when the run is not running or not this leg's any more. Twice: the later one counts.
        """
        return bool(await tx.rows(sql.CLOCK_RUNS, sid=session_id, of_leg=leg, until=deadline_at))

    @writes
    async def end(
        self,
        tx: Tx,
        session_id: str,
        leg: str,
        status: RunStatus | str,
        *,
        by: str | None,
        note: str | None = None,
        sweep: bool = True,
        only_if_idle: bool = False,
        now: float,
    ) -> EndResult:
        """End a run that is running and this leg's, and reject what nobody claimed, in one transaction.

        Claimed rows are never touched: whether they were delivered is not known here. Twice, or after somebody else
        ended or took the run: ``ended`` is false and nothing was written; ``session`` says what stands.

        Args:
            session_id: The run.
            leg: The token that must own it.
            status: A terminal `RunStatus`.
            by: Who or what ended it.
            note: Why, in a sentence.
            sweep: ``False`` leaves pending rows for a leg that resumes the run.
            only_if_idle: Do nothing when a control is pending, decided with the run locked.
            now: The instant to record.

        Source: ADR-0108, "Terminal race".
        """
        to = run_step(RunStatus.RUNNING, RunStatus(status))
        if to is RunStatus.RUNNING:
            raise ValueError("a run ends in a terminal status")
        owned = {"sid": session_id, "of_leg": leg}
        if only_if_idle:
            await tx.rows(sql.LOCK_OWNED, **owned)  # first: what is counted while it is held is all there is
            if await tx.count(sql.PENDING_COUNT, sid=session_id):
                return await _stands(tx, session_id, ended=False)
        return await end_and_sweep(tx, session_id, leg, to, by=by, note=note, sweep=sweep, now=now)

    async def mark_lost(self, session_id: str, leg: str, note: str, by: str | None, now: float) -> EndResult:
        """Record that *leg*'s run is lost, and sweep it; conditioned on the token that the evidence is about.

        A stale proof ends nothing: when another leg has taken the run meanwhile, ``ended`` is false.
        """
        return await self.end(session_id, leg, RunStatus.LOST, by=by, note=note, now=now)

    @writes
    async def purge(self, tx: Tx, before: float, now: float) -> Purged:
        """Remove runs that ended before an instant, and all that belongs to them; running ones never.

        A run with a claimed row that nobody resolved is kept and counted: it is a question to a person.

        Args:
            before: Instant; nothing that ended at or after it is removed, nor anything that ends after *now*.
            now: The present.
        """
        limit = min(before, now)
        kept = await tx.count(sql.KEPT_UNRESOLVED, before=limit)
        doomed = await tx.scalars(sql.PURGEABLE, before=limit)
        gone = {"controls": 0, "signals": 0, "turns": 0, "sessions": 0}
        for some in (doomed[i : i + 500] for i in range(0, len(doomed), 500)):
            gone["controls"] += len(await tx.rows(sql.PURGE_CONTROLS, doomed=some))
            gone["signals"] += len(await tx.rows(sql.PURGE_SIGNALS, doomed=some))
            gone["turns"] += len(await tx.rows(sql.PURGE_TURNS, doomed=some))
            await tx.rows(sql.PURGE_SNAPSHOTS, doomed=some)
            gone["sessions"] += len(await tx.rows(sql.PURGE_SESSIONS, doomed=some))
        gone["turns"] += len(await tx.rows(sql.PURGE_LOOSE_TURNS, before=limit))
        gone["signals"] += len(await tx.rows(sql.PURGE_LOOSE_SIGNALS, before=limit))
        return Purged(kept_unresolved=kept, **gone)


def _registration(run: SessionSpec) -> tuple[object, ...]:
    """What a leg states when it registers its run and nothing changes afterwards."""
    return run.run_id, run.branch_id, run.created_at, run.created_by, run.instruction


async def take_run(tx: Tx, spec: SessionSpec, *, dead_leg: str | None, now: float) -> SessionRecord | None:
    """`Runs.resume_session`, in the caller's transaction."""
    found = await tx.sessions(
        sql.RESUME,
        sid=spec.id,
        dead_leg=dead_leg,
        new_leg=spec.leg,
        on_branch=spec.branch_id,
        until=spec.deadline_at,
        budget_s=spec.timeout_s,
        on_host=spec.host,
        in_pid=spec.pid,
        in_pid_start=spec.pid_start,
        lease_s=spec.ttl_s,
        now=now,
    )
    return next(iter(found), None)


async def end_and_sweep(
    tx: Tx,
    session_id: str,
    leg: str,
    to: RunStatus,
    *,
    by: str | None,
    note: str | None,
    sweep: bool = True,
    now: float,
) -> EndResult:
    """End the run, if it is running and this leg's, and reject what nobody claimed, in the caller's transaction."""
    why = {"who": by, "now": now}
    if not await tx.rows(sql.END, sid=session_id, of_leg=leg, as_what=to.value, why=note, **why):
        return await _stands(tx, session_id, ended=False)
    if not sweep:
        return await _stands(tx, session_id, ended=True)
    standing = await _stands(tx, session_id, ended=True)
    cause = f"{to.value}: {note}" if note else to.value
    again = how_to_resume(standing.session)
    reason = f"the run ended ({cause[:CAUSE_CHARS]}) before the steer could land: {again} sends it again"
    swept = await tx.change(sql.SWEEP, sid=session_id, why=reason, **why)
    standing = await _stands(tx, session_id, ended=True)
    return EndResult(True, standing.session, tuple(swept), standing.pending_left)


async def _stands(tx: Tx, session_id: str, *, ended: bool) -> EndResult:
    """What stands in the database now: re-read, never trusted."""
    session = next(iter(await tx.sessions(sql.SESSION, sid=session_id)), None)
    return EndResult(ended, session, pending_left=await tx.count(sql.PENDING_COUNT, sid=session_id))
