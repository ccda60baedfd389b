"""A leg's course, from its first turn to its end: what it knows, and the task that takes it there.

A leg is one task. Each of its turns is a task of its own, so that ending a turn and ending the leg are two things.
Between turns it drains: what is pending goes into one continuation turn; with nothing pending the leg ends, and it
never idles for more. Only its loop writes a leg's fields.

The end is written by the leg's own task (`_close`), through waits that nothing can break. Where that task never runs,
or is lost with its loop, `bury` writes it from whatever thread notices.

Source: ADR-0108.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lionnb.aio import OwnedTasks
from lionnb.errors import LegFailedError, told
from lionnb.feed import Feed
from lionnb.legs.budget import Budget
from lionnb.legs.continuation import GO_ON
from lionnb.legs.drain import STORE_LIMIT_S, Drain
from lionnb.legs.lag import Lag
from lionnb.legs.ledger import hand_over, outlast, problem_of
from lionnb.legs.outlook import outlook_of
from lionnb.legs.receipt import Outlook, Receipt
from lionnb.legs.result import LegResult, LegTurn
from lionnb.legs.run import TAKEN, Ending, Run
from lionnb.legs.scripted import Plans
from lionnb.legs.snapshot import snapshot_of
from lionnb.legs.states import FOLLOWS, LegPhase, TurnEnd, step
from lionnb.legs.steering import Steering
from lionnb.legs.turn import Operation, TurnRun, prompt
from lionnb.plain import first_line
from lionnb.records import ControlRecord, FeedEvent, RunStatus, SessionRecord, Usage
from lionnb.turns import context as ctxs

if TYPE_CHECKING:
    from lionnb.branch import Branch
    from lionnb.store.store import Store

__all__ = ("Course",)

log = logging.getLogger(__name__)

_CUT_OFF = "the leg's task was cancelled"
_LOOP_GONE = "its event loop was closed"
CLAIMS_TRIED = 3  # failed claims, one after the other, after which a leg gives up on what is pending


class Course:
    """The life of one leg: what it knows, and the task that lives it. `Leg` is what a person holds of it."""

    def __init__(
        self,
        branch: Branch,
        instruction: Any,
        *,
        op: str,
        arguments: dict[str, Any],
        name: str | None,
        budget: Budget,
        store: Store,
        by: str,
        heartbeat_s: float | None,
        after: tuple[Course, ...] = (),
        again: SessionRecord | None = None,
        receipts: Iterable[Receipt] = (),
        queued: Iterable[ControlRecord] = (),
        resume_on_timeout: bool = False,
        snapshot: bool = True,
    ) -> None:
        self.branch, self.instruction, self.name, self.op, self.by = branch, instruction, name, op, by
        self.arguments = arguments
        self.feed, self.loop = Feed(), asyncio.get_running_loop()
        self._store, self._budget, self.heartbeat_s = store, budget, heartbeat_s
        if not after:
            budget.start()
        asked = prompt(instruction)
        self._run = Run(store, budget, name=name, branch_id=str(branch.id), instruction=asked, by=by, again=again)
        self.session_id, self.run_id, self.created_at = self._run.session_id, self._run.run_id, self._run.created_at
        self._phase, self._status = LegPhase.WAITING, RunStatus.RUNNING
        self._note: str | None = None
        self._turns: list[LegTurn] = []
        self._calls = 0  # turns that called the Branch
        self._along, self._goes_on = again is not None, resume_on_timeout
        # Where no later kernel could read it none is kept.
        self.snapshot = snapshot and store.location.kind != "memory"
        self._otherwise: str | None = None  # what the next turn asks if it finds nothing to carry
        self._turn: TurnRun | None = None
        self._behind: str | None = None  # what its turn waits for, before it holds the Branch
        self._tasks = OwnedTasks("a leg's turn")
        self._stopping = False
        self._told_elsewhere = False  # that it is cut off: by the exit hook
        self._done: concurrent.futures.Future[LegResult] = concurrent.futures.Future()
        self._published: list[Callable[[], None]] = []
        self._beat: asyncio.TimerHandle | None = None
        ledger = self._run.ledger
        self._drain = Drain(ledger, self.session_id, self._run.token, budget)
        self._operation = Operation(branch, op, arguments, self.session_id)
        self._steering = Steering(
            ledger, self.session_id, self.feed, self.loop, self._outlook, lambda: self.turn_id, self.token
        )
        self._steering.adopt(receipts, queued)
        self._lag = Lag(store, self.loop, self.feed, lambda: self.turn_id)
        self._plans = Plans(self._steering, self.feed, self.run_id)
        self._unwatch = store.watch(self.session_id, self._steering.changed)
        if again is not None:
            self._run.tell_open()
        # Text as it comes is wanted from the beginning, for a view that is opened later.
        self._quiet_chunks = branch.turns.listen(self._hear, chunks=True)
        self._after, self._go = after, self.loop.create_future()
        # A leg that is started by a tool, or by the consumer of a stream, is no part of that turn.
        self.task = self.loop.create_task(self._main(), name=f"lionnb-leg-{self.run_id}", context=ctxs.outside())
        self.task.add_done_callback(lambda _: self.bury(RunStatus.CANCELLED, _CUT_OFF))

    # ------------------------------------------------------------------ reading
    @property
    def status(self) -> RunStatus:
        """The run's status as this process knows it."""
        self._look_for_loop()
        return self._status

    @property
    def phase(self) -> LegPhase:
        """What the leg is doing."""
        self._look_for_loop()
        return self._phase

    @property
    def doing(self) -> str:
        """What the leg is doing, in words: a turn that waits for the Branch says behind what."""
        self._look_for_loop()
        if self._phase is LegPhase.IN_TURN and (behind := self._behind) is not None:
            return f"waits for the Branch behind {behind}"
        return self._phase.value

    @property
    def live(self) -> bool:
        """Whether it has not ended. A leg whose event loop was closed under it has."""
        return self._phase is not LegPhase.ENDED and not self.loop.is_closed()

    @property
    def over(self) -> bool:
        """Whether its end is known here. One whose event loop was closed is not live, and may not be over."""
        return self._done.done()

    @property
    def turns(self) -> tuple[LegTurn, ...]:
        """The turns that have ended."""
        return tuple(self._turns)

    @property
    def usage(self) -> Usage:
        """What its turns used so far; ``None`` parts are unknown."""
        return sum((t.usage for t in self._turns), Usage())

    @property
    def lag(self) -> Lag:
        """For how long its event loop stood still, so that it could not go on."""
        return self._lag

    @property
    def turn_id(self) -> str | None:
        """The id of its running turn; ``None`` between turns and while it waits for the Branch."""
        turn = self._turn
        return None if turn is None else turn.turn_id

    @property
    def budget(self) -> Budget:
        """Its limits, and what is left of the time."""
        return self._budget

    @property
    def store(self) -> Store:
        """Where its run and its controls are recorded."""
        return self._store

    @property
    def token(self) -> str:
        """What its run is known to be its own by."""
        return self._run.token

    @property
    def note(self) -> str | None:
        """Why it ended as it did, in a sentence; ``None`` when there is nothing to add."""
        self._look_for_loop()
        return self._note

    # ------------------------------------------------------------------ the task
    async def _main(self) -> None:
        cancelled: BaseException | None = None
        ending = Ending(RunStatus.CANCELLED, _CUT_OFF)
        try:
            await self._wait_for_others()
            await self._start()
            ending = await self._work()
        except GeneratorExit:  # destroyed, with or after its loop: nothing may be awaited
            self.bury(RunStatus.LOST, _LOOP_GONE)
            raise
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit) as exc:
            cancelled = exc
        except BaseException as exc:
            ending = Ending(RunStatus.FAILED, first_line(told(exc)), exc)
            log.exception("leg %s failed outside of its turns", self.run_id)
        cancelled = await self._close(ending) or cancelled
        if cancelled is not None:
            raise cancelled

    def _to(self, phase: LegPhase) -> None:
        self._phase = step(self._phase, phase)
        self._say()

    def _stop(self) -> None:
        self._stopping = True
        self._see_if_free()
        if self._turn is not None:
            self._turn.cancel(TurnEnd.STOPPED)

    async def _wait_for_others(self) -> None:
        for leg in self._after:
            leg.when_ended(lambda: hand_over(self.loop, self._see_if_free))
        self._see_if_free()
        await self._go

    def _see_if_free(self) -> None:
        if not self._go.done() and (self._stopping or not any(leg.live for leg in self._after)):
            self._go.set_result(None)

    async def _start(self) -> None:
        """Let the store write the run's row first; one that does not answer holds no agent up for long."""
        self._to(LegPhase.STARTING)
        if self._after:
            self._budget.start()
            self._run.clock_runs()
            self._lag.begin()
        cancelled = await outlast(self._run.registering, STORE_LIMIT_S)
        if cancelled is not None:
            raise cancelled
        if (problem := problem_of(self._run.registering)) is not None:
            self._run.ledger.warn(f"leg {self.run_id} runs, but cannot be steered", problem)
            self.feed.event("warning", None, text=f"this leg cannot be steered: {problem}")
        self._keep()
        if self.heartbeat_s is not None:
            self._beat = self.loop.call_later(self.heartbeat_s, self._on_beat)
        self._to(LegPhase.BETWEEN)

    def _keep(self) -> None:
        if self.snapshot:
            self._run.keep(snapshot_of(self.branch))

    async def _work(self) -> Ending:
        """Turn after turn, until something says how the leg ends."""
        carry, note = False, None
        while True:
            if self._stopping:
                return Ending(RunStatus.CANCELLED, "stopped")
            if self._budget.expired and not await self._renewed():  # what is pending is left to the sweep
                what = "the pending steers could land" if carry else "its first turn could begin"
                return Ending(RunStatus.TIMED_OUT, f"the deadline passed before {what}")
            turn = await self._one_turn(carry)
            if (ends := FOLLOWS[turn.end]) is not None:
                if ends is RunStatus.TIMED_OUT and await self._renewed():
                    carry = self._calls > 0
                    continue
                return Ending(ends, turn.note)
            if self._stopping:
                return Ending(RunStatus.CANCELLED, "stopped")
            if not self._drain.owned:
                return Ending(RunStatus.CANCELLED, TAKEN)
            if len(failures := self._drain.failures) >= CLAIMS_TRIED:  # it never idles, and never spins either
                return Ending(RunStatus.COMPLETED, f"the pending steers could not be taken: {failures[-1]}")
            if (cap := self._budget.cap_reached(self._calls, self.usage.total_tokens)) is not None:
                return Ending(RunStatus.COMPLETED, cap)
            if (cancelled := await self._drain.retry()) is not None:
                raise cancelled
            self._plans.turn_ended(len(self._turns))
            if turn.end is not TurnEnd.NOTHING:
                note = "its last turn was cancelled" if turn.end is TurnEnd.TURN_CANCELLED else None
            enough = lambda: self._stopping or self._budget.expired  # noqa: E731  # it names what ends the asking
            if (idle := await self._run.end_if_idle(enough, note)) is not None:
                return idle
            carry = True

    async def _renewed(self) -> bool:
        """At the deadline: whether the leg goes on, as it was told to, once, with as much again. Nothing is swept.

        The run never reads ended, and its token and claims stay: one guarded statement gives it the new deadline.
        """
        if not self._goes_on or self._stopping:
            return False
        self._goes_on = False
        self._budget.renew(self._calls, self.usage.total_tokens)
        if not await self._run.extend():
            return False
        if (cancelled := await self._drain.retry()) is not None:
            raise cancelled
        self._plans.turn_ended(len(self._turns))
        self._along, self._otherwise = True, GO_ON if self._calls else None
        self.feed.event("warning", None, text="the deadline passed: the leg goes on, once, with as much time again")
        return True

    async def _one_turn(self, carry: bool) -> LegTurn:
        instruction = None if carry else self.instruction
        otherwise, self._otherwise = self._otherwise, None
        turn = self._turn = TurnRun(
            self._operation,
            self._drain,
            instruction,
            lambda: self.task.cancelling() > 0,
            along=self._along,
            otherwise=otherwise,
            warn=lambda text: self.feed.event("warning", None, text=text),
        )
        self._to(LegPhase.IN_TURN)
        task = turn.start(self._tasks, f"lionnb-turn-{self.run_id}-{len(self._turns) + 1}")
        left = self._budget.left_s
        timer = None if left is None else self.loop.call_later(left, turn.cancel, TurnEnd.DEADLINE)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as exc:
                cancelled = exc
                turn.cancel(TurnEnd.TASK_CANCELLED)
        if timer is not None:
            timer.cancel()
        ended = turn.ended(*self._lag.turn_ended(turn.row))
        self._turn = self._behind = None
        self._turns.append(ended)
        self._calls += turn.called
        if turn.row is not None:
            self._run.record_turn(turn.row.record())
            self._keep()
        self._to(LegPhase.BETWEEN)
        if cancelled is not None:
            raise cancelled
        return ended

    # ------------------------------------------------------------------ the end
    async def _close(self, ending: Ending) -> asyncio.CancelledError | None:
        """End the leg, once; return the cancellation that arrived meanwhile. Nothing can interrupt it.

        1. Report what is unreported. 2. End the run and sweep, in one transaction. 3. Settle the receipts, and tell
        everybody.
        """
        self._to(LegPhase.ENDING)
        cancelled = await self._drain.retry()  # 1
        cancelled = await self._run.close(ending) or cancelled  # 2
        self._run.settle_later(ending, self._drain.owed())
        self._over(ending)  # 3
        return cancelled

    def _over(self, ending: Ending) -> None:
        """The leg is over in this process. What the store still says of its rows (a late end, a report) is heard."""
        if self._beat is not None:
            self._beat.cancel()
        self._quiet_chunks()
        self._lag.close()
        self._status, self._note = self._run.told(ending)
        failure = ending.failure(self.run_id, self._operation.model_name, self._turns)
        if failure is not None:
            self._note = str(failure)
            log.warning("%s", failure)  # a leg that nobody awaits must not fail in silence
        elif ending.note == _CUT_OFF and self._status is RunStatus.CANCELLED and not self._told_elsewhere:
            log.warning(
                "leg %s was cancelled together with its task (asyncio.run ended?): await it, or "
                "`await lionnb.settle()` at the end",
                self.run_id,
            )
        self._phase = step(self._phase, LegPhase.ENDED)
        try:
            self._plans.leg_ended(self._status.value, len(self._turns))
            self._steering.run_ended()
            self._run.when_written(self._unwatch)
            self._say()
        finally:  # whoever awaits it is told, whatever telling the others has met
            self._publish(failure)
        self._tell_published()

    def _publish(self, failure: LegFailedError | None) -> None:
        if failure is not None:
            self._done.set_exception(failure)
            return
        value = next((t.value for t in reversed(self._turns) if t.end is TurnEnd.RETURNED), None)
        self._done.set_result(LegResult(self.run_id, self._status, value, self.turns, self.usage, self._note))

    def bury(self, status: RunStatus = RunStatus.LOST, note: str = _LOOP_GONE) -> None:
        """End a leg whose task has gone without ending it; a leg that has ended is left alone. From any thread."""
        with _burying:
            if self._phase is LegPhase.ENDED:
                return
            if self._phase is not LegPhase.ENDING:
                self._phase = step(self._phase, LegPhase.ENDING)
            ending = Ending(status, note)
            self._run.end(ending)
            self._over(ending)

    def cut_off(self) -> None:
        """Cancel its task at the end of the process, which says so itself. In its loop, or when that stands still."""
        self._told_elsewhere = True
        self.task.cancel()

    def _look_for_loop(self) -> None:
        if self.loop.is_closed():
            self.bury()

    @property
    def recorded(self) -> bool:
        """Whether its end is known to be written."""
        return self._run.recorded

    async def written(self) -> None:
        """Return once the store has answered to everything that this leg told it. Cancelled, nothing changes."""
        await self._run.ledger.idle()

    def flush(self, timeout_s: float) -> None:
        """Block until the store has what this leg told it; for a process that is about to end. Not from its loop."""
        if self._phase is LegPhase.ENDED:
            self._run.flush(Ending(self._status, self._note), timeout_s)
        else:
            self._run.ledger.flush(timeout_s)

    # ------------------------------------------------------------------ telling
    def when_ended(self, fn: Callable[[], None]) -> None:
        """Call *fn* once the leg has ended, at once if it has; on whatever thread that is known."""
        self._done.add_done_callback(lambda _: fn())

    def when_published(self, fn: Callable[[], None]) -> None:
        """Call *fn* in the leg's loop when its end is to be shown: when it ends, and from each cell that awaits it."""
        self._published.append(fn)

    def _tell_published(self) -> None:
        for fn in tuple(self._published):
            try:
                fn()
            except Exception:
                log.exception("a view of leg %s could not be published", self.run_id)

    def _outlook(self) -> Outlook:
        """What happens to a steer that is queued now. From any thread."""
        self._look_for_loop()
        waits = self._behind is not None
        along = self._along and self._turn is None and not self._turns and isinstance(self.instruction, str)
        return outlook_of(
            self._budget,
            self._phase,
            self._calls,
            queued_behind=bool(self._after),
            turn=self._turn,
            waits=waits,
            along=along,
        )

    def _make_way(self, turn: TurnRun | None, control_id: str) -> None:
        """A person wants this steer instead of *turn*; ``None`` when none ran as it was said. In the leg's loop."""
        if turn is None and not self._turns:
            self._along, turn = True, self._turn  # the first turn takes it along, or has begun since
        if turn is not None:
            turn.make_way(control_id)

    def _hear(self, event: FeedEvent) -> None:
        """Its turn begins to wait for the Branch, or has it. In the leg's loop."""
        turn = self._turn
        if turn is None or event.kind not in ("wait", "start"):
            return
        was, own = self._behind, event.data["task"] == turn.name
        if own:
            self._behind = event.data["behind"] if event.kind == "wait" else None
        elif was is not None and event.kind == "start":  # another caller was before it in the queue
            self._behind = self.branch.turn_state.behind()
        if was != self._behind:
            self._say()

    def _say(self) -> None:
        self.feed.event(
            "leg", self.turn_id, run_id=self.run_id, name=self.name,
            status=self._status.value, sentence=self._note or self.doing,
            timeout_s=self._budget.timeout_s, started_at=self.created_at, deadline_at=self._budget.deadline_at,
            queued=self._steering.queued,
        )  # fmt: skip

    def _on_beat(self) -> None:
        """The heartbeat: a steer that was received while the turn runs is said to be queued (ADR-0108)."""
        if self.live and self.heartbeat_s is not None:
            self._beat = self.loop.call_later(self.heartbeat_s, self._on_beat)
            self._steering.beat()


_burying = threading.RLock()  # two threads may notice at once that a loop has gone
