"""One turn of a leg: the Branch's operation inside the driver, with the steers it carries.

The leg enters the driver itself, so that the hand-over happens inside the continuation's turn, after the lock: no row
reads *delivering* while its leg waits behind a foreground cell. The operation is then nested work of that turn.

What a cancellation finds: a turn that waits, takes or works is ended by it. Once the operation has come to something,
that stands, whatever arrives later; the cancellation is raised when the turn has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from lionnb import taps
from lionnb.aio import OwnedTasks
from lionnb.legs.continuation import continuation_text
from lionnb.legs.drain import Batch, Drain
from lionnb.legs.result import LegTurn
from lionnb.legs.states import ESCALATION, TurnEnd
from lionnb.records import TurnOutcome, Usage
from lionnb.turns.driver import run_in_turn
from lionnb.turns.log import TurnRow

if TYPE_CHECKING:
    from lionnb.branch import Branch
    from lionnb.turns.context import TurnScope
    from lionnb.turns.turn import Turn

__all__ = ("OPERATIONS", "Operation", "TurnRun")


async def _run(branch: Branch, instruction: Any, arguments: dict[str, Any]) -> Any:
    """`run` to its end; its value is the last text the model gave."""
    value: Any = None
    async with aclosing(branch.run(instruction, **arguments)) as stream:
        async for msg in stream:
            text = getattr(msg, "response", None)
            value = text if isinstance(text, str) and text else value
    return value


# operation -> (how it is called, the name of its model argument)
OPERATIONS: dict[str, tuple[Callable[[Any, Any, dict[str, Any]], Awaitable[Any]], str]] = {
    "operate": (lambda b, text, kw: b.operate(instruction=text, **kw), "chat_model"),
    "communicate": (lambda b, text, kw: b.communicate(text, **kw), "chat_model"),
    "ReAct": (lambda b, text, kw: b.ReAct(instruction=text, **kw), "analysis_model"),
    "run": (_run, "chat_model"),
}

# What holds for a leg's first turn only: a continuation lands in a warm history, and these would wipe it.
FIRST_ONLY = frozenset({"clear_messages"})


# What the leg knows better than the driver, which sees a cancellation, or a return, and no more.
_OUTCOMES = {
    TurnEnd.DEADLINE: TurnOutcome.TIMED_OUT,
    TurnEnd.CLEAN_STOP: TurnOutcome.CANCELLED,
    TurnEnd.RAISED: TurnOutcome.FAILED,
}


class Operation:
    """What every turn of a leg does: an operation of its Branch, with its arguments."""

    def __init__(self, branch: Branch, op: str, arguments: dict[str, Any], session_id: str) -> None:
        self.branch, self.op, self.arguments, self.session_id = branch, op, arguments, session_id
        self._call, model_argument = OPERATIONS[op]
        self.model = arguments.get(model_argument)

    @property
    def model_name(self) -> str:
        """What the model is called, for sentences."""
        return taps.model_name(self.model if self.model is not None else self.branch.mdls.chat)

    def __call__(self, text: Any, *, first: bool) -> Awaitable[Any]:
        """Call the Branch."""
        arguments = self.arguments if first else {k: v for k, v in self.arguments.items() if k not in FIRST_ONLY}
        return self._call(self.branch, text, dict(arguments))


def prompt(instruction: Any) -> str:
    """The instruction as text."""
    return taps.prompt_of((instruction,), {})


class TurnRun:
    """One turn, from its task to what it came to. Used once; belongs to the leg's loop.

    Args:
        operation: What to call.
        drain: Where steers are taken from and reported to.
        instruction: What a first turn asks; ``None`` for a continuation, which carries what is pending when it holds
            the Branch.
        along: A first turn of text takes along what is pending.
        otherwise: What a continuation asks that finds nothing to carry; ``None``: it then asks nothing.
        warn: Told what the turn before it left open; ``None``: as for a foreground turn, that is a Python warning.
        ending: Whether the leg's own task is being cancelled. At the end of ``asyncio.run`` this one is too, and may
            be the first to run.
    """

    def __init__(
        self,
        operation: Operation,
        drain: Drain,
        instruction: Any,
        ending: Callable[[], bool],
        *,
        along: bool = False,
        otherwise: str | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._operation, self._drain, self._instruction, self._ending = operation, drain, instruction, ending
        self._otherwise, self._warn = otherwise, warn
        self.carry = instruction is None or (along and isinstance(instruction, str))
        self.row: TurnRow | None = None  # of the log; None until it holds the Branch
        self.batch: Batch | None = None
        self.called = False
        self.why: TurnEnd | None = None  # why it was cancelled
        self._wanted: set[str] = set()  # steers that must not wait behind what is being claimed
        self._returned = self._stopped = self._overdue = False
        self._value: Any = None
        self._raised: BaseException | None = None
        self._late: asyncio.CancelledError | None = None  # arrived when the operation had come to something
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ its task
    def start(self, tasks: OwnedTasks, name: str) -> asyncio.Task[None]:
        """Begin, as a task of *tasks*."""
        self._task = tasks.create(self._main(), name=name)
        return self._task

    @property
    def name(self) -> str:
        """Its task's name, by which the Branch's log tells of it."""
        return "" if self._task is None else self._task.get_name()

    @property
    def takes(self) -> bool:
        """Whether what is queued now still comes into this very turn: it has not claimed yet."""
        return self.carry and self.batch is None and not self.called

    @property
    def turn_id(self) -> str | None:
        """Its id while it holds the Branch."""
        return self.row.turn_id if self.row is not None and self.row.ended_at is None else None

    @property
    def open(self) -> bool:
        """Whether a cancellation can still end it: it waits, takes or works."""
        settled = self._returned or self._raised is not None
        return self._task is not None and not self._task.done() and not settled

    def cancel(self, why: TurnEnd) -> bool:
        """End it for this reason, unless it has come to something; ``False`` when that changes nothing."""
        if not self.open or self._task is None:
            return False
        again = self.why is not None and ESCALATION.index(why) <= ESCALATION.index(self.why)
        if again and why is not TurnEnd.TASK_CANCELLED:
            return False
        self.why = why
        return self._task.cancel()

    def make_way(self, control_id: str) -> None:
        """A person wants this steer instead: end this turn, unless the turn can still carry it, or does."""
        if self.row is None and (self.carry or isinstance(self._instruction, str)):
            self.carry = True  # it has not begun: it takes the steer along, and keeps its place in the queue
        elif self.carry and not self.called:
            self._wanted.add(control_id)  # it is claiming
        elif self.batch is None or control_id not in self.batch.ids:
            self.cancel(TurnEnd.TURN_CANCELLED)

    # ------------------------------------------------------------------ what it does
    async def _main(self) -> None:
        tellers, task = self._operation.branch.turn_state.tellers, asyncio.current_task()
        assert task is not None, "this is a task's own coroutine"
        if self._warn is not None:
            tellers[task] = self._warn
        try:
            await run_in_turn(
                self._operation.branch,
                invoke=self._invoke,
                model=self._operation.model,
                operation=self._operation.op,
                prompt="" if self._instruction is None else prompt(self._instruction),
            )
        finally:
            tellers.pop(task, None)
            if self._late is not None:
                raise self._late

    async def _invoke(self, scope: TurnScope) -> Any:
        turn = self._operation.branch.turn_state.turn
        assert turn is not None, "the driver calls this inside of a turn"
        try:
            return await self._body(scope, turn)
        except asyncio.CancelledError:
            turn.asked = self._cancelled()
            raise

    async def _body(self, scope: TurnScope, turn: Turn) -> Any:
        row = self.row = turn.row
        row.session_id = self._operation.session_id
        text = self._instruction
        if self.carry:
            self.batch = await self._take()
            if self.batch is not None:
                parts = [] if text is None else [text]
                text = "\n\n".join([*parts, continuation_text([r.text for r in self.batch.rows])])
                row.carried, row.prompt = self.batch.ids, text
            elif text is None:
                if self._otherwise is None or not self._drain.owned:
                    return None
                text = row.prompt = self._otherwise
        if self.batch is None and self._drain.expired:
            self._overdue = True  # the deadline passed at the very moment in which the Branch became free
            return None
        # From here to the operation's own first await nothing can be cancelled: handed over means called.
        self.called = True
        try:
            self._value = await self._operation(text, first=self._instruction is not None)
            self._returned, self._stopped = True, self._obeyed_cancel(turn.row)
        except GeneratorExit:  # this coroutine was destroyed, with or after its loop: nothing may be awaited
            raise
        except BaseException as exc:
            self._raised = exc
            await self._report(scope, text, self._outcome(exc))
            raise
        await self._report(scope, text, TurnOutcome.CANCELLED if self._stopped else TurnOutcome.COMPLETED)
        return self._value

    async def _take(self) -> Batch | None:
        """Claim what is pending; once more, when a redirect's row came just behind the claim."""
        while (batch := await self._drain.take()) is not None and not self._wanted <= set(batch.ids):
            self._wanted.clear()
            if (cancelled := await self._drain.give_back(batch)) is not None:
                raise cancelled
        return batch

    async def _report(self, scope: TurnScope, text: Any, outcome: TurnOutcome) -> None:
        """Say on each carried row what its turn came to, whatever cancels this one."""
        if self.batch is not None:
            in_history = taps.mark_instruction(self._operation.branch, text, self.batch.ids)
            turn_id = str(scope.context.turn_id)
            self._late = await self._drain.report(self.batch, turn_id=turn_id, outcome=outcome, in_history=in_history)

    # ------------------------------------------------------------------ what it came to
    def _cancelled(self) -> bool:
        """Whether this turn was cancelled through its leg, or with it.

        A CancelledError that came from elsewhere (a provider's own, say) is a failure like any other. The task's own
        count of requests cannot tell them apart: anyio's task groups take back what they have not asked for.
        """
        return self.why is not None or self._ending()

    def _obeyed_cancel(self, row: TurnRow) -> bool:
        """Whether a CANCEL directive was taken in this turn: lionagi's streams then end as if by themselves."""
        for event in reversed(self._operation.branch.turns.events()):
            if event.turn_id == row.turn_id:
                if event.kind == "control" and event.data["fate"] == "taken" and event.data["directive"] == "cancel":
                    return True
                if event.kind == "start":
                    break
        return False

    def _outcome(self, exc: BaseException) -> TurnOutcome:
        if isinstance(exc, asyncio.CancelledError) and self._cancelled():
            return TurnOutcome.TIMED_OUT if self.why is TurnEnd.DEADLINE else TurnOutcome.CANCELLED
        clean = isinstance(exc, self._operation.branch.turn_clean_stops)
        return TurnOutcome.CANCELLED if clean else TurnOutcome.FAILED

    def ended(self, starved_s: float = 0.0, starved_by: str = "") -> LegTurn:
        """What it came to, as the leg must know it, and how long its loop stood still meanwhile. Its task is done."""
        assert self._task is not None
        error = asyncio.CancelledError() if self._task.cancelled() else self._task.exception()
        end, error = self._end(self._raised or error)
        row, outcome = self.row, TurnOutcome.CANCELLED_WAITING
        if row is not None:
            outcome = row.outcome = _OUTCOMES.get(end, row.outcome)
            state = self._operation.branch.turn_state
            if state.left is row and end in (TurnEnd.TURN_CANCELLED, TurnEnd.CLEAN_STOP):
                state.left = None  # a person's own act: the continuation need not warn of what it left
        return LegTurn(
            turn_id=None if row is None else row.turn_id,
            end=end,
            outcome=outcome,
            value=self._value if self._returned else None,
            error=error,
            usage=Usage() if row is None else row.usage,
            steers=() if self.batch is None else self.batch.ids,
            starved_s=starved_s,
            starved_by=starved_by,
        )

    def _end(self, error: BaseException | None) -> tuple[TurnEnd, BaseException | None]:
        if self._returned:
            if error is None or isinstance(error, asyncio.CancelledError):
                return (TurnEnd.CLEAN_STOP if self._stopped else TurnEnd.RETURNED), None
            return TurnEnd.RAISED, error  # closing what the turn had open raised more than an Exception
        if error is None:
            return (TurnEnd.DEADLINE if self._overdue else TurnEnd.NOTHING), None
        if isinstance(error, asyncio.CancelledError) and self._cancelled():
            return self.why or TurnEnd.TASK_CANCELLED, None
        if isinstance(error, self._operation.branch.turn_clean_stops):
            return TurnEnd.CLEAN_STOP, None
        return TurnEnd.RAISED, error
