"""Every statement of the store, by name; above each, what no row means. SQLAlchemy Core, one text for two dialects.

Rules: the guard is in the WHERE; a compare-and-set ends in RETURNING, never in a rowcount (SQLAlchemy does not promise
one for INSERT … SELECT); ``now`` is always a bind; a step of a control is built through `states.step`, so that a
statement for a step that the table lacks fails at import. ``FOR UPDATE`` renders on PostgreSQL only: SQLite has one
writer, which BEGIN IMMEDIATE makes this one. Rows are locked in one order, run before controls, so no two of these
transactions can wait for each other.

Where an INSERT needs ON CONFLICT the constant is a mapping by dialect name: SQLAlchemy keeps that clause in the
dialects, with one spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from lionnb.records import ControlState, RunStatus
from lionnb.store.schema import PlainText, meta, session_controls, sessions, signals, snapshots, turns
from lionnb.store.states import OPEN, step

Statement = sa.Executable | Mapping[str, sa.Executable]

c, s, t = session_controls.c, sessions.c, turns.c
CONTROL_FIELDS: Final = tuple(session_controls.columns)
SESSION_FIELDS: Final = tuple(col for col in sessions.columns if col.name != "seq")
TURN_FIELDS: Final = tuple(col for col in turns.columns if col.name not in {"seq", "row_key"})
SIGNAL_FIELDS: Final = tuple(col for col in signals.columns if col.name in {"i", "at", "kind", "turn_id", "data"})

PENDING, DELIVERING = ControlState.PENDING, ControlState.DELIVERING
RUNNING: Final = RunStatus.RUNNING.value
_OPEN: Final = sorted(state.value for state in OPEN)


def b(name: str) -> sa.BindParameter[Any]:
    """A bind for text or an instant where the type is clear from the other side."""
    return sa.bindparam(name)


def typed(name: str, type_: Any = PlainText) -> sa.BindParameter[Any]:
    """A bind that stands alone in a SELECT list: PostgreSQL must be told its type."""
    return sa.bindparam(name, type_=type_)


def _by_dialect(build: Callable[[Any], sa.Executable]) -> Mapping[str, sa.Executable]:
    return {"sqlite": build(sqlite.insert), "postgresql": build(postgresql.insert)}


def _move(frm: ControlState, to: ControlState, *guards: Any, **values: Any) -> Any:
    """An UPDATE that takes a control from *frm* to *to*, guarded by *frm* and *guards*, and returns the rows."""
    return (
        sa.update(session_controls)
        .where(c.state == frm.value, *guards)
        .values(state=step(frm, to).value, **values)
        .returning(*CONTROL_FIELDS)
    )


# ---- controls

# Admission: the run's status, its kind and the insert in one statement. The row lock makes an end that is under way
# wait for this insert (its sweep then sees the row), and makes this insert wait for an end that came first.
# No row: the run is unknown, has ended, or does not consume the verb; or the key or id was used before.
ADMIT: Final = _by_dialect(
    lambda insert: (
        insert(session_controls)
        .from_select(
            ["id", "session_id", "verb", "payload", "created_at", "created_by", "key", "state", "resent_from"],
            sa.select(
                typed("cid"),
                s.id,
                typed("what"),
                typed("body", sa.JSON),
                typed("now", sa.Double),
                typed("by"),
                typed("idem"),
                sa.literal(PENDING.value, PlainText),
                typed("origin"),
            )
            .where(s.id == b("sid"), s.status == RUNNING, s.kind.in_(sa.bindparam("kinds", expanding=True)))
            .where(s.run_id != "")
            .with_for_update(),
        )
        .on_conflict_do_nothing()
        .returning(*CONTROL_FIELDS)
    )
)

# No row: neither the id nor, in this run, the key was used before.
USED_BEFORE: Final = (
    sa.select(*CONTROL_FIELDS)
    .where(sa.or_(c.id == b("cid"), sa.and_(c.session_id == b("sid"), c.key == b("idem"))))
    .order_by(c.seq)
)

# No row: unknown id.
CONTROL: Final = sa.select(*CONTROL_FIELDS).where(c.id == b("cid"))

# No row: there are no controls.
CONTROLS: Final = sa.select(*CONTROL_FIELDS).order_by(c.seq)

# Always one row.
OPEN_BEFORE: Final = sa.select(sa.func.count()).where(
    c.session_id == b("sid"), c.state.in_(_OPEN), c.closed_at.is_(None), c.seq < b("seq")
)

# Always one row.
PENDING_COUNT: Final = sa.select(sa.func.count()).where(
    c.session_id == b("sid"), c.state == PENDING.value, c.closed_at.is_(None)
)

# Hand-over: everything pending, in one statement, as the last thing before the effect. The run is locked, so that a
# claim, an admission and an end of one run have an order. No row: nothing is pending, or the run is not this leg's.
CLAIM_ALL: Final = _move(
    PENDING,
    DELIVERING,
    c.session_id
    == sa.select(s.id)
    .where(s.id == b("sid"), s.leg == b("of_leg"), s.status == RUNNING)
    .with_for_update()
    .scalar_subquery(),
    claim=b("token"),
    handed_over_at=b("now"),
)

# No row: the claim holds nothing that is still delivering.
GIVE_BACK: Final = _move(DELIVERING, PENDING, c.claim == b("token"), claim=None, handed_over_at=None)

# Of one claim, some rows. No row: as for GIVE_BACK, or none of these.
_SOME: Final[sa.BindParameter[Any]] = sa.bindparam("some", expanding=True)
GIVE_BACK_SOME: Final = _move(
    DELIVERING, PENDING, c.claim == b("token"), c.id.in_(_SOME), claim=None, handed_over_at=None
)

# In the transaction that gave it back, so that nobody has seen it handed over. No row: it is not pending.
REJECT: Final = _move(
    PENDING, ControlState.REJECTED, c.id == b("cid"), closed_at=b("now"), closed_by=b("who"), note=b("why")
)

# No row: the claim holds nothing that is still delivering (reported before, given back, or resolved by a person).
APPLY: Final = _move(
    DELIVERING,
    ControlState.APPLIED,
    c.claim == b("token"),
    closed_at=b("now"),
    closed_by=b("who"),
    note=b("why"),
    turn_id=b("in_turn"),
    turn_outcome=b("outcome"),
    in_history=b("kept"),
)

# The only thing a holder may write on a row that a person resolved, once.
# No row: nothing of this claim was resolved, or it was told already.
REPORT_LATE: Final = (
    sa.update(session_controls)
    .where(c.claim == b("token"), c.state == ControlState.RESOLVED.value, c.late_report.is_(None))
    .values(late_report=b("report"))
    .returning(*CONTROL_FIELDS)
)

# No row: no control bears this claim (any more).
BEARING: Final = sa.select(*CONTROL_FIELDS).where(c.claim == b("token")).order_by(c.seq)

# No row: unknown id, or no longer pending.
WITHDRAW: Final = _move(
    PENDING, ControlState.WITHDRAWN, c.id == b("cid"), closed_at=b("now"), closed_by=b("who"), note=b("why")
)

# Claim and hand-over stay on the row, verbatim: the record of who held it is why the row was kept. The claim is also
# the condition: a person decided about one hand-over, and a row that was given back may have been handed over anew.
# No row: unknown id, not delivering, or delivering under another claim.
RESOLVE: Final = _move(
    DELIVERING,
    ControlState.RESOLVED,
    c.id == b("cid"),
    c.claim == b("seen"),
    closed_at=b("now"),
    closed_by=b("who"),
    note=b("as_what"),
)

# Only what nobody ever claimed; the condition rides the write. No row: nothing was pending.
SWEEP: Final = _move(
    PENDING,
    ControlState.REJECTED,
    c.session_id == b("sid"),
    closed_at=b("now"),
    closed_by=b("who"),
    note=b("why"),
)

_sent_again: Final = session_controls.alias()

# What a run's sweeps have rejected and nobody has sent again. No row: nothing.
NEVER_LANDED: Final = (
    sa.select(*CONTROL_FIELDS)
    .where(
        c.session_id == b("sid"),
        c.state == ControlState.REJECTED.value,
        c.id.not_in(
            sa.select(_sent_again.c.resent_from).where(
                _sent_again.c.session_id == b("sid"), _sent_again.c.resent_from.is_not(None)
            )
        ),
    )
    .order_by(c.seq)
)

# What a leg that takes a run over has to know of. No row: nothing is open.
OPEN_OF: Final = CONTROLS.where(c.session_id == b("sid"), c.closed_at.is_(None))

# ---- what other processes have changed

CHANNEL: Final = "lionnb_controls"

# PostgreSQL only; delivered when the transaction commits. Always one row.
NOTIFY: Final = sa.select(sa.func.pg_notify(CHANNEL, b("mark")))

# Always one row: the highest number given so far.
TOP: Final = sa.select(sa.func.coalesce(sa.func.max(c.seq), 0))

# What can still change (a resolved row may get its late report), what is newer than *last*, and what is *known* to
# have been able to change. No row: nothing is to be heard of.
CHANGED: Final = (
    sa.select(*CONTROL_FIELDS)
    .where(
        sa.or_(
            c.closed_at.is_(None),
            sa.and_(c.state == ControlState.RESOLVED.value, c.late_report.is_(None)),
            c.seq > b("last"),
            c.id.in_(sa.bindparam("known", expanding=True)),
        )
    )
    .order_by(c.seq)
)

# ---- runs

# No row: the id is taken.
START: Final = _by_dialect(lambda insert: insert(sessions).on_conflict_do_nothing().returning(*SESSION_FIELDS))

# No row: unknown id.
SESSION: Final = sa.select(*SESSION_FIELDS).where(s.id == b("sid"))

# No row: there are no runs.
SESSIONS: Final = sa.select(*SESSION_FIELDS).order_by(s.seq)

# The run, locked: what is decided about it while it is held stands. No row: unknown id.
LOCK_SESSION: Final = SESSION.with_for_update()

# Takes the run's lock before its controls are counted, so that no admission slips in between.
# No row: the run has ended, or is another leg's.
LOCK_OWNED: Final = sa.select(s.id).where(s.id == b("sid"), s.leg == b("of_leg"), s.status == RUNNING).with_for_update()

# No row: the run has ended, or is another leg's.
END: Final = (
    sa.update(sessions)
    .where(s.id == b("sid"), s.leg == b("of_leg"), s.status == RUNNING)
    .values(status=b("as_what"), leg=None, ended_at=b("now"), ended_by=b("who"), ended_note=b("why"))
    .returning(*SESSION_FIELDS)
)

# A run that has ended, or one whose leg is the one named (which the caller has proven dead), gets a new leg.
# No row: unknown id, or another leg runs it.
RESUME: Final = (
    sa.update(sessions)
    .where(s.id == b("sid"), sa.or_(s.status != RUNNING, s.leg == b("dead_leg")))
    .values(
        status=RUNNING,
        leg=b("new_leg"),
        branch_id=b("on_branch"),
        deadline_at=b("until"),
        timeout_s=b("budget_s"),
        host=b("on_host"),
        pid=b("in_pid"),
        pid_start=b("in_pid_start"),
        ttl_s=b("lease_s"),
        heartbeat_at=b("now"),
        ended_at=None,
        ended_by=None,
        ended_note=None,
    )
    .returning(*SESSION_FIELDS)
)

# No row: the run has ended, or is another leg's: the heart that beats is nobody's.
HEARTBEAT: Final = (
    sa.update(sessions)
    .where(s.id == b("sid"), s.leg == b("of_leg"), s.status == RUNNING)
    .values(heartbeat_at=b("now"))
    .returning(s.id)
)

# No row: the run has ended, or is another leg's.
CLOCK_RUNS: Final = (
    sa.update(sessions)
    .where(s.id == b("sid"), s.leg == b("of_leg"), s.status == RUNNING)
    .values(deadline_at=b("until"))
    .returning(s.id)
)

# ---- addresses


def _beginning(column: Any) -> sa.Select[Any]:
    # Not LIKE: it has wildcards, and on SQLite it takes "A" for "a".
    begins = sa.func.substr(column, 1, typed("size", sa.Integer)) == b("given")
    # An id that is given in full comes first, so that a limit never hides it.
    first = sa.func.length(column)
    return sa.select(column).where(begins).group_by(column).order_by(first, column).limit(typed("most", sa.Integer))


# By the space's name. No row: nothing there begins like this.
BEGINNING: Final[Mapping[str, sa.Select[Any]]] = {
    "session": _beginning(s.id),
    "run": _beginning(s.run_id).where(s.run_id != ""),
    "control": _beginning(c.id),
    "branch": _beginning(s.branch_id),
}

# ---- what happened

_KEEP: Final = {"seq", "row_key", "queued_at"}


def _upsert_turn(insert: Any) -> Any:
    new = insert(turns)
    return new.on_conflict_do_update(
        index_elements=[t.row_key],
        set_={col.name: new.excluded[col.name] for col in turns.columns if col.name not in _KEEP},
        where=sa.or_(t.ended_at.is_(None), new.excluded.ended_at.is_not(None)),
    )


# No row: the stored turn has ended and this copy has not: an old copy overwrites nothing.
PUT_TURN: Final = _by_dialect(lambda insert: _upsert_turn(insert).returning(t.seq))

# The same for many, whose rows nobody asks for.
PUT_TURNS: Final = _by_dialect(_upsert_turn)

# By when they queued: rows are written behind the turns, by legs and by the recorder, so their numbers are in nobody's
# order. No row: there are no turns.
TURNS: Final = sa.select(*TURN_FIELDS).order_by(t.queued_at, t.seq)

# No row: none of the runs has a turn.
STARVED: Final = (
    sa.select(t.session_id, sa.func.sum(t.starved_s).label("starved_s"))
    .where(t.session_id.in_(sa.bindparam("ids", expanding=True)))
    .group_by(t.session_id)
)

# No row: no Branch with a turn here has an id that begins like this.
BRANCHES_OF_TURNS: Final = _beginning(t.branch_id)

# Never empty for a non-empty batch.
PUT_SIGNAL: Final = sa.insert(signals)

# No row: there are no signals.
SIGNALS: Final = sa.select(*SIGNAL_FIELDS).order_by(signals.c.seq)

# ---- what a later kernel goes on with


def _upsert_snapshot(insert: Any) -> Any:
    of_owner = sa.select(s.id, typed("now", sa.Double), typed("text")).where(
        s.id == b("sid"), s.leg == b("of_leg"), s.status == RUNNING
    )
    new = insert(snapshots).from_select(["session_id", "at", "history"], of_owner)
    return new.on_conflict_do_update(
        index_elements=[snapshots.c.session_id], set_={"at": new.excluded.at, "history": new.excluded.history}
    ).returning(snapshots.c.session_id)


# No row: the run has ended, or is another leg's, whose history it is then.
PUT_SNAPSHOT: Final = _by_dialect(_upsert_snapshot)

# No row: none was kept.
SNAPSHOT: Final = sa.select(snapshots.c.history).where(snapshots.c.session_id == b("sid"))

# ---- purge

_unresolved: Final = sa.exists().where(c.session_id == s.id, c.state == DELIVERING.value)

# No row: no run ended before. A run with a claimed row that nobody resolved is a question to a person: it is kept.
PURGEABLE: Final = sa.select(s.id).where(s.status != RUNNING, s.ended_at < b("before"), ~_unresolved).with_for_update()

# Always one row.
KEPT_UNRESOLVED: Final = sa.select(sa.func.count()).where(s.status != RUNNING, s.ended_at < b("before"), _unresolved)

_DOOMED: Final[sa.BindParameter[Any]] = sa.bindparam("doomed", expanding=True)
# No row: the runs had none.
PURGE_CONTROLS: Final = sa.delete(session_controls).where(c.session_id.in_(_DOOMED)).returning(c.id)
PURGE_SIGNALS: Final = sa.delete(signals).where(signals.c.session_id.in_(_DOOMED)).returning(signals.c.seq)
PURGE_TURNS: Final = sa.delete(turns).where(t.session_id.in_(_DOOMED)).returning(t.seq)
PURGE_SNAPSHOTS: Final = (
    sa.delete(snapshots).where(snapshots.c.session_id.in_(_DOOMED)).returning(snapshots.c.session_id)
)
PURGE_SESSIONS: Final = sa.delete(sessions).where(s.id.in_(_DOOMED)).returning(s.id)

# Turns and signals outside of any run, by their own age. No row: there were none.
PURGE_LOOSE_TURNS: Final = (
    sa.delete(turns)
    .where(t.session_id.is_(None), sa.func.coalesce(t.ended_at, t.queued_at) < b("before"))
    .returning(t.seq)
)
PURGE_LOOSE_SIGNALS: Final = (
    sa.delete(signals).where(signals.c.session_id.is_(None), signals.c.at < b("before")).returning(signals.c.seq)
)

# ---- the database itself

# No row: lionnb has not finished making this database.
VERSION: Final = sa.select(meta.c.version)
