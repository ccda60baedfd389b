"""A run goes on under a new leg: who may take it, and what it takes along. One transaction.

Taken are runs that have ended, and running ones whose leg is proven dead; a silent leg's only on a person's word. What
is pending there is the new leg's to claim. What the ends of the run have rejected is sent again as new rows, each of
them once, however often the run is resumed: a rejected row was never delivered and stays what it is. What was claimed
stays with its claim.
"""
# ruff: noqa: D417  # `tx` is handed in by the decorator and no part of the signature

from __future__ import annotations

import uuid
from collections.abc import Collection

from lionnb.errors import StoreError
from lionnb.records import ControlRecord, ControlState, SessionSpec
from lionnb.store import statements as sql
from lionnb.store.controls import Controls
from lionnb.store.gate import CONSUMERS, refuse_resume
from lionnb.store.results import Reopened
from lionnb.store.runs import take_run
from lionnb.store.transact import Tx, reads, writes

__all__ = ("Resumes",)


class Resumes(Controls):
    """Runs, controls, and how a run goes on. All instants are Unix seconds and come from the caller."""

    @writes
    async def reopen(
        self,
        tx: Tx,
        spec: SessionSpec,
        *,
        resend: bool,
        instructed: bool,
        ended_legs: Collection[str] = (),
        anyway: bool = False,
        now: float,
    ) -> Reopened:
        """Give a run a new leg, and queue again what never landed; or refuse, and write nothing.

        Twice with the same leg token: the second changes nothing and answers the same. Of two legs that want the run,
        one gets it, and the other is told whose it is.

        Args:
            spec: The new leg: ``leg``, its Branch, process, lease and budget are taken over; the rest stays.
            resend: Send again what the run's ends have rejected.
            instructed: The leg has something to do also when nothing is queued.
            ended_legs: Legs that the caller knows to have ended: its own, whose end the store may have missed.
            anyway: Take the run also from a leg that is silent.
            now: The instant to record.

        Source: ADR-0108.
        """
        session = next(iter(await tx.sessions(sql.LOCK_SESSION, sid=spec.id)), None)
        if session is None or session.leg != spec.leg:
            known = session is None or session.terminal or session.leg in ended_legs
            found = None if known or session is None else self.judge(session, now)
            if (refusal := refuse_resume(session, spec.id, found, anyway=anyway)) is not None:
                return Reopened(None, refusal)
            again = await tx.controls(sql.NEVER_LANDED, sid=spec.id) if resend else []
            if not instructed and not again and not await tx.count(sql.PENDING_COUNT, sid=spec.id):
                return Reopened(None, ("nothing", _nothing(spec.run_id, resend=resend)))
            session = await take_run(tx, spec, dead_leg=None if session is None else session.leg, now=now)
            if session is None:
                raise StoreError("the run was taken by another leg at this very moment: nothing was written.")
            for control in again:
                await _send_again(tx, control, now)
        queued = [row for row in await tx.controls(sql.OPEN_OF, sid=spec.id) if row.state is ControlState.PENDING]
        return Reopened(session, queued=tuple(queued))

    @writes
    async def put_snapshot(self, tx: Tx, session_id: str, leg: str, history: str, now: float) -> bool:
        """Keep the history that a run would go on with, instead of the one before; by the leg that owns the run only.

        ``False`` when the run is not running or not this leg's any more: nothing was written.
        """
        return bool(await tx.rows(sql.PUT_SNAPSHOT, sid=session_id, of_leg=leg, text=history, now=now))

    @reads
    async def get_snapshot(self, tx: Tx, session_id: str) -> str | None:
        """The newest history of a run; ``None`` when none was kept."""
        return next(iter(await tx.scalars(sql.SNAPSHOT, sid=session_id)), None)

    async def tell_open(self, session_id: str) -> None:
        """Tell the watchers what is open in a run, in its place among the other tellings; writes nothing."""
        await self.hear(lambda tx: tx.controls(sql.OPEN_OF, sid=session_id))


async def _send_again(tx: Tx, control: ControlRecord, now: float) -> None:
    """The same words by the same author, as a new row. The run is locked, so nobody else sends it meanwhile."""
    binds = {
        "sid": control.session_id,
        "cid": uuid.uuid4().hex,
        "what": control.verb,
        "body": control.payload,
        "by": control.created_by,
        "origin": control.id,
        "kinds": sorted(CONSUMERS[control.verb]),
        "now": now,
    }
    # Somebody may have used this very key for a steer of their own: the row then has none, and is sent all the same.
    for key in (f"resent:{control.id}", None):
        if await tx.change(sql.ADMIT, idem=key, **binds):
            return
    raise StoreError("a steer that never landed could not be queued again: nothing was written. Try again.")


def _nothing(run_id: str, *, resend: bool) -> str:
    said = f"nothing of run {run_id} is waiting to be delivered, so say what it should do: resume needs an instruction."
    return said if resend else f"{said} With resend=True it sends again what was rejected."
