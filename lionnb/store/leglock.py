"""A record lock that a leg's process holds for its life, in a file beside the database: evidence between containers.

The kernel drops the lock with its process, whatever kills that, and shows it to every container of the machine that
sees the file, where a pid means nothing. The file appears under its name only once it is locked, and its name goes
before its lock does; so a file that is there and free belonged to a process that has ended without a word.

Optional everywhere: where locks or rights are missing there is no file, and no file is no evidence.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path

if sys.platform != "win32":
    import fcntl

__all__ = ("LegLocks",)

log = logging.getLogger(__name__)

# What this process holds. A POSIX record lock is lost when its process closes *any* descriptor of the file, so these
# are never opened a second time here.
_mine: set[Path] = set()


class LegLocks:
    """The lock files of the legs of one SQLite file.

    Args:
        database: The path of the SQLite file.
    """

    def __init__(self, database: str) -> None:
        self._folder = Path(f"{database}-legs")

    def _path(self, leg: str) -> Path:
        return self._folder / hashlib.sha256(leg.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def try_hold(self, leg: str) -> int | None:
        """Hold the lock of *leg* until `release`; ``None`` where that cannot be done."""
        path = self._path(leg)
        if sys.platform == "win32" or path in _mine:
            return None
        making = path.with_name(f"{path.name}.{os.getpid()}")
        held: int | None = None
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            held = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            making.rename(path)
        except OSError as exc:
            log.debug("the record lock of a leg could not be taken: %r", exc)
            with contextlib.suppress(OSError):
                making.unlink()
            if held is not None:
                os.close(held)
            return None
        _mine.add(path)
        return held

    def release(self, leg: str, held: int | None) -> None:
        """Let go of what `try_hold` gave."""
        if held is not None:
            self._remove(self._path(leg))
            os.close(held)
            _mine.discard(self._path(leg))

    def is_free(self, leg: str) -> bool:
        """Whether *leg* held its lock once and does so no more."""
        return self._is_free(self._path(leg))

    def tidy(self, running: Iterable[str]) -> None:
        """Remove the free files of legs that own no running run: nobody will ask about them."""
        wanted = {self._path(leg) for leg in running}
        with contextlib.suppress(OSError):
            for path in list(self._folder.iterdir()):
                if path not in wanted and self._is_free(path):
                    self._remove(path)

    def _is_free(self, path: Path) -> bool:
        if sys.platform == "win32" or path in _mine:
            return False
        try:
            seen = os.open(path, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.lockf(seen, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(seen)
        return True

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()
            self._folder.rmdir()  # if it was the last one
