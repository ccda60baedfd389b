"""`Receipt`: what a steer's sender holds. Says at any moment what is true, and can be awaited until it is settled.

Written by the control thread (from the store's change notices), read by anybody: its few fields are replaced whole
under a lock. A row that was seen is the truth; without one there is a refusal, or nothing yet.

Source: ADR-0108, "Receipt visibility".
"""

from __future__ import annotations

import concurrent.futures
import html
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from lionnb.fates import LANDS, sentence_of
from lionnb.legs.ledger import wait_for
from lionnb.records import Chip, ControlRecord, ControlState, Fate, chip_of, fate_of

__all__ = ("LANDS", "Outlook", "Receipt", "sentence_of")

_SETTLED = frozenset({ControlState.APPLIED, ControlState.RESOLVED, ControlState.REJECTED, ControlState.WITHDRAWN})


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a leg says of a steer that is still queued: when it lands, and what is left of the budget."""

    when: str = LANDS
    left: str = ""  # "3:10 of 10:00 left"; empty without a timeout


class Receipt:
    """The receipt of one steer. Thread-safe.

    ``await receipt`` returns it once its fate is final (also from another loop; cancelling the wait changes nothing).
    """

    def __init__(self, text: str, control_id: str, key: str | None) -> None:
        self.text, self.control_id, self.key = text, control_id, key
        self._lock = threading.Lock()
        self._record: ControlRecord | None = None
        self._refusal: tuple[str, str] | None = None
        self._before = 0
        self._run_ended = False
        self._waits: str | None = None
        self._again: Receipt | None = None  # of the row that sends this one again
        self._outlook: Callable[[], Outlook] = Outlook
        self._recorded: concurrent.futures.Future[bool] = concurrent.futures.Future()  # False: refused
        self._settled: concurrent.futures.Future[None] = concurrent.futures.Future()

    # ------------------------------------------------------------------ reading
    @property
    def record(self) -> ControlRecord | None:
        """The row as last seen; ``None`` until it is written, and when it was refused."""
        return self._record

    @property
    def fate(self) -> Fate | None:
        """The fate now; ``None`` while the row is still being written."""
        with self._lock:
            if self._record is None:
                return None if self._refusal is None else Fate.REFUSED
            return fate_of(self._record, run_ended=self._run_ended, leg_dead=False)

    @property
    def before(self) -> int:
        """How many steers of the run stand before it."""
        return self._before

    @property
    def refusal(self) -> tuple[str, str] | None:
        """Why there is no row, as (word, sentence); ``None`` when it was not refused."""
        with self._lock:
            return self._refusal if self._record is None else None

    @property
    def chip(self) -> Chip | None:
        """The chip for it; ``None`` while the row is still being written."""
        fate = self.fate
        return None if fate is None else chip_of(fate, self._record)

    @property
    def settled(self) -> bool:
        """Whether the fate is final."""
        return self._settled.done()

    @property
    def sentence(self) -> str:
        """What is true now, and what will happen when, with what is left of the leg's time."""
        return self._said(with_clock=True)

    @property
    def lasting_sentence(self) -> str:
        """The same without the clock, for what is written once and read later: a view has a budget bar that moves."""
        return self._said(with_clock=False)

    def _said(self, *, with_clock: bool) -> str:
        fate, record, refusal = self.fate, self._record, self.refusal
        if refusal is not None:
            return f"refused: {refusal[1]}"
        if fate is None or record is None:
            return self._waits or "being recorded"
        if (again := self._again) is not None and fate in (Fate.REJECTED, Fate.NEVER_LANDED):
            now = again.sentence if with_clock else again.lasting_sentence
            return f"not delivered by the leg that ended; sent again as control {again.control_id[:8]}: {now}"
        if fate is not Fate.PENDING:
            return sentence_of(record, fate, now=time.time())
        outlook = self._outlook()  # it may notice that its leg is over
        if self.fate is not fate:
            return self._said(with_clock=with_clock)
        ahead = f"{self._before} before it" if self._before else ""
        parts = (outlook.when, ahead, outlook.left if with_clock else "")
        return "queued: " + "; ".join(part for part in parts if part)

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self._wait().__await__()

    async def _wait(self) -> Receipt:
        await wait_for(self._settled)
        return self

    def __repr__(self) -> str:
        return f"<steer {self.control_id[:8]}: {self.sentence}>"

    def _repr_html_(self) -> str:
        chip, word = self.chip, "recording" if self._waits is None else "planned"
        return f"<div><b>{html.escape(word if chip is None else chip.value)}</b> {html.escape(self.sentence)}</div>"

    # ------------------------------------------------------------------ writing (the leg and the control thread)
    def expects(self, outlook: Callable[[], Outlook]) -> None:
        """How it asks its leg what will happen while it is queued. From any thread."""
        self._outlook = outlook

    def waits(self, sentence: str | None) -> None:
        """It is not even sent yet, and *sentence* says what for; ``None``: it is sent now."""
        self._waits = sentence

    def admitted(self, record: ControlRecord, before: int) -> None:
        """The row is written. An older copy than the one that is known changes nothing."""
        with self._lock:
            self._before = before
            newest = self._record or record  # the change notice may have been faster
        self.update(newest)

    def moved_up(self, seq: int) -> None:
        """The steer numbered *seq* of the same run has closed."""
        with self._lock:
            if self._record is not None and seq < self._record.seq and self._before:
                self._before -= 1

    def update(self, record: ControlRecord) -> None:
        """The row has changed."""
        with self._lock:
            self._record = record
            final = self._run_ended or record.state in _SETTLED
        self._resolve(self._recorded, True)
        if final:
            self._resolve(self._settled, None)

    def refuse(self, reason: str, sentence: str) -> None:
        """There is no row, as far as anybody knows; one that is seen later counts all the same."""
        with self._lock:
            self._refusal = (reason, sentence)
        self._resolve(self._recorded, False)
        self._resolve(self._settled, None)

    def run_ended(self) -> None:
        """The run is over: whatever the row says now is its fate, computed at read time.

        A steer that is still being recorded stays open until the store has answered: refused, or a row.
        """
        with self._lock:
            self._run_ended = True
            known = self._record is not None
        if known:
            self._resolve(self._settled, None)

    def reopened(self, outlook: Callable[[], Outlook]) -> None:
        """The run goes on under a new leg: what nobody had taken is queued again, and can be awaited again."""
        with self._lock:
            if self._record is None or self._record.state is not ControlState.PENDING:
                return
            self._run_ended, self._outlook = False, outlook
            self._settled = concurrent.futures.Future()

    def sent_again(self, again: Receipt) -> None:
        """The row of *again* sends the same words once more. From any thread."""
        self._again = again

    @property
    def again(self) -> Receipt | None:
        """The receipt of the steer that sends this one again, as far as this process knows; it may have one too."""
        return self._again

    def when_recorded(self, fn: Callable[[], None]) -> None:
        """Call *fn* once the row is there (at once, if it is), on whatever thread that is known; never if refused."""
        self._recorded.add_done_callback(lambda done: fn() if done.result() else None)

    def when_answered(self, fn: Callable[[], None]) -> None:
        """Call *fn* once the store has answered, with a row or a refusal; at once, if it has. On whatever thread."""
        self._recorded.add_done_callback(lambda _: fn())

    def wait_for_answer(self, timeout_s: float) -> None:
        """Block until the store has answered; one that is not sent yet is not waited for. Not on the control thread."""
        if self._waits is None:
            concurrent.futures.wait((self._recorded,), timeout=timeout_s)

    def _resolve(self, future: concurrent.futures.Future[Any], value: Any) -> None:
        with self._lock:  # main loop and control thread may both be the first
            first = future.set_running_or_notify_cancel() if not future.running() and not future.done() else False
        if first:
            future.set_result(value)  # outside of the lock: it runs callbacks
