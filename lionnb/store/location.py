"""Where the control database is: the argument, else LIONNB_DB, else a file in the user data folder.

Pure: it opens nothing and imports neither SQLAlchemy nor a driver, so that a store can be named for free.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lionnb.errors import StoreError

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
        StoreError: The URL names another kind of database.
    """
    given = os.fspath(url) if url is not None else ""
    given = given or os.environ.get(ENV, "") or _default_path()
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
    return Location("file", str(Path(given).expanduser().absolute()))


def _default_path() -> str:
    from platformdirs import user_data_dir

    return os.path.join(user_data_dir("lionnb", appauthor=False), "control.sqlite")
