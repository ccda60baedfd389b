"""Imported once by the fork server: everything that a process of the chaos will need, used once, with no thread left."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading

import lionnb
import tests.protocol.actors  # noqa: F401  # this is what is kept warm
from lionnb.store import Store
from lionnb.testing import scripted_model

with contextlib.suppress(ImportError):
    importlib.import_module("sqlalchemy.dialects.postgresql.asyncpg")
    importlib.import_module("asyncpg")


async def _once() -> None:
    store = Store(":memory:")
    await lionnb.start_leg(lionnb.Branch(chat_model=scripted_model(["x"])), "x", store=store)
    store.close()


asyncio.run(_once())
assert threading.active_count() == 1, f"fork needs a process with one thread: {threading.enumerate()}"
