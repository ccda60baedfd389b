"""Where the control database is: the argument, else LIONNB_DB, else a file in the user data folder.

It opens and makes nothing, and imports neither SQLAlchemy nor a driver, so that a store can be named for free. At a
path that somebody has named it looks, so that a mistake is said where it was made and not by the first write.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lionnb.errors import StoreError
from lionnb.plain import first_line
from lionnb.store.filesystem import NETWORK, file_system_of

__all__ = ("ENV", "Location", "locate")

ENV: Final = "LIONNB_DB"
MEMORY: Final = ":memory:"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_POSTGRES: Final = ("postgres://", "postgresql://", "postgresql+asyncpg://")
_SQLITE: Final = ("sqlite:///", "sqlite+aiosqlite:///")


@dataclass(frozen=True, slots=True)
class Location:
    """A database by its kind and address. Equal locations are one database."""

    kind: Literal["file", "memory", "postgresql"]
    address: str  # absolute path, ":memory:", or a postgresql+asyncpg URL

    def __repr__(self) -> str:
        # the address of a server holds a password
        return f"Location({self.kind!r})" if self.kind == "postgresql" else f"Location({self.kind!r}, {self.address!r})"


def locate(url: str | os.PathLike[str] | None = None) -> Location:
    """Return where the database is.

    Args:
        url: A path, ``:memory:`` or a ``postgresql://`` URL; ``None`` or empty asks the environment variable
            ``LIONNB_DB``, and without that takes ``control.sqlite`` in the user data folder.

    Raises:
        StoreError: The URL names another kind of database, the path is a folder, or more than the last folder of it is
            missing (that one the first write makes; in the user data folder, all of them).
    """
    given = os.fspath(url) if url is not None else ""
    given = given or os.environ.get(ENV, "")
    if not given:
        return Location("file", os.path.abspath(_default_path()))
    for prefix in _POSTGRES:
        if given.startswith(prefix):
            return Location("postgresql", "postgresql+asyncpg://" + given[len(prefix) :])
    for prefix in _SQLITE:
        given = given.removeprefix(prefix)
    if given == MEMORY:
        return Location("memory", MEMORY)
    if _SCHEME.match(given) or "\x00" in given:
        raise StoreError(
            f"the control database is a path, {MEMORY} or a postgresql:// URL; this is none of them. Look at {ENV} or "
            "at the argument."
        )
    path = Path(given).expanduser().absolute()
    _check_place(path)
    return Location("file", str(path))


def _check_place(path: Path) -> None:
    """Raise where no database file can be. Nothing is asked of a network's mount: a dead one would hold the kernel."""
    if file_system_of(path) in NETWORK:
        return
    said = first_line(str(path), 1_000)
    if os.path.isdir(path):
        raise StoreError(
            f"{said} is a folder, and the control database is one file: name a file in it, with {ENV} or the argument."
        )
    folder = path.parent
    if not os.path.lexists(folder) and not os.path.lexists(folder.parent):
        raise StoreError(
            f"the folder of {said} is not there, nor is the one above it: make the folder first, or name another file "
            f"with {ENV} or the argument."
        )


def _default_path() -> str:
    from platformdirs import user_data_dir

    return os.path.join(user_data_dir("lionnb", appauthor=False), "control.sqlite")
