"""Hand-over: taking what is pending into a continuation turn, and reporting what became of it.

The claim is the fence. It is taken inside the continuation's turn, after the lock, as the last step
before the Branch's operation is called; from then on only its holder, or a person by name, closes the rows. For each
wait here, cancelled once or ten times:

- during the claim: its answer is awaited, and the rows are given back, because nobody will call the Branch; so they are
  when the answer is lost;
- unanswered for too long: the control thread gives back what still comes, before anything else of this leg;
- during a give-back or a report: it reaches its end. What the store did not take is owed, and tried again (`retry`).

Source: ADR-0108, "Turn-end drain".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from lionnb.errors import StoreError
from lionnb.legs.budget import Budget
from lionnb.legs.ledger import Ledger, outlast, problem_of
from lionnb.records import ControlRecord, TurnOutcome
from lionnb.store.lease import new_token
from lionnb.store.results import Claim, Reported

__all__ = ("STORE_LIMIT_S", "Batch", "Drain", "Handoff")

log = logging.getLogger(__name__)

STORE_LIMIT_S = 10.0  # a store call made under the Branch's lock; unanswered, nothing is delivered


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that were handed over to one continuation turn."""

    token: str
    rows: tuple[ControlRecord, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The control ids, in order."""
        return tuple(r.id for r in self.rows)


@dataclass(slots=True)
class _Report:
    """A report that the store has not taken, or not answered, yet."""

    batch: Batch
    words: dict[str, Any]
    future: concurrent.futures.Future[Reported] = field(default_factory=concurrent.futures.Future)


class Handoff:
    """Decides, once, whether an answer still has a taker: whichever thread comes first wins."""

    __slots__ = ("_lock", "_state")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def _decide(self, word: str) -> bool:
        with self._lock:
            if self._state == "open":
                self._state = word
            return self._state == word

    def deliver(self) -> bool:
        """The control thread has the answer: ``True`` if it is awaited."""
        return self._decide("delivered")

    def abandon(self) -> bool:
        """Nobody waits any longer: ``True`` if the control thread must undo what it gets."""
        return self._decide("abandoned")


class Drain:
    """The consuming end of one leg's queue. Belongs to the leg's loop; the rows belong to the store."""

    def __init__(self, ledger: Ledger, session_id: str, leg: str, budget: Budget) -> None:
        self._ledger, self._session_id, self._leg, self._budget = ledger, session_id, leg, budget
        self._reports: list[_Report] = []
        self._returns: list[str] = []  # claims whose rows still have to be given back
        self.owned = True  # whether the run was still this leg's at the last claim
        self.failures: list[str] = []  # why the last claims failed, one after the other; empty once one succeeds

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed: no new provider work may start."""
        return self._budget.expired

    @property
    def owing(self) -> bool:
        """Whether there is something that the store has not taken yet."""
        return bool(self._reports or self._returns)

    # ------------------------------------------------------------------ claim
    async def take(self) -> Batch | None:
        """Claim everything pending; ``None`` when there is nothing, or no time, or no store to take it from.

        Cancelled, it leaves no row delivering while the store answers.
        """
        if self._budget.expired:
            return None
        handoff = Handoff()
        future = self._ledger.submit(lambda core: self._claim(core, handoff))
        cancelled = await outlast(future, STORE_LIMIT_S)
        if not future.done() and not handoff.abandon():
            cancelled = await outlast(future) or cancelled  # the rows came in that very moment
        problem = problem_of(future)
        if problem is None:
            self.failures.clear()
        else:
            self.failures.append(problem)
            log.warning("the steers of this leg stay pending: %s", problem)
        claim = future.result() if problem is None else None
        if claim is not None and not claim.rows:
            self.owned = claim.owned
        batch = Batch(claim.token, claim.rows) if claim is not None and claim.rows else None
        # The claim is I/O too, and can cross the deadline by itself: then nobody calls the Branch any more.
        if batch is not None and (cancelled is not None or self._budget.expired):
            cancelled = await self.give_back(batch) or cancelled
            batch = None
        if cancelled is not None:
            raise cancelled
        return batch

    async def _claim(self, core: Any, handoff: Handoff) -> Claim | None:
        """On the control thread: claim, and give back at once what nobody waits for any more."""
        token = new_token(self._leg)  # known before it is used: a claim may land and its answer be lost
        try:
            claim: Claim = await core.claim_all(self._session_id, self._leg, time.time(), token=token)
        except BaseException:
            self._returns.append(token)
            raise
        if not claim.rows or handoff.deliver():
            return claim
        try:
            await core.give_back(claim.token, time.time())
        except StoreError as exc:
            self._returns.append(claim.token)
            log.warning("steers that nobody waits for read as delivering until they can be given back: %s", exc)
        return None

    async def give_back(self, batch: Batch) -> asyncio.CancelledError | None:
        """The Branch was never called with these rows: pending again. Returns the cancellation it outlasted."""
        answer = await self._ledger.ask(lambda core: core.give_back(batch.token, time.time()), STORE_LIMIT_S)
        if answer.problem is not None:
            self._returns.append(batch.token)  # giving back twice is harmless
            log.warning("steers read as delivering until they can be given back: %s", answer.problem)
        return answer.cancelled

    # ------------------------------------------------------------------ report
    async def report(
        self, batch: Batch, *, turn_id: str, outcome: TurnOutcome, in_history: bool | None, note: str | None = None
    ) -> asyncio.CancelledError | None:
        """Record what the turn that carried *batch* came to; reach the end under any number of cancellations.

        Returns the last cancellation, which the caller must raise. What the store does not take is owed.
        """
        words = {"turn_id": turn_id, "turn_outcome": outcome.value, "in_history": in_history, "note": note}
        return await self._send(_Report(batch, words))

    async def _send(self, report: _Report) -> asyncio.CancelledError | None:
        batch, words = report.batch, report.words
        report.future = self._ledger.submit(
            lambda core: core.report(batch.token, expected=batch.ids, now=time.time(), **words)
        )
        return await self._settle(report)

    async def _settle(self, report: _Report) -> asyncio.CancelledError | None:
        cancelled = await outlast(report.future, STORE_LIMIT_S)
        problem = problem_of(report.future)
        if problem is not None:
            log.warning("what became of %d steer(s) could not be recorded yet: %s", len(report.batch.rows), problem)
            self._reports.append(report)
            return cancelled
        said = report.future.result()
        for cid in (*said.late, *said.lost):
            log.warning("steer %s was closed by somebody else meanwhile: this leg's report changed no outcome", cid[:8])
        return cancelled

    def owed(self) -> list[Callable[[Any], Coroutine[Any, Any, object]]]:
        """What the store has not taken when the leg is over, as work for it, in order. It is owed here no more."""
        works: list[Callable[[Any], Coroutine[Any, Any, object]]] = []
        for report in self._reports:
            token, words = report.batch.token, report.words
            works.append(lambda core, token=token, words=words: core.report(token, now=time.time(), **words))  # type: ignore[misc]
        for token in self._returns:
            works.append(lambda core, token=token: core.give_back(token, time.time()))  # type: ignore[misc]
        self._reports, self._returns = [], []
        return works

    async def retry(self) -> asyncio.CancelledError | None:
        """Try again, once, what the store did not take. Raises nothing; returns the cancellation it outlasted."""
        cancelled: asyncio.CancelledError | None = None
        reports, self._reports = self._reports, []
        for report in reports:
            # One that is only late may still land: a second one would find the rows closed, by the first.
            failed = report.future.done() and problem_of(report.future) is not None
            again = self._send if failed else self._settle
            cancelled = await again(report) or cancelled
        returns, self._returns = self._returns, []
        for token in returns:
            cancelled = await self.give_back(Batch(token, ())) or cancelled
        return cancelled
