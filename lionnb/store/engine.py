"""How a connection is made: one file with the rights and the modes we rely on, or a PostgreSQL server.

SQLite runs with ``journal_mode=TRUNCATE`` and ``synchronous=FULL``, never WAL: the WAL-reset corruption of SQLite
before 3.51.3 was reproduced on a stock library, and one mode for all keeps an old library from ever meeting a WAL
file. Writers begin with BEGIN IMMEDIATE, through the begin hook, because a transaction that reads first and writes
later fails at once when somebody wrote in between, whatever the busy timeout says.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from lionnb.errors import StoreError, StoreVersionError
from lionnb.store import schema
from lionnb.store.location import Location
from lionnb.store.schema import meta, metadata

__all__ = ("READER", "check_ours", "make_engine", "prepare")

READER: Final = "lionnb_reader"
"""Execution option of a transaction that only reads: plain BEGIN, which waits for no writer."""

WAL_IN_USE: Final = (
    "the control database is in WAL mode and another program has it open. lionnb does not use WAL (SQLite before "
    "3.51.3 can corrupt such a file): close the other program and open it again, or name another file with LIONNB_DB."
)
NOT_OURS: Final = (
    "this database belongs to another program: it has tables, and none of lionnb's. It was left as it is. Name an "
    "empty or new one with LIONNB_DB."
)
_making = threading.Lock()


def _dumps(value: Any) -> str:
    # ASCII escapes: a lone surrogate in a model's text is stored as what it is, on both databases.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def make_engine(where: Location, *, wait_s: float) -> AsyncEngine:
    """Return an engine for *where*; nothing is opened yet, but the file exists with mode 0600.

    Args:
        where: The database.
        wait_s: Seconds that a statement waits for somebody else's lock, and a connection for the server.

    Raises:
        StoreError: The folder cannot be made, SQLite is too old, or the PostgreSQL driver is missing.
    """
    common: dict[str, Any] = {"hide_parameters": True, "json_serializer": _dumps}
    if where.kind == "postgresql":
        return _postgres(where.address, wait_s, common)
    if sqlite3.sqlite_version_info < (3, 35):
        raise StoreError(
            f"the SQLite library of this Python is {sqlite3.sqlite_version}; lionnb needs 3.35 for RETURNING. Use a "
            "newer Python, or PostgreSQL."
        )
    url = sa.URL.create("sqlite+aiosqlite", database=where.address)
    if where.kind == "memory":
        common["poolclass"] = StaticPool  # a second connection would see a second, empty database
    else:
        _make_file(Path(where.address))
        common |= {"pool_size": 3, "max_overflow": 0, "pool_timeout": wait_s + 5}
    engine = create_async_engine(url, connect_args={"isolation_level": None, "timeout": wait_s}, **common)
    sa.event.listen(engine.sync_engine, "connect", _on_connect(wait_s))
    sa.event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


def _postgres(address: str, wait_s: float, common: dict[str, Any]) -> AsyncEngine:
    if importlib.util.find_spec("asyncpg") is None:
        raise StoreError("PostgreSQL needs the driver asyncpg: pip install 'lionnb[postgres]'.")
    try:
        url = sa.make_url(address)
    except (sa.exc.ArgumentError, ValueError) as exc:
        error = StoreError("the PostgreSQL URL cannot be read: it is postgresql://user:password@host:port/database.")
        error.cause = exc
        raise error from None
    if (mode := url.query.get("sslmode")) is not None:  # libpq's word for it, in every provider's example
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    settings = {"lock_timeout": str(int(wait_s * 1000)), "application_name": "lionnb"}
    connect = {"timeout": wait_s, "command_timeout": wait_s + 20, "server_settings": settings}
    return create_async_engine(url, connect_args=connect, pool_pre_ping=True, pool_timeout=wait_s + 5, **common)


def _make_file(path: Path) -> None:
    """Make the file with mode 0600, and missing folders with 0700, before SQLite would with the umask's rights.

    An existing file is never opened here: closing any descriptor of it would drop the locks that SQLite holds on
    it in this process. For the same reason two threads make a file one after the other.
    """
    with _making:
        missing = [p for p in path.parents if not p.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if path.is_dir():
                raise IsADirectoryError(21, "is a directory") from None


def check_ours(tables: set[str], version: int | None) -> bool:
    """Return whether a database is lionnb's already (``False``: empty, to be made); change nothing.

    Raises:
        StoreVersionError: It is somebody else's, or a newer lionnb's.
    """
    if not tables:
        return False
    if meta.name not in tables:
        raise StoreVersionError(NOT_OURS)
    if version is not None and version > schema.SCHEMA_VERSION:
        raise StoreVersionError(
            f"this control database was written by a newer lionnb (version {version}; this one knows "
            f"{schema.SCHEMA_VERSION}). It was left as it is: upgrade lionnb, or name another database with LIONNB_DB."
        )
    return version is not None


def _on_connect(wait_s: float) -> Any:
    pragmas = (f"busy_timeout={int(wait_s * 1000)}", "synchronous=full", "foreign_keys=on", "secure_delete=on")

    def connect(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        try:
            for pragma in pragmas:
                cursor.execute(f"PRAGMA {pragma}")
            # Before the journal mode: that would write into the header of somebody else's WAL file.
            check_ours(*_look(cursor))
            _no_wal(cursor)
            cursor.close()
        except BaseException:
            cursor.close()
            connection.close()  # the pool does not, and the connection's thread would stay
            raise

    return connect


def _look(cursor: Any) -> tuple[set[str], int | None]:
    cursor.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND substr(name, 1, 7) <> 'sqlite_'")
    tables = {row[0] for row in cursor.fetchall()}
    if meta.name not in tables:
        return tables, None
    cursor.execute(f"SELECT max(version) FROM {meta.name}")  # noqa: S608  # a constant of ours
    return tables, cursor.fetchone()[0]


def _no_wal(cursor: Any) -> None:
    """Switch to the TRUNCATE journal; a WAL file is switched back when nobody else has it open."""
    cursor.execute("PRAGMA journal_mode")
    was_wal = cursor.fetchone()[0] == "wal"
    try:
        cursor.execute("PRAGMA journal_mode=truncate")
        mode = cursor.fetchone()[0]
    except sqlite3.OperationalError as exc:
        if not was_wal:
            raise
        error = StoreError(WAL_IN_USE)
        error.cause = exc
        raise error from None
    if mode == "wal":
        raise StoreError(WAL_IN_USE)


def _on_begin(connection: sa.Connection) -> None:
    reader = connection.get_execution_options().get(READER)
    connection.exec_driver_sql("BEGIN" if reader else "BEGIN IMMEDIATE")


async def prepare(engine: AsyncEngine) -> None:
    """Make, check or migrate the tables. Idempotent; two processes at once make them once.

    Raises:
        StoreVersionError: The database is somebody else's, or a newer lionnb's; it is unchanged.
    """
    async with engine.execution_options(**{READER: True}).connect() as x:
        if await x.run_sync(_found) == schema.SCHEMA_VERSION:
            return
    async with engine.begin() as x:
        if engine.dialect.name == "postgresql":
            # any number, the same for every lionnb; held to the end of the transaction
            await x.execute(sa.select(sa.func.pg_advisory_xact_lock(0x6C696F6E6E62)))
        await x.run_sync(_make)


def _found(x: sa.Connection) -> int | None:
    look = sa.inspect(x)
    tables = set(look.get_table_names()) | set(look.get_view_names())
    version = x.scalar(sa.select(sa.func.max(meta.c.version))) if meta.name in tables else None
    return version if check_ours(tables, version) else None


def _make(x: sa.Connection) -> None:
    found = _found(x)
    if found is None:
        metadata.create_all(x)
        x.execute(sa.insert(meta).values(one=1, version=schema.SCHEMA_VERSION))
        return
    for version in range(found, schema.SCHEMA_VERSION):
        schema.MIGRATIONS[version](x)
    x.execute(sa.update(meta).values(version=schema.SCHEMA_VERSION))
