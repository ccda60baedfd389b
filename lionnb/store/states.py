"""The states of a control and of a run, and every step between them. No I/O, no asyncio; imports records and errors.

`statements` builds each UPDATE through `step`, so that a statement for a step that the table lacks cannot even be
imported; the tests compare the states with the CHECKs of the database.

```
              withdraw / sweep
  pending ────────────────────────────▶ withdrawn | rejected
   │    ▲
   │    └── give back (the holder knows that the Branch was never called)
   ▼ claim = hand-over
  delivering ──(holder of the claim)──▶ applied
      └───────(a person, by name)─────▶ resolved
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lionnb.errors import IllegalTransitionError
from lionnb.records import ControlState, RunStatus

__all__ = ("OPEN", "RUN_TRANSITIONS", "TERMINAL_RUN", "TRANSITIONS", "UNCLAIMED", "run_step", "step")

TRANSITIONS: Final[Mapping[ControlState, frozenset[ControlState]]] = {
    ControlState.PENDING: frozenset({ControlState.DELIVERING, ControlState.WITHDRAWN, ControlState.REJECTED}),
    ControlState.DELIVERING: frozenset({ControlState.PENDING, ControlState.APPLIED, ControlState.RESOLVED}),
    ControlState.APPLIED: frozenset(),
    ControlState.RESOLVED: frozenset(),
    ControlState.REJECTED: frozenset(),
    ControlState.WITHDRAWN: frozenset(),
}

OPEN: Final = frozenset(state for state, steps in TRANSITIONS.items() if steps)
"""States that can still change; the database keeps ``closed_at`` empty for exactly these."""

UNCLAIMED: Final = frozenset({ControlState.PENDING, ControlState.REJECTED, ControlState.WITHDRAWN})
"""States of a row that nobody holds; the database keeps ``handed_over_at`` empty for exactly these."""

TERMINAL_RUN: Final = frozenset(RunStatus) - {RunStatus.RUNNING}

RUN_TRANSITIONS: Final[Mapping[RunStatus, frozenset[RunStatus]]] = {
    # running to running is a takeover: a new leg token takes the run from a leg that is proven dead
    RunStatus.RUNNING: TERMINAL_RUN | {RunStatus.RUNNING},
    # a terminal run can be resumed: the same row, a new leg token
    **{status: frozenset({RunStatus.RUNNING}) for status in sorted(TERMINAL_RUN)},
}


def step(frm: ControlState, to: ControlState) -> ControlState:
    """Return *to* when the table has this step.

    Raises:
        IllegalTransitionError: It has not. Nothing was changed.
    """
    if to not in TRANSITIONS[frm]:
        raise IllegalTransitionError("control", frm.value, to.value)
    return to


def run_step(frm: RunStatus, to: RunStatus) -> RunStatus:
    """Return *to* when a run may go there from *frm*.

    Raises:
        IllegalTransitionError: It may not. Nothing was changed.
    """
    if to not in RUN_TRANSITIONS[frm]:
        raise IllegalTransitionError("run", frm.value, to.value)
    return to
