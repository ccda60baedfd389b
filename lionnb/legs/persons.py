"""What only a person does to a control: resolve a claim that never reported back, withdraw what nobody took yet.

`resolve` records a finding about a delivery that the system cannot determine; a program that called it would not
report that finding, it would make it up. So the name is required, no tool and no machine surface offers it, and inside
a turn's lineage (a tool, a provider, an observer) it is refused.

Source: ADR-0108, "Why the verb is not on the MCP surface".
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from lionnb.errors import ResolveRefusedError, StoreError
from lionnb.legs.receipt import Receipt
from lionnb.legs.registry import legs
from lionnb.records import ControlRecord
from lionnb.store.store import Store, default_store
from lionnb.turns import context as ctxs

if TYPE_CHECKING:
    from lionnb.store.core import StoreCore

__all__ = ("resolve", "withdraw")

ANSWER_WITHIN_S = 30.0


def _outside_of_turns(act: str) -> None:
    if any(b.turn.scope is not None and not b.exported for b in ctxs.chain()):
        raise ResolveRefusedError(
            "turn", f"{act} is a person's act, and this call comes from inside a turn: surface the question instead."
        )


def _ask(store: Store | None, work: Callable[[StoreCore], Coroutine[Any, Any, ControlRecord]]) -> ControlRecord:
    try:
        return (store or default_store()).submit(work).result(ANSWER_WITHIN_S)
    except concurrent.futures.TimeoutError:
        raise StoreError(
            "the control database did not answer: whether it was written is unknown. Read the control again."
        ) from None


def resolve(
    control_id: str,
    outcome: Literal["applied", "abandoned"],
    *,
    by: str,
    claim: str | None = None,
    store: Store | None = None,
) -> ControlRecord:
    """Record what a person found out about a steer that was handed over and never reported back.

    Claim and hand-over stay on the row, verbatim. If its leg comes back after all, it adds a late report and overwrites
    nothing. Blocks until the database has answered; from any thread.

    Args:
        control_id: The control, in full.
        outcome: What you found in the transcript: ``applied`` or ``abandoned``.
        by: Your name.
        claim: The claim that you saw on it, as ``frames.controls`` has it in ``claim``. Each hand-over has one of its
            own, so a steer that was given back and handed over anew since you looked is not closed by what you found
            out about the first. Without it your finding is about whatever hand-over stands when this call reads it.
        store: Where the control is; this process's default store.

    Returns:
        The row as written.

    Raises:
        ResolveRefusedError: No name, an unknown control, one that is not claimed or not under this claim any more
            (reason ``anew``), or a call from inside a turn.
        StoreError: The database failed.

    Source: ADR-0108.
    """
    _outside_of_turns("resolving a control")
    return _ask(store, lambda core: core.resolve(control_id, outcome, by, time.time(), claim=claim))


def withdraw(control_id: str | Receipt, *, by: str, store: Store | None = None) -> ControlRecord:
    """Take a steer back that nobody has taken over yet: it will not be delivered. Blocks; from any thread.

    Args:
        control_id: The control: its id in full, or its receipt.
        by: Your name.
        store: Where the control is; this process's default store.

    Raises:
        ResolveRefusedError: No name, an unknown control, one that was handed over or closed, or a call from inside a
            turn.
        StoreError: The database failed.
    """
    _outside_of_turns("withdrawing a control")
    cid = control_id.control_id if isinstance(control_id, Receipt) else control_id
    for receipt in (receipt for leg in legs() for receipt in leg.receipts if receipt.control_id == cid):
        receipt.wait_for_answer(ANSWER_WITHIN_S)  # sent in the line before, on a slow disk: its row comes first
    return _ask(store, lambda core: core.withdraw(cid, by, time.time()))
