"""The reading front: a Branch, a leg, a store or a run id in, a DataFrame out.

Plain functions, usable in any cell: what they need from the store is answered by the control thread, which never waits
for the main loop. They only read. Without an argument they show *this kernel's* runs, so that running a notebook again
gives the same tables.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from lionnb import recorder
from lionnb.branch import Branch
from lionnb.columns import ControlRow, LegRow, controls_frame, legs_frame, turns_frame
from lionnb.errors import AmbiguousIdError, StoreError, UnknownIdError
from lionnb.legs import Leg
from lionnb.legs import legs as kernel_legs
from lionnb.records import SessionRecord, TurnRecord, fate_of
from lionnb.store.lease import RunView, claim_is_dead
from lionnb.store.store import Store, default_store

if TYPE_CHECKING:
    import pandas as pd

    from lionnb.store.core import StoreCore

__all__ = ("controls", "legs", "turns")

T = TypeVar("T")
ANSWER_WITHIN_S = 30.0


def _ask(store: Store, work: Callable[[StoreCore], Coroutine[Any, Any, T]]) -> T:
    try:
        return store.submit(work).result(ANSWER_WITHIN_S)
    except concurrent.futures.TimeoutError:
        raise StoreError(
            f"the control database did not answer for {ANSWER_WITHIN_S:.0f} s: another program may hold it. Try again."
        ) from None


def _sessions(source: Branch | Leg | Store | str | None) -> list[tuple[Store, SessionRecord]]:
    """The runs that *source* means, each with the store it is in."""
    if isinstance(source, Leg):
        wanted = [(source.store, [source.session_id])]
    elif isinstance(source, Store):
        return [(source, s) for s in _ask(source, lambda core: core.list_sessions())]
    elif isinstance(source, str):
        store = default_store()
        found = [s for s in _ask(store, lambda core: core.list_sessions()) if source in (s.run_id, s.id)]
        if not found:
            found = [_ask(store, lambda core: core.find(source, acts=False)).session]
        return [(store, s) for s in found]
    elif isinstance(source, Branch):
        wanted = [(leg.store, [leg.session_id]) for leg in kernel_legs() if leg.branch is source]
    elif source is None:
        wanted = [(leg.store, [leg.session_id]) for leg in kernel_legs()]
    else:
        what = type(source).__name__
        raise TypeError(f"a table is made of a Branch, a leg, an id, a store, or nothing; not of {what}.")
    # A run that was resumed has had several legs here, and is one run.
    return [
        (store, s)
        for store, ids in {(store, *ids): (store, ids) for store, ids in wanted}.values()
        for s in _ask(store, lambda core, ids=ids: core.list_sessions(ids))  # type: ignore[misc]
    ]


def _views(source: Branch | Leg | Store | str | None) -> list[tuple[Store, SessionRecord, RunView]]:
    """The runs that *source* means, each with what is true of it now."""
    seen: list[tuple[Store, SessionRecord, RunView]] = []
    for store, found in itertools.groupby(_sessions(source), key=lambda pair: pair[0]):
        some = [session for _, session in found]
        views = _ask(store, lambda core, some=some: core.views(some, time.time()))  # type: ignore[misc]
        seen += [(store, session, view) for session, view in zip(some, views, strict=True)]
    return seen


def controls(source: Branch | Leg | Store | str | None = None) -> pd.DataFrame:
    """What became of every control: one row each, in the order in which they were queued.

    Args:
        source: A leg, a Branch (this kernel's legs on it), an id of a run, control or Branch (its beginning will do), a
            store (all its runs: `lionnb.default_store()`), or ``None`` (this kernel's legs).

    Raises:
        StoreError: The store could not be read.
        UnknownIdError: Nothing has this id.
        AmbiguousIdError: Several have.
        TypeError: Something else was given.
    """
    rows: list[ControlRow] = []
    for store, session, view in _views(source):
        for control in _ask(store, lambda core, sid=session.id: core.list_controls(sid)):  # type: ignore[misc]
            dead = claim_is_dead(control, session, view.verdict)
            fate = fate_of(control, run_ended=session.terminal, leg_dead=dead)
            rows.append(ControlRow(control, fate, session.run_id))
    return controls_frame(rows)


def turns(source: Branch | Leg | Store | str | None = None) -> pd.DataFrame:
    """The turns: one row each, and one for each wait that never became a turn.

    Args:
        source: A Branch (its log, as long as it is kept), a leg, an id of a run or Branch (its beginning will do; from
            the store, where every turn that ended is kept), a store (all turns in it: `lionnb.default_store()`), or
            ``None`` (this kernel's legs).

    Raises:
        StoreError: The store could not be read.
        UnknownIdError: No run and no Branch has this id.
        AmbiguousIdError: Several have.
        TypeError: Something else was given.
    """
    if isinstance(source, Branch):
        return turns_frame(source.turns.records())
    if isinstance(source, Leg):
        return turns_frame([t for t in source.branch.turns.records() if t.session_id == source.session_id])
    recorder.flush()
    if isinstance(source, Store):
        return turns_frame(_ask(source, lambda core: core.list_turns()))
    if isinstance(source, str):
        return turns_frame(_turns_of_id(default_store(), source))
    return turns_frame(
        [
            t
            for store, session in _sessions(source)
            for t in _ask(store, lambda core, sid=session.id: core.list_turns(sid))  # type: ignore[misc]
        ]
    )


def _turns_of_id(store: Store, given: str) -> list[TurnRecord]:
    """The turns of a run, or of a Branch with all that it did, whether a leg ran on it or none."""
    try:
        target = _ask(store, lambda core: core.find(given, acts=False))
    except UnknownIdError:
        branches = _ask(store, lambda core: core.branches_of_turns(given))
        if not branches:
            raise
        if len(branches) > 1 and given != branches[0]:
            raise AmbiguousIdError(given, [f"branch {one}" for one in branches]) from None
        return _ask(store, lambda core: core.list_turns(branch_id=branches[0]))
    if target.space.value == "branch":
        return _ask(store, lambda core: core.list_turns(branch_id=target.id))
    return _ask(store, lambda core: core.list_turns(target.session.id))


def legs(source: Branch | Leg | Store | str | None = None) -> pd.DataFrame:
    """The runs: one row each. Arguments as `controls`.

    A run whose process is proven gone reads *lost*, recorded or not; ``leg`` says what is known of a running one.
    ``duration_s`` is from its first start to its last end: of a run that was resumed, the time between its legs counts.
    ``starved_s`` sums its turns', and, for a leg that lives in this kernel, what came after the last of them.
    """
    found = _views(source)
    stood: dict[str, float | None] = {}
    for store, some in itertools.groupby(found, key=lambda each: each[0]):
        ids = [session.id for _, session, _ in some]
        stood |= _ask(store, lambda core, ids=ids: core.starved(ids))  # type: ignore[misc]
    for leg in kernel_legs():
        if leg.live:
            stood[leg.session_id] = (stood.get(leg.session_id) or 0.0) + leg.lag.current_s
    return legs_frame([LegRow(session, view.status, view.verdict, stood.get(session.id)) for _, session, view in found])
