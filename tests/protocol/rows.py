"""What a row of the model is, what each statement does to one, and what such a change breaks. Pure.

A statement is an UPDATE: one function, applied to every row of the run at once. The functions in the first half say in
Python what `lionnb.store.statements` says in SQL; `test_conformance` runs them beside the real store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# What the record says. LATE: resolved, and its leg has added a word. Only where a guard is missing: PASSED (admission
# between its look and its insert), CLAIMED (a claim that is no hand-over), PLAIN (a person closed it as never delivered
# although it had been handed over).
UNSENT, REFUSED, PENDING, DELIVERING, APPLIED = "not sent", "refused", "pending", "delivering", "applied"
REJECTED, WITHDRAWN, RESOLVED, LATE = "rejected", "withdrawn", "resolved", "resolved, late report"
PASSED, CLAIMED, PLAIN = "passed", "claimed", "plainly abandoned"

SHUT = frozenset({REJECTED, WITHDRAWN, PLAIN})  # closed as never delivered
NOT_DELIVERED = SHUT | {PENDING}  # reads as not delivered
HANDED = frozenset({DELIVERING, CLAIMED})

S1 = "S1: rejected although its run goes on"
S1_LEFT = "S1: a leg that ended well left delivering what it held, and does not even owe it"
S1_LATE = "S1: resolved, and the leg that held it ended well without a word on the row"
S2 = "S2: delivered twice"
S3_AFTER = "S3: closed as never delivered, and delivered afterwards"
S3_READS = "S3: delivered, and reads as not delivered"
S3_NEVER = "S3: reads as applied, and was never delivered"
S4 = "S4: pending on a run that has ended and swept"
S4_OWN = "S4: handed over, or its run ended, by a leg that the run does not belong to"
S5 = "S5: changed by a writer that does not hold it"
V4 = "V4: a person's finding about one hand-over closed another"
S6 = "S6: reads as never reported back while its leg is at work on it"


class Row(NamedTuple):
    """A steer: what its record says, and what nobody but the model knows."""

    rec: str = UNSENT
    claim: str = ""  # the token, as the record has it
    mem: int = 0  # the legs that have it in their hands, as bits
    asked: int = 0  # how often the Branch was called with it; 2 stands for more
    shut: bool = False  # whether the record has ever closed it as never delivered
    wish: str = ""  # what a person decided when they read it
    seen: str = ""  # the claim that it bore then


# --- the statements of the store ------------------------------------------------------------------------------------


def admit(row: Row) -> Row:
    """ADMIT, on a run that is running."""
    return row._replace(rec=PENDING)


def claim(row: Row, token: str) -> Row:
    """CLAIM_ALL, by the leg of a run that is running."""
    return row._replace(rec=DELIVERING, claim=token) if row.rec == PENDING else row


def late(row: Row, token: str) -> Row:
    """REPORT_LATE."""
    return row._replace(rec=LATE) if row.rec == RESOLVED and row.claim == token else row


def give_back(row: Row, token: str) -> Row:
    """GIVE_BACK, then REPORT_LATE."""
    mine = row.rec in HANDED and row.claim == token
    return row._replace(rec=PENDING, claim="") if mine else late(row, token)


def report(row: Row, token: str) -> Row:
    """APPLY, then REPORT_LATE."""
    return row._replace(rec=APPLIED) if row.rec in HANDED and row.claim == token else late(row, token)


def withdraw(row: Row) -> Row:
    """WITHDRAW."""
    return row._replace(rec=WITHDRAWN) if row.rec == PENDING else row


def resolve(row: Row, seen: str) -> Row:
    """RESOLVE, by somebody who saw this claim on the row."""
    return row._replace(rec=RESOLVED) if row.rec == DELIVERING and row.claim == seen else row


def sweep(row: Row) -> Row:
    """SWEEP, in the transaction that ends the run."""
    return row._replace(rec=REJECTED) if row.rec == PENDING else row


# --- what is no statement: the world, and what a leg remembers ------------------------------------------------------


def refuse(row: Row) -> Row:
    return row._replace(rec=REFUSED)


def wish(row: Row, what: str) -> Row:
    """A person reads the row, and decides; about a hand-over, if it reads as handed over."""
    return row._replace(wish=what, seen=row.claim if what == "resolve" else "")


def decided(row: Row, act: Callable[..., Row], *how: str) -> Row:
    """The person writes, whatever the row says by now."""
    return act(row._replace(wish="", seen=""), *how)


def forget(row: Row, x: int) -> Row:
    return row._replace(mem=row.mem & ~(1 << x))


def call(row: Row, x: int) -> Row:
    """The Branch is called with what the leg has in its hands, whatever the record says by now."""
    return row._replace(asked=min(2, row.asked + 1)) if row.mem >> x & 1 else row


# --- the statements without their guards ----------------------------------------------------------------------------


def pass_admission(row: Row) -> Row:
    """The run was running in the admission's snapshot; the insert comes later."""
    return row._replace(rec=PASSED)


def list_pending(row: Row, x: int) -> Row:
    return row._replace(mem=row.mem | 1 << x) if row.rec == PENDING else row


def claim_listed(row: Row, x: int, token: str) -> Row:
    return row._replace(rec=DELIVERING, claim=token) if row.mem >> x & 1 else row


def claim_without_fence(row: Row, token: str) -> Row:
    return row._replace(rec=CLAIMED, claim=token) if row.rec == PENDING else row


def claim_as_applied(row: Row, token: str) -> Row:
    return row._replace(rec=APPLIED, claim=token) if row.rec == PENDING else row


def give_back_unguarded(row: Row, x: int) -> Row:
    return row._replace(rec=PENDING, claim="") if row.mem >> x & 1 else row


def report_unguarded(row: Row, x: int) -> Row:
    return row._replace(rec=APPLIED) if row.mem >> x & 1 else row


def report_without_late(row: Row, token: str) -> Row:
    return report(row, token) if row.rec in HANDED else row


def withdraw_claimed(row: Row) -> Row:
    """Where a claim is no hand-over, a claimed row can still be taken back."""
    return row._replace(rec=WITHDRAWN, claim="") if row.rec in {PENDING, CLAIMED} else row


def resolve_plainly(row: Row, seen: str) -> Row:
    return row._replace(rec=PLAIN, claim="") if row.rec == DELIVERING and row.claim == seen else row


def resolve_unbound(row: Row, act: Callable[..., Row]) -> Row:
    """By the row's id alone: whichever hand-over it is in by now."""
    return act(row, row.claim)


def overwrite(row: Row, rec: str) -> Row:
    """A person's write that does not look at what it writes over."""
    return row._replace(rec=rec)


def sweep_all(row: Row) -> Row:
    return row._replace(rec=REJECTED) if row.rec in NOT_DELIVERED | HANDED else row


# --- what a change breaks -------------------------------------------------------------------------------------------

# (who, from, to): all that a writer may do. A holder is a leg that writes under the token that the row bears.
LEGAL = frozenset(
    {
        ("operator", UNSENT, PENDING),
        ("operator", UNSENT, REFUSED),
        ("person", PENDING, WITHDRAWN),
        ("person", DELIVERING, RESOLVED),
        ("end", PENDING, REJECTED),
        ("leg", PENDING, DELIVERING),
        ("holder", DELIVERING, PENDING),
        ("holder", DELIVERING, APPLIED),
        ("holder", RESOLVED, LATE),
    }
)
_ELSEWHERE = frozenset(  # legal in a protocol that lacks the guard, so that what breaks is what follows from it
    {
        ("operator", UNSENT, PASSED),
        ("operator", PASSED, PENDING),
        ("leg", PENDING, CLAIMED),
        ("leg", PENDING, APPLIED),
        ("holder", CLAIMED, PENDING),
        ("holder", CLAIMED, APPLIED),
        ("person", CLAIMED, WITHDRAWN),
        ("person", DELIVERING, PLAIN),
    }
)


class Statement:
    """One UPDATE. Remembers what it makes of each row, and what that breaks.

    Args:
        who: ``operator``, ``person``, ``end`` or ``leg``.
        change: What becomes of a row.
        token: The claim under which a leg writes.
    """

    __slots__ = ("_change", "_known", "_token", "_who")

    def __init__(self, who: str, change: Callable[[Row], Row], token: str = "") -> None:
        self._who, self._change, self._token = who, change, token
        self._known: dict[Row, tuple[Row, tuple[str, ...]]] = {}

    def all(self, rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], tuple[str, ...]]:
        """Every row, changed; and what that breaks."""
        out, broken = [], ()
        for row in rows:
            after, why = self._known.get(row) or self._learn(row)
            out.append(after)
            if why:
                broken += why
        return tuple(out), broken

    def one(self, rows: tuple[Row, ...], i: int) -> tuple[tuple[Row, ...], tuple[str, ...]]:
        """As above, but ``WHERE id = i``."""
        after, broken = self._known.get(rows[i]) or self._learn(rows[i])
        return (*rows[:i], after, *rows[i + 1 :]), broken

    def _learn(self, before: Row) -> tuple[Row, tuple[str, ...]]:
        after, broken = self._change(before), ()
        if after.asked > before.asked and before.shut:
            broken += (S3_AFTER,)
        if (after.rec, after.claim) != (before.rec, before.claim):
            holds = self._who == "leg" and self._token and self._token == before.claim
            if ("holder" if holds else self._who, before.rec, after.rec) not in LEGAL | _ELSEWHERE:
                broken += (S5,)
        closes = (self._who, before.rec) == ("person", DELIVERING) and after.rec != DELIVERING
        if closes and before.wish == "resolve" and before.seen != before.claim:
            broken += (V4,)
        if after.rec in SHUT:
            after = after._replace(shut=True)
        if before.rec in HANDED | {RESOLVED} and after.rec in {APPLIED, LATE}:
            after = after._replace(claim=after.claim[:1])  # which claim it was matters to nobody any more
        self._known[before] = after, broken
        return after, broken
