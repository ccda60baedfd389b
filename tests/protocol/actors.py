"""What the processes of the chaos do: real legs, operators at a distance, and who takes over from the dead.

Each keeps a `Book` and may carry a `Fuse`: it kills its own process with SIGKILL at the n-th point that it passes. Points
are before and after every statement, before every commit, and around every call of the model; so the fuse finds the
moments that matter, and kills from outside, at random times, find the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import lionnb
from lionnb.errors import LegFailedError, ResolveRefusedError
from lionnb.records import ControlState
from lionnb.store import Store
from lionnb.testing import Gate, Reply, scripted_model
from tests.protocol.book import Book

__all__ = ("STEER", "act")

STEER = re.compile(r"\bsteer-[0-9a-z]+-\d+\b")  # the id of a steer is in its text
POINTS = ("before_cursor_execute", "after_cursor_execute", "commit")


class Fuse:
    """Kills this process at the *at*-th point; ``None`` never does. Any thread."""

    def __init__(self, at: int | None) -> None:
        self._left = at

    def __call__(self, *_: Any, **__: Any) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


class FusedStore(Store):
    """The real store; its statements are points of the fuse."""

    def __init__(self, url: str, fuse: Fuse) -> None:
        super().__init__(url)
        self._fuse = fuse

    async def _opened(self) -> Any:
        fresh = self._core is None
        core = await super()._opened()
        if fresh:
            for point in POINTS:
                sa.event.listen(core._engine.sync_engine, point, self._fuse)
        return core


def act(what: str, url: str, folder: Path, name: str, seed: int, fuse: int | None, *how: Any) -> None:
    """The main function of every process."""
    said = os.open(folder / f"{name}.stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(said, sys.stderr.fileno())
    book, burning = Book(folder, name), Fuse(fuse)
    store = FusedStore(url, burning)
    asyncio.run(PLAYS[what](store, book, burning, random.Random(seed), *how))
    store.close()
    book.write("closed")


# --- a leg ----------------------------------------------------------------------------------------------------------


async def leg(store: Store, book: Book, fuse: Fuse, dice: random.Random, name: str) -> None:
    """A real leg on a scripted model, which is cancelled, stopped and out of time now and then, and raises sometimes."""

    def reply(payload: dict[str, Any]) -> str:
        carried, fails = STEER.findall(str(payload["messages"][-1]["content"])), dice.random() < 0.08
        for cid in carried:
            book.write("asked", id=cid, fails=fails)
        fuse()
        if fails:
            raise ValueError("a provider that fails")
        return " ".join(["word"] * dice.randint(1, 12))

    model = scripted_model([reply], pace_s=dice.choice([0.0, 0.002, 0.01]))
    branch = lionnb.Branch(chat_model=model)
    how = {"timeout_s": dice.uniform(0.05, 0.6)} if dice.random() < 0.2 else {}
    live = lionnb.start_leg(branch, "Survey X", store=store, by="ana", name=name, **how)
    book.write("begins", run=live.session_id)
    trouble = asyncio.create_task(_trouble(live, dice), name="trouble")
    with contextlib.suppress(LegFailedError):
        await live
    trouble.cancel()
    _write_history(book, branch)
    book.write("ended", run=live.session_id, status=live.status.value)


def _write_history(book: Book, branch: lionnb.Branch) -> None:
    """Which steers stand in the history, by the id that is in their text: a row that was sent again has another one."""
    for message in branch.messages:
        if message.metadata.get("lionnb_controls"):
            for cid in STEER.findall(str(message.content.instruction)):
                book.write("history", id=cid)


async def _trouble(live: lionnb.Leg, dice: random.Random) -> None:
    while True:
        await asyncio.sleep(dice.uniform(0.01, 0.3))
        what = dice.random()
        if what < 0.05:
            live.stop()
        elif what < 0.35:
            live.cancel_turn()


# --- an operator ----------------------------------------------------------------------------------------------------


async def operator(store: Store, book: Book, fuse: Fuse, dice: random.Random, name: str, acts: int) -> None:
    """Steers the runs of this name from another process, and sometimes takes back, sends again, or resolves."""
    mine, sent, idle = uuid.uuid4().hex[:8], [], 0
    while acts and idle < 40:
        runs = await store.run(lambda core: core.list_sessions(name=name, running=True))
        await asyncio.sleep(dice.uniform(0, 0.02))
        idle = 0 if runs else idle + 1
        if not runs:
            continue
        acts -= 1
        run, what = dice.choice(runs).id, dice.random()
        if what < 0.75 or not sent:
            sent.append((f"steer-{mine}-{len(sent)}", run))
            await _send(store, book, fuse, *sent[-1])
        elif what < 0.82:
            await _send(store, book, fuse, *dice.choice(sent))  # again: it must stay one steer
        elif what < 0.92:
            await _withdraw(store, book, dice.choice(sent)[0])
        else:
            await _resolve(store, book, dice, run)


async def _send(store: Store, book: Book, fuse: Fuse, cid: str, run: str) -> None:
    book.write("sends", id=cid, run=run)
    now = time.time()
    got = await store.run(lambda core: core.admit(run, text=f"please {cid}", by="ben", control_id=cid, now=now))
    fuse()
    book.write("sent", id=cid, refused=got.refusal and got.refusal[0])


async def _withdraw(store: Store, book: Book, cid: str) -> None:
    book.write("withdraws", id=cid)
    with contextlib.suppress(ResolveRefusedError):
        await store.run(lambda core: core.withdraw(cid, "ben", time.time()))
        book.write("withdrew", id=cid)


async def _resolve(store: Store, book: Book, dice: random.Random, run: str) -> None:
    rows = await store.run(lambda core: core.list_controls(run, open_only=True))
    for row in (row for row in rows if row.state is ControlState.DELIVERING):
        outcome = dice.choice(["applied", "abandoned"])
        book.write("resolves", id=row.id)
        with contextlib.suppress(ResolveRefusedError):
            await store.run(lambda core, cid=row.id, said=outcome: core.resolve(cid, said, "ben", time.time()))
            book.write("resolved", id=row.id, outcome=outcome)


# --- who takes over -------------------------------------------------------------------------------------------------


async def taker(store: Store, book: Book, fuse: Fuse, dice: random.Random, run: str) -> None:
    """Resumes a run whose leg is dead, on a Branch of its own, and delivers what never landed; mostly."""

    def reply(payload: dict[str, Any]) -> str:
        for cid in STEER.findall(str(payload["messages"][-1]["content"])):
            book.write("asked", id=cid, fails=False)
        fuse()
        return "understood"

    branch = lionnb.Branch(chat_model=scripted_model([reply], pace_s=dice.choice([0.0, 0.002])))
    live = lionnb.resume(run, "Go on", branch=branch, store=store, by="eva", resend=dice.random() < 0.8)
    book.write("takes", run=run, leg=live.token)
    await live
    _write_history(book, branch)
    book.write("ended", run=run, status=live.status.value)


async def reaper(store: Store, book: Book, fuse: Fuse, dice: random.Random) -> None:
    """Records as lost the runs of legs that are proven dead, while others live. It must never take one for dead."""
    for _ in range(40):
        await store.run(lambda core: core.reap(time.time(), "chaos"))
        await asyncio.sleep(dice.uniform(0, 0.05))


async def decider(store: Store, book: Book, fuse: Fuse, dice: random.Random, name: str) -> None:
    """A person who comes later, and says what became of most runs' claims that the dead have left behind."""
    for run in await store.run(lambda core: core.list_sessions(name=name)):
        if dice.random() < 0.7:
            await _resolve(store, book, dice, run.id)


# --- a crowd, in which nobody dies ----------------------------------------------------------------------------------


async def steady(store: Store, book: Book, fuse: Fuse, dice: random.Random, folder: Path, crew: int) -> None:
    """A leg whose first turn lasts until the crew has sent its first half."""

    def reply(payload: dict[str, Any]) -> str:
        for cid in STEER.findall(str(payload["messages"][-1]["content"])):
            book.write("asked", id=cid, fails=False)
        return "understood"

    gate = Gate()
    branch = lionnb.Branch(chat_model=scripted_model([Reply("begun", gate=gate), reply]))
    live = lionnb.start_leg(branch, "Survey X", store=store, by="ana", name="crowd")
    book.write("begins", run=live.session_id)
    while len([*folder.glob("*.half")]) < crew:
        await asyncio.sleep(0.02)
    gate.open()
    await live
    _write_history(book, branch)
    book.write("ended", run=live.session_id, status=live.status.value)


async def steersman(store: Store, book: Book, fuse: Fuse, dice: random.Random, folder: Path, legs: int) -> None:
    """One of the crew: steers all legs in turn, first while they work, then while they carry what was sent."""
    runs: list[Any] = []
    while len(runs) < legs:
        runs = await store.run(lambda core: core.list_sessions(name="crowd"))
        await asyncio.sleep(0.02)
    mine = uuid.uuid4().hex[:8]
    for n in range(4 * legs):
        from_ = time.monotonic()
        await _send(store, book, fuse, f"steer-{mine}-{n}", runs[n % legs].id)
        book.write("took", ms=1000 * (time.monotonic() - from_))
        await asyncio.sleep(dice.uniform(0, 0.04))
        if n == 2 * legs - 1:
            (folder / f"{mine}.half").touch()


PLAYS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    play.__name__: play for play in (decider, leg, operator, reaper, steady, steersman, taker)
}
