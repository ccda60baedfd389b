"""Hand-over: taking what is pending into a continuation turn, and reporting what became of it.

The claim is the fence (DESIGN section 6). It is taken inside the continuation's turn, after the lock, as the last step
before the Branch's operation is called; from then on only its holder, or a person by name, closes the rows. So for each
await here: cancelled during the claim, its answer is awaited and the rows are given back; unanswered for too long, the
control thread gives them back when they come; the report runs in its own task to its end.

Source: ADR-0108, "Turn-end drain"; DESIGN S1-S7.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from lionnb.aio import settle
from lionnb.errors import LionnbError
from lionnb.legs.budget import Budget
from lionnb.records import ControlRecord, TurnOutcome
from lionnb.store.results import Claim, Reported
from lionnb.store.store import Store

__all__ = ("Batch", "Drain")

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


class _Handoff:
    """Decides, once, whether a claim still has a taker: whichever thread comes first wins."""

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
        """The control thread has the rows: ``True`` if they are awaited."""
        return self._decide("delivered")

    def abandon(self) -> bool:
        """The leg waits no longer: ``True`` if the control thread must give back what it gets."""
        return self._decide("abandoned")


class Drain:
    """The consuming end of one leg's queue. Belongs to the leg's loop; the rows belong to the store."""

    def __init__(self, store: Store, session_id: str, leg: str, budget: Budget) -> None:
        self._store, self._session_id, self._leg, self._budget = store, session_id, leg, budget
        self.unreported: list[tuple[Batch, dict[str, Any]]] = []  # reports that the store did not take
        self.owned = True  # whether the run was still this leg's at the last claim

    async def take(self) -> Batch | None:
        """Claim everything pending; ``None`` when there is nothing, or no time, or no store to take it from.

        Cancelled, it leaves no row delivering.
        """
        if self._budget.expired:
            return None
        handoff = _Handoff()
        future = self._store.submit(lambda core: self._claim(core, handoff))
        # In its own task: a cancellation waits for the answer (milliseconds), so that the rows' owner is known.
        done = await settle(_bounded(future), name="lionnb-claim")
        claim = done.result
        if isinstance(done.error, TimeoutError):
            log.warning("the control database did not answer for %.0f s: the steers stay pending", STORE_LIMIT_S)
            if not handoff.abandon():  # the rows came in the same moment: the control thread is returning them now
                claim = future.result()
        elif done.error is not None:
            log.warning("the steers of this leg stay pending: %s", done.error)
        batch = Batch(claim.token, claim.rows) if claim is not None and claim.rows else None
        if batch is None:
            self.owned = claim is None or claim.owned
        elif done.cancelled is not None or done.error is not None or self._budget.expired:
            # Nobody calls the Branch any more. The claim is I/O too, and can cross the deadline by itself.
            await self.give_back(batch)
            batch = None
        if done.cancelled is not None:
            raise done.cancelled
        return batch

    async def _claim(self, core: Any, handoff: _Handoff) -> Claim | None:
        """On the control thread: claim, and give back at once if nobody waits for it any more."""
        claim: Claim = await core.claim_all(self._session_id, self._leg, time.time())
        if claim.rows and not handoff.deliver():
            await core.give_back(claim.token, time.time())
            return None
        return claim

    async def give_back(self, batch: Batch) -> None:
        """The Branch was never called with these rows: they are pending again. Runs to its end; its errors are logged."""
        future = self._store.submit(lambda core: core.give_back(batch.token, time.time()))
        done = await settle(_bounded(future), name="lionnb-give-back")
        if done.error is not None:
            log.warning("steers could not be given back and read as delivering: %s", done.error)
        if done.cancelled is not None:
            raise done.cancelled

    # ------------------------------------------------------------------ report
    async def report(
        self, batch: Batch, *, turn_id: str, outcome: TurnOutcome, in_history: bool | None, note: str | None = None
    ) -> Reported | None:
        """Record what the turn that carried *batch* came to. Runs to its end under any number of cancellations.

        ``None``: the store did not take it; it is kept and tried again (`retry`). The work is done all the same.
        """
        words = {"turn_id": turn_id, "turn_outcome": outcome.value, "in_history": in_history, "note": note}
        done = await settle(self._report(batch, words), name="lionnb-report")
        if done.cancelled is not None:
            raise done.cancelled
        return done.result

    async def _report(self, batch: Batch, words: dict[str, Any]) -> Reported | None:
        try:
            async with asyncio.timeout(STORE_LIMIT_S):
                reported = await self._store.run(
                    lambda core: core.report(batch.token, expected=batch.ids, now=time.time(), **words)
                )
        except (LionnbError, TimeoutError) as exc:
            log.warning("what became of %d steer(s) could not be recorded yet: %s", len(batch.rows), exc or "no answer")
            self.unreported.append((batch, words))
            return None
        for cid in (*reported.late, *reported.lost):
            log.warning("steer %s was closed by somebody else meanwhile: this leg's report changed no outcome", cid[:8])
        return reported

    async def retry(self) -> None:
        """Try again what the store did not take. Never raises but for a cancellation."""
        again, self.unreported = self.unreported, []
        for batch, words in again:
            await self._report(batch, words)


async def _bounded(future: concurrent.futures.Future[Any]) -> Any:
    async with asyncio.timeout(STORE_LIMIT_S):
        return await asyncio.shield(asyncio.wrap_future(future))
