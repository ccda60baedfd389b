"""What is done about a leg that may be gone: the look at the door, the explicit reap, and a person's word.

Reading shows and writes nothing. Whoever holds the verdict *dead* may record a run lost, in one transaction with its
sweep, conditioned on the leg that the verdict is about, so that stale evidence ends nothing. Of a silent leg only a
named person may say so. There is no timer.
"""

from __future__ import annotations

from collections.abc import Iterable

from lionnb.errors import ResolveRefusedError
from lionnb.records import RunStatus, SessionRecord, Verdict
from lionnb.store import statements as sql
from lionnb.store.door import person
from lionnb.store.gate import Refusal, refuse_dead, refuse_silent
from lionnb.store.lease import RunView, busy, run_view, verdict
from lionnb.store.leglock import LegLocks
from lionnb.store.results import EndResult
from lionnb.store.runs import Runs, end_and_sweep
from lionnb.store.transact import Tx, writes

__all__ = ("Leases",)


class Leases(Runs):
    """Runs, and what is known of their legs. All instants are Unix seconds and come from the caller."""

    @property
    def leg_locks(self) -> LegLocks | None:
        """The record locks beside the database; ``None`` where it is no file."""
        path = self._engine.url.database
        is_file = self.dialect == "sqlite" and not self._shared and path is not None
        return LegLocks(str(path)) if is_file else None

    def judge(self, session: SessionRecord, now: float) -> Verdict | None:
        """What is known of the leg that owns the run; ``None`` for a run that has ended. Looks, and writes nothing."""
        locks, leg = self.leg_locks, session.leg
        if session.terminal or leg is None:
            return None
        return verdict(session, now, lock_is_free=None if locks is None else lambda: locks.is_free(leg))

    async def views(self, sessions: Iterable[SessionRecord], now: float) -> list[RunView]:
        """What is true of each run now, in words, in the order given. Looks, and writes nothing."""
        return [run_view(session, now, self.judge(session, now)) for session in sessions]

    async def at_the_door(
        self, tx: Tx, session: SessionRecord, *, by: str | None, now: float
    ) -> tuple[str | None, Refusal | None]:
        """What its sender should know of a run's leg, and why it takes nothing; a dead one is recorded lost."""
        match self.judge(session, now):
            case Verdict.DEAD:
                # Not ended: it was ended or taken over in this moment, and admission itself finds out which.
                done = await self._lose(tx, session, by, now)
                return None, refuse_dead(session) if done.ended else None
            case Verdict.SILENT:
                seen = run_view(session, now, Verdict.SILENT).sentence
                return f"its leg is {seen}", refuse_silent(session, seen)
            case Verdict.ALIVE:
                return busy(session, Verdict.ALIVE, now), None
        return None, None

    async def reap(self, now: float, by: str | None) -> list[EndResult]:
        """Record lost every run whose leg is proven dead, each in its own transaction; return what was ended.

        Args:
            now: The instant to record.
            by: Who asked for it.
        """
        ended, living = [], []
        for session in await self.list_sessions(running=True):
            if self.judge(session, now) is Verdict.DEAD:
                ended.append(await self._reap_one(session, by, now))
            else:
                living.append(str(session.leg))
        if (locks := self.leg_locks) is not None:
            locks.tidy(living)
        return [done for done in ended if done.ended]

    @writes
    async def _reap_one(self, tx: Tx, session: SessionRecord, by: str | None, now: float) -> EndResult:
        return await self._lose(tx, session, by, now)

    async def _lose(self, tx: Tx, session: SessionRecord, by: str | None, now: float) -> EndResult:
        note = f"the process that ran it is gone (pid {session.pid})"
        return await end_and_sweep(tx, session.id, str(session.leg), RunStatus.LOST, by=by, note=note, now=now)

    @writes
    async def declare_lost(self, tx: Tx, session_id: str, by: str, now: float) -> EndResult:
        """Record a run lost on a person's word: for a leg on another host, which no program can prove dead.

        If the person is wrong, that leg can claim nothing any more, so no record becomes false. ``ended`` is false
        when the run had ended already.

        Raises:
            ResolveRefusedError: ``by`` (no name), ``unknown``, ``alive`` (its process is seen, or its lease has not
                lapsed). The run is unchanged.
        """
        who = person(by, "declaring a run lost")
        session = next(iter(await tx.sessions(sql.SESSION, sid=session_id)), None)
        if session is None:
            raise ResolveRefusedError("unknown", f"no run here has the id {session_id!r}: nothing was changed.")
        found = self.judge(session, now)
        if found in (Verdict.ALIVE, Verdict.FRESH):
            seen = "its process is alive" if found is Verdict.ALIVE else "its heartbeat is fresh"
            raise ResolveRefusedError("alive", f"run {session.run_id} is not lost: {seen}. Nothing was changed.")
        note = f"declared lost by {who}: its process could not be seen"
        leg = str(session.leg)  # of an ended run there is none, and nothing is changed
        return await end_and_sweep(tx, session_id, leg, RunStatus.LOST, by=who, note=note, now=now)
