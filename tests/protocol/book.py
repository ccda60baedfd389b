"""A ledger outside of the database: what each process was about to do, and what it was told. It survives ``kill -9``.

Every line is written by one ``write`` before the next thing is done. A process that dies loses what was not handed to
the kernel, never what was; and no line is torn, because lines are padded so that none crosses a page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ("Book", "read_books")

_WIDTH = 256  # divides a page


class Book:
    """The book of one process: ``folder/name.book``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._fd = os.open(folder / f"{name}.book", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **fields: Any) -> None:
        """Add a line; on return it is the kernel's."""
        line = json.dumps({"what": what, **fields}).encode().ljust(_WIDTH - 1) + b"\n"
        assert len(line) == _WIDTH, line
        assert os.write(self._fd, line) == _WIDTH

    def close(self) -> None:
        os.close(self._fd)


def read_books(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of every book, each with ``who`` wrote it; a process's own lines in their order."""
    for path in sorted(folder.glob("*.book")):
        for line in path.read_text().splitlines():
            yield {"who": f"{folder.name}/{path.stem}", **json.loads(line)}
