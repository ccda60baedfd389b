"""Receipts: at once, from anywhere, true at every moment, and settled in the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lionnb.errors import SteerRefusedError, StoreError
from lionnb.legs.receipt import Receipt
from lionnb.records import Chip, Fate, RunStatus
from tests.legs.story import HookedStore, heard, spend


async def test_a_receipt_says_at_every_moment_what_is_true(scene):
    """Being recorded, queued, delivering, applied; each with its chip and its sentence."""
    s = scene()
    leg = s.leg(timeout_s=600)
    await s.working()
    admit = s.store.hold("admit")
    receipt = leg.steer("more")
    assert (receipt.fate, receipt.chip, receipt.record) == (None, None, None)
    assert receipt.sentence == "being recorded" and not receipt.settled
    admit.open()
    await heard(leg.feed, lambda e: e.kind == "steer")
    assert (receipt.fate, receipt.chip) == (Fate.PENDING, Chip.QUEUED)
    assert receipt.sentence.startswith("queued: lands at the end of the current turn; 9:5")
    assert receipt.sentence.endswith(" of 10:00 left") and "more" not in receipt.sentence
    await s.answer()
    await s.working()
    assert (receipt.fate, receipt.chip) == (Fate.DELIVERING, Chip.DELIVERING)
    assert "handed over" in receipt.sentence and not receipt.settled
    s.answer_all()
    assert await receipt is receipt
    assert (receipt.fate, receipt.chip, receipt.settled) == (Fate.APPLIED, Chip.APPLIED, True)
    result = await leg
    assert receipt.sentence == f"applied in turn {result.turns[1].turn_id[:8]}, which completed"


async def test_steer_returns_while_the_store_does_not_answer(scene):
    """A cell must not hang on a database: the receipt comes, and says what it does not know."""
    s = scene()
    leg = s.leg()
    await s.working()
    admit = s.store.hold("admit")
    receipts = [leg.steer(f"point {i}") for i in range(2)]
    assert [r.fate for r in receipts] == [None, None]
    admit.open()
    s.answer_all()
    await leg
    assert [(await r).fate for r in receipts] == [Fate.APPLIED] * 2
    assert [row.text for row in s.rows(leg)] == ["point 0", "point 1"]


async def test_a_steer_is_sent_and_awaited_from_another_thread_and_loop(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    said = []

    def elsewhere():
        receipt = leg.steer("from a thread")
        said.append(receipt.fate)
        sent.set()

        async def wait():
            return (await receipt, await leg)

        said.append(asyncio.run(wait()))

    sent = threading.Event()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, sent.wait)
    s.answer_all()
    await leg
    await asyncio.get_running_loop().run_in_executor(None, thread.join)
    fate, (receipt, result) = said
    assert fate is Fate.PENDING and receipt.fate is Fate.APPLIED and result.value == "two"


async def test_many_threads_steer_at_once_and_each_steer_lands_once(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    start = threading.Barrier(8)

    def send(i):
        start.wait()
        return leg.steer(f"point {i}")

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        receipts = await asyncio.gather(*(loop.run_in_executor(pool, send, i) for i in range(8)))
    assert sorted(r.before for r in receipts) == list(range(8))
    s.answer_all()
    await leg
    rows = s.rows(leg)
    assert sorted(r.control_id for r in receipts) == sorted(row.id for row in rows)
    assert all(s.last(1).count(f"> point {i}") == 1 for i in range(8)) and len(s.requests) == 2


async def test_a_receipt_can_be_awaited_many_times_and_giving_up_changes_nothing(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("more")

    async def wait():
        return await receipt

    waits = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    s.answer_all()
    assert await asyncio.gather(*waits[1:]) == [receipt, receipt] and waits[0].cancelled()
    assert await receipt is receipt
    await leg


def test_a_wait_whose_loop_has_closed_complains_nowhere(scene, caplog):
    """The answer comes later, to a loop that is gone: nobody is left to be told, and nothing is logged."""
    receipt = Receipt("x", "id", None)

    async def give_up():
        asyncio.ensure_future(receipt._wait())
        await asyncio.sleep(0)

    asyncio.run(give_up())
    receipt.refuse("ended", "too late")
    assert receipt.settled and not caplog.records


# ---------------------------------------------------------------------- the queue and the budget
async def test_the_place_in_the_queue_counts_those_before_it(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipts = [leg.steer(f"point {i}") for i in range(3)]
    assert "before it" not in receipts[0].sentence
    assert "; 2 before it" in receipts[2].sentence
    s.store.ask(lambda core: core.withdraw(receipts[0].control_id, "ana", 2.0))
    await heard(leg.feed, lambda e: e.kind == "steer" and e.data["fate"] == "withdrawn")
    assert [r.before for r in receipts[1:]] == [0, 1] and "; 1 before it" in receipts[2].sentence
    s.answer_all()
    await leg


async def test_the_sentence_says_when_a_steer_will_not_fit(scene):
    """A leg's caps are known: waiting in hope is no better than a refusal."""
    s = scene()
    leg = s.leg(max_turns=1)
    await s.working()
    receipt = leg.steer("no room")
    assert receipt.sentence == "queued: will not land: max_turns=1 is reached with the current turn"
    s.answer_all()
    result = await leg
    assert (await receipt).fate is Fate.REJECTED and "max_turns=1" in result.note
    assert "max_turns=1" in s.run(leg).ended_note


async def test_the_sentence_says_that_the_deadline_has_passed(scene):
    s = scene()
    leg = s.leg(timeout_s=600)
    await s.working()
    receipt = leg.steer("no time")
    spend(leg, 600)
    assert receipt.sentence == "queued: will not land: the deadline has passed; 0:00 of 10:00 left"
    s.answer_all()
    await leg
    assert (await receipt).fate is Fate.REJECTED


async def test_the_sentence_of_a_queued_leg_says_what_it_waits_for(scene):
    s = scene()
    first = s.leg()
    await s.working()
    second = s.leg("then this", on_existing="queue")
    receipt = second.steer("and that")
    assert "waits for another leg" in receipt.sentence and receipt.fate is Fate.PENDING
    s.answer_all()
    await first
    await second
    assert (await receipt).fate is Fate.APPLIED


# ---------------------------------------------------------------------- the same steer again
async def test_the_same_key_and_text_is_the_same_steer(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    first = leg.steer("once", key="k")
    assert leg.steer("once", key="k") is first and len(leg.receipts) == 1
    s.answer_all()
    await leg
    assert len(s.rows(leg)) == 1 and s.last(1).count("> once") == 1


async def test_the_same_key_with_another_text_is_refused(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("once", key="k")
    with pytest.raises(SteerRefusedError, match="used before") as caught:
        leg.steer("twice", key="k")
    assert caught.value.reason == "key" and len(leg.receipts) == 1
    s.answer_all()
    await leg
    assert len(s.rows(leg)) == 1


async def test_two_receipts_of_one_key_both_settle(scene):
    """The store was slow, so nobody could know that the second is the first: both follow the one row."""
    s = scene()
    leg = s.leg()
    await s.working()
    admit = s.store.hold("admit")
    receipts = [leg.steer("once", key="k") for _ in range(2)]
    assert receipts[0] is not receipts[1]
    admit.open()
    s.answer_all()
    await leg
    assert [(await r).fate for r in receipts] == [Fate.APPLIED] * 2
    assert receipts[0].control_id == receipts[1].control_id and len(leg.receipts) == 1


async def test_a_key_repeated_after_its_steer_has_landed_finds_it(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    first = leg.steer("once", key="k")
    await s.answer()
    await s.working()
    assert leg.steer("once", key="k") is first and first.fate is Fate.DELIVERING
    s.answer_all()
    await leg
    assert len(s.rows(leg)) == 1


async def test_a_key_belongs_to_its_run(scene):
    s = scene()
    s.answer_all()
    for _ in range(2):
        leg = s.leg()
        receipt = leg.steer("once", key="k")
        await leg
        assert (await receipt).fate is Fate.APPLIED
    assert len(s.requests) == 4


# ---------------------------------------------------------------------- the end
async def test_a_receipt_settles_in_every_end(scene):
    """Applied, rejected, withdrawn; refused is an exception."""
    s = scene()
    leg = s.leg()
    await s.working()
    applied = leg.steer("lands")
    await s.answer()
    await s.working()
    withdrawn, rejected = leg.steer("taken back"), leg.steer("too late")
    s.store.ask(lambda core: core.withdraw(withdrawn.control_id, "ana", 2.0))
    leg.stop()
    fates = [(await r).fate for r in (applied, withdrawn, rejected)]
    assert fates == [Fate.APPLIED, Fate.WITHDRAWN, Fate.REJECTED]
    assert [r.chip for r in leg.receipts] == [Chip.APPLIED, Chip.NOT_DELIVERED, Chip.NOT_DELIVERED]
    assert (await leg).status is RunStatus.CANCELLED and applied.record.turn_outcome == "cancelled"


async def test_a_steer_that_races_the_end_is_refused_or_swept_never_lost(scene):
    """S4: admitted before the run's end it is swept, after it it is refused; there is nothing in between."""
    s = scene()
    leg = s.leg()
    await s.working()
    loop, raced = asyncio.get_running_loop(), []

    async def end_then_steer(end, *args, **kwargs):
        # on the control thread, when the leg has decided to end and the database does not know yet
        if not raced:
            raced.append(await loop.run_in_executor(None, leg.steer, "in the last moment"))
        return await end(*args, **kwargs)

    end = s.store.hold("end")
    s.answer_all()
    await end.reached()
    receipt = await loop.run_in_executor(None, leg.steer, "in the last moment")  # in line behind the end
    end.open()
    result = await leg
    await receipt
    assert result.status is RunStatus.COMPLETED and len(s.requests) == 1
    assert receipt.fate is Fate.REFUSED and "ended" in receipt.sentence and s.rows(leg) == []


async def test_a_steer_admitted_by_another_program_between_turn_and_end_lands(scene):
    """The end is decided by the database: only_if_idle sees the row and the leg goes on."""
    s = scene()
    leg = s.leg()
    await s.working()
    end = s.store.hold("end")
    s.answer_all()
    await end.reached()
    s.store.ask(lambda core: core.admit(leg.session_id, text="just in time", by="eve", now=1.0)).unwrap()
    end.open()
    await leg
    assert "> just in time" in s.last(1) and s.states(leg) == ["applied"]


@pytest.mark.parametrize("road", ["cli"], indirect=True)  # two stores on one file
async def test_a_refusal_that_turns_out_to_be_a_row_is_told_as_the_row(scene):
    """A server that went away in mid-commit: the caller was told no, and then the steer landed."""
    s = scene()
    leg = s.leg()
    await s.working()
    other = HookedStore(s.store.location.address)  # its commit is not told to this one's watchers

    async def lost_answer(admit, *args, **kwargs):
        await asyncio.wrap_future(other.submit(lambda core: core.admit(*args, **kwargs)))
        raise StoreError("the server does not answer: whether the last write landed is unknown")

    s.store.hooks["admit"] = lost_answer
    s.store.fail("get_control", StoreError("the server does not answer"))  # nor when the row is looked for
    with pytest.raises(SteerRefusedError, match="unknown"):
        leg.steer("half sent")
    (receipt,) = leg.receipts
    assert receipt.fate is Fate.REFUSED
    s.answer_all()
    await leg
    assert receipt.fate is Fate.APPLIED and receipt.refusal is None and "> half sent" in s.last(1)
    other.close()


async def test_receipts_show_themselves_as_text_never_as_markup(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("<b>bold</b>")
    s.store.ask(lambda core: core.withdraw(receipt.control_id, "<script>", 1.0))
    assert "<script>" not in receipt._repr_html_() and "&lt;script&gt;" in receipt._repr_html_()
    assert receipt.control_id[:8] in repr(receipt)
    s.answer_all()
    await leg


async def test_a_loop_of_steers_waits_for_a_slow_store_once(scene, monkeypatch):
    """The first one has found out that it is slow; the others are queued behind it, at once."""
    s = scene()
    leg = s.leg()
    await s.working()
    admit = s.store.hold("admit")
    waits = []
    wait = concurrent.futures.wait
    monkeypatch.setattr(
        concurrent.futures, "wait", lambda fs, timeout=None: (waits.append(timeout), wait(fs, timeout))[1]
    )
    receipts = [leg.steer(f"point {i}") for i in range(50)]
    assert len(waits) == 1 and {r.fate for r in receipts} == {None}
    admit.open()
    s.answer_all()
    await leg
    assert [(await r).fate for r in receipts] == [Fate.APPLIED] * 50
    assert [row.text for row in s.rows(leg)] == [f"point {i}" for i in range(50)]
