"""Every exception that lionnb raises on purpose.

Each constructor takes data and builds a sentence that says what happened and what to do next. No database
text and no SQL reaches a message, and no path but that of a database which cannot be there, or cannot be
opened. Imports of lionnb only `plain`.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from lionnb.plain import first_line, plain

__all__ = (
    "AdoptionError",
    "AmbiguousIdError",
    "IllegalTransitionError",
    "LegExistsError",
    "LegFailedError",
    "LionnbError",
    "NestingError",
    "NoRunningLoopError",
    "ResolveRefusedError",
    "ResumeRefusedError",
    "SettleTimeoutError",
    "SteerRefusedError",
    "StoreError",
    "StoreVersionError",
    "TurnActiveError",
    "TurnDeadlockError",
    "TurnFinalizingError",
    "UnknownIdError",
    "WrongLoopError",
)


def told(exc: BaseException) -> str:
    """The exception as ``name: text``. Also when its own text cannot be made: what ends must end all the same."""
    try:
        text = str(exc).strip()
    except Exception:
        text = "(its text cannot be read)"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


class LionnbError(Exception):
    """Base of everything lionnb raises on purpose."""


class IllegalTransitionError(LionnbError, RuntimeError):
    """A state machine was asked for a step that its table does not have; nothing changed."""

    def __init__(self, machine: str, frm: str, to: str) -> None:
        super().__init__(f"{machine}: no step from {frm!r} to {to!r}. This is a bug in lionnb; nothing was changed.")
        self.machine, self.frm, self.to = machine, frm, to


class TurnFinalizingError(LionnbError, RuntimeError):
    """A task inherited this Branch's turn binding after finalization began (ADR-0018 D2)."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(
            f"turn {turn_id[:8]} is finalizing: a call on its Branch from inside it can no longer be part of it. "
            "An observer that wants to call the Branch schedules it with lionnb.after_turn(branch, fn)."
        )
        self.turn_id = turn_id


class TurnActiveError(LionnbError, RuntimeError):
    """Something that must not happen in the middle of a turn was asked for; nothing changed."""

    def __init__(self, what: str, branch: str, turn_id: str) -> None:
        super().__init__(
            f"{what}: {branch} is in turn {turn_id[:8]}. Await it, or cancel its task, and then ask again; "
            "branch.current_turn shows it."
        )
        self.turn_id = turn_id


class TurnDeadlockError(LionnbError, RuntimeError):
    """Entering would close a cycle of turns that wait for each other; raised at that entry only."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(
            "this call would wait for ever: " + " → ".join(cycle) + ". Each of these turns waits for the next one to "
            "end. Call the Branches in one order, or run one of the calls outside the other's turn."
        )
        self.cycle = tuple(cycle)


class WrongLoopError(LionnbError, RuntimeError):
    """The Branch is in a turn on another live event loop."""

    def __init__(self, branch: str, home: str, here: str) -> None:
        super().__init__(
            f"{branch} is in a turn on another event loop ({home}), and this call comes from {here}. A Branch has one "
            "home loop while it is in a turn: send the call there with asyncio.run_coroutine_threadsafe, or wait until "
            "the turn has ended."
        )


class NoRunningLoopError(LionnbError, RuntimeError):
    """Something that lives in an event loop was started without one."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs a running event loop. In a notebook cell just call it; in a script call it inside "
            "`async def main(): ...` and run that with asyncio.run(main())."
        )


class NestingError(LionnbError, RuntimeError):
    """A synchronous call inside a running loop that nobody has made nestable."""


class AdoptionError(LionnbError, TypeError):
    """`wrap` cannot make this Branch turn-aware; the Branch is unchanged."""


class SteerRefusedError(LionnbError, ValueError):
    """A steer was refused at the door: no row was written.

    ``reason`` is a stable word (``blank``, ``type``, ``size``, ``nul``, ``surrogate``, ``ended``, ``unknown``,
    ``verb``, ``kind``, ``dead``, ``silent``, ``key``, ``by``, ``store``).
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class ResolveRefusedError(LionnbError, ValueError):
    """`resolve` or `withdraw` was refused; the row is unchanged."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class ResumeRefusedError(LionnbError, RuntimeError):
    """A run was not resumed; its record is unchanged.

    ``reason`` is a stable word (``unknown``, ``kind``, ``live``, ``silent``, ``by``, ``history``).
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class LegExistsError(LionnbError, RuntimeError):
    """The Branch, or the name, already has a live leg."""

    def __init__(self, what: str, run_id: str, name: str | None, *, resumes: bool = False) -> None:
        advice = (
            "Steer it with leg.steer(…); or await it, or end it with leg.stop() and await it, and resume then."
            if resumes
            else "Await it, stop it with leg.stop(), or say what you want: "
            'start_leg(..., on_existing="attach") returns that leg, "stop" ends it first, "queue" starts after it.'
        )
        super().__init__(f"{what} already has a live leg: {name or 'leg'} ({run_id}). {advice}")
        self.run_id = run_id


class LegFailedError(LionnbError, RuntimeError):
    """A turn of the leg raised; the original exception is ``__cause__``. *meanwhile*: what else may explain it."""

    def __init__(
        self, run_id: str, turn_id: str | None, model: str, cause: BaseException, meanwhile: str | None = None
    ) -> None:
        text = first_line(told(cause))
        super().__init__(
            f"leg {run_id} failed in turn {(turn_id or 'none')[:8]} on {model}: {text}"
            + (f" ({meanwhile})" if meanwhile else "")
            + ". The history is safe: go on with leg.resume(…)."
        )
        self.run_id, self.turn_id, self.model = run_id, turn_id, model

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the end of the original traceback, and the sentence. ``__cause__`` has all of it."""
        cause = self.__cause__ or self
        lines = traceback.format_exception(type(cause), cause, cause.__traceback__, limit=-2, chain=False)
        # IPython's terminals act on what stands here, and a provider's answer stands here too.
        return [*(plain(line.rstrip("\n")) for line in lines), "", f"{type(self).__name__}: {self}"]


class SettleTimeoutError(LionnbError, TimeoutError):
    """`settle` has waited as long as it was told to; nothing was ended. ``left`` says what has not settled."""

    def __init__(self, timeout_s: float, left: Sequence[str]) -> None:
        what = "1 leg has" if len(left) == 1 else f"{len(left)} legs have"
        super().__init__(
            f"after {timeout_s:g} s {what} not settled: {'; '.join(left)}. Nothing was ended: wait longer, or end one "
            "with leg.stop()."
        )
        self.timeout_s, self.left = timeout_s, tuple(left)


class StoreError(LionnbError, RuntimeError):
    """The control database could not do what was asked. Nothing that it acknowledged is lost.

    ``cause`` is the driver's error, for whoever debugs; it is not shown.
    """

    cause: BaseException | None = None


class StoreVersionError(StoreError):
    """The database was written by a newer lionnb, or is not lionnb's."""


class UnknownIdError(LionnbError, LookupError):
    """No session, run, control or branch has this id."""

    def __init__(self, given: str) -> None:
        super().__init__(f"nothing here is called {given!r}: `lionnb legs` lists the runs of this store.")
        self.given = given


class AmbiguousIdError(LionnbError, LookupError):
    """A prefix fits more than one id; none was picked."""

    def __init__(self, given: str, candidates: Sequence[str]) -> None:
        super().__init__(f"{given!r} fits {len(candidates)}: {', '.join(candidates)}. Give more of the id.")
        self.given, self.candidates = given, tuple(candidates)
