"""Legs and operators, each a process of its own, killed with SIGKILL at random; after every round the books are read.

    python -m tests.protocol.chaos --kills 10000                    # both databases; an hour or two
    python -m tests.protocol.chaos --kills 500 --database sqlite --seed 7

A round: three legs (`lionnb.start_leg` on scripted models), two operators and sometimes a reaper share one database until
all of them are dead or done. What the dead left running is taken over, or recorded as lost and resumed, by processes
that may be killed as well; a person, mortal too, decides about some of the claims that nobody holds any more. Then the
database must be whole, and every record true (`tests.protocol.judge`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lionnb.records import ControlRecord, SessionRecord
from lionnb.store import Store
from tests import pg
from tests.protocol.book import read_books
from tests.protocol.judge import Evidence, judge, judge_ends
from tests.protocol.processes import Round

__all__ = ("Chaos",)

DATABASES = ("sqlite", "postgresql")
SEASON = 500  # kills, after which the long run takes a fresh database


class Chaos:
    """Rounds on one database.

    Args:
        url: The database, empty.
        folder: For the books; kept.
        seed: Of everything that is decided here. When a process is killed is not: the machine decides that, too.
    """

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url, self._folder, self._dice = url, folder, random.Random(seed)
        self._seed, self._names = seed, itertools.count(1)
        self.count: Counter[str] = Counter()

    def run(self, kills: int) -> list[str]:
        """Rounds until *kills* processes were killed, or something is wrong; gives what is wrong."""
        while self.count["kills"] < kills:
            if found := self.round():
                return found
        return self.whole_and_true()

    def round(self) -> list[str]:
        """One round; gives what is wrong after it."""
        name = f"round-{next(self._names)}"
        made = Round(self.url, self._folder / name, self._dice)
        for _ in range(3):
            made.start("leg", name)
        for _ in range(2):
            made.start("operator", name, 25)
        if self._dice.random() < 0.5:
            made.start("reaper")
        made.wait()
        evidence = Evidence.of(read_books(made.folder))
        found = judge_ends(evidence, self._sessions(name))
        found += self._bury(made, name)
        made.start("decider", name, mortal=self.count["resolved"] > 0)  # one of them must have come to its end
        made.wait()
        found += [*made.failures(), *self.whole_and_true(name)]
        self.count.update(rounds=1, kills=made.kills)
        self.count.update(f"{word}s killed" for word in made.killed())
        return [f"seed {self._seed}, {name} in {made.folder}: {sentence}" for sentence in found]

    def _bury(self, made: Round, name: str) -> list[str]:
        """What the dead left running goes on in other hands, some of which die, too; or it is lost, and resumed or not.

        Gives what is wrong with that: every leg is dead by now, and must be known to be.
        """
        for attempt in range(5):
            left = [run for run in self._sessions(name).values() if not run.terminal]
            if not left:
                return []
            reaped = set()
            if self._dice.random() < 0.4:
                found = self._ask(lambda core: core.reap(time.time(), "chaos"))
                reaped = {done.session.id for done in found}
                if reaped != {run.id for run in left}:
                    return [f"{run.id}: its process is dead, and was not found dead" for run in left]
            for run in left:
                if run.id not in reaped or self._dice.random() < 0.5:
                    made.start("taker", run.id, mortal=attempt < 3)
            made.wait()
        return ["takers that nobody kills did not end what they took"]

    # ------------------------------------------------------------------ the database
    def whole_and_true(self, name: str | None = None) -> list[str]:
        """What is wrong with the database: of one round, or of all of them."""
        self._settle()
        books = self._folder.glob("*") if name is None else [self._folder / name]
        evidence = Evidence.of(line for folder in books for line in read_books(folder))
        sessions = self._sessions(name)
        controls: list[ControlRecord] = self._ask(lambda core: core.list_controls(None if name is None else sessions))
        if name is not None:
            self.count.update(row.state.value for row in controls)
            self.count.update(acknowledged=sum(steer.acknowledged for steer in evidence.steers.values()))
        return [*self._broken(), *judge(evidence, sessions, {row.id: row for row in controls})]

    def _sessions(self, name: str | None) -> dict[str, SessionRecord]:
        self._settle()
        return {run.id: run for run in self._ask(lambda core: core.list_sessions(name=name))}

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        store = Store(self.url)
        try:
            return store.submit(work).result(timeout=60)
        finally:
            store.close()

    def _broken(self) -> list[str]:
        if self.url.startswith("postgresql"):
            return []  # what is torn there shows when the server starts again
        with sqlite3.connect(self.url) as connection:
            said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
            said += [f"a row without its run: {row}" for row in connection.execute("PRAGMA foreign_key_check")]
        connection.close()
        return [] if said == ["ok"] else said

    def _settle(self) -> None:
        """The server may still be at work for a client that is dead: wait until it has noticed."""
        if self.url.startswith("postgresql"):
            asyncio.run(_alone(self.url))


async def _alone(url: str) -> None:
    import asyncpg

    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    connection = await asyncpg.connect(url)
    try:
        while await connection.fetchval(asked):
            await asyncio.sleep(0.005)
    finally:
        await connection.close()


# --- the long run ---------------------------------------------------------------------------------------------------


@contextmanager
def _database(kind: str, folder: Path, server: pg.Server | None) -> Iterator[str]:
    if server is None:
        yield str(folder / "control.sqlite")
        return
    with server.database() as url:
        yield url


def main() -> int:
    """The long run, from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10_000, help="for each database")
    parser.add_argument("--database", choices=DATABASES, action="append", help="both, unless one is named")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    root = Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["LOG_AUTO_SAVE_ON_EXIT"] = "false"
    folder = Path(tempfile.mkdtemp(prefix="lionnb-chaos-"))
    for kind in given.database or DATABASES:
        with pg.server() if kind == "postgresql" else nullcontext() as server:
            if found := _seasons(kind, given.kills, given.seed, folder, server):
                print(*found, f"the books are in {folder}", sep="\n")
                return 1
    return 0


def _seasons(kind: str, kills: int, seed: int, folder: Path, server: pg.Server | None) -> list[str]:
    total: Counter[str] = Counter()
    from_ = time.monotonic()
    for season in itertools.count():
        if total["kills"] >= kills:
            return []
        books = folder / f"{kind}-{season}"
        books.mkdir()
        with _database(kind, books, server) as url:
            chaos = Chaos(url, books, seed + season)
            found = chaos.run(min(SEASON, kills - total["kills"]))
        total.update(chaos.count)
        print(f"{kind}: {time.monotonic() - from_:.0f} s, {dict(total)}", flush=True)
        if found:
            return found
    return []


if __name__ == "__main__":
    sys.exit(main())
