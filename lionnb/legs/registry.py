"""`start_leg`, and the legs that are live in this process.

Re-running a cell must never pay twice: a Branch with a live leg refuses a second one, and so does a live leg of the
same name, for re-running the cell that builds the Branch makes a new Branch.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from lionnb import keepalive
from lionnb.branch import Branch, wrap
from lionnb.errors import LegExistsError, NoRunningLoopError
from lionnb.kernel import in_kernel
from lionnb.legs.arguments import check_arguments
from lionnb.legs.budget import Budget, seconds_limit
from lionnb.legs.leg import HEARTBEAT_S, Leg
from lionnb.legs.shutdown import end_legs, say_unfinished
from lionnb.legs.turn import prompt
from lionnb.store.door import sender
from lionnb.store.store import Store, default_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ("OnExisting", "check_flag", "check_resume_on_timeout", "enter", "legs", "refuse_second", "start_leg")

log = logging.getLogger(__name__)

OnExisting = Literal["refuse", "attach", "stop", "queue"]

_started: list[Leg] = []  # this process's, oldest first; ended ones are dropped beyond the last hundred
_started_lock = threading.RLock()
_KEEP_ENDED = 100

if hasattr(os, "register_at_fork"):
    # A child has no legs: their loop runs in the parent, and to touch its copy would disturb the parent's selector.
    os.register_at_fork(after_in_child=_started.clear)


def legs() -> tuple[Leg, ...]:
    """The legs of this kernel, oldest first: live ones, and the last hundred that ended."""
    with _started_lock:
        found = tuple(_started)
    _bury_the_lost(found)
    return found


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
    resume_on_timeout: bool = False,
    snapshot: bool = True,
    **arguments: Any,
) -> Leg:
    """Start a background run on *branch* and return at once.

    The leg runs in the current event loop, under the same driver as foreground calls: its turns queue with theirs. When
    a turn ends, the steers that are pending go into one continuation turn; with none pending the leg ends. Started
    inside of a turn (by a tool, say), it is no part of that turn.

    Args:
        branch: A Branch; a stock lionagi one is made turn-aware in place.
        instruction: What the first turn is asked.
        op: ``operate``, ``communicate``, ``ReAct`` or ``run``.
        name: A name to show, in views, tables and lists; and no two live legs of this kernel have the same one (see
            *on_existing*). It is no id: `lionnb.resume`, the tables and the terminal take the run's.
        timeout_s: Seconds for the whole leg, continuations included; ``None`` is no limit.
        max_turns: It ends after so many turns.
        max_tokens: It ends between turns once so many tokens were used.
        on_existing: What to do when live legs of this kernel have this Branch or this name already: ``refuse``;
            ``attach`` (return that leg as it was started: the Branch, instruction and limits given here are not used,
            and one warning says so where Branch or instruction differ); ``stop`` (end them first); ``queue`` (start
            after them).
        store: Where it is recorded; the default store of this process.
        by: Who starts it; the hub's user or the account.
        heartbeat_s: Seconds between its heartbeats; ``None`` switches them off.
        resume_on_timeout: At its deadline the leg goes on, once, with a budget of the same size, and nothing that is
            pending is rejected.
        snapshot: The store keeps the Branch's history as it was at the end of the last turn, so that `lionnb.resume`
            can go on in a later kernel.
        **arguments: The operation's own, passed to every turn of the leg (``clear_messages`` to the first only).

    Raises:
        NoRunningLoopError: There is no running event loop.
        LegExistsError: There is a live leg already.
        ValueError: Unknown ``op`` or ``on_existing``, a limit that is none, or ``op="run"`` on a model that cannot.
        TypeError: An argument of the wrong type, one that the leg gives itself, or one whose name is nearly that of an
            argument that the operation knows. Any other unknown one goes to the provider, as lionagi does it.
        AdoptionError: The Branch cannot be made turn-aware.
        StoreError: ``LIONNB_DB`` names no database, or a place where no file can be. Whether what is there can be
            opened is known later: the leg runs all the same, and says what it cannot record.

    Source: ADR-0108.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NoRunningLoopError("start_leg()") from None
    if on_existing not in ("refuse", "attach", "stop", "queue"):
        raise ValueError(f'on_existing={on_existing!r}: say "refuse", "attach", "stop" or "queue".')
    budget = Budget(timeout_s, max_turns, max_tokens)
    check_resume_on_timeout(resume_on_timeout, budget)
    beat = seconds_limit("heartbeat_s", heartbeat_s)
    check_flag("snapshot", snapshot)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name is a text or None, not {type(name).__name__}.")
    by = sender(by)
    if store is not None and not isinstance(store, Store):
        raise TypeError(f"store is a lionnb.store.Store or None (this process's), not {type(store).__name__}.")
    branch = wrap(branch)
    check_arguments(branch, instruction, op, arguments)
    store = store if store is not None else default_store()

    def make(after: tuple[Leg, ...]) -> Leg:
        return Leg(
            branch,
            instruction,
            op=op,
            arguments=arguments,
            name=name,
            budget=budget,
            store=store,
            by=by,
            heartbeat_s=beat,
            after=after,
            resume_on_timeout=resume_on_timeout,
            snapshot=snapshot,
        )

    leg, existing = enter(branch, name, make, on_existing)
    if existing and on_existing == "attach":
        _say_what_attaching_ignores(leg, branch, instruction)
    if on_existing == "stop":
        for old in existing:
            old.stop()
    return leg


def _say_what_attaching_ignores(leg: Leg, branch: Branch, instruction: Any) -> None:
    """In one warning: who attaches gets a leg that was started otherwise, and would wait for what nobody does."""
    differs = ["the Branch"] if leg.branch is not branch else []
    differs += ["the instruction"] if prompt(leg.instruction) != prompt(instruction) else []
    if differs:
        log.warning(
            "attached to leg %s as it was started: %s given here differs from its own and is not used.",
            leg.run_id, " and ".join(differs),
        )  # fmt: skip


def enter(
    branch: Branch,
    name: str | None,
    make: Callable[[tuple[Leg, ...]], Leg],
    on_existing: OnExisting = "refuse",
    *,
    resumes: bool = False,
) -> tuple[Leg, tuple[Leg, ...]]:
    """Make a leg and enter it among those of this kernel, or attach; also gives the legs that stood in the way.

    Raises:
        LegExistsError: ``refuse``, and there is a live leg already.
    """
    with _started_lock:  # looked up and entered in one: two threads start no two legs on one Branch
        if on_existing == "refuse":
            refuse_second(branch, name, resumes=resumes)
        existing = _existing(branch, name)
        if existing and on_existing == "attach":
            return existing[0], existing
        leg = make(existing)
        _remember(leg)
    return leg, existing


def refuse_second(branch: Branch, name: str | None, *, resumes: bool = False) -> None:
    """Raise `LegExistsError` if a live leg has this Branch, or this name, now."""
    with _started_lock:
        if existing := _existing(branch, name):
            what = "this Branch" if existing[0].branch is branch else f"the name {name!r}"
            raise LegExistsError(what, existing[0].run_id, existing[0].name, resumes=resumes)


def check_flag(name: str, wanted: object) -> None:
    """Raise unless *wanted* is ``True`` or ``False``: a text that says no is true in Python."""
    if not isinstance(wanted, bool):
        raise TypeError(f"{name} is True or False, not {type(wanted).__name__}.")


def check_resume_on_timeout(wanted: object, budget: Budget) -> None:
    """Raise unless *wanted* is a flag that means something under *budget*."""
    check_flag("resume_on_timeout", wanted)
    if wanted and budget.timeout_s is None:
        raise ValueError("resume_on_timeout=True needs a timeout_s: without one there is no deadline to go on at.")


def _existing(branch: Branch, name: str | None) -> tuple[Leg, ...]:
    """Live legs that stand in the way; those of the Branch first, each kind oldest first."""
    _bury_the_lost(_started)
    live = [leg for leg in _started if leg.live]
    of_branch = [leg for leg in live if leg.branch is branch]
    of_name = [leg for leg in live if name is not None and leg.name == name and leg.branch is not branch]
    return (*of_branch, *of_name)


def _bury_the_lost(found: Iterable[Leg]) -> None:
    """End what was lost with its event loop: nobody else is left who could."""
    for leg in found:
        if leg.loop.is_closed():
            leg.bury()


def _remember(leg: Leg) -> None:
    _started.append(leg)
    leg.when_ended(_forget_the_oldest)
    if in_kernel() and (every_s := keepalive.interval_s()) is not None:
        leg.when_ended(leg.store.beside(lambda: keepalive.tell(every_s)))


def _forget_the_oldest() -> None:
    with _started_lock:
        ended = [x for x in _started if not x.live]
        for old in ended[: max(0, len(ended) - _KEEP_ENDED)]:
            _started.remove(old)


@atexit.register
def _end_all() -> None:
    """A kernel that shuts down cancels no task and runs no ``finally``; atexit it does run, with 2.5 s (measured)."""
    live = [leg for leg in _started if not leg.over]
    end_legs(tuple(_started))
    say_unfinished(live)
