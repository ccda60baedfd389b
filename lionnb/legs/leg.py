"""`Leg`: what a person holds of a background run on one Branch: to read it, to steer it, to wait for it.

`steer`, `cancel_turn`, `redirect` and `stop` hand over to the leg's loop and may be called from any thread. What the
leg does is in `legs.course`.

Source: ADR-0108.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from typing import Any

from lionnb._display import mimebundle, show
from lionnb.errors import SteerRefusedError, TurnDeadlockError
from lionnb.legs.budget import CountOrSame, SecondsOrSame
from lionnb.legs.course import Course
from lionnb.legs.ledger import call_in, wait_for
from lionnb.legs.receipt import Receipt
from lionnb.legs.result import LegResult
from lionnb.legs.scripted import nth_turn
from lionnb.legs.states import LegPhase, TurnEnd
from lionnb.store.door import sender, who
from lionnb.turns import context as ctxs

__all__ = ("HEARTBEAT_S", "Leg", "who")

log = logging.getLogger(__name__)

HEARTBEAT_S = 60.0


class Leg(Course):
    """A background run. Made by `start_leg`; await it for its `LegResult`. It displays itself."""

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The receipts of the steers sent through this object, in order, and of what a run that goes on takes along."""
        self._look_for_loop()
        return (*self._steering.receipts, *self._plans.receipts)

    def __repr__(self) -> str:
        called = f"{self.name} " if self.name else ""
        return f"<leg {called}{self.run_id}: {self.status.value}, {self.doing}, {len(self._turns)} turn(s)>"

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
            SteerRefusedError: Blank, not a string, too long, NUL or lone surrogates; the leg has ended; or the store
                could not record it; or *by* is too long to be a name. No row.
            TypeError: *by* is no text.

        Source: ADR-0108.
        """
        if not self.live or self._phase is LegPhase.ENDING:
            self._look_for_loop()
            raise SteerRefusedError(
                "ended",
                f"leg {self.run_id} {self._how_it_stands()}, so nothing can land in it any more: "
                "leg.resume(…) takes it up again, on the same Branch.",
            )
        return self._steering.steer(text, key, sender(by))

    def steer_after(self, turn: int, text: str, *, key: str | None = None, by: str | None = None) -> Receipt:
        """`steer` at the end of the leg's turn number *turn* (the first is 1): it lands in the turn after it.

        For runs that nobody watches. It is queued when that turn has ended, before the leg decides whether it has
        anything left to do; at once, if the turn is past. Until then there is no row, and the receipt says what it
        waits for; if the leg ends first, the receipt says that it never was queued, and why. From any thread.

        Args:
            turn: The number of the turn, as in ``leg.turns``.
            text: As in `steer`, and so are the others.
            key: Makes a repeated call safe, once it is queued.
            by: Who says it.

        Raises:
            SteerRefusedError: As `steer`.
            TypeError, ValueError: *turn* counts no turn.
        """
        nth_turn(turn)
        if self.live and self._phase is not LegPhase.ENDING:
            planned = self._plans.add(turn, text, key, sender(by))
            if planned is not None:
                return planned
        return self.steer(text, key=key, by=by)

    def cancel_turn(self, turn_id: str | None = None) -> bool:
        """End the current turn and go on to what is pending. From any thread.

        It cancels the turn's task through the driver, because lionagi polls a control directive only in the streaming
        operation of CLI endpoints: on an API model a CANCEL directive alone would end as *not consumed*.

        Args:
            turn_id: The turn it is meant for; ``None`` means the one that runs now. A later turn is never touched.

        Returns:
            Whether there was such a turn to cancel.
        """
        turn = self._turn
        if turn is None or not self.live or not turn.open or (turn_id is not None and turn_id != turn.turn_id):
            return False
        call_in(self.loop, lambda: turn.cancel(TurnEnd.TURN_CANCELLED))
        return True

    def redirect(self, text: str, *, key: str | None = None, by: str | None = None) -> Receipt:
        """`steer`, and then `cancel_turn`: the "no, do this", still warm. From any thread; raises as `steer`.

        The row is written before the turn is cancelled. A turn that has not begun is not cancelled: it takes the steer
        along.
        """
        turn = self._turn  # what runs when the person says so: not the turn that may follow and carry this very text
        first = turn is None and not self._turns
        receipt = self.steer(text, key=key, by=by)
        if first or turn is not None:
            receipt.when_recorded(lambda: call_in(self.loop, lambda: self._make_way(turn, receipt.control_id)))
        return receipt

    def stop(self) -> None:
        """End the leg: its turn is cancelled, what is pending is rejected. From any thread; twice is harmless."""
        if self.live:
            call_in(self.loop, self._stop)

    def resume(
        self,
        instruction: Any = None,
        *,
        resend: bool = True,
        timeout_s: SecondsOrSame = "same",
        max_turns: CountOrSame = "same",
        max_tokens: CountOrSame = "same",
        resume_on_timeout: bool = False,
        **arguments: Any,
    ) -> Leg:
        """`lionnb.resume` for this leg's run, once it has ended: a new leg on the same Branch, in the current loop.

        Args:
            instruction: As there.
            resend: As there.
            timeout_s: ``"same"`` is as much as this leg had, counted anew; so for the others.
            max_turns: Likewise.
            max_tokens: Likewise.
            resume_on_timeout: As in `start_leg`.
            **arguments: Arguments of the operation to change; the others stay.
        """
        from lionnb.legs.resumption import resume_leg  # it makes legs, so it imports this module

        return resume_leg(
            self,
            instruction,
            resend=resend,
            limits=(timeout_s, max_turns, max_tokens),
            resume_on_timeout=resume_on_timeout,
            arguments=arguments,
        )

    def _how_it_stands(self) -> str:
        if self._phase is LegPhase.ENDED:
            return f"has ended ({self._status.value})"
        return "is ending" if not self.loop.is_closed() else "has ended with its event loop"

    # ------------------------------------------------------------------ the result
    def __await__(self) -> Generator[Any, None, LegResult]:
        return self.result().__await__()

    async def result(self) -> LegResult:
        """Wait for the leg's end. Cancelling the wait does not touch the leg. From any loop.

        Raises:
            LegFailedError: A turn raised; the provider's error is its cause. Stopped and timed-out legs return.
            TurnDeadlockError: Awaited by the owner of a turn on the leg's own Branch, which the leg waits for.
        """
        self._look_for_loop()
        self._see_deadlock()
        try:
            return await wait_for(self._done)
        finally:
            # nbclient drops what a task of an earlier cell publishes: the awaiting cell says the end again
            if self._done.done():
                self._tell_published()

    def _see_deadlock(self) -> None:
        """A turn that awaits a leg on its own Branch waits for a turn that waits for it."""
        binding = ctxs.find_binding(self.branch.turn_state)
        if binding is None or not self.live:
            return
        row, mine = binding.turn.row, binding.turn.progress is asyncio.current_task()
        names = (f"turn {(row.turn_id or '')[:8]} ({row.operation})", f"leg {self.run_id}")
        if mine or binding.exported:
            raise TurnDeadlockError((*names, names[0]))
        log.warning("this wait may never end: %s waits for %s, and that for the same Branch", *names)
