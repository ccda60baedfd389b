"""One transaction a method: how a store method runs, repeats, ends and is told. Imports SQLAlchemy: load it late.

A method of the store is written as the body of its transaction, ``async def f(self, tx, …)``, and marked `reads` or
`writes`. What these add is the same for all:

- The body runs in its own task to its end, whatever happens to the caller: a cancelled await does not stop a
  statement, so leaving early would only lose the knowledge of what was written.
- Writers of one store pass a turnstile, in arrival order, and hold it until their watchers were told. SQLite has
  one writer anyway (and its busy handler is unfair); on both it makes the order of the tellings that of the commits.
- A deadlock or serialization failure, which the server has undone, is repeated; so a body must be repeatable.
- A driver's error leaves as one sentence.
- A change of controls is announced to other processes: on PostgreSQL in the transaction, on SQLite by the bell.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import StaticPool

from lionnb.aio import finish
from lionnb.records import ControlRecord, SessionRecord
from lionnb.store.bell import Bell
from lionnb.store.engine import READER
from lionnb.store.faults import NOT_READ, is_database_error, retryable, translate
from lionnb.store.statements import NOTIFY, Statement
from lionnb.store.watch import Watchers

__all__ = ("Transactions", "Tx", "reads", "writes")

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="Transactions")
ATTEMPTS: Final = 5


class Tx:
    """One open transaction: runs named statements, gives records, remembers which controls it changed."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._x = connection
        self.changes: list[ControlRecord] = []

    async def rows(self, statement: Statement, **binds: Any) -> list[Mapping[str, Any]]:
        """Run *statement*; return its rows."""
        return [dict(row) for row in (await self._x.execute(self._of_dialect(statement), binds)).mappings()]

    def _of_dialect(self, statement: Statement) -> sa.Executable:
        return statement[self._x.dialect.name] if isinstance(statement, Mapping) else statement

    async def scalars(self, statement: Statement, **binds: Any) -> list[Any]:
        """Run *statement*; return the first column."""
        return [next(iter(row.values())) for row in await self.rows(statement, **binds)]

    async def count(self, statement: Statement, **binds: Any) -> int:
        """Run a counting *statement*; return its number."""
        return int((await self.scalars(statement, **binds))[0])

    async def many(self, statement: Statement, batch: list[dict[str, Any]]) -> None:
        """Run *statement* once for each of *batch*."""
        await self._x.execute(self._of_dialect(statement), batch)

    async def controls(self, statement: Statement, **binds: Any) -> list[ControlRecord]:
        """Run *statement*; return controls by ``seq`` (RETURNING promises no order)."""
        found = [ControlRecord(**row) for row in await self.rows(statement, **binds)]
        return sorted(found, key=lambda record: record.seq)

    async def change(self, statement: Statement, **binds: Any) -> list[ControlRecord]:
        """As `controls`, for a statement that writes: its rows are told to the watchers after the commit."""
        changed = await self.controls(statement, **binds)
        self.changes += changed
        return changed

    async def sessions(self, statement: Statement, **binds: Any) -> list[SessionRecord]:
        """Run *statement*; return runs."""
        return [SessionRecord(**row) for row in await self.rows(statement, **binds)]


class Transactions:
    """The engine of one database, its turnstile and its watchers. Lives on one event loop."""

    def __init__(self, engine: AsyncEngine, watchers: Watchers) -> None:
        self._engine = engine
        self._reader = engine.execution_options(**{READER: True})
        self._watchers = watchers
        self._turnstile = asyncio.Lock()
        # One shared connection (`:memory:`) has one transaction: there, readers queue with the writers.
        self._shared = isinstance(engine.pool, StaticPool)
        in_file = engine.dialect.name == "sqlite" and not self._shared
        self.bell = Bell(str(engine.url.database)) if in_file else None
        self.mark = uuid.uuid4().hex  # of this store's announcements, so that it need not listen to its own

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    async def aclose(self) -> None:
        """Close every connection, after the writer that is under way. Idempotent."""
        async with self._turnstile:
            await self._engine.dispose()

    async def _write(self, body: Callable[[Tx], Awaitable[T]]) -> T:
        async with self._turnstile:
            for attempt in range(ATTEMPTS):
                try:
                    async with self._engine.begin() as connection:
                        tx = Tx(connection)
                        result = await body(tx)
                        if tx.changes and self.dialect == "postgresql":
                            await tx.rows(NOTIFY, mark=self.mark)
                    break
                except Exception as exc:
                    if not is_database_error(exc):
                        raise
                    if attempt == ATTEMPTS - 1 or not retryable(exc):
                        raise translate(exc) from None
                await asyncio.sleep(0.01 * 2**attempt)
            self._watchers.tell(tx.changes)
            if tx.changes and self.bell is not None:
                self.bell.ring()
            return result

    async def hear(self, look: Callable[[Tx], Awaitable[list[ControlRecord]]]) -> None:
        """Tell the watchers what *look* finds that other programs have changed; between two writers of this store."""

        async def in_turn() -> None:
            async with self._turnstile:
                try:
                    async with self._reader.connect() as connection:
                        changes = await look(Tx(connection))
                except Exception as exc:
                    if not is_database_error(exc):
                        raise
                    raise translate(exc, NOT_READ) from None
                self._watchers.tell(changes)

        await finish(in_turn(), name="store.hear")

    async def _read(self, body: Callable[[Tx], Awaitable[T]]) -> T:
        async with self._turnstile if self._shared else contextlib.nullcontext():
            try:
                async with self._reader.connect() as connection:
                    return await body(Tx(connection))
            except Exception as exc:
                if not is_database_error(exc):
                    raise
                raise translate(exc, NOT_READ) from None


def writes(body: Callable[Concatenate[S, Tx, P], Awaitable[T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a method of the body of a writing transaction."""

    @functools.wraps(body)
    async def method(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return await finish(self._write(lambda tx: body(self, tx, *args, **kwargs)), name=f"store.{body.__name__}")

    return cast("Callable[Concatenate[S, P], Coroutine[Any, Any, T]]", _without_tx(method))


def reads(body: Callable[Concatenate[S, Tx, P], Awaitable[T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a method of the body of a reading transaction."""

    @functools.wraps(body)
    async def method(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return await finish(self._read(lambda tx: body(self, tx, *args, **kwargs)), name=f"store.{body.__name__}")

    return cast("Callable[Concatenate[S, P], Coroutine[Any, Any, T]]", _without_tx(method))


def _without_tx(method: Any) -> Any:
    """Hide ``tx`` from the signature that `help` shows."""
    signature = inspect.signature(method)
    method.__signature__ = signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "tx"])
    return method
