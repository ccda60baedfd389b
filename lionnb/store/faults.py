"""Driver errors as one clear sentence each. No SQL, no driver text and no password reaches a user.

A path does only where a database cannot be opened: it is the one that the user has named, or should have.

The original stays on the error as ``cause``, for whoever debugs; a traceback does not show it.
"""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from lionnb.errors import StoreError, StoreVersionError
from lionnb.plain import first_line

__all__ = ("NOT_OPENED", "NOT_READ", "is_database_error", "name_file", "retryable", "translate")

NOT_WRITTEN: Final = "so nothing was written"
NOT_READ: Final = "so it could not be read"
NOT_OPENED: Final = "so it could not be opened"
"""What a failure means to who asked: each sentence below says the first, and stands for all three."""

LOCKED: Final = (
    "the control database stayed locked by another program, so nothing was written. Try again; if it stays so, look "
    "for a program that holds the file open in a transaction."
)
READ_ONLY: Final = (
    "the control database cannot be written: its file, its folder or its server is read-only for this account. Nothing "
    "was changed. Set LIONNB_DB to a place that you can write."
)
FULL: Final = "the disk of the control database is full, so nothing was written. Free some space and try again."
CANNOT_OPEN: Final = (
    "the control database cannot be opened: its folder is gone, or this account may not enter it. Set LIONNB_DB to a "
    "place that you can write."
)
NOT_A_DATABASE: Final = (
    "what LIONNB_DB or the argument names is not a database file. It was left as it is: name another file."
)
CORRUPT: Final = (
    "the control database is damaged, so nothing was written. Move the file away (a new one is made) and keep it: "
    "`sqlite3 FILE .recover` often saves the rows."
)
IO: Final = (
    "the disk of the control database fails, or its network file system dropped the file, so nothing was written. Set "
    "LIONNB_DB to a local disk."
)
GONE: Final = (
    "the file of the control database was moved or deleted while it was open, so nothing was written. Restart the "
    "kernel to open it again."
)
UNREACHABLE: Final = (
    "the PostgreSQL server of the control database does not answer. Whether the last write landed is unknown: read it "
    "again once the server is back (a repeated steer with the same key is written once)."
)
LOGIN: Final = "the PostgreSQL server refuses this login. Look at user, password and database in LIONNB_DB."
PERMISSION: Final = "the PostgreSQL account may not do this in the control database: give it a schema of its own."
DIFFERENT: Final = (
    "the control database does not look as lionnb left it (a table or a column is missing or was changed by hand), so "
    "nothing was written. Name another database with LIONNB_DB."
)
OTHER: Final = (
    "the control database refused the operation. Look at what stands there before you repeat it; the driver's error is "
    "in `.cause`."
)

_SQLITE: Final = (  # by error name; the first that fits
    ("SQLITE_BUSY", LOCKED),
    ("SQLITE_LOCKED", LOCKED),
    ("SQLITE_READONLY_DBMOVED", GONE),
    ("SQLITE_READONLY", READ_ONLY),
    ("SQLITE_FULL", FULL),
    ("SQLITE_CANTOPEN", CANNOT_OPEN),
    ("SQLITE_PERM", CANNOT_OPEN),
    ("SQLITE_NOTADB", NOT_A_DATABASE),
    ("SQLITE_CORRUPT", CORRUPT),
    ("SQLITE_IOERR", IO),
    ("SQLITE_PROTOCOL", IO),
    ("SQLITE_ERROR", DIFFERENT),
)
_POSTGRES: Final = (  # by SQLSTATE; the first prefix that fits
    ("40001", LOCKED),
    ("40P01", LOCKED),
    ("55P03", LOCKED),
    ("57014", LOCKED),
    ("25006", READ_ONLY),
    ("53100", FULL),
    ("53", UNREACHABLE),
    ("57P", UNREACHABLE),
    ("08", UNREACHABLE),
    ("28", LOGIN),
    ("3D000", LOGIN),
    ("42501", PERMISSION),
    ("42", DIFFERENT),
    ("3F", DIFFERENT),
)
_ERRNO: Final = {
    errno.EACCES: CANNOT_OPEN,
    errno.ENOENT: CANNOT_OPEN,
    errno.EEXIST: CANNOT_OPEN,  # a file stands where a folder is needed
    errno.EPERM: CANNOT_OPEN,
    errno.EROFS: READ_ONLY,
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.ENOTDIR: CANNOT_OPEN,
    errno.EISDIR: NOT_A_DATABASE,
    errno.ELOOP: CANNOT_OPEN,
    errno.ENAMETOOLONG: CANNOT_OPEN,
    errno.EIO: IO,
}


def _chain(exc: BaseException) -> list[BaseException]:
    """*exc* and everything it was made from, outermost first."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [exc]
    while todo:
        one = todo.pop()
        if one is not None and one not in found:
            found.append(one)
            todo += [one.__context__, one.__cause__, getattr(one, "orig", None)]
    return found


def _sqlstate(exc: BaseException) -> str | None:
    code = getattr(exc, "sqlstate", None) or getattr(exc, "pgcode", None)
    return code if isinstance(code, str) else None


def is_database_error(exc: BaseException) -> bool:
    """Whether *exc* comes from the database, its driver or the file system: all of them must be translated."""
    foreign = (SQLAlchemyError, sqlite3.Error, OSError, TimeoutError)
    return isinstance(exc, foreign) or type(exc).__module__.partition(".")[0] == "asyncpg"


def retryable(exc: BaseException) -> bool:
    """Whether the server undid the transaction itself and asks for it again (deadlock, serialization failure)."""
    return any(_sqlstate(e) in {"40001", "40P01"} for e in _chain(exc))


def _sentence(exc: BaseException) -> str:
    chain = _chain(exc)
    for e in chain:
        if name := getattr(e, "sqlite_errorname", None):
            return next((text for prefix, text in _SQLITE if name.startswith(prefix)), OTHER)
    for e in chain:
        if code := _sqlstate(e):
            return next((text for prefix, text in _POSTGRES if code.startswith(prefix)), OTHER)
    for e in chain:
        if isinstance(e, OSError) and e.errno == errno.ENOENT and e.filename is None:
            return UNREACHABLE  # no file was asked for: it is the socket of a server that is not there
        if isinstance(e, OSError) and e.errno in _ERRNO:
            return _ERRNO[e.errno]
    if any(isinstance(e, PoolTimeout) for e in chain):
        return LOCKED
    if any(isinstance(e, (OSError, TimeoutError)) or getattr(e, "connection_invalidated", False) for e in chain):
        return UNREACHABLE
    return OTHER


def translate(exc: BaseException, so: str = NOT_WRITTEN) -> StoreError:
    """Return the error to raise instead of *exc*, ``from None``: one sentence, the original in ``cause``.

    Args:
        exc: What the database, its driver or the file system raised.
        so: What that means here: `NOT_READ` for who only reads, `NOT_OPENED` for who only opens.
    """
    text = _sentence(exc)
    kind = StoreVersionError if text == NOT_A_DATABASE else StoreError
    error = kind(text.replace(NOT_WRITTEN, so))
    error.cause = exc
    return error


def name_file(error: StoreError, path: str) -> StoreError:
    """Have *error* say which file it is about, for who has named another one than they believe."""
    error.args = (f"{error} (file: {first_line(path, 1_000)})",)
    return error
