"""A control's life: admission, hand-over, give back, report, withdraw, resolve. Bodies of transactions.

The claim is the fence. A row is handed over by the statement that writes its claim; from then on only the holder of
that claim finalizes it, and a person can only *resolve* it, which keeps the claim on the row. So no row that was
handed over ever reads as never delivered, and no row that was closed before is ever delivered (S3).
"""
# ruff: noqa: D417  # `tx` is handed in by the decorator and no part of the signature

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from lionnb.errors import ResolveRefusedError, SteerRefusedError, StoreError
from lionnb.records import LATE_APPLIED, LATE_GIVEN_BACK, ControlRecord, ControlState
from lionnb.store import statements as sql
from lionnb.store.door import normalise, normalise_key, person
from lionnb.store.gate import CONSUMERS, Refusal, refuse_conflict, refuse_session, refuse_verb
from lionnb.store.lease import leg_of, new_token
from lionnb.store.leases import Leases
from lionnb.store.results import Admission, Claim, Reported
from lionnb.store.transact import Tx, reads, writes

__all__ = ("Controls", "leg_of", "new_token")

_ROUNDS: Final = 3
"""How often a refused compare-and-set is tried again when the row, read again, says that it should have fitted."""

_BUSY: Final = "this row is being changed by others at this very moment: nothing was written. Try again."


class Controls(Leases):
    """The operations on controls. All instants are Unix seconds and come from the caller."""

    async def admit(
        self,
        session_id: str,
        *,
        verb: str = "message",
        text: str | None = None,
        by: str | None,
        key: str | None = None,
        control_id: str | None = None,
        resent_from: str | None = None,
        anyway: bool = False,
        now: float,
    ) -> Admission:
        """Write a pending control for a run that is running and consumes *verb*, or refuse it with a reason.

        The run's status and the insert are one statement, so an acknowledged control is always one that the run's
        end will see (S4). A run whose leg is proven dead is recorded lost at that moment, and refused. Cancelled: it
        still reaches its end. Twice with the same *key* (or *control_id*) and text: the first row is returned, nothing
        is written, also after the run has ended.

        Args:
            session_id: The run, by its full id.
            verb: ``message``, ``pause`` or ``resume``.
            text: The message, as the operator wrote it; other verbs have none.
            by: Who sends it.
            key: Idempotency key within the run.
            control_id: The row's id, when the caller has promised one already.
            resent_from: The control that this one sends again.
            anyway: Queue it also for a leg on another host that has been silent for longer than its lease.
            now: The instant to record.

        Source: ADR-0108, "Terminal race".
        """
        try:
            if (refusal := refuse_verb(verb)) is not None:
                return Admission(None, refusal)
            binds = {
                "sid": session_id,
                "cid": uuid.uuid4().hex if control_id is None else normalise_key(control_id, "id"),
                "what": verb,
                "body": {"text": normalise(text)} if verb == "message" else {},
                "by": by,
                "idem": None if key is None else normalise_key(key),
                "origin": resent_from,
                "now": now,
            }
        except SteerRefusedError as exc:
            return Admission(None, (exc.reason, str(exc)))
        return await self._admit(binds, anyway)

    @writes
    async def _admit(self, tx: Tx, binds: dict[str, Any], anyway: bool) -> Admission:
        kinds = sorted(CONSUMERS[binds["what"]])
        note: str | None = None
        for session in await tx.sessions(sql.SESSION, sid=binds["sid"]):
            note, refusal = await self.at_the_door(tx, session, by=binds["by"], now=binds["now"])
            if refusal is not None and not (anyway and refusal[0] == "silent"):
                used = await _used_before(tx, binds)
                return Admission(None, refusal) if used is None else used
        for _ in range(_ROUNDS):
            if rows := await tx.change(sql.ADMIT, kinds=kinds, **binds):
                return Admission(rows[0], position=await _position(tx, rows[0]), note=note)
            answer = await _why_not_admitted(tx, binds)
            if answer is not None:
                return answer
        raise StoreError(_BUSY)

    @reads
    async def pending_count(self, tx: Tx, session_id: str) -> int:
        """How many controls of the run wait to be claimed."""
        return await tx.count(sql.PENDING_COUNT, sid=session_id)

    @reads
    async def get_control(self, tx: Tx, control_id: str) -> ControlRecord | None:
        """The control of this id; ``None`` when there is none."""
        return next(iter(await tx.controls(sql.CONTROL, cid=control_id)), None)

    @reads
    async def list_controls(
        self, tx: Tx, session_id: str | Collection[str] | None = None, *, open_only: bool = False
    ) -> list[ControlRecord]:
        """Controls in the order in which they were admitted: of one run, of several, or (``None``) all."""
        statement = sql.CONTROLS
        if session_id is not None:
            ids = [session_id] if isinstance(session_id, str) else sorted(session_id)
            statement = statement.where(sql.c.session_id.in_(ids))
        if open_only:
            statement = statement.where(sql.c.closed_at.is_(None))
        return await tx.controls(statement)

    @writes
    async def claim_all(self, tx: Tx, session_id: str, leg: str, now: float, *, token: str | None = None) -> Claim:
        """Hand everything pending to *leg*, in one statement, if the run is running and this leg's.

        Call it as the last thing before the effect: from here on only the holder of the returned token (or a person,
        by name) closes these rows, and a crash leaves them *never reported back*. Cancelled: it still reaches its
        end, and the rows are then held by nobody who knows; so take it in a task that cannot be cancelled.

        A row that carries no message, because another program wrote it past the door, is rejected in the same
        transaction and never handed over; it holds nothing up.

        Args:
            session_id: The run.
            leg: The token that must own it.
            now: The instant to record.
            token: The claim, if the caller has made it (`new_token`): then it can give back what it took also when
                the answer is lost on the way.
        """
        token = token or new_token(leg)
        rows = await tx.change(sql.CLAIM_ALL, sid=session_id, of_leg=leg, token=token, now=now)
        owned = bool(rows) or bool(await tx.rows(sql.LOCK_OWNED, sid=session_id, of_leg=leg))
        if bad := {row.id: why for row in rows if (why := _unusable(row)) is not None}:
            await _reject(tx, bad, token, now)
            rows = [row for row in rows if row.id not in bad]
        return Claim(token, tuple(rows), owned)

    @writes
    async def give_back(self, tx: Tx, token: str, now: float) -> tuple[str, ...]:
        """Make what this claim holds pending again; return the ids.

        Only for a holder that knows the Branch was never called with them. A row that a person resolved meanwhile
        stays resolved and gets a late report. Twice: the second returns nothing.
        """
        rows = await tx.change(sql.GIVE_BACK, token=token)
        await tx.change(sql.REPORT_LATE, token=token, report=f"{_utc(now)}: {LATE_GIVEN_BACK}")
        return tuple(row.id for row in rows)

    @writes
    async def report(
        self,
        tx: Tx,
        token: str,
        *,
        turn_id: str | None,
        turn_outcome: str,
        in_history: bool | None,
        note: str | None = None,
        expected: Sequence[str] = (),
        now: float,
    ) -> Reported:
        """Record as applied what this claim holds; say of each row whether that landed.

        Applied means that the Branch's operation was called with it, whatever became of that turn. A row that a
        person resolved meanwhile keeps the resolution and gets a late report (S5). Twice: the rows are ``earlier`` (or
        ``late``) the second time, and unchanged.

        Args:
            token: The claim, as `claim_all` returned it.
            turn_id: The turn that carried the controls.
            turn_outcome: How that turn ended (`TurnOutcome`).
            in_history: Whether the instruction stands in the Branch's history; ``None`` when unknown.
            note: A sentence to keep.
            expected: Ids that the caller believes to hold; one that does not bear the claim any more is ``lost``.
            now: The instant to record.
        """
        binds = {"in_turn": turn_id, "outcome": turn_outcome, "kept": in_history, "why": note}
        landed = await tx.change(sql.APPLY, token=token, who=leg_of(token), now=now, **binds)
        late = await tx.change(sql.REPORT_LATE, token=token, report=_late(turn_id, turn_outcome, in_history, note, now))
        now_told = {row.id for row in (*landed, *late)}
        bearing = [row for row in await tx.controls(sql.BEARING, token=token) if row.id not in now_told]
        # Only the holder of this claim writes either under it, and no claim is used twice: it was this one, before.
        earlier = [row.id for row in bearing if row.state is ControlState.APPLIED]
        late += [row for row in bearing if row.late_report is not None]
        told = now_told.union(earlier, (row.id for row in late))
        lost = [cid for cid in dict.fromkeys((*(row.id for row in bearing), *expected)) if cid not in told]
        return Reported(tuple(row.id for row in landed), tuple(row.id for row in late), tuple(earlier), tuple(lost))

    @writes
    async def withdraw(self, tx: Tx, control_id: str, by: str, now: float, *, note: str | None = None) -> ControlRecord:
        """Take back a control that nobody has claimed yet; afterwards it is never delivered.

        Raises:
            ResolveRefusedError: ``by`` (no name), ``unknown``, ``claimed`` (it was handed over), ``closed``. Unchanged.
        """
        who = person(by, "withdrawing a control")
        await _known(tx, control_id)
        for _ in range(_ROUNDS):
            if rows := await tx.change(sql.WITHDRAW, cid=control_id, who=who, why=note, now=now):
                return rows[0]
            row = await _known(tx, control_id)
            if row.state is not ControlState.PENDING:
                raise ResolveRefusedError(*_why_not_withdrawn(row))
        raise StoreError(_BUSY)

    @writes
    async def resolve(
        self, tx: Tx, control_id: str, outcome: str, by: str, now: float, *, claim: str | None = None
    ) -> ControlRecord:
        """Record a person's finding about a control that was handed over and never reported back.

        Claim and hand-over instant stay on the row, verbatim; if the holder comes back after all, it adds a late
        report and overwrites nothing. What is returned was written.

        Args:
            control_id: The row.
            outcome: ``applied`` or ``abandoned``: what the person found.
            by: The person's name.
            now: The instant to record.
            claim: The claim that the person saw on the row; every hand-over has one of its own. ``None``: the one that
                this call reads.

        Raises:
            ResolveRefusedError: ``outcome``, ``by``, ``claim``, ``unknown``, ``not_claimed`` (only a delivering row can
                be resolved), ``anew`` (*claim* is not the present one: it was handed over again, or it is not given in
                full). The row is unchanged.

        Source: ADR-0108, "A claimed row is never resolved by anything but its claimant".
        """
        if outcome not in ("applied", "abandoned"):
            raise ResolveRefusedError(
                "outcome", 'a control is resolved as "applied" or as "abandoned": nothing was changed.'
            )
        who = person(by, "resolving a control")
        if claim is not None and (not isinstance(claim, str) or not claim.strip()):
            raise ResolveRefusedError("claim", "the claim is what the row said under `claim`: nothing was changed.")
        seen, row = claim, await _known(tx, control_id)
        if seen is None:
            if row.state is not ControlState.DELIVERING or row.claim is None:
                raise ResolveRefusedError(*_why_not_resolved(row, None))
            seen = row.claim
        if rows := await tx.change(sql.RESOLVE, cid=control_id, seen=seen, as_what=outcome, who=who, now=now):
            return rows[0]
        row = await _known(tx, control_id)
        raise ResolveRefusedError(*_why_not_resolved(row, seen))


def _unusable(row: ControlRecord) -> str | None:
    """Why a row cannot be delivered, in a word; ``None`` when it can."""
    if row.verb != "message":
        return None
    try:
        normalise(row.payload.get("text"))
    except SteerRefusedError as exc:
        return exc.reason
    return None


async def _reject(tx: Tx, bad: dict[str, str], token: str, now: float) -> None:
    await tx.change(sql.GIVE_BACK_SOME, token=token, some=sorted(bad))
    tx.changes = [row for row in tx.changes if row.id not in bad]  # outside of this transaction that never was
    for cid, why in bad.items():
        said = f"its payload is no message that could be delivered ({why}): another program wrote it past the door"
        await tx.change(sql.REJECT, cid=cid, who=leg_of(token), why=said, now=now)


async def _position(tx: Tx, row: ControlRecord) -> int:
    return await tx.count(sql.OPEN_BEFORE, sid=row.session_id, seq=row.seq)


async def _used_before(tx: Tx, binds: dict[str, Any]) -> Admission | None:
    """What stands under this key or id already; ``None`` when nothing does."""
    for used in await tx.controls(sql.USED_BEFORE, cid=binds["cid"], sid=binds["sid"], idem=binds["idem"]):
        same = (used.session_id, used.verb, used.payload) == (binds["sid"], binds["what"], binds["body"])
        if not same:
            return Admission(None, refuse_conflict(used, binds["sid"]))
        return Admission(used, position=await _position(tx, used), duplicate=True)
    return None


async def _why_not_admitted(tx: Tx, binds: dict[str, Any]) -> Admission | None:
    """What the empty answer of ADMIT means; ``None`` when the run, read again, would admit it after all."""
    if (used := await _used_before(tx, binds)) is not None:
        return used
    session = next(iter(await tx.sessions(sql.SESSION, sid=binds["sid"])), None)
    refusal = refuse_session(session, binds["sid"], binds["what"])
    return None if refusal is None else Admission(None, refusal)


async def _known(tx: Tx, control_id: object) -> ControlRecord:
    """The row that a person means; what is no string is the id of none."""
    rows = await tx.controls(sql.CONTROL, cid=control_id) if isinstance(control_id, str) else []
    if not rows:
        given = repr(control_id)[:100]
        raise ResolveRefusedError(
            "unknown",
            f"no control here has the id {given}; in Python it is needed in full, as frames.controls has it. "
            "Nothing was changed.",
        )
    return rows[0]


def _why_not_withdrawn(row: ControlRecord) -> Refusal:
    if row.handed_over_at is not None:
        return "claimed", (
            f"control {row.id} was handed over at {_utc(row.handed_over_at)} and cannot be taken back. If its leg "
            "never reports, resolve it."
        )
    return (
        "closed",
        f"control {row.id} is closed already ({row.state.value}): it was never delivered and never will be.",
    )


def _why_not_resolved(row: ControlRecord, seen: str | None) -> Refusal:
    if row.state is ControlState.DELIVERING:
        since = f", made at {_utc(row.handed_over_at)}" if row.handed_over_at is not None else ""
        return "anew", (
            f"the claim given is not the one of the present hand-over of control {row.id}{since}: it was handed over "
            "anew since you looked, or the claim is not given in full. Nothing was recorded: look at it again "
            "(`lionnb ctl status` prints the claim), and decide about this hand-over."
        )
    if row.state is ControlState.PENDING and seen is not None:
        return "not_claimed", (
            f"control {row.id} is in nobody's hands and waits: a hand-over that you saw was given back meanwhile, and "
            "delivered nothing. Withdraw it if it must not land."
        )
    if row.state is ControlState.PENDING:
        return (
            "not_claimed",
            f"control {row.id} was never claimed, so there is nothing to find out: withdraw it instead.",
        )
    return (
        "not_claimed",
        f"control {row.id} is closed already ({row.state.value}): a recorded outcome is never overwritten.",
    )


def _late(turn_id: str | None, outcome: str, in_history: bool | None, note: str | None, now: float) -> str:
    kept = {True: "in the history", False: "not in the history", None: "history unknown"}[in_history]
    told = f"{_utc(now)}: {LATE_APPLIED}{turn_id or 'unknown'} ({outcome}; {kept})"
    return f"{told}: {note}" if note else told


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
