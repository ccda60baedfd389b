"""What the model's states are made of: the run, the legs, what may still happen, the rows; guards and bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol import rows as r
from tests.protocol.rows import Row

OFF, ASK, TAKE, LISTED, HELD, BACK, DONE, DEAD = "off", "ask", "take", "listed", "held", "give back", "done", "dead"
REPORT, REPORT_RAISED, END, SWEEP, RETRY = "report", "report, raised", "end", "sweep", "retry, then "
WORKING = frozenset({HELD, BACK, REPORT, REPORT_RAISED})
GONE = frozenset({DONE, DEAD})
RUNNING, SWEPT, LEFT = "running", "ended", "ended, queue left"
NAMES = "AB"


class Run(NamedTuple):
    """``LEFT``: its queue is for whoever resumes it, or a row was given back after its end."""

    status: str = RUNNING
    owner: int | None = 0


class Leg(NamedTuple):
    """What it does next, the claim in its hands, and what the store has not taken of it yet."""

    pc: str = OFF
    token: str = ""
    owed: tuple[tuple[str, str], ...] = ()  # (what, token)
    tries: int = 0  # how many of them it still tries before it goes on

    def owes(self, token: str) -> bool:
        return any(token == owed for _, owed in self.owed)

    def now_owes(self, what: str, token: str) -> Leg:
        return self._replace(owed=(*self.owed, (what, token)))


class Env(NamedTuple):
    """What may still happen: acts of a person, failures of the store, runs recorded as lost."""

    acts: int
    failures: int
    losses: int


class State(NamedTuple):
    run: Run
    legs: tuple[Leg, ...]
    env: Env
    rows: tuple[Row, ...]


Broken = tuple[str, ...]
Rows = tuple[tuple[Row, ...], Broken]
Result = tuple[State, Broken]
Step = tuple[str, State, Broken]  # what happened, what is then, what it breaks


@dataclass(frozen=True)
class Guards:
    """The rules that the store and the leg keep. Each of them off is one hole."""

    locked_admission: bool = True  # the run's status and the insert are one step (FOR UPDATE)
    cas_claim: bool = True  # a claim takes only what is pending when it writes
    owned_claim: bool = True  # ... and only for the leg that the run belongs to, while it runs
    claim_is_fence: bool = True  # the claim is the hand-over: from it on a person can only resolve
    split_resolve: bool = True  # a handed-over row keeps its claim when a person closes it
    cas_person: bool = True  # a person's write lands only on the state that was read
    bound_resolve: bool = True  # ... and a resolution only on the hand-over that was read
    guarded_report: bool = True  # a report carries the claim
    guarded_give_back: bool = True  # so does a give-back
    fresh_tokens: bool = True  # no claim is ever used twice
    known_token: bool = True  # a leg knows its claim before it asks for it, and owes it back when no answer comes
    late_report: bool = True  # a holder whose row was resolved adds its word
    report_after_call: bool = True  # applied is written when the Branch was called, not before
    report_on_raise: bool = True  # a turn that raises is reported, too
    give_back_uncalled: bool = True  # ... and never given back: only what the Branch was not called with is
    atomic_sweep: bool = True  # ending the run and rejecting its queue are one transaction
    guarded_sweep: bool = True  # the sweep rejects only what is pending
    owned_end: bool = True  # a run is ended only by the leg that it belongs to
    exclusive_attach: bool = True  # a running run is taken only from a leg that is proven dead


@dataclass(frozen=True)
class Bounds:
    """How large an instance is. ``mistaken``: a person may say of a live leg that it is dead."""

    rows: int = 2
    acts: int = 1
    failures: int = 0
    losses: int = 1
    mistaken: bool = False


# --- how a step is made ---------------------------------------------------------------------------------------------


def to(s: State, x: int, leg: Leg, rows: Rows | None = None, run: Run | None = None, cost: int = 0) -> Result:
    """*s* with another leg *x* and what else has changed; *cost*: the failures of the store that this took."""
    legs = (leg, s.legs[1]) if x == 0 else (s.legs[0], leg)
    env = Env(s.env.acts, s.env.failures - cost, s.env.losses) if cost else s.env
    made, broken = rows or (s.rows, ())
    return State(run or s.run, legs, env, made), broken


def then(pc: str, leg: Leg) -> Leg:
    """The leg goes on to *pc*, once it has tried again what it owes."""
    return Leg(RETRY + pc, "", leg.owed, len(leg.owed)) if leg.owed else Leg(pc)


def run_after(run: Run, before: tuple[Row, ...], now: tuple[Row, ...]) -> Run:
    """A row that is given back when the run has ended was none that its sweep could see."""
    given_back = any(a.rec == r.PENDING and b.rec != r.PENDING for b, a in zip(before, now, strict=True))
    return Run(LEFT, None) if given_back and run.status == SWEPT else run


def owns(s: State, x: int) -> bool:
    return s.run == (RUNNING, x)


def dead(s: State) -> bool:
    return s.run.owner is not None and s.legs[s.run.owner].pc in GONE


def one_loss_less(env: Env) -> Env:
    return Env(env.acts, env.failures, env.losses - 1)


def works_elsewhere(s: State, x: int, row: Row) -> bool:
    return bool(row.mem >> x & 1) and s.legs[x].pc in WORKING and s.run.owner != x


def distinct(rows: tuple[Row, ...]) -> Iterator[int]:
    """One index of each kind of row: equal rows have equal futures."""
    return (i for i, row in enumerate(rows) if row not in rows[:i])


def returned(before: tuple[Row, ...], now: tuple[Row, ...], x: int) -> tuple[Row, ...]:
    """RETURNING: what an UPDATE has changed is in the hands of leg *x*."""
    return tuple(a if a == b else a._replace(mem=a.mem | 1 << x) for b, a in zip(before, now, strict=True))


def untrue(row: Row) -> Broken:
    """What the record says about delivery, against what was delivered."""
    out: Broken = (r.S2,) if row.asked > 1 else ()
    if row.asked and row.rec in r.NOT_DELIVERED:
        out += (r.S3_READS,)
    if not row.asked and row.rec == r.APPLIED:
        out += (r.S3_NEVER,)
    return out
