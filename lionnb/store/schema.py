"""The tables, their CHECKs and their version. Imports SQLAlchemy: load it late.

The columns are the fields of the records, by name; ``seq`` is the database's own order (a clock is not one). The
CHECKs make the database itself refuse a record that would be false: a row that was handed over can never read
pending, rejected or withdrawn, and a closed row is never open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from lionnb.records import ControlState, RunStatus
from lionnb.store.states import OPEN, UNCLAIMED

__all__ = (
    "MIGRATIONS",
    "SCHEMA_VERSION",
    "meta",
    "metadata",
    "session_controls",
    "sessions",
    "signals",
    "snapshots",
    "turns",
)

SCHEMA_VERSION: Final = 3


def _with_starved(x: sa.Connection) -> None:
    x.execute(sa.text("ALTER TABLE turns ADD COLUMN starved_s DOUBLE PRECISION"))


def _with_snapshots(x: sa.Connection) -> None:
    snapshots.create(x, checkfirst=True)


MIGRATIONS: Final[Mapping[int, Callable[[sa.Connection], None]]] = {1: _with_starved, 2: _with_snapshots}
"""From version *n* to *n + 1*, each run once, all in the transaction that also writes the new version."""

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class PlainText(sa.types.TypeDecorator[str]):
    """Text that both databases keep: NUL and lone surrogates become U+FFFD.

    For what models, tools and operating systems say. The text of a steer never needs it: the door refuses such.
    """

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Replace what PostgreSQL would refuse and SQLite could not encode."""
        return None if value is None else _UNSTORABLE.sub("\ufffd", value)


class Payload(sa.types.TypeDecorator[dict[str, Any]]):
    """A JSON object. What another program has written there instead, or what is no JSON at all, reads as an empty one.

    Otherwise one such row would make every read of its run fail, for ever: the claim of what stands behind it, too.
    """

    impl = sa.JSON
    cache_ok = True

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Any]:
        """Decode, and give up where there is nothing to decode."""
        decode = super().result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            try:
                found = value if decode is None else decode(value)
            except (ValueError, TypeError, RecursionError):
                found = None
            return found if isinstance(found, dict) else {}

        return process


def _listed(values: Iterable[Any]) -> str:
    return "(" + ", ".join(sorted(f"'{v.value}'" for v in values)) + ")"


def _text(name: str, *, null: bool = True, **kw: Any) -> sa.Column[str]:
    return sa.Column(name, PlainText, nullable=null, **kw)


def _instant(name: str, *, null: bool = True) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=null)


def _seq() -> sa.Column[int]:
    # SQLite's rowid alias must be spelled INTEGER; AUTOINCREMENT keeps a purged number from coming back.
    return sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True)


metadata: Final = sa.MetaData()

meta: Final = sa.Table(
    "lionnb_meta",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.CheckConstraint("one = 1", name="one_row"),
)

sessions: Final = sa.Table(
    "sessions",
    metadata,
    _seq(),
    _text("id", null=False, unique=True),
    _text("run_id", null=False, index=True),
    _text("kind", null=False),
    _text("name"),
    _text("branch_id", null=False, index=True),
    _text("leg"),
    _text("instruction", null=False),
    _instant("created_at", null=False),
    _text("created_by"),
    _instant("deadline_at"),
    sa.Column("timeout_s", sa.Double),
    _text("host"),
    sa.Column("pid", sa.BigInteger),
    _text("pid_start"),
    sa.Column("ttl_s", sa.Double),
    _text("resent_from"),
    _text("status", null=False),
    _instant("heartbeat_at"),
    _instant("ended_at"),
    _text("ended_by"),
    _text("ended_note"),
    sa.CheckConstraint(f"status IN {_listed(RunStatus)}", name="run_status"),
    sa.CheckConstraint("(status = 'running') = (leg IS NOT NULL)", name="running_has_a_leg"),
    sa.CheckConstraint("(status = 'running') = (ended_at IS NULL)", name="ended_has_an_instant"),
    sqlite_autoincrement=True,
)

session_controls: Final = sa.Table(
    "session_controls",
    metadata,
    _seq(),
    _text("id", null=False, unique=True),
    sa.Column("session_id", PlainText, sa.ForeignKey("sessions.id"), nullable=False),
    _text("verb", null=False),
    sa.Column("payload", Payload, nullable=False),
    _instant("created_at", null=False),
    _text("created_by"),
    _text("key"),
    _text("state", null=False),
    _text("claim"),
    _instant("handed_over_at"),
    _instant("closed_at"),
    _text("closed_by"),
    _text("note"),
    _text("turn_id"),
    _text("turn_outcome"),
    sa.Column("in_history", sa.Boolean),
    _text("late_report"),
    _text("resent_from"),
    sa.UniqueConstraint("session_id", "key", name="one_row_a_key"),
    sa.CheckConstraint(f"state IN {_listed(ControlState)}", name="control_state"),
    sa.CheckConstraint(f"(state IN {_listed(UNCLAIMED)}) = (handed_over_at IS NULL)", name="handed_over"),
    sa.CheckConstraint("(claim IS NULL) = (handed_over_at IS NULL)", name="handed_over_to_somebody"),
    sa.CheckConstraint(f"(state IN {_listed(OPEN)}) = (closed_at IS NULL)", name="closed"),
    sa.CheckConstraint(f"late_report IS NULL OR state = '{ControlState.RESOLVED.value}'", name="late_report"),
    sa.Index(
        "open_controls",
        "session_id",
        "seq",
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    ),
    sa.Index("controls_of_session", "session_id", "seq"),
    sa.Index("controls_by_claim", "claim"),
    sqlite_autoincrement=True,
)

snapshots: Final = sa.Table(
    "snapshots",
    metadata,
    sa.Column("session_id", PlainText, sa.ForeignKey("sessions.id"), primary_key=True),  # one a run, the newest
    _instant("at", null=False),
    _text("history", null=False),
)

turns: Final = sa.Table(
    "turns",
    metadata,
    _seq(),
    _text("row_key", null=False, unique=True),  # the turn id; for a wait that never became a turn, what it waited for
    _text("turn_id"),
    _text("branch_id", null=False, index=True),
    _text("branch_name"),
    _text("session_id", index=True),  # no foreign key: a record of what happened is never refused
    _text("operation", null=False),
    _text("model"),
    _text("task"),
    _instant("queued_at", null=False),
    _instant("started_at"),
    _instant("ended_at"),
    _text("outcome", null=False),
    _text("error"),
    sa.Column("usage", sa.JSON, nullable=False),
    sa.Column("blocks", sa.JSON, nullable=False),
    sa.Column("skipped", sa.JSON, nullable=False),
    sa.Column("failed", sa.JSON, nullable=False),
    sa.Column("degraded", sa.JSON, nullable=False),
    sa.Column("carried", sa.JSON, nullable=False),
    _instant("starved_s"),  # a duration; NULL where nobody measured
    sqlite_autoincrement=True,
)

signals: Final = sa.Table(
    "signals",
    metadata,
    _seq(),
    _text("branch_id", null=False, index=True),
    _text("session_id", index=True),
    sa.Column("i", sa.BigInteger, nullable=False),
    _instant("at", null=False),
    _text("kind", null=False),
    _text("turn_id"),
    sa.Column("data", sa.JSON, nullable=False),
    sqlite_autoincrement=True,
)
