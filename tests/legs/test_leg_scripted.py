"""`leg.steer_after`: a steer for a turn that is still to end lands in the turn after it, or says why it never was sent."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

import lionnb
from lionnb.errors import SteerRefusedError, StoreError
from lionnb.legs import start_leg
from lionnb.records import Fate, RunStatus
from lionnb.testing import cancel_at_every_step, scripted_model
from tests.legs.story import HookedStore, ended, phase, spend
from tests.legs.test_leg_every_step import STRAY, Life


async def test_it_lands_in_the_turn_after_however_fast_the_turns_are(scene):
    """Nothing holds the provider: without a plan each of these legs would end after its first turn."""
    s = scene()
    s.answer_all()
    leg = s.leg()
    later, first = leg.steer_after(2, "the second thing"), leg.steer_after(turn=1, text="the first thing")
    result = await leg
    assert [t.steers for t in result.turns] == [(), (first.control_id,), (later.control_id,)]
    assert [r.fate for r in (first, later)] == [Fate.APPLIED] * 2
    assert "> the first thing" in s.last(1) and "> the second thing" in s.last(2)
    assert [row.text for row in s.rows(leg)] == ["the first thing", "the second thing"]


async def test_several_for_one_turn_land_in_it_in_order(scene):
    s = scene()
    s.answer_all()
    leg = s.leg()
    for text in ("one", "two", "three"):
        leg.steer_after(1, text)
    assert len((await leg).turns) == 2
    assert [row.text for row in s.rows(leg)] == ["one", "two", "three"]


async def test_until_then_there_is_no_row_and_the_receipt_says_what_it_waits_for(scene):
    s = scene()
    leg = s.leg()
    receipt = leg.steer_after(1, "more", by="ben")
    await s.working()
    assert receipt.sentence == "waits for the end of turn 1: queued then, and it lands in the turn after it"
    assert (receipt.fate, receipt.chip, receipt.settled) == (None, None, False)
    assert "planned" in receipt._repr_html_()
    assert s.rows(leg) == [] and leg.receipts == (receipt,)
    await s.answer()
    await s.working()
    assert receipt.fate is Fate.DELIVERING and leg.receipts == (receipt,)
    s.answer_all()
    assert await receipt is receipt
    assert [row.created_by for row in s.rows(leg)] == ["ben"]
    await leg


async def test_for_a_turn_that_is_past_it_is_queued_now(scene):
    s = scene()
    leg = s.leg()
    leg.steer_after(1, "go on")
    await s.answer()
    await s.working()
    receipt = leg.steer_after(1, "late")
    assert receipt.fate is Fate.PENDING
    s.answer_all()
    assert [t.steers for t in (await leg).turns][2] == (receipt.control_id,)


@pytest.mark.parametrize("text", ["", "  ", None, "a\0b", "x" * 70_000])
async def test_what_steer_refuses_is_refused_at_once(scene, text):
    s = scene()
    leg = s.leg()
    with pytest.raises(SteerRefusedError):
        leg.steer_after(1, text)
    s.answer_all()
    await leg


@pytest.mark.parametrize(
    ("turn", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (None, TypeError), (1.0, TypeError)]
)
async def test_a_turn_that_is_none_is_refused(scene, turn, error):
    s = scene()
    leg = s.leg()
    with pytest.raises(error):
        leg.steer_after(turn, "more")
    s.answer_all()
    await leg


async def test_an_ended_leg_refuses(scene):
    s = scene()
    s.answer_all()
    leg = s.leg()
    await leg
    with pytest.raises(SteerRefusedError) as refused:
        leg.steer_after(1, "more")
    assert refused.value.reason == "ended"


async def test_a_leg_that_ends_before_that_turn_says_that_it_never_was_queued(scene):
    s = scene()
    s.answer_all()
    leg = s.leg()
    receipt = leg.steer_after(2, "more")
    result = await leg
    assert result.status is RunStatus.COMPLETED and s.rows(leg) == []
    assert (await receipt).fate is Fate.REFUSED
    assert receipt.refusal[0] == "ended"
    assert receipt.refusal[1] == (
        f"it never was queued, and there is no row: leg {leg.run_id} ended (completed) before its turn 2 ended"
    )
    assert [e.data["text"] for e in leg.feed.events() if e.kind == "warning"] == [
        f"a steer for the end of turn 2 was not sent: {receipt.refusal[1]}"
    ]


async def test_a_leg_that_ends_with_that_turn_does_not_queue_it(scene):
    """There is no turn after one that failed, was stopped, or reached a cap."""

    async def fail(*args, **kwargs):
        raise ValueError("no such model")

    s = scene()
    failed = s.leg(middle=fail)
    capped = start_leg(lionnb.Branch(chat_model=s.model), "Survey Y", store=s.store, max_turns=1)
    s.answer_all()
    receipts = [leg.steer_after(1, "more") for leg in (failed, capped)]
    await ended(failed)
    await ended(capped)
    assert [r.fate for r in receipts] == [Fate.REFUSED] * 2
    assert [r.sentence.rsplit("ended ", 1)[1] for r in receipts] == ["(failed) with turn 1", "(completed) with turn 1"]
    assert s.rows(failed) == s.rows(capped) == []


async def test_a_leg_that_is_stopped_and_one_whose_loop_has_gone_settle_it(scene):
    s = scene()
    leg = s.leg()
    receipt = leg.steer_after(1, "more")
    await s.working()
    leg.stop()
    await leg
    assert receipt.settled and "ended (cancelled) " in receipt.sentence
    with pytest.raises(SteerRefusedError):
        leg.steer_after(1, "more")


async def test_once_queued_it_is_a_steer_like_any_other(scene):
    """The deadline passes between the turns: it was queued, and it is rejected."""
    s = scene()
    leg = s.leg(timeout_s=600)
    receipt = leg.steer_after(1, "more")
    await s.working()
    end = s.store.hold("end")
    s.answer_all()
    await end.reached()
    assert (await _seen(receipt)).fate is Fate.PENDING
    spend(leg, 600)
    end.open()
    assert (await leg).status is RunStatus.TIMED_OUT
    assert (await receipt).fate is Fate.REJECTED


async def _seen(receipt):
    recorded = asyncio.Event()
    loop = asyncio.get_running_loop()
    receipt.when_recorded(lambda: loop.call_soon_threadsafe(recorded.set))
    await recorded.wait()
    return receipt


async def test_a_store_that_fails_then_says_so_on_the_receipt(scene):
    s = scene()
    leg = s.leg()
    receipt = leg.steer_after(1, "more")
    s.store.fail("admit", StoreError("the control database is locked."))
    s.answer_all()
    assert (await leg).status is RunStatus.COMPLETED
    assert (await receipt).fate is Fate.REFUSED and "is locked" in receipt.sentence


async def test_from_any_thread_each_is_queued_once(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    receipts: list = []
    threads = [threading.Thread(target=lambda i=i: receipts.append(leg.steer_after(1, f"point {i}"))) for i in range(8)]
    for thread in threads:
        thread.start()
    s.answer_all()  # it may end its first turn while they come
    for thread in threads:
        while thread.is_alive():
            await asyncio.sleep(0)
    await leg
    queued = sorted(row.text for row in s.rows(leg))
    assert queued == sorted(r.text for r in receipts if r.fate is not Fate.REFUSED)
    assert len(queued) == len(set(queued)) and all(r.settled for r in receipts)


async def test_a_steer_from_inside_a_turn_is_marked(scene):
    s = scene()
    made: list = []

    async def middle(branch, *args, **kwargs):
        made.append((leg.steer_after(1, "more") if not made else None, leg.turn_id))
        return "done"

    leg = s.leg(middle=middle)
    await leg
    assert [row.created_by for row in s.rows(leg)] == [f"turn:{made[0][1]}"]


async def test_the_word_reaches_the_leg_before_it_asks_whether_anything_is_pending(scene):
    """On the line to the store the row comes first, also when the store is slow."""
    s = scene()
    leg = s.leg()
    admit = s.store.hold("admit")
    leg.steer_after(1, "more")
    s.store.said.clear()
    s.answer_all()
    await admit.reached()
    await phase(leg, "between turns")
    admit.open()
    assert len((await leg).turns) == 2
    said = [word for word in s.store.said if word in ("admit", "end")]
    assert said[0] == "admit"


class Planned(Life):
    """A leg with a steer that waits for its first turn, and nothing else that is sent."""

    async def run(self) -> None:
        self.leg = start_leg(self.branch, "Survey X", store=self.store, by="ana")
        self.planned = self.leg.steer_after(1, "more")
        while not self.leg.task.done():
            try:
                await asyncio.wait((self.leg.task,))
            except asyncio.CancelledError:
                assert self.whom == "everything"

    async def check(self, outcome):
        self.leg.flush(10)
        rows = self.store.ask(lambda core: core.list_controls(self.leg.session_id))
        if rows:
            self.receipts.append(self.planned)
        else:
            assert self.planned.fate is Fate.REFUSED
        assert self.planned.settled and len(rows) <= 1
        await super().check(outcome)


@STRAY
@pytest.mark.parametrize("victim", ["the leg", "everything"])
@pytest.mark.parametrize("cancels", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_cancelled_at_every_step_it_is_queued_or_refused(victim, cancels, caplog):
    """The receipt is settled at once, and says what the store says: a row, or that there never was one."""
    caplog.set_level("CRITICAL", "lionnb")
    store = HookedStore(":memory:")

    async def life():
        return Planned(store, scripted_model(["one", "two"]), victim)

    assert cancel_at_every_step(life, cancels=cancels, stride=cancels) > 15
    gc.collect()
    store.close()
