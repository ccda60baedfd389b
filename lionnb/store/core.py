"""The control store on one event loop: runs, controls, and the record of turns and signals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from lionnb.errors import StoreError
from lionnb.records import FeedEvent, TurnRecord
from lionnb.store import statements as sql
from lionnb.store.address import Addresses
from lionnb.store.engine import make_engine, prepare
from lionnb.store.faults import NOT_OPENED, is_database_error, name_file, translate
from lionnb.store.filesystem import check_folder
from lionnb.store.location import Location
from lionnb.store.resumes import Resumes
from lionnb.store.schema import signals
from lionnb.store.transact import Tx, reads, writes
from lionnb.store.wake import Wake, make_wake
from lionnb.store.watch import Watchers

__all__ = ("StoreCore",)


class StoreCore(Resumes, Addresses):
    """Every operation of the store, as coroutines of one loop. Applications reach it through `Store`."""

    @classmethod
    async def open(cls, where: Location, *, watchers: Watchers | None = None, wait_s: float = 10.0) -> StoreCore:
        """Open the database and make, check or migrate its tables.

        Args:
            where: The database.
            watchers: Who is told of changes.
            wait_s: Seconds that an operation waits for somebody else's lock.

        Raises:
            StoreVersionError: It is somebody else's, or a newer lionnb's; it is unchanged.
            StoreError: It cannot be opened, or its file system hangs.
        """
        try:
            return cls(await _opened(where, wait_s), watchers or Watchers())
        except StoreError as exc:
            if where.kind == "file":
                name_file(exc, where.address)
            raise

    def make_wake(self) -> Wake | None:
        """What lets the watchers hear of other processes; ``None`` where none can reach this database."""
        return make_wake(self, self._watchers, self._engine)

    @writes
    async def put_turn(self, tx: Tx, turn: TurnRecord, now: float) -> bool:
        """Write a turn, or what is new about it; ``False`` when the stored one has ended and this copy has not.

        A wait that never became a turn has no id: it is one row by branch, task and the instant it began.
        """
        return bool(await tx.rows(sql.PUT_TURN, **_turn_row(turn)))

    @writes
    async def put_turns(self, tx: Tx, some: Sequence[TurnRecord], now: float) -> None:
        """As `put_turn`, for many in one transaction."""
        if some:
            await tx.many(sql.PUT_TURNS, [_turn_row(turn) for turn in some])

    @reads
    async def list_turns(
        self, tx: Tx, session_id: str | None = None, *, branch_id: str | None = None
    ) -> list[TurnRecord]:
        """Turns in the order in which they were asked for: of a run, of a Branch, of both, or all."""
        statement = sql.TURNS
        if session_id is not None:
            statement = statement.where(sql.t.session_id == session_id)
        if branch_id is not None:
            statement = statement.where(sql.t.branch_id == branch_id)
        return [TurnRecord(**row) for row in await tx.rows(statement)]

    @reads
    async def starved(self, tx: Tx, ids: Sequence[str]) -> dict[str, float | None]:
        """For each run with turns on record: seconds for which its loop stood still; ``None`` where nobody measured."""
        return {row["session_id"]: row["starved_s"] for row in await tx.rows(sql.STARVED, ids=list(ids))}

    @writes
    async def put_signals(
        self, tx: Tx, branch_id: str, events: Sequence[FeedEvent], *, session_id: str | None = None
    ) -> None:
        """Append events of a Branch; only for a user who asked for it."""
        fields = ("i", "at", "kind", "turn_id", "data")
        batch: list[dict[str, Any]] = [
            {"branch_id": branch_id, "session_id": session_id} | {name: getattr(event, name) for name in fields}
            for event in events
        ]
        if batch:
            await tx.many(sql.PUT_SIGNAL, batch)

    @reads
    async def list_signals(
        self, tx: Tx, branch_id: str | None = None, *, session_id: str | None = None, turn_id: str | None = None
    ) -> list[FeedEvent]:
        """Events in the order in which they were written; each argument that is given narrows them."""
        statement = sql.SIGNALS
        for column, value in (("branch_id", branch_id), ("session_id", session_id), ("turn_id", turn_id)):
            if value is not None:
                statement = statement.where(signals.c[column] == value)
        return [FeedEvent(**row) for row in await tx.rows(statement)]


async def _opened(where: Location, wait_s: float) -> AsyncEngine:
    if where.kind == "file":
        await check_folder(Path(where.address).parent)
    try:
        engine = make_engine(where, wait_s=wait_s)
        try:
            await prepare(engine)
        except BaseException:
            await engine.dispose()
            raise
    except Exception as exc:
        if not is_database_error(exc):
            raise
        raise translate(exc, NOT_OPENED) from None
    return engine


def _turn_row(turn: TurnRecord) -> dict[str, Any]:
    waited = f"wait:{turn.branch_id}:{turn.queued_at!r}:{turn.operation}:{turn.task}"
    return turn.model_dump(mode="json") | {"row_key": turn.turn_id or waited}
