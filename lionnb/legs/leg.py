"""`Leg`: a background run on one Branch, in the Branch's own event loop, that a person can steer.

A leg is one task. Each of its turns is a task of its own, so that ending a turn and ending the leg are different things.
Between turns it drains: what is pending goes into one continuation turn; with nothing pending the leg ends, and it
never idles for more. Only the main loop writes a leg's fields; `steer`, `cancel_turn`, `redirect` and `stop` hand over
and may be called from any thread.

Source: ADR-0108; DESIGN sections 6 and 7.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import getpass
import logging
import os
import time
import uuid
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from lionnb._display import mimebundle, show
from lionnb.aio import OwnedTasks, finish, settle, wait_for_thread
from lionnb.errors import LegFailedError, LionnbError, SteerRefusedError
from lionnb.feed import Feed
from lionnb.legs.budget import Budget
from lionnb.legs.drain import Drain
from lionnb.legs.receipt import Receipt, sentence_of
from lionnb.legs.result import LegResult, LegTurn
from lionnb.legs.states import FOLLOWS, LegPhase, TurnEnd, step
from lionnb.legs.turn import LegTurnRunner
from lionnb.records import ControlRecord, Fate, RunStatus, SessionSpec, Usage, chip_of, fate_of
from lionnb.store.door import normalise
from lionnb.turns import context as ctxs

if TYPE_CHECKING:
    from lionnb.branch import Branch
    from lionnb.store.store import Store

__all__ = ("HEARTBEAT_S", "Leg", "who")

log = logging.getLogger(__name__)

HEARTBEAT_S = 60.0
RECORDED_WITHIN_S = 0.25  # how long `steer` waits for its row; longer, the receipt says "being recorded"


def who() -> str:
    """The person who acts here: the hub's user, else the account."""
    if hub := os.environ.get("JUPYTERHUB_USER"):
        return hub
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this uid, as in some containers
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def new_run_id(now: float) -> str:
    """``YYYYMMDDTHHMMSS-hex6`` (UTC). The ``T`` and the ``-`` keep it apart from every hexadecimal id (ADR-0108)."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + "-" + uuid.uuid4().hex[:6]


def _inside_turn() -> str | None:
    """The turn in whose lineage this code runs; a row made there is marked."""
    for binding in reversed(ctxs.chain()):
        if binding.turn.scope is not None and not binding.exported:
            return str(binding.turn.context.turn_id)
    return None


class Leg:
    """A background run. Made by `start_leg`; await it for its `LegResult`. It displays itself."""

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
        after: Leg | None,
    ) -> None:
        now = time.time()
        self.branch, self.instruction, self.name, self.op = branch, instruction, name, op
        self.session_id, self.run_id, self.by = uuid.uuid4().hex, new_run_id(now), by
        self.created_at = now
        self.feed = Feed()
        self._token = f"leg-{uuid.uuid4().hex[:12]}"
        self._store, self._budget, self._after = store, budget, after
        self.loop = asyncio.get_running_loop()
        self._phase = LegPhase.WAITING
        self._status = RunStatus.RUNNING
        self._note: str | None = None
        self._store_problem: str | None = None
        self._turns: list[LegTurn] = []
        self._receipts: dict[str, Receipt] = {}
        self._published: list[Callable[[], None]] = []
        self._why_cancelled: TurnEnd | None = None
        self._stopping = False
        self._turn_task: asyncio.Task[None] | None = None
        self._tasks = OwnedTasks("a leg's turn")
        self._drain = Drain(store, self.session_id, self._token, budget)
        self._runner = LegTurnRunner(branch, op, arguments, self.session_id, self._drain)
        self._runner.why_cancelled = lambda: self._why_cancelled
        self._registered: concurrent.futures.Future[Any] | None = None
        self._done: concurrent.futures.Future[LegResult] = concurrent.futures.Future()
        self._heartbeat_s = heartbeat_s
        self._beat: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] = store.watch(self.session_id, self._changed)
        self._quiet_chunks = branch.turns.listen(
            lambda _: None, chunks=True
        )  # text as it comes, for a view opened later
        self.task = self.loop.create_task(self._main(), name=f"lionnb-leg-{self.run_id}")

    # ------------------------------------------------------------------ reading
    @property
    def status(self) -> RunStatus:
        """The run's status as this process knows it."""
        return self._status

    @property
    def phase(self) -> LegPhase:
        """What the leg is doing."""
        return self._phase

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self._phase is not LegPhase.ENDED

    @property
    def turns(self) -> tuple[LegTurn, ...]:
        """The turns that have ended."""
        return tuple(self._turns)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The receipts of the steers sent through this object, in order."""
        return tuple(dict.fromkeys(list(self._receipts.values())))

    @property
    def usage(self) -> Usage:
        """What its turns used so far; ``None`` parts are unknown."""
        return sum((t.usage for t in self._turns), Usage())

    @property
    def turn_id(self) -> str | None:
        """The id of its running turn; ``None`` between turns and while it waits for the Branch."""
        return self._runner.turn_id

    @property
    def budget(self) -> Budget:
        """Its limits, and what is left of the time."""
        return self._budget

    @property
    def store(self) -> Store:
        """Where its run and its controls are recorded."""
        return self._store

    @property
    def note(self) -> str | None:
        """Why it ended as it did, in a sentence; ``None`` when there is nothing to add."""
        return self._note

    def __repr__(self) -> str:
        called = f"{self.name} " if self.name else ""
        return f"<leg {called}{self.run_id}: {self._status.value}, {self._phase.value}, {len(self._turns)} turn(s)>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return mimebundle(self, include, exclude)

    def _ipython_display_(self) -> None:
        show(self)

    # ------------------------------------------------------------------ steering (any thread)
    def steer(self, text: str, *, key: str | None = None, by: str | None = None) -> Receipt:
        """Queue *text* for this leg; it lands as a continuation turn when the current turn ends.

        Returns at once with a receipt (it waits up to a quarter of a second for the row, so that normally the receipt
        already says *queued*). From any thread. Called again with the same key, it is the same steer.

        Args:
            text: What to say to the agent: up to 64 KiB, taken to the letter.
            key: Makes a repeated call safe.
            by: Who says it; the hub's user or the account.

        Raises:
            SteerRefusedError: Blank, not a string, too long, NUL or lone surrogates; or the leg has ended. No row.

        Source: ADR-0108.
        """
        text = normalise(text)
        if not self.live or self._phase is LegPhase.ENDING:
            raise SteerRefusedError(
                "ended",
                f"leg {self.run_id} has ended ({self._status.value}), so nothing can land in it any more: start another leg "
                "on its Branch, which still has the whole history.",
            )
        if self._store_problem is not None:
            raise SteerRefusedError("unknown", f"this leg cannot be steered: {self._store_problem}")
        turn = _inside_turn()
        author = f"turn:{turn}" if turn is not None else by or who()
        receipt = Receipt(text, uuid.uuid4().hex, key)
        receipt.expects(self._left)
        self._receipts[receipt.control_id] = receipt
        future = self._store.submit(lambda core: self._admit(core, receipt, author))
        wait_for_thread(future, RECORDED_WITHIN_S)
        if receipt.refusal is not None:
            self._receipts.pop(receipt.control_id, None)
            raise SteerRefusedError(*receipt.refusal)
        return receipt

    async def _admit(self, core: Any, receipt: Receipt, author: str) -> None:
        """On the control thread. Never raises: the receipt says what happened."""
        try:
            if self._registered is not None and not self._registered.done():
                await asyncio.wrap_future(self._registered)
            got = await core.admit(
                self.session_id,
                text=receipt.text,
                by=author,
                key=receipt.key,
                control_id=receipt.control_id,
                now=time.time(),
            )
        except LionnbError as exc:
            receipt.refuse("unknown", f"it could not be recorded: {exc}")
            return
        if got.control is None:
            receipt.refuse(*got.refusal)
            return
        if got.duplicate:  # the same steer again: this receipt follows the row that is there
            self._receipts.pop(receipt.control_id, None)
            receipt.control_id = got.control.id
            self._receipts.setdefault(receipt.control_id, receipt)
        receipt.admitted(got.control, got.position)

    def cancel_turn(self, turn_id: str | None = None) -> bool:
        """End the current turn and go on to what is pending. From any thread.

        It cancels the turn's task through the driver, because lionagi polls a control directive only in the streaming
        operation of CLI endpoints: on an API model a CANCEL directive alone would end as *not consumed*.

        Args:
            turn_id: The turn it is meant for; ``None`` means whichever runs. Another id changes nothing.

        Returns:
            Whether there was such a turn to cancel.
        """
        if not self.live or (turn_id is not None and turn_id != self.turn_id):
            return False
        if self._turn_task is None or self._turn_task.done():
            return False
        self._call_home(lambda: self._cancel(TurnEnd.TURN_CANCELLED, turn_id))
        return True

    def redirect(self, text: str, *, key: str | None = None, by: str | None = None) -> Receipt:
        """`steer`, and then `cancel_turn`: the "no, do this", still warm. From any thread; raises as `steer`."""
        receipt = self.steer(text, key=key, by=by)
        receipt.when_recorded(lambda: self._call_home(lambda: self._cancel(TurnEnd.TURN_CANCELLED, None)))
        return receipt

    def stop(self) -> None:
        """End the leg: its turn is cancelled, what is pending is rejected. From any thread; twice is harmless."""
        self._call_home(self._stop)

    def _stop(self) -> None:
        if not self.live or self._stopping:
            return
        self._stopping = True
        if self._phase is LegPhase.WAITING:
            self.task.cancel()  # behind another leg, it has no turn that could be cancelled
        self._cancel(TurnEnd.STOPPED, None)

    def _cancel(self, why: TurnEnd, turn_id: str | None) -> None:
        """Main loop. A later, stronger reason (stop) replaces an earlier one; the first cancellation stays the only one."""
        task = self._turn_task
        if task is None or task.done() or (turn_id is not None and turn_id != self.turn_id):
            return
        first = self._why_cancelled is None
        if first or why is TurnEnd.STOPPED:
            self._why_cancelled = why
        if first:
            task.cancel()

    def _call_home(self, fn: Callable[[], None]) -> None:
        if self.loop.is_closed():
            raise LionnbError(f"leg {self.run_id}'s event loop has closed: it ended with it.")
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop:
            fn()
        else:
            self.loop.call_soon_threadsafe(fn)

    # ------------------------------------------------------------------ the result
    def __await__(self) -> Generator[Any, None, LegResult]:
        return self.result().__await__()

    async def result(self) -> LegResult:
        """Wait for the leg's end. Cancelling the wait does not touch the leg. From any loop.

        Raises:
            LegFailedError: A turn raised; the provider's error is its cause. Stopped and timed-out legs return.
        """
        try:
            return await asyncio.shield(asyncio.wrap_future(self._done))
        finally:
            # nbclient drops what a task of an earlier cell publishes: the awaiting cell says the end again
            if self._done.done():
                self._tell_published()

    def when_published(self, fn: Callable[[], None]) -> None:
        """Call *fn* in the leg's loop when its end is to be shown: when it ends, and from each cell that awaits it."""
        self._published.append(fn)

    def _tell_published(self) -> None:
        for fn in tuple(self._published):
            try:
                fn()
            except Exception:
                log.exception("a view of leg %s could not be published", self.run_id)

    # ------------------------------------------------------------------ the task
    async def _main(self) -> None:
        end: RunStatus = RunStatus.CANCELLED
        note: str | None = "the leg's task was cancelled"
        error: BaseException | None = None
        try:
            if self._after is not None:
                await settle_done(self._after)
            self._to(LegPhase.STARTING)
            await self._register()
            self._to(LegPhase.BETWEEN)
            end, note = await self._work()
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            end, note, error = RunStatus.FAILED, f"{type(exc).__name__}: {exc}", exc
            log.exception("leg %s failed outside of its turns", self.run_id)
        finally:
            # In its own task: whatever cancels this one (a closing loop, a kernel), the record is written.
            await finish(self._close(end, note, error), name=f"lionnb-end-{self.run_id}")

    def _to(self, phase: LegPhase) -> None:
        self._phase = step(self._phase, phase)
        self._say()

    async def _register(self) -> None:
        """Write the run's row. A store that cannot is said once; the leg goes on, and cannot be steered."""
        self._budget.start()
        now, left = time.time(), self._budget.left_s
        spec = SessionSpec(
            id=self.session_id,
            run_id=self.run_id,
            name=self.name,
            branch_id=str(self.branch.id),
            leg=self._token,
            instruction=self._runner.prompt(self.instruction)[:2_000],
            created_at=self.created_at,
            created_by=self.by,
            timeout_s=self._budget.timeout_s,
            deadline_at=None if left is None else now + left,
            **process_identity(),
        )
        future = self._store.submit(lambda core: core.start_session(spec, time.time()))
        self._registered = future
        done = await settle(_await(future), name="lionnb-register")
        if done.error is not None:
            if not isinstance(done.error, LionnbError):
                raise done.error
            self._store_problem = str(done.error)
            log.warning("leg %s runs, but cannot be steered: %s", self.run_id, done.error)
            self.feed.event("warning", None, text=f"this leg cannot be steered: {done.error}")
        if done.cancelled is not None:
            raise done.cancelled
        if self._heartbeat_s is not None:
            self._beat = self.loop.call_later(self._heartbeat_s, self._on_beat)

    async def _work(self) -> tuple[RunStatus, str | None]:
        """Turn after turn, until something says how the leg ends."""
        carry = False
        while True:
            if self._stopping:
                return RunStatus.CANCELLED, "stopped"
            turn = await self._one_turn(carry)
            self._turns.append(turn)
            await self._record_turn()
            ends = FOLLOWS[turn.end]
            if ends is not None:
                return ends, _note_of(turn)
            if self._stopping:
                return RunStatus.CANCELLED, "stopped"
            if not self._drain.owned:
                return RunStatus.CANCELLED, "the run was ended or taken over by somebody else"
            if (cap := self._budget.cap_reached(len(self._turns), self.usage.total_tokens)) is not None:
                return RunStatus.COMPLETED, cap
            if self._store_problem is not None or await self._ended_idle():
                return RunStatus.COMPLETED, None
            if self._budget.expired:  # before the queue is read into a turn; what is pending is left to the sweep
                return RunStatus.TIMED_OUT, "the deadline passed before the pending steers could land"
            carry = True

    async def _one_turn(self, carry: bool) -> LegTurn:
        self._why_cancelled = None
        self._to(LegPhase.IN_TURN)
        work = self._runner.continuation() if carry else self._runner.first(self.instruction)
        task = self._turn_task = self._tasks.create(work, name=f"lionnb-turn-{self.run_id}-{len(self._turns) + 1}")
        left = self._budget.left_s
        timer = None if left is None else self.loop.call_later(left, lambda: self._cancel(TurnEnd.DEADLINE, None))
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            self._cancel(TurnEnd.TASK_CANCELLED, None)
            self._turns.append(self._runner.ended(await settle(task), self._why_cancelled))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._turn_task = None
        turn = self._runner.ended(await settle(task), self._why_cancelled)
        self._to(LegPhase.BETWEEN)
        return turn

    async def _record_turn(self) -> None:
        """One row a turn in the store. Bookkeeping: its failure is said and harms nothing."""
        row = self._runner.row
        if row is None or self._store_problem is not None:
            return
        record = row.record()
        done = await settle(_await(self._store.submit(lambda core: core.put_turn(record, time.time()))))
        if isinstance(done.error, LionnbError):
            log.warning("the turn could not be recorded: %s", done.error)
        if done.cancelled is not None:
            raise done.cancelled

    async def _ended_idle(self) -> bool:
        """End the run if nothing is pending, decided by the database. An unanswering store ends it too, unrecorded."""
        await self._drain.retry()
        future = self._store.submit(
            lambda core: core.end(
                self.session_id, self._token, RunStatus.COMPLETED, by=self._token, only_if_idle=True, now=time.time()
            )
        )
        done = await settle(_await(future))
        if done.cancelled is not None:
            raise done.cancelled
        if done.error is not None:
            log.warning("the end of leg %s could not be recorded: %s", self.run_id, done.error)
            return True
        return done.result is None or done.result.ended or done.result.pending_left == 0

    async def _close(self, status: RunStatus, note: str | None, error: BaseException | None) -> None:
        """The end, once: report what is unreported, end and sweep in one transaction, settle receipts, tell everybody."""
        self._phase = step(self._phase, LegPhase.ENDING)
        await self._tasks.aclose()
        await self._drain.retry()
        if self._store_problem is None:
            try:
                await self._store.run(
                    lambda core: core.end(
                        self.session_id, self._token, status, by=self._token, note=note, now=time.time()
                    )
                )
            except LionnbError as exc:
                log.warning("the end of leg %s could not be recorded: %s", self.run_id, exc)
        if self._beat is not None:
            self._beat.cancel()
        self._quiet_chunks()
        self._status, self._note = status, note
        self._phase = step(self._phase, LegPhase.ENDED)
        for receipt in self.receipts:
            receipt.run_ended()
        self._publish(error)
        self._say()
        self._tell_published()
        # Last: whatever the store still says of this run (a late resolution) no longer has a listener here.
        self.loop.call_soon(self._unwatch)

    def _publish(self, error: BaseException | None) -> None:
        failed = next((t for t in reversed(self._turns) if t.error is not None), None)
        if self._status is RunStatus.FAILED:
            cause = error or (failed.error if failed is not None else None) or RuntimeError(self._note or "failed")
            turn_id = failed.turn_id if failed is not None else None
            exc = LegFailedError(self.run_id, turn_id, self._runner.model_name, cause)
            exc.__cause__ = cause
            self._note = str(exc)
            log.warning("%s", exc)  # a leg that nobody awaits must not fail in silence
            self._done.set_exception(exc)
            return
        value = next((t.value for t in reversed(self._turns) if t.end is TurnEnd.RETURNED), None)
        self._done.set_result(LegResult(self.run_id, self._status, value, self.turns, self.usage, self._note))

    # ------------------------------------------------------------------ telling
    def _left(self) -> str:
        left = self._budget.left_s
        if left is None:
            return ""
        total = self._budget.timeout_s or 0.0
        return f"{_clock(left)} of {_clock(total)} left"

    def _say(self) -> None:
        left = self._budget.left_s
        self.feed.event(
            "leg", self.turn_id, run_id=self.run_id, name=self.name,
            status=self._status.value, sentence=self._note or self._phase.value,
            timeout_s=self._budget.timeout_s, started_at=self.created_at,
            deadline_at=None if left is None else time.time() + left,
            queued=self._queued(),
        )  # fmt: skip

    def _on_beat(self) -> None:
        """The heartbeat: a steer that was received while the turn runs is said to be queued (ADR-0108)."""
        if not self.live or self._heartbeat_s is None:
            return
        self._beat = self.loop.call_later(self._heartbeat_s, self._on_beat)
        if queued := self._queued():
            said = f"{queued} steer(s) queued: they land at the end of the current turn"
            self.feed.event("beat", self.turn_id, text=said)

    def _queued(self) -> int:
        return sum(r.fate is Fate.PENDING for r in self.receipts)

    def _changed(self, control: ControlRecord) -> None:
        """Control thread: a row of this run was committed."""
        receipt = self._receipts.get(control.id)
        if receipt is not None:
            receipt.update(control)
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._show, control)

    def _show(self, control: ControlRecord) -> None:
        fate = fate_of(control, run_ended=not self.live, leg_dead=False)
        receipt = self._receipts.get(control.id)
        sentence = receipt.sentence if receipt is not None else sentence_of(control, fate, now=time.time())
        self.feed.event(
            "steer", control.turn_id or self.turn_id, control_id=control.id, seq=control.seq, text=control.text,
            fate=fate.value, chip=chip_of(fate, control.note).value, sentence=sentence, note=control.note,
            turn_id=control.turn_id, created_at=control.created_at, created_by=control.created_by,
            handed_over_at=control.handed_over_at, closed_at=control.closed_at,
        )  # fmt: skip


def _note_of(turn: LegTurn) -> str | None:
    if turn.error is not None:
        return f"{type(turn.error).__name__}: {turn.error}"[:500]
    return {TurnEnd.DEADLINE: "the deadline passed", TurnEnd.STOPPED: "stopped"}.get(turn.end)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def process_identity() -> dict[str, Any]:
    """Who runs this leg, for the lease."""
    return {"pid": os.getpid()}


async def settle_done(leg: Leg) -> None:
    """Wait until *leg* has ended, however it ended."""
    try:
        await leg.result()
    except LegFailedError:
        return


async def _await(future: concurrent.futures.Future[Any]) -> Any:
    return await asyncio.shield(asyncio.wrap_future(future))
