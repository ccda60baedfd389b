"""What other processes change reaches the watchers of this one: a hint says when to look, the database says what.

While somebody watches, and no longer, this process has an *ear*: on SQLite the bell, and a look at the file's change
counter four times a second for what the bell did not reach (8 us each); on PostgreSQL LISTEN, and a slow look for
when that connection is lost or a pooler swallows it. A hint is answered by one query for the watched runs: rows that
can still change, and rows that are new. Of these the watchers are told what differs from what they were told last.

Guarantees: no state is told twice; the states of one row come in the order of their commits; rows that are found
together come in the order of their numbers. States that were passed through between two looks are not told: a
watcher hears what is true, not everything that was. What is watched is followed from a point before any later
operation of this store, so *watch, then read* misses nothing.

Lives on the control thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lionnb.aio import end_tasks
from lionnb.errors import LionnbError
from lionnb.records import ControlRecord, ControlState
from lionnb.store import statements as sql
from lionnb.store.bell import Bell
from lionnb.store.faults import is_database_error, translate
from lionnb.store.transact import Transactions, Tx
from lionnb.store.watch import Watchers

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = ("PROBE_S", "SLOW_POLL_S", "Wake", "make_wake")

log = logging.getLogger(__name__)

PROBE_S: Final = 0.25
SLOW_POLL_S: Final = 5.0

# PostgreSQL gives numbers before it commits: a row may turn up behind later ones, though never far behind (admissions
# of one run commit in order; those of two runs differ by what is under way at one moment).
_OVERLAP: Final = {"sqlite": 0, "postgresql": 64}
_MANY: Final = 5_000  # more ids than this in one statement, and all rows of the runs are asked for


class _Told(NamedTuple):
    """What the watchers of a row know of it."""

    session_id: str
    seq: int
    state: tuple[Any, ...]

    @classmethod
    def of(cls, row: ControlRecord) -> _Told:
        state = (row.state, row.claim, row.handed_over_at, row.closed_at, row.closed_by, row.note, row.turn_id)
        return cls(row.session_id, row.seq, (*state, row.turn_outcome, row.in_history, row.late_report))


def _may_change(row: ControlRecord) -> bool:
    return row.closed_at is None or (row.state is ControlState.RESOLVED and row.late_report is None)


class Ear(Protocol):
    """How this process learns that another one has written."""

    interval_s: float
    """It is asked at least so often."""

    async def open(self, rung: Callable[[], None]) -> None:
        """Begin to listen; *rung* is called, on this loop, when something may have changed."""

    async def version(self) -> object:
        """Something that differs from the last answer when anything may have changed since."""

    async def aclose(self) -> None:
        """Stop, and leave nothing open. Idempotent."""


class Wake:
    """Follows the runs that somebody here watches. One control thread's.

    Args:
        core: Where to look.
        watchers: Whom to tell.
        ear: What says when.
    """

    def __init__(self, core: Transactions, watchers: Watchers, ear: Ear) -> None:
        self._core, self._watchers, self._ear = core, watchers, ear
        self._overlap = _OVERLAP[core.dialect]
        self._rung = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._version: object = None
        self._followed: frozenset[str | None] = frozenset()
        self._known: dict[str, _Told] = {}  # by control id: what can still change, and what is newer than `_last`
        self._last: int | None = None  # the highest number at the last look
        watchers.noted = self._note

    async def follow(self) -> None:
        """Begin with what is watched by now, end with what is not. Raises nothing; a failed look is made up for."""
        wanted = self._watchers.watched()
        if not wanted:
            await self.aclose()
            return
        try:
            if self._task is None:
                await self._ear.open(self._rung.set)
                self._task = asyncio.get_running_loop().create_task(self._listen(), name="lionnb-wake")
            if not wanted <= self._followed:
                await self._look()
        except LionnbError as exc:
            log.debug("what other programs change is not heard yet: %s", exc)
        except Exception:  # a bug, ours or a driver's: it must not keep anybody from writing
            log.exception("what other programs change is not heard")

    async def aclose(self) -> None:
        """Stop listening, and forget what was told. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks((task,))
            await self._ear.aclose()
        self._followed, self._last, self._version = frozenset(), None, None
        self._known.clear()

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._ear.interval_s):
                    await self._rung.wait()
            self._rung.clear()
            try:
                version = await self._ear.version()
                if version != self._version:
                    await self._look()
                    self._version = version  # read before the look: what was written meanwhile is looked at again
            except LionnbError as exc:
                log.debug("what other programs change could not be read: %s", exc)
            except Exception:
                log.exception("what other programs change could not be read")

    async def _look(self) -> None:
        await self._core.hear(self._changes)

    def _note(self, row: ControlRecord) -> None:
        """A change is told to the watchers, this store's own or one that was found."""
        if self._task is not None:
            self._known[row.id] = _Told.of(row)

    async def _changes(self, tx: Tx) -> list[ControlRecord]:
        """What differs from what was told. Rows of a run that is followed from now on are noted, and not told."""
        wanted = self._watchers.watched()
        top = await tx.count(sql.TOP)
        last = top if self._last is None else self._last
        statement = sql.CHANGED
        if None not in wanted:
            statement = statement.where(sql.c.session_id.in_(sorted(str(sid) for sid in wanted)))
        many = len(self._known) > _MANY
        rows = await tx.controls(
            statement, last=-1 if many else last - self._overlap, known=[] if many else list(self._known)
        )
        changed = [
            row
            for row in rows
            if (None in self._followed or row.session_id in self._followed)
            and (self._known[row.id] != _Told.of(row) if row.id in self._known else row.seq > last - self._overlap)
        ]
        self._known = {row.id: _Told.of(row) for row in rows if _may_change(row) or row.seq > top - self._overlap}
        self._last, self._followed = top, wanted
        return changed


# ---------------------------------------------------------------------- ears


class SqliteEar(asyncio.DatagramProtocol):
    """The bell, and the file's change counter."""

    interval_s = PROBE_S

    def __init__(self, path: str, bell: Bell) -> None:
        self._path, self._bell = path, bell
        self._heard: Callable[[], None] = lambda: None
        self._transport: asyncio.DatagramTransport | None = None
        self._probe: sqlite3.Connection | None = None

    async def open(self, rung: Callable[[], None]) -> None:
        """Take a port, where one is free."""
        self._heard = rung
        if (listener := self._bell.listen()) is not None:
            self._bell.own = listener.getsockname()[1]
            self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=listener)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Somebody rang. What it says, and who it was, does not matter."""
        self._heard()

    async def version(self) -> object:
        """The change counter; something new when it cannot be read at this moment."""
        try:
            if self._probe is None:
                # read-only: it must never make a file; no timeout: it must never hold up the loop
                where = f"{Path(self._path).as_uri()}?mode=ro"
                self._probe = sqlite3.connect(where, uri=True, timeout=0, isolation_level=None)
            return self._probe.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return object()

    async def aclose(self) -> None:
        """Give the port back."""
        self._bell.own = None
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            await asyncio.sleep(0)  # the transport closes its socket in the next step of the loop
        if self._probe is not None:
            self._probe.close()
            self._probe = None


class PostgresEar:
    """LISTEN, on a connection of its own that is taken out of the pool."""

    interval_s = SLOW_POLL_S

    def __init__(self, engine: AsyncEngine, mark: str) -> None:
        self._engine, self._mark = engine, mark
        self._heard: Callable[[], None] = lambda: None
        self._connection: AsyncConnection | None = None
        self._lost = False

    async def open(self, rung: Callable[[], None]) -> None:
        """Listen; where that fails, the slow look remains, and tries again."""
        self._heard = rung
        with contextlib.suppress(LionnbError):
            await self._listen()

    async def _listen(self) -> None:
        await self._drop()
        try:
            self._connection = connection = await self._engine.connect()
            # before it is taken out of the pool: afterwards SQLAlchemy does not say any more which one it is
            driver: Any = (await connection.get_raw_connection()).driver_connection
            await connection.run_sync(lambda sync: sync.detach())
            driver.add_termination_listener(self._on_loss)
            await driver.add_listener(sql.CHANNEL, self._on_notice)
            self._lost = False
        except Exception as exc:
            self._lost = True
            if not is_database_error(exc):
                raise
            raise translate(exc) from None

    def _on_notice(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        if payload != self._mark:
            self._heard()

    def _on_loss(self, _connection: Any) -> None:
        self._lost = True

    async def version(self) -> object:
        """Always something new: it is asked after a notice, and seldom otherwise."""
        if self._lost:
            with contextlib.suppress(LionnbError):
                await self._listen()
        return object()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be lost already
                await connection.close()

    async def aclose(self) -> None:
        """Close the connection."""
        self._heard = lambda: None
        await self._drop()
        self._lost = False


def make_wake(core: Transactions, watchers: Watchers, engine: AsyncEngine) -> Wake | None:
    """The wake of an open store; ``None`` for a database that no other process can reach."""
    if core.dialect == "postgresql":
        return Wake(core, watchers, PostgresEar(engine, core.mark))
    if core.bell is None:
        return None
    return Wake(core, watchers, SqliteEar(str(engine.url.database), core.bell))
