"""How long a steer takes: from the click to its row, from its row to a leg that knows of it, from turn to turn.

    python -m tests.bench.steering            # three minutes
    python -m tests.bench.steering --quick    # half a minute

Beside each way to be woken a poll of 2 s runs over the very same rows, as lionagi's own consumers poll. Times are
those of CLOCK_MONOTONIC, which is one for all processes of a machine. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import tempfile
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic as now
from time import time
from typing import Any

import lionnb
from lionnb.legs import Leg
from lionnb.store import Store
from lionnb.testing import Gate, Reply, scripted_model
from tests import pg

POLL_S = 2.0
PAUSE_S = 0.05  # between two steers, on average
LIMIT_S = 15.0

Times = dict[str, list[float]]


# --- the other process ----------------------------------------------------------------------------------------------


def operate(pipe: Any, url: str, run: str, deaf: bool) -> None:
    """Steers *run* whenever it is told an id; answers when the row was committed. *deaf*: it rings no bell."""
    if deaf:
        with contextlib.suppress(ImportError):
            from lionnb.store import bell

            bell.Bell.ring = lambda self: None
    store, committed = Store(url), {}
    store.watch(run, lambda row: committed.setdefault(row.id, now()))
    pipe.send(store.submit(lambda core: core.get_session(run)).result() is not None)
    while (cid := pipe.recv()) is not None:
        store.submit(lambda core, cid=cid: core.admit(run, text=cid, by="ben", control_id=cid, now=time())).result()
        pipe.send(committed[cid])
    store.close()


@contextmanager
def operator(url: str, run: str, *, deaf: bool = False) -> Iterator[Any]:
    """Another process that steers *run*; gives the pipe to it."""
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=operate, args=(theirs, url, run, deaf), daemon=True)
    process.start()
    try:
        assert mine.recv()
        yield mine
        mine.send(None)
        process.join()
    finally:
        process.kill()
        process.join()
        process.close()


# --- a leg that hears -----------------------------------------------------------------------------------------------


class Listening:
    """A live leg in its first turn: when each row was committed, when the leg knew, and when a poll would have."""

    def __init__(self, leg: Leg) -> None:
        self.leg, self.committed, self.knew, self.polled = leg, {}, {}, {}
        self._waits: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        leg.store.watch(leg.session_id, lambda row: self.committed.setdefault(row.id, now()))
        leg.feed.listen(self._hear)

    def _hear(self, event: Any) -> None:
        if event.kind == "steer":
            self.knew.setdefault(event.data["control_id"], now())
            self._waits[event.data["control_id"]].set()

    async def hears(self, cid: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self._waits[cid].wait()

    async def poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            rows = await self.leg.store.run(lambda core: core.list_controls(self.leg.session_id, open_only=True))
            for row in rows:
                self.polled.setdefault(row.id, now())


@contextlib.asynccontextmanager
async def listening(url: str) -> AsyncIterator[Listening]:
    gate, store = Gate(), Store(url)
    branch = lionnb.Branch(chat_model=scripted_model([Reply("done", gate=gate)]))
    leg = lionnb.start_leg(branch, "Survey X", store=store)
    await gate.reached()
    ear = Listening(leg)
    poll = asyncio.create_task(ear.poll(), name="poll")
    try:
        yield ear
    finally:
        poll.cancel()
        leg.stop()
        await leg
        store.close()


# --- what is measured -----------------------------------------------------------------------------------------------


async def here(ear: Listening, n: int, times: Times) -> None:
    """`leg.steer` in the cell's own thread, and the leg in the same process."""
    for _ in range(n):
        from_ = now()
        cid = ear.leg.steer("only sources after 2020").control_id
        times["click to row: leg.steer() in a cell"].append(now() - from_)
        await ear.hears(cid)
        times["row to leg, same process"].append(ear.knew[cid] - ear.committed[cid])
        await pause()


async def elsewhere(url: str, ear: Listening, n: int, times: Times, what: str, *, deaf: bool = False) -> None:
    """The same from another process: its row is committed there, and heard of here."""
    rows: dict[str, float] = {}
    with operator(url, ear.leg.session_id, deaf=deaf) as pipe:
        for _ in range(n):
            cid = uuid.uuid4().hex
            pipe.send(cid)
            rows[cid] = await asyncio.to_thread(pipe.recv)
            await ear.hears(cid)
            times[what].append(ear.knew[cid] - rows[cid])
            await pause()
    await asyncio.sleep(POLL_S + 0.1)
    times[f"the same rows, by a poll every {POLL_S:.0f} s"] += [ear.polled[cid] - at for cid, at in rows.items()]


async def turns(url: str, n: int, times: Times) -> None:
    """From the end of a turn to the request of the continuation that carries what was steered meanwhile."""
    store = Store(url)
    for _ in range(n):
        gate, asked = Gate(), []

        def reply(_payload: Any, asked: list[float] = asked) -> str:
            asked.append(now())
            return "done"

        branch = lionnb.Branch(chat_model=scripted_model([Reply("first", gate=gate), reply]))
        ends: list[float] = []
        branch.turns.listen(lambda event, ends=ends: ends.append(now()) if event.kind == "end" else None)
        leg = lionnb.start_leg(branch, "Survey X", store=store)
        await gate.reached()
        leg.steer("only sources after 2020")
        gate.open()
        await leg
        times["turn end to continuation's request"].append(asked[0] - ends[0])
    store.close()


async def pause() -> None:
    await asyncio.sleep(random.uniform(0, 2 * PAUSE_S))  # not in step with any timer


async def measure(url: str, n: int, *, notices: str, file: bool) -> Times:
    times: Times = defaultdict(list)
    async with listening(url) as ear:
        await here(ear, n, times)
        if hears_other_processes():
            await elsewhere(url, ear, n, times, f"row to leg, another process: {notices}")
            if file:
                await elsewhere(url, ear, n, times, "row to leg, another process: the bell is lost", deaf=True)
    await turns(url, max(5, n // 4), times)
    return times


def hears_other_processes() -> bool:
    """Whether this lionnb has a wake-up between processes."""
    with contextlib.suppress(ImportError):
        import lionnb.store.wake

        return bool(lionnb.store.wake)
    return False


# --- the table ------------------------------------------------------------------------------------------------------


def show(title: str, times: Times | None, why: str = "") -> None:
    print(f"\n{title:<54}{'n':>6}{'median':>12}{'p95':>12}{'worst':>12}")
    for what, taken in (times or {}).items():
        ms = sorted(1000 * t for t in taken)
        at = [ms[len(ms) // 2], ms[min(len(ms) - 1, int(0.95 * len(ms)))], ms[-1]]
        print(f"  {what:<52}{len(ms):>6}" + "".join(f"{t:>9.1f} ms" for t in at))
    if times is None:
        print(f"  not available: {why}")
    elif not hears_other_processes():
        print("  row to leg, another process: not available, this lionnb has no wake-up between processes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.steering", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steers")
    n = 20 if parser.parse_args().quick else 200
    os.environ["LOG_AUTO_SAVE_ON_EXIT"] = "false"
    with tempfile.TemporaryDirectory(prefix="lionnb-bench-") as folder:
        url = str(Path(folder) / "control.sqlite")
        show("SQLite, one file", asyncio.run(measure(url, n, notices="the bell", file=True)))
    if (why := pg.missing()) is not None:
        show("PostgreSQL", None, why)
        return
    with pg.server() as server, server.database() as url:
        show("PostgreSQL", asyncio.run(measure(url, n, notices="LISTEN", file=False)))


if __name__ == "__main__":
    main()
