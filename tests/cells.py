"""What the tests in kernels and in browsers share: cells that start a leg, something to hold a cell at, the record."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

__all__ = ("SETUP", "START", "Hold", "rows", "steers")

SETUP = """
import asyncio
import lionnb
from lionnb.testing import Gate, LoopbackServer, Reply, scripted_model

gate = Gate()  # while it is closed, the turn goes on
answers = ["the first answer", "the second answer"]
branch = lionnb.Branch(chat_model=scripted_model(answers, gate=gate), name="survey")
"""
START = 'leg = lionnb.start_leg(branch, "Survey the literature.", name="survey", timeout_s=300)'


class Hold:
    """Something that a cell can be held at, and that the test lets go of.

    A named pipe: reading it blocks the kernel's thread as a computation does, and nothing in the kernel has to run for
    it to end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        os.mkfifo(path)
        self.blocks = f"open({str(path)!r}).read()"
        self.awaits = f"await asyncio.to_thread(lambda: {self.blocks})"

    def let_go(self) -> None:
        """Let the cell that is held go on, once it has come to it."""
        self._path.write_text("")


def rows(database: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a control database, read from this process, in order; none while the file is not there."""
    if not database.exists():
        return []
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60)
    try:
        connection.row_factory = sqlite3.Row
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return []
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY seq")]
    finally:
        connection.close()


def steers(database: Path, text: str) -> list[dict[str, Any]]:
    """The rows of the steers with this text, in order."""
    return [row for row in rows(database, "session_controls") if json.loads(row["payload"])["text"] == text]
