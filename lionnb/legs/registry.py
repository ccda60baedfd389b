"""`start_leg`, and the legs that are live in this process.

Re-running a cell must never pay twice: a Branch with a live leg refuses a second one, and so does a live leg of the same
name, for re-running the cell that builds the Branch makes a new Branch.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Literal

from lionnb.branch import Branch, wrap
from lionnb.errors import LegExistsError, NoRunningLoopError
from lionnb.legs.budget import Budget, seconds_limit
from lionnb.legs.leg import HEARTBEAT_S, Leg, who
from lionnb.legs.turn import OPERATIONS
from lionnb.store.store import Store, default_store

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("OnExisting", "legs", "start_leg")

OnExisting = Literal["refuse", "attach", "stop", "queue"]

_started: list[Leg] = []  # this process's, oldest first; ended ones are dropped beyond the last hundred
_KEEP_ENDED = 100


def legs() -> tuple[Leg, ...]:
    """The legs of this kernel, oldest first: live ones, and the last hundred that ended."""
    return tuple(_started)


def start_leg(
    branch: Branch,
    instruction: Any,
    *,
    op: str = "operate",
    name: str | None = None,
    timeout_s: float | None = None,
    max_turns: int | None = None,
    max_tokens: int | None = None,
    on_existing: OnExisting = "refuse",
    store: Store | None = None,
    by: str | None = None,
    heartbeat_s: float | None = HEARTBEAT_S,
    **arguments: Any,
) -> Leg:
    """Start a background run on *branch* and return at once.

    The leg runs in the current event loop, under the same driver as foreground calls: its turns queue with theirs. When
    a turn ends, the steers that are pending go into one continuation turn; with none pending the leg ends.

    Args:
        branch: A Branch; a stock lionagi one is made turn-aware in place.
        instruction: What the first turn is asked.
        op: ``operate``, ``communicate``, ``ReAct`` or ``run``.
        name: A name to find it by.
        timeout_s: Seconds for the whole leg, continuations included; ``None`` is no limit.
        max_turns: It ends after so many turns.
        max_tokens: It ends between turns once so many tokens were used.
        on_existing: What to do when the Branch, or a live leg of this kernel with this name, is there already:
            ``refuse``; ``attach`` (return that leg); ``stop`` (end it first); ``queue`` (start after it).
        store: Where it is recorded; the default store of this process.
        by: Who starts it; the hub's user or the account.
        heartbeat_s: Seconds between its heartbeats; ``None`` switches them off.
        **arguments: The operation's own, passed to every turn of the leg.

    Raises:
        NoRunningLoopError: There is no running event loop.
        LegExistsError: There is a live leg already.
        ValueError: Unknown ``op`` or ``on_existing``, or a limit that is none.
        TypeError: An argument that the operation does not take.
        AdoptionError: The Branch cannot be made turn-aware.

    Source: ADR-0108; DESIGN section 7.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NoRunningLoopError("start_leg()") from None
    branch = wrap(branch)
    _check(branch, instruction, op, on_existing, arguments)
    budget = Budget(timeout_s, max_turns, max_tokens)
    beat = seconds_limit("heartbeat_s", heartbeat_s)
    existing, what = _existing(branch, name)
    if existing is not None:
        if on_existing == "refuse":
            raise LegExistsError(what, existing.run_id, existing.name)
        if on_existing == "attach":
            return existing
        if on_existing == "stop":
            existing.stop()
    leg = Leg(
        branch,
        instruction,
        op=op,
        arguments=arguments,
        name=name,
        budget=budget,
        store=store if store is not None else default_store(),
        by=by or who(),
        heartbeat_s=beat,
        after=existing,
    )
    _remember(leg)
    return leg


def _check(branch: Branch, instruction: Any, op: str, on_existing: str, arguments: dict[str, Any]) -> None:
    if op not in OPERATIONS:
        raise ValueError(f"op={op!r}: a leg runs {', '.join(OPERATIONS)}.")
    if on_existing not in ("refuse", "attach", "stop", "queue"):
        raise ValueError(f'on_existing={on_existing!r}: say "refuse", "attach", "stop" or "queue".')
    if instruction is None or (isinstance(instruction, str) and not instruction.strip()):
        raise ValueError("a leg needs an instruction: what should its first turn do?")
    if "instruction" in arguments:
        raise TypeError("the instruction is start_leg's second argument; every continuation has its own.")
    method: Callable[..., Any] = getattr(branch, op)
    inspect.signature(method).bind_partial(**arguments)  # a misspelt argument fails here, not in the background


def _existing(branch: Branch, name: str | None) -> tuple[Leg | None, str]:
    for leg in _started:
        if leg.live and leg.branch is branch:
            return leg, "this Branch"
    for leg in _started:
        if leg.live and name is not None and leg.name == name:
            return leg, f"the name {name!r}"
    return None, ""


def _remember(leg: Leg) -> None:
    _started.append(leg)
    ended = [x for x in _started if not x.live]
    for old in ended[: max(0, len(ended) - _KEEP_ENDED)]:
        _started.remove(old)


@atexit.register
def _end_all() -> None:
    """A kernel that shuts down cancels no task and runs no ``finally``; atexit it does run, with 2.5 s (measured).

    The loop is stopped but not closed, and may hold one more stop request, so the first try can end at once.
    """
    live = [leg for leg in _started if leg.live]
    for leg in live:
        for _ in range(3):
            if leg.live and not leg.loop.is_closed() and not leg.loop.is_running():
                leg.task.cancel()
                with contextlib.suppress(RuntimeError, asyncio.CancelledError):
                    leg.loop.run_until_complete(asyncio.wait((leg.task,), timeout=0.7))
