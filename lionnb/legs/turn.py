"""One turn of a leg: the Branch's operation inside the driver, with the steers it carries.

The leg enters the driver itself, so that the hand-over happens inside the continuation's turn, after the lock: no row
reads *delivering* while its leg waits behind a foreground cell. The operation is then nested work of that turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lionnb import taps
from lionnb.aio import Settled
from lionnb.legs.continuation import continuation_text
from lionnb.legs.drain import Batch, Drain
from lionnb.legs.result import LegTurn
from lionnb.legs.states import TurnEnd
from lionnb.records import TurnOutcome, Usage
from lionnb.turns.driver import run_in_turn
from lionnb.turns.log import TurnRow

if TYPE_CHECKING:
    from lionnb.branch import Branch
    from lionnb.turns.context import TurnScope

__all__ = ("OPERATIONS", "LegTurnRunner")


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

# How the store's row words the outcome of the turn that carried a steer.
_WORDS = {TurnEnd.DEADLINE: TurnOutcome.TIMED_OUT}


@dataclass(slots=True)
class _State:
    """What the running turn has come to so far; a new one for each turn."""

    row: TurnRow | None = None
    batch: Batch | None = None
    called: bool = False
    returned: bool = False
    value: Any = None
    nothing: bool = False


class LegTurnRunner:
    """Makes the coroutines of a leg's turns, and reads what became of them. Belongs to the leg's loop."""

    def __init__(self, branch: Branch, op: str, arguments: dict[str, Any], session_id: str, drain: Drain) -> None:
        self._branch, self._op, self._arguments = branch, op, arguments
        self._session_id, self._drain = session_id, drain
        self._call, model_argument = OPERATIONS[op]
        self._model = arguments.get(model_argument)
        self._now = _State()
        self.why_cancelled: Callable[[], TurnEnd | None] = lambda: None

    @property
    def turn_id(self) -> str | None:
        """The id of the running turn."""
        row = self._now.row
        return row.turn_id if row is not None and row.ended_at is None else None

    @property
    def row(self) -> TurnRow | None:
        """The log row of the last turn; ``None`` when it never took the lock."""
        return self._now.row

    @property
    def model_name(self) -> str:
        """What the model is called, for sentences."""
        return taps.model_name(self._model if self._model is not None else self._branch.mdls.chat)

    def prompt(self, instruction: Any) -> str:
        """The instruction as text."""
        return taps.prompt_of((instruction,), {})

    async def first(self, instruction: Any) -> None:
        """The leg's first turn."""
        await self._turn(instruction, self.prompt(instruction))

    async def continuation(self) -> None:
        """A turn that carries what is pending when it holds the Branch."""
        await self._turn(None, "")

    async def _turn(self, instruction: Any, prompt: str) -> None:
        self._now = _State()
        await run_in_turn(
            self._branch,
            invoke=lambda scope: self._body(scope, instruction),
            model=self._model,
            operation=self._op,
            prompt=prompt,
        )

    async def _body(self, scope: TurnScope, instruction: Any) -> Any:
        now = self._now
        turn = self._branch.turn_state.turn
        assert turn is not None
        now.row = turn.row
        now.row.session_id = self._session_id
        text = instruction
        if instruction is None:
            now.batch = await self._drain.take()
            if now.batch is None:
                now.nothing = True
                return None
            text = continuation_text([r.text for r in now.batch.rows])
            now.row.carried, now.row.prompt = now.batch.ids, text
        # From here to the operation's own first await nothing can be cancelled: handed over means called.
        try:
            now.called = True
            now.value = await self._call(self._branch, text, self._arguments)
            now.returned = True
            return now.value
        except BaseException as exc:
            await self._report(scope, text, self._outcome(exc))
            raise
        finally:
            if now.returned:
                await self._report(scope, text, TurnOutcome.COMPLETED)

    async def _report(self, scope: TurnScope, text: Any, outcome: TurnOutcome) -> None:
        """Say on each carried row what its turn came to: in a task of its own, whatever cancels this one."""
        batch = self._now.batch
        if batch is not None:
            in_history = taps.mark_instruction(self._branch, text, batch.ids)
            turn_id = str(scope.context.turn_id)
            await self._drain.report(batch, turn_id=turn_id, outcome=outcome, in_history=in_history)

    def _outcome(self, exc: BaseException) -> TurnOutcome:
        if isinstance(exc, asyncio.CancelledError):
            return _WORDS.get(self.why_cancelled() or TurnEnd.RETURNED, TurnOutcome.CANCELLED)
        return TurnOutcome.CANCELLED if isinstance(exc, self._branch.turn_clean_stops) else TurnOutcome.FAILED

    def ended(self, settled: Settled[Any], why: TurnEnd | None) -> LegTurn:
        """What the turn's task came to, as the leg must know it.

        A value that the operation returned stands, also when a cancellation arrived after it.
        """
        now = self._now
        row, error = now.row, settled.error
        usage = row.usage if row is not None else Usage()
        steers = now.batch.ids if now.batch is not None else ()
        turn_id = row.turn_id if row is not None else None
        end: TurnEnd
        if why in (TurnEnd.STOPPED, TurnEnd.TASK_CANCELLED) and isinstance(error, asyncio.CancelledError):
            end, error = why, None
        elif now.returned and (error is None or isinstance(error, asyncio.CancelledError)):
            end, error = TurnEnd.RETURNED, None
        elif now.nothing and error is None:
            end = TurnEnd.NOTHING
        elif isinstance(error, asyncio.CancelledError) and why is not None:
            end, error = why, None
        elif isinstance(error, self._branch.turn_clean_stops):
            end, error = TurnEnd.CLEAN_STOP, None
        else:
            end = TurnEnd.RAISED
        outcome = row.outcome if row is not None else TurnOutcome.CANCELLED_WAITING
        return LegTurn(turn_id, end, outcome, now.value if now.returned else None, error, usage, steers)
