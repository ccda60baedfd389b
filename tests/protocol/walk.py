"""A random walk over the real store, with the model's statements beside it: after every step both must read the same.

Everybody acts here, entitled or not: legs that own nothing, tokens that were used up, people who come late. What the
store answers is predicted from the model's rows alone (`tests.protocol.rows`).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lionnb.errors import ResolveRefusedError
from lionnb.records import ControlRecord, RunStatus, SessionSpec
from lionnb.store.core import StoreCore
from tests.protocol import rows as r
from tests.protocol.rows import Row

LEGS = ("leg-1", "leg-2", "leg-3")
ENDINGS = sorted(set(RunStatus) - {RunStatus.RUNNING, RunStatus.LOST})
OPEN = {r.PENDING, r.DELIVERING}


@dataclass
class Run:
    """A run as the model knows it."""

    id: str
    status: str = "running"
    leg: str | None = "leg-1"
    rows: dict[str, Row] = field(default_factory=dict)  # by id, in the order of admission
    claims: dict[str, list[str]] = field(default_factory=dict)  # every token ever given out -> what it took
    origins: dict[str, str] = field(default_factory=dict)  # a row that was sent again -> the one that it sends
    seen: dict[str, str] = field(default_factory=dict)  # the claim under which a person last looked at a row

    def owned_by(self, leg: str) -> bool:
        return self.status == "running" and self.leg == leg

    def update(self, change: Callable[..., Row], *args: str) -> list[str]:
        """Every row changed by a statement of the model; the ids of those that it changed."""
        before = dict(self.rows)
        self.rows = {cid: change(row, *args) for cid, row in before.items()}
        return [cid for cid, row in self.rows.items() if row != before[cid]]

    def reads(self, rec: str) -> list[str]:
        return [cid for cid, row in self.rows.items() if row.rec == rec]


class Walk:
    """Walks at random; equal seeds walk alike. ``done`` counts what was done, with and without effect.

    Args:
        cores: Stores of one database; each step goes through one of them.
        seed: Of the walk.
        name: Makes its ids its own.
    """

    def __init__(self, cores: list[StoreCore], seed: int, name: str) -> None:
        self._cores, self._random, self._name = cores, random.Random(seed), name
        self._ids, self._clock = itertools.count(1), itertools.count(1)
        self.done: Counter[tuple[str, bool]] = Counter()
        self.said: list[str] = [f"seed {seed}"]
        self._acts = [
            *[self._admit] * 6, *[self._claim] * 4, *[self._report] * 3, *[self._give_back] * 2, *[self._withdraw] * 2,
            *[self._resolve] * 3, *[self._look] * 2, *[self._end] * 2, *[self._resume] * 2, *[self._reopen] * 2, self._lost, self._again, self._beat,
        ]  # fmt: skip

    async def walk(self, steps: int, *, a_story: int = 60) -> None:
        """Take so many steps; every *a_story* of them two new runs, which share nothing but the database."""
        runs: list[Run] = []
        for n in range(steps):
            if n % a_story == 0:
                runs = [await self._start(), await self._start()]
                self.said = self.said[:1]
            await self._random.choice(self._acts)(self._random.choice(runs))
            await self._compare(runs)

    # ------------------------------------------------------------------ beside the store
    @property
    def _core(self) -> StoreCore:
        return self._random.choice(self._cores)

    @property
    def _now(self) -> float:
        return 1_700_000_000.0 + next(self._clock)

    def _check(self, what: str, answer: Any, expected: Any, *, effect: object) -> None:
        self.said.append(f"{what}: {answer}")
        self.done[what.partition(" ")[0], bool(effect)] += 1
        assert answer == expected, "\n".join([*self.said[-80:], f"expected {expected}"])

    async def _compare(self, runs: list[Run]) -> None:
        core, ids = self._core, [run.id for run in runs]
        stored = {session.id: session for session in await core.list_sessions(ids)}
        controls = await core.list_controls(ids)
        for run in runs:
            read = {c.id: _read(c) for c in controls if c.session_id == run.id}
            told = "\n".join(self.said[-80:])
            assert list(read.items()) == [(cid, (w.rec, w.claim)) for cid, w in run.rows.items()], told
            assert (stored[run.id].status, stored[run.id].leg) == (run.status, run.leg), told

    async def _start(self) -> Run:
        run = Run(f"{self._name}-{next(self._ids)}")
        await self._core.start_session(self._spec(run, "leg-1"), self._now)
        return run

    def _spec(self, run: Run, leg: str) -> SessionSpec:
        return SessionSpec(id=run.id, run_id="20261130T101010-abcdef", branch_id="b", leg=leg, created_at=1.0)

    def _row(self, run: Run) -> str | None:
        return self._random.choice([*run.rows]) if run.rows else None

    def _token(self, run: Run) -> str:
        return self._random.choice([*run.claims, "leg-1:guessed"])

    # ------------------------------------------------------------------ operators and people
    async def _admit(self, run: Run) -> None:
        cid = f"{self._name}-c{next(self._ids)}"
        running, before = run.status == "running", sum(row.rec in OPEN for row in run.rows.values())
        got = await self._core.admit(run.id, text=cid, by="ana", control_id=cid, now=self._now)
        answer = (got.control is not None, got.refusal and got.refusal[0], got.position)
        self._check(
            f"admit {run.id} {cid}", answer, (True, None, before) if running else (False, "ended", 0), effect=running
        )
        if running:
            run.rows[cid] = r.admit(Row())

    async def _again(self, run: Run) -> None:
        """The same steer once more: nothing is written, whatever became of the run and of the row."""
        if (cid := self._row(run)) is None:
            return
        text = cid
        while text in run.origins:
            text = run.origins[text]
        got = await self._core.admit(run.id, text=text, by="ana", control_id=cid, now=self._now)
        self._check(f"again {cid}", (got.duplicate, got.unwrap().id), (True, cid), effect=False)

    async def _withdraw(self, run: Run) -> None:
        if (cid := self._row(run)) is not None:
            before = run.rows[cid]
            refusal = "claimed" if before.claim else "closed"
            await self._person(run, cid, "withdraw", r.withdraw(before), refusal, self._core.withdraw, "ana")

    async def _look(self, run: Run) -> None:
        """A person reads every row, and keeps in mind which hand-over each is in; what they do about it comes later."""
        for row in await self._core.list_controls(run.id):
            if row.claim is not None:
                run.seen[row.id] = row.claim

    async def _resolve(self, run: Run) -> None:
        """About the hand-over that was looked at, or about whichever stands now."""
        if (cid := self._row(run)) is None:
            return
        before, seen = run.rows[cid], run.seen.get(cid)
        outcome, bound = self._random.choice(["applied", "abandoned"]), seen is not None and self._random.random() < 0.8
        after = r.resolve(before, seen if bound else before.claim)
        refusal = "anew" if before.rec == r.DELIVERING else "not_claimed"
        what, how = ("resolve-seen", {"claim": seen}) if bound else ("resolve", {})
        await self._person(run, cid, what, after, refusal, self._core.resolve, outcome, "ana", **how)

    async def _person(
        self, run: Run, cid: str, what: str, after: Row, refusal: str, act: Any, *how: str, **more: Any
    ) -> None:
        before = run.rows[cid]
        expected = refusal if after == before else None
        try:
            refused = None
            await act(cid, *how, self._now, **more)
        except ResolveRefusedError as exc:
            refused = exc.reason
        self._check(f"{what} {cid}", refused, expected, effect=after != before)
        run.rows[cid] = after

    # ------------------------------------------------------------------ legs
    async def _claim(self, run: Run) -> None:
        leg = self._leg(run)
        got = await self._core.claim_all(run.id, leg, self._now)
        owned = run.owned_by(leg)
        taken = run.update(r.claim, got.token) if owned else []
        self._check(f"claim {run.id} {leg}", ([row.id for row in got.rows], got.owned), (taken, owned), effect=taken)
        assert got.token not in run.claims
        run.claims[got.token] = taken

    async def _give_back(self, run: Run) -> None:
        token = self._token(run)
        got = await self._core.give_back(token, self._now)
        changed = run.update(r.give_back, token)
        returned = [cid for cid in changed if run.rows[cid].rec == r.PENDING]
        self._check(f"give_back {token}", [*got], returned, effect=changed)

    async def _report(self, run: Run) -> None:
        token = self._token(run)
        believed = run.claims.get(token, [])
        how = {"turn_id": "t", "turn_outcome": "completed", "in_history": True, "expected": believed}
        got = await self._core.report(token, **how, now=self._now)
        changed = run.update(r.report, token)
        bearing = {cid: row.rec for cid, row in run.rows.items() if row.claim == token}
        landed = [cid for cid in changed if bearing[cid] == r.APPLIED]
        late = {cid for cid, rec in bearing.items() if rec == r.LATE}
        earlier = [cid for cid, rec in bearing.items() if rec == r.APPLIED and cid not in changed]
        answer = ([*got.landed], {*got.late}, [*got.earlier], {*got.lost})
        expected = (landed, late, earlier, {*believed} - {*bearing})
        self._check(f"report {token}", answer, expected, effect=changed)

    async def _beat(self, run: Run) -> None:
        leg = self._leg(run)
        got, owned = await self._core.heartbeat(run.id, leg, self._now), run.owned_by(leg)
        self._check(f"beat {run.id} {leg}", got, owned, effect=owned)

    def _leg(self, run: Run) -> str:
        """Mostly the leg that the run belongs to."""
        return run.leg if run.leg and self._random.random() < 0.7 else self._random.choice(LEGS)

    # ------------------------------------------------------------------ runs
    async def _end(self, run: Run) -> None:
        leg, status = self._leg(run), self._random.choice(ENDINGS)
        how = {"sweep": self._random.random() < 0.7, "only_if_idle": self._random.random() < 0.4}
        got = await self._core.end(run.id, leg, status, by=leg, now=self._now, **how)
        ends = run.owned_by(leg) and not (how["only_if_idle"] and run.reads(r.PENDING))
        self._ended(run, f"end {run.id} {leg} {how}", got, ends, status, sweep=how["sweep"])

    async def _lost(self, run: Run) -> None:
        leg = self._leg(run)
        got = await self._core.mark_lost(run.id, leg, "its process is gone", "ana", self._now)
        self._ended(run, f"lost {run.id} {leg}", got, run.owned_by(leg), "lost", sweep=True)

    def _ended(self, run: Run, what: str, got: Any, ends: bool, status: str, *, sweep: bool) -> None:
        swept = run.update(r.sweep) if ends and sweep else []
        if ends:
            run.status, run.leg = status, None
        answer = (got.ended, [row.id for row in got.swept], got.pending_left, got.session.status, got.session.leg)
        self._check(what, answer, (ends, swept, len(run.reads(r.PENDING)), run.status, run.leg), effect=ends)

    async def _resume(self, run: Run) -> None:
        new, dead = self._random.choice(LEGS), self._random.choice([None, *LEGS])
        got = await self._core.resume_session(self._spec(run, new), dead_leg=dead, now=self._now)
        takes = run.status != "running" or run.leg == dead
        if takes:
            run.status, run.leg = "running", new
        answer = got and (got.status, got.leg)
        self._check(f"resume {run.id} {new} {dead}", answer, ("running", new) if takes else None, effect=takes)

    async def _reopen(self, run: Run) -> None:
        """The whole of it: what was rejected is sent again, each row once, with the take-over or not at all."""
        new, known = self._random.choice(LEGS), self._random.choice([(), LEGS])
        how = {"resend": self._random.random() < 0.7, "instructed": self._random.random() < 0.5}
        mine, pending = run.owned_by(new), run.reads(r.PENDING)
        again = [cid for cid in run.reads(r.REJECTED) if how["resend"] and cid not in run.origins.values()]
        refusal = None
        if not mine and run.status == "running" and run.leg not in known:
            refusal = "live"
        elif not mine and not (how["instructed"] or again or pending):
            refusal = "nothing"
        if mine or refusal:
            again = []
        got = await self._core.reopen(self._spec(run, new), **how, ended_legs=known, now=self._now)
        made = {row.id: row.resent_from for row in got.queued if row.id not in run.rows}
        answer = (got.refusal and got.refusal[0], [row.id for row in got.queued][: len(pending)], [*made.values()])
        self._check(
            f"reopen {run.id} {new} {known} {how}", answer, (refusal, [] if refusal else pending, again), effect=again
        )
        if not refusal:
            run.status, run.leg = "running", new
            run.rows |= {cid: r.admit(Row()) for cid in made}
            run.origins |= {cid: str(origin) for cid, origin in made.items()}


def _read(control: ControlRecord) -> tuple[str, str]:
    """What a stored row says, in the model's words. Its instants must say the same."""
    rec = r.LATE if control.late_report is not None else control.state.value
    assert (control.handed_over_at is None) == (control.claim is None) == (rec in r.NOT_DELIVERED), control
    assert (control.closed_at is None) == (rec in OPEN), control
    return rec, control.claim or ""
