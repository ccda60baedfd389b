"""A leg's run in the store: the row that it is known by, its lease, and its end, which is written once.

Source: ADR-0108, "Terminal race".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lionnb.errors import LegFailedError
from lionnb.legs.budget import Budget
from lionnb.legs.drain import STORE_LIMIT_S
from lionnb.legs.lag import blocked
from lionnb.legs.ledger import Ledger, problem_of
from lionnb.legs.result import LegTurn
from lionnb.records import RunStatus, SessionRecord, SessionSpec, TurnRecord
from lionnb.store.lease import identity
from lionnb.store.results import EndResult

if TYPE_CHECKING:
    from lionnb.store.store import Store

__all__ = ("Ending", "Run", "new_leg")

log = logging.getLogger(__name__)

TAKEN = "the run was ended or taken over by somebody else"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a leg ends, and why."""

    status: RunStatus
    note: str | None = None
    error: BaseException | None = None  # a fault outside of its turns

    def failure(self, run_id: str, model: str, turns: Sequence[LegTurn]) -> LegFailedError | None:
        """What awaiting a leg raises that ended so after *turns*; ``None`` unless it failed."""
        if self.status is not RunStatus.FAILED:
            return None
        turn = next((t for t in reversed(turns) if t.error is not None), None)
        cause = self.error or (turn.error if turn is not None else None) or RuntimeError(self.note or "failed")
        meanwhile = None if turn is None else blocked(turn.starved_s, turn.starved_by, cause)
        failure = LegFailedError(run_id, turn.turn_id if turn is not None else None, model, cause, meanwhile)
        failure.__cause__ = cause
        return failure


def new_run_id(now: float) -> str:
    """``YYYYMMDDTHHMMSS-hex6`` (UTC). The ``T`` and the ``-`` keep it apart from every hexadecimal id (ADR-0108)."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + "-" + uuid.uuid4().hex[:6]


def new_leg() -> str:
    """A leg's token: who owns a run. Never used before."""
    return f"leg-{uuid.uuid4().hex[:12]}"


class Run:
    """See the module. It is registered when it is made, so that a steer in the next line finds it.

    Args:
        store: Where.
        budget: The leg's limits, for the row.
        name: The leg's name.
        branch_id: Its Branch.
        instruction: What its first turn is asked, as text.
        by: Who started it.
        again: The row, when this leg has taken up a run that was there; it is the leg's already.
    """

    def __init__(
        self,
        store: Store,
        budget: Budget,
        *,
        name: str | None,
        branch_id: str,
        instruction: str,
        by: str,
        again: SessionRecord | None = None,
    ) -> None:
        self.created_at = time.time()
        if again is None:
            self.session_id, self.run_id, self.token = uuid.uuid4().hex, new_run_id(self.created_at), new_leg()
        else:
            self.session_id, self.run_id, self.token = again.id, again.run_id, str(again.leg)
        self._budget, self._name, self._branch_id = budget, name, branch_id
        self._instruction, self._by = instruction[:2_000], by
        self._stands: SessionRecord | None = None  # the row, once it is known not to be this leg's any more
        self._end: concurrent.futures.Future[EndResult] | None = None
        self._written: Callable[[], None] = lambda: None
        self._settling = False  # what was owed at the end is still to be written, and to be heard
        self.ledger = Ledger(store, self._spec, registered=again is not None)
        self.registering = self.ledger.register()
        self._still_heart = store.keep_alive(self.session_id, self.token)

    def _spec(self) -> SessionSpec:
        """The row, at the moment it is written (on the control thread)."""
        return SessionSpec(
            id=self.session_id,
            run_id=self.run_id,
            name=self._name,
            branch_id=self._branch_id,
            leg=self.token,
            instruction=self._instruction,
            created_at=self.created_at,
            created_by=self._by,
            timeout_s=self._budget.timeout_s,
            deadline_at=self._budget.deadline_at,
            **identity(),
        )

    def clock_runs(self) -> None:
        """The budget's clock runs now, and the row was written before: write until when; nobody waits for it."""
        if (until := self._budget.deadline_at) is not None:
            self.ledger.note(lambda core: core.clock_runs(self.session_id, self.token, until), "the leg's deadline")

    def tell_open(self) -> None:
        """Let the watchers of the run hear what is open in it: what a leg that takes it up has not seen come."""
        self.ledger.note(lambda core: core.tell_open(self.session_id), "what was open before the run was resumed")

    async def extend(self) -> bool:
        """Write the new deadline of a leg that goes on; ``False`` when the run is not this leg's any more.

        A store that does not answer stops no agent. Cancelled, the answer is awaited first.
        """
        until = self._budget.deadline_at
        answer = await self.ledger.ask(lambda core: core.clock_runs(self.session_id, self.token, until), STORE_LIMIT_S)
        if answer.cancelled is not None:
            raise answer.cancelled
        if answer.problem is not None:
            log.warning("the new deadline of leg %s could not be recorded: %s", self.run_id, answer.problem)
        return answer.problem is not None or bool(answer.result)

    def keep(self, history: str | None) -> None:
        """Write what the run would go on with in a later kernel; nobody waits for it. ``None`` writes nothing."""
        if history is not None:
            self.ledger.note(
                lambda core: core.put_snapshot(self.session_id, self.token, history, time.time()), "the leg's history"
            )

    def record_turn(self, record: TurnRecord) -> None:
        """Write a turn; nobody waits for it."""
        self.ledger.note(lambda core: core.put_turn(record, time.time()), "a turn of the leg")

    # ------------------------------------------------------------------ the end
    async def end_if_idle(self, enough: Callable[[], bool] = lambda: False, note: str | None = None) -> Ending | None:
        """End it as completed if nothing is pending, decided by the database; ``None`` when something is.

        A failed answer is asked for again, because what is pending must not be rejected for it; but a leg never idles,
        so a store that fails three times, or has not answered in half a minute, ends it (see `Ledger.insist`), and
        `close` tries again. Cancelled, the answer is awaited, and kept, before the cancellation is raised.

        Args:
            enough: Whether the leg must end for another reason by now; then it is not asked again, and ``None`` is
                returned although nothing is known.
            note: Why it ended as it did.
        """
        answer = await self.ledger.insist(
            lambda core: core.end(
                self.session_id,
                self.token,
                RunStatus.COMPLETED,
                by=self.token,
                note=note,
                only_if_idle=True,
                now=time.time(),
            ),
            STORE_LIMIT_S,
            enough=enough,
        )
        result = answer.result
        ours = result is not None and result.session is not None and result.session.leg == self.token
        if result is not None and not ours:
            self._stands = result.session
        if answer.cancelled is not None:
            raise answer.cancelled
        if result is None:
            why = str(answer.problem).rstrip(".")  # wherever a note is told, something follows it
            unknown = Ending(RunStatus.COMPLETED, f"whether steers were pending is unknown: {why}")
            return None if enough() else unknown
        if result.ended or self._ended_here(result.session):
            return Ending(RunStatus.COMPLETED, note)
        return None if ours else Ending(RunStatus.CANCELLED, TAKEN)

    def _ended_here(self, session: SessionRecord | None) -> bool:
        """Whether this leg has ended the run itself: by a write whose answer was lost. A token is used once."""
        return session is not None and session.terminal and session.ended_by == self.token

    def end(self, ending: Ending) -> None:
        """Let it be ended and swept, in one transaction, unless that has happened; returns at once, from any thread."""
        self._still_heart()
        if self._stands is None:
            self._sent(self.ledger.submit(self._ends(ending)))

    def _ends(self, ending: Ending) -> Callable[[Any], Coroutine[Any, Any, EndResult]]:
        return lambda core: core.end(
            self.session_id, self.token, ending.status, by=self.token, note=ending.note, now=time.time()
        )

    def _sent(self, end: concurrent.futures.Future[EndResult]) -> None:
        self._end = end
        end.add_done_callback(self._see_written)

    async def close(self, ending: Ending) -> asyncio.CancelledError | None:
        """As `end`, and await that it is written, as `end_if_idle` does; return the cancellation that was outlasted.

        Raises nothing.
        """
        self._still_heart()
        if self._stands is not None:
            return None
        answer = await self.ledger.insist(self._ends(ending), STORE_LIMIT_S, sent=self._sent, last=True)
        if answer.problem is not None:
            log.warning("the end of leg %s could not be recorded: %s", self.run_id, answer.problem)
        elif answer.result is not None:
            self._stands = answer.result.session
        return answer.cancelled

    def settle_later(self, ending: Ending, owed: list[Callable[[Any], Coroutine[Any, Any, object]]]) -> None:
        """Have written, when the store answers again, what it did not take: what is *owed*, and then the end."""

        async def end(core: Any) -> None:
            written: concurrent.futures.Future[EndResult] = concurrent.futures.Future()
            written.set_result(await self._ends(ending)(core))
            self._sent(written)

        if owed or not self.recorded:
            self._settling = True
            self.ledger.keep_trying([*owed, end])

    def when_written(self, fn: Callable[[], None]) -> None:
        """Call *fn* once the end is written, by whomever; on whatever thread that is known.

        Not for one that failed: `flush` says it again, and what its sweep does to the rows must be heard.
        """
        if self._end is None:
            fn()
            return
        self._written = fn
        if not self._settling:
            self._end.add_done_callback(self._see_written)

    def _see_written(self, end: concurrent.futures.Future[EndResult]) -> None:
        if problem_of(end) is None:
            self._written()

    @property
    def recorded(self) -> bool:
        """Whether the store has said that the run's end is written, by whomever."""
        return self._stands is not None or (self._end is not None and problem_of(self._end) is None)

    def told(self, ending: Ending) -> tuple[RunStatus, str | None]:
        """Status and note as they are to be told: the record's, where somebody else was faster.

        So was this leg itself, when it was cancelled while it ended.
        """
        stands = self._stands
        if stands is None or not stands.terminal or stands.status is ending.status:
            return ending.status, ending.note
        by = None if stands.ended_by == self.token else f"ended by {stands.ended_by or 'somebody else'}"
        return stands.status, stands.ended_note or by

    def flush(self, ending: Ending, timeout_s: float) -> None:
        """Block until the store has what it was told; an end that failed is tried once more."""
        if self._end is not None and problem_of(self._end) is not None:
            self.end(ending)
        self.ledger.flush(timeout_s)
