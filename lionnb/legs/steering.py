"""The sending end of a leg's queue: admission from any thread, the receipts, and what the feed says of each steer.

Threads: `steer` may run anywhere, `_admit` and `changed` on the control thread, the rest in the leg's loop. The book of
receipts is guarded by a lock; a receipt guards itself.

Source: ADR-0108, "Receipt visibility".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from lionnb.errors import LionnbError, SteerRefusedError
from lionnb.feed import Feed
from lionnb.legs.ledger import Ledger, hand_over, problem_of
from lionnb.legs.receipt import Outlook, Receipt, sentence_of
from lionnb.records import ControlRecord, ControlState, chip_of, fate_of
from lionnb.store.door import normalise
from lionnb.store.lease import leg_of
from lionnb.turns.context import chain

__all__ = ("RECORDED_WITHIN_S", "Steering")

log = logging.getLogger(__name__)

RECORDED_WITHIN_S = 0.25  # how long `steer` waits for its row; longer, the receipt says "being recorded"
_OPEN = frozenset({ControlState.PENDING, ControlState.DELIVERING})


def _inside_turn() -> str | None:
    """The turn in whose lineage this code runs; a row made there is no person's, and is marked."""
    for binding in reversed(chain()):
        if binding.turn.scope is not None and not binding.exported:
            return str(binding.turn.row.turn_id)
    return None


class _Book:
    """Receipts by control id. One steer may have several: a repeated key is the same steer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[str, list[Receipt]] = {}

    def add(self, receipt: Receipt) -> None:
        with self._lock:
            self._by_id.setdefault(receipt.control_id, []).append(receipt)

    def drop(self, receipt: Receipt) -> None:
        with self._lock:
            left = [r for r in self._by_id.pop(receipt.control_id, ()) if r is not receipt]
            if left:
                self._by_id[receipt.control_id] = left

    def of(self, control_id: str) -> tuple[Receipt, ...]:
        with self._lock:
            return tuple(self._by_id.get(control_id, ()))

    def every(self) -> tuple[Receipt, ...]:
        with self._lock:
            return tuple(r for found in self._by_id.values() for r in found)

    def firsts(self) -> tuple[Receipt, ...]:
        with self._lock:
            return tuple(found[0] for found in self._by_id.values())


class Steering:
    """See the module.

    Args:
        ledger: The leg's line to the store.
        session_id: The run.
        feed: Where it is told.
        loop: The leg's.
        outlook: What the leg says of a queued steer; called from any thread.
        turn_id: The running turn, for the feed.
        leg: The leg's token; from another one's claims no report is to be expected.
    """

    def __init__(
        self,
        ledger: Ledger,
        session_id: str,
        feed: Feed,
        loop: asyncio.AbstractEventLoop,
        outlook: Callable[[], Outlook],
        turn_id: Callable[[], str | None],
        leg: str,
    ) -> None:
        self._leg = leg
        self._ledger, self._session_id, self._feed, self._loop = ledger, session_id, feed, loop
        self._outlook, self._turn_id = outlook, turn_id
        self._book = _Book()
        self._open: dict[str, ControlRecord] = {}  # rows of the run, anybody's, that can still change
        self._ended = False
        self._asked: concurrent.futures.Future[int] | None = None
        self._late: concurrent.futures.Future[None] | None = None  # an admission that took longer than we wait

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """One for each steer sent through this object, in order."""
        return self._book.firsts()

    @property
    def queued(self) -> int:
        """How many steers are known to be pending, anybody's."""
        return sum(record.state is ControlState.PENDING for record in list(self._open.values()))

    def adopt(self, receipts: Iterable[Receipt], queued: Iterable[ControlRecord] = ()) -> None:
        """Keep the receipts of the leg before this one true: what it left pending is queued again.

        What is *queued* in the run, and has no receipt here, gets one; that of the row which it sends again names it.
        """
        for receipt in receipts:
            known: Receipt | None = receipt
            while known is not None:
                if all(known is not same for same in self._book.of(known.control_id)):
                    known.reopened(self._outlook)
                    self._book.add(known)
                known = known.again
        for before, record in enumerate(queued):
            if self._book.of(record.id):
                continue
            made = Receipt(record.text, record.id, record.key)
            made.expects(self._outlook)
            made.admitted(record, before)
            self._book.add(made)
            for old in self._book.of(record.resent_from or ""):
                old.sent_again(made)

    # ------------------------------------------------------------------ sending (any thread)
    def steer(self, text: str, key: str | None, by: str) -> Receipt:
        """Queue *text*; wait a quarter of a second for its row.

        Raises:
            SteerRefusedError: No row was written.
        """
        receipt, author = self.draft(text, key, by)
        self._wait_a_little(self.send(receipt, author))
        if (refusal := receipt.refusal) is not None:
            raise SteerRefusedError(*refusal)
        same = self._book.of(receipt.control_id)  # a repeated key has become the steer that was there
        return same[0] if same else receipt

    def draft(self, text: str, key: str | None, by: str) -> tuple[Receipt, str]:
        """The receipt of a steer that is not sent yet, and who says it.

        Raises:
            SteerRefusedError: The text is none that can be queued.
        """
        turn_id = _inside_turn()
        receipt = Receipt(normalise(text), uuid.uuid4().hex, key)
        receipt.expects(self._outlook)
        return receipt, by if turn_id is None else f"turn:{turn_id}"

    def send(self, receipt: Receipt, author: str) -> concurrent.futures.Future[None]:
        """Ask the store for the row; returns at once, with what is done when it has answered. Raises nothing."""
        self._book.add(receipt)
        future = self._ledger.submit(lambda core: self._admit(core, receipt, author))
        future.add_done_callback(lambda done: self._unanswered(receipt, done))
        return future

    def _wait_a_little(self, future: concurrent.futures.Future[None]) -> None:
        late = self._late
        if late is not None and not late.done():
            return  # the store is known to be slow: a loop of steers must not wait for each of them
        concurrent.futures.wait((future,), timeout=RECORDED_WITHIN_S)
        self._late = None if future.done() else future

    async def _admit(self, core: Any, receipt: Receipt, author: str) -> None:
        try:
            got = await core.admit(
                self._session_id,
                text=receipt.text,
                by=author,
                key=receipt.key,
                control_id=receipt.control_id,
                now=time.time(),
            )
        except LionnbError as exc:
            await self._look_again(core, receipt, exc)
            return
        if got.control is None:
            self._refuse(receipt, *got.refusal)
            return
        record = got.control
        if got.duplicate and record.id != receipt.control_id:
            self._book.drop(receipt)
            receipt.control_id = record.id
            self._book.add(receipt)
            record = await core.get_control(record.id) or record  # it may have changed before this one was listening
        for same in (receipt, *self._book.of(record.id)):  # one of a call before, whose answer was lost, learns of it
            if same is receipt or same.record is None:
                same.admitted(record, got.position)
                if self._ended:
                    same.run_ended()

    async def _look_again(self, core: Any, receipt: Receipt, failed: LionnbError) -> None:
        """A lost answer is no lost row: whoever is told *refused* sends it again, and the agent would get it twice."""
        try:
            record = await core.get_control(receipt.control_id)
        except LionnbError:
            again = "call it again with the same key" if receipt.key is not None else "look at its table"
            self._refuse(receipt, "store", f"whether the steer was recorded is unknown, so {again}: {failed}")
            return
        if record is None:
            self._refuse(receipt, "store", f"the steer could not be recorded: {failed}")
            return
        receipt.admitted(record, 0)
        if self._ended:
            receipt.run_ended()

    def _unanswered(self, receipt: Receipt, done: concurrent.futures.Future[Any]) -> None:
        """The store failed before it was asked, or was closed: whether there is a row is not known here."""
        if (problem := problem_of(done)) is not None and receipt.record is None:
            self._refuse(receipt, "store", f"this leg cannot be steered: {problem}")

    def _refuse(self, receipt: Receipt, reason: str, sentence: str) -> None:
        receipt.refuse(reason, sentence)
        if reason != "store":
            self._book.drop(receipt)  # with a failing store the row may turn up all the same

    # ------------------------------------------------------------------ hearing (control thread)
    def changed(self, record: ControlRecord) -> None:
        """A row of this run was committed."""
        if record.state in _OPEN:
            self._open[record.id] = record
        else:
            self._open.pop(record.id, None)
            for receipt in self._book.every():
                receipt.moved_up(record.seq)
        for receipt in self._book.of(record.id):
            receipt.update(record)
        hand_over(self._loop, lambda: self._show(record))

    # ------------------------------------------------------------------ telling (the leg's loop)
    def _show(self, record: ControlRecord) -> None:
        foreign = record.state is ControlState.DELIVERING and leg_of(str(record.claim)) != self._leg
        fate = fate_of(record, run_ended=self._ended, leg_dead=foreign)
        known = () if foreign else self._book.of(record.id)
        sentence = known[0].lasting_sentence if known else sentence_of(record, fate, now=time.time())
        self._feed.event(
            "steer", record.turn_id or self._turn_id(), control_id=record.id, seq=record.seq, text=record.text,
            fate=fate.value, chip=chip_of(fate, record).value, sentence=sentence, note=record.note,
            turn_id=record.turn_id, created_at=record.created_at, created_by=record.created_by,
            claim=record.claim, handed_over_at=record.handed_over_at, closed_at=record.closed_at,
        )  # fmt: skip

    def beat(self) -> None:
        """Say how many steers are queued, as the database knows them: other programs' too (ADR-0108)."""
        if self._asked is not None and not self._asked.done():
            return  # a slow store is asked once, not once a beat
        self._asked = future = self._ledger.submit(lambda core: core.pending_count(self._session_id))
        future.add_done_callback(lambda done: hand_over(self._loop, lambda: self._say_beat(done)))

    def _say_beat(self, done: concurrent.futures.Future[int]) -> None:
        queued = self.queued if problem_of(done) is not None else done.result()
        if queued and not self._ended:
            outlook = self._outlook()
            said = "; ".join(part for part in (outlook.when, outlook.left) if part)
            what = "1 steer" if queued == 1 else f"{queued} steers"
            self._feed.event("beat", self._turn_id(), text=f"{what} queued: {said}")

    def run_ended(self) -> None:
        """The run is over: every receipt whose row is known has its fate, and what stays open is told again."""
        self._ended = True
        for receipt in self._book.every():
            receipt.run_ended()
        for record in list(self._open.values()):
            self._show(record)
