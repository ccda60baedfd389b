"""`lionnb.settle`: everything that was started has ended and is written, however it ended."""

from __future__ import annotations

import asyncio

import pytest

import lionnb
from lionnb.errors import LionnbError, SettleTimeoutError, TurnDeadlockError
from lionnb.legs import start_leg
from lionnb.legs.settling import _doing
from lionnb.records import Fate, RunStatus
from lionnb.store import Store
from lionnb.testing import cancel_at_every_step, scripted_model
from tests.legs.story import HookedStore, phase


async def test_it_waits_for_every_leg_and_every_receipt(scene):
    s = scene()
    leg = s.leg()
    other = start_leg(lionnb.Branch(chat_model=s.model), "Survey Y", store=s.store)
    receipt = leg.steer("more")
    waiting = asyncio.ensure_future(lionnb.settle(60, store=s.store))
    await s.working(2)
    assert not waiting.done()
    s.answer_all()
    assert await waiting == (leg, other)
    assert not leg.live and not other.live and receipt.settled
    assert all(x.recorded for x in (leg, other))
    assert len(s.stored_turns(leg)) == 2


async def test_a_leg_that_fails_is_no_failure(scene):
    async def fail(*args, **kwargs):
        raise ValueError("no such model")

    s = scene()
    s.answer_all()
    legs = (s.leg(middle=fail), start_leg(lionnb.Branch(chat_model=s.model), "Survey Y", store=s.store))
    assert await lionnb.settle(store=s.store) == legs
    assert [leg.status for leg in legs] == [RunStatus.FAILED, RunStatus.COMPLETED]
    assert "no such model" in legs[0].note


async def test_a_leg_that_is_started_meanwhile_is_waited_for(scene):
    s = scene()
    leg = s.leg()
    later = s.leg(on_existing="queue")
    waiting = asyncio.ensure_future(lionnb.settle(store=s.store))
    started: list = []
    leg.when_ended(lambda: started.append(s.leg("Survey Z", on_existing="queue")))
    s.answer_all()
    assert await waiting == (leg, later, started[0])
    assert not started[0].live


async def test_it_waits_for_what_is_still_being_written(scene):
    """The leg has ended for everybody who awaits it; its last turn is not in the record yet."""
    s = scene()
    turns = s.store.hold("put_turn")
    s.answer_all()
    leg = s.leg()
    waiting = asyncio.ensure_future(lionnb.settle(store=s.store))
    await turns.reached()
    assert not waiting.done()
    turns.open()
    assert await waiting == (leg,)
    assert len(s.stored_turns(leg)) == 1


async def test_in_time_or_it_says_who_is_left_and_what_it_does(scene):
    s = scene()
    leg = s.leg(name="survey")
    await s.working()
    with pytest.raises(SettleTimeoutError) as late:
        await lionnb.settle(0.001, store=s.store)
    assert isinstance(late.value, TimeoutError) and isinstance(late.value, LionnbError)
    assert str(late.value) == (
        f"after 0.001 s 1 leg has not settled: 'survey' ({leg.run_id}): in turn 1 ({leg.turn_id[:8]}). Nothing was "
        "ended: wait longer, or end one with leg.stop()."
    )
    assert leg.live
    s.answer_all()
    assert await lionnb.settle(store=s.store) == (leg,)


async def test_what_each_of_those_that_are_left_does(scene):
    s = scene()
    foreground = asyncio.ensure_future(s.branch.communicate("hello"))
    await s.working()
    leg = s.leg()
    queued = s.leg(on_existing="queue")
    await phase(leg, "in turn")
    with pytest.raises(SettleTimeoutError) as late:
        await lionnb.settle(0.001, store=s.store)
    assert late.value.left == (f"{leg.run_id}: turn 1 waits for its Branch", f"{queued.run_id}: waiting")
    s.answer_all()
    await foreground
    await lionnb.settle(store=s.store)
    assert _doing(queued) == f"{queued.run_id} has ended, and the control database has not answered yet"


async def test_only_those_of_a_store(scene, tmp_path):
    s = scene()
    leg = s.leg()
    await s.working()
    other = Store(":memory:")
    assert await lionnb.settle(store=other) == ()
    other.close()
    s.answer_all()
    await leg


async def test_cancelled_it_leaves_the_legs_alone(scene):
    s = scene()
    leg = s.leg()
    waiting = asyncio.ensure_future(lionnb.settle(store=s.store))
    await s.working()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert leg.live
    s.answer_all()
    await leg


class Settling:
    """A leg with a plan, and somebody who waits for all of it."""

    def __init__(self):
        self.store = store = HookedStore(":memory:")  # its own: settle looks at every leg of a store
        self.leg = start_leg(lionnb.Branch(chat_model=scripted_model(["one", "two"])), "Survey X", store=store)
        self.receipt = self.leg.steer_after(1, "more")

    async def run(self):
        return await lionnb.settle(60, store=self.store)

    async def check(self, outcome):
        """Whoever is cancelled is the one who waits: the leg comes to its own end."""
        await asyncio.wait((self.leg.task,))
        assert self.leg.status is RunStatus.COMPLETED and len(self.leg.turns) == 2
        assert (await self.receipt).fate is Fate.APPLIED
        assert outcome.cancelled or self.leg in outcome.value

    async def aclose(self):
        await asyncio.to_thread(self.store.close)


def test_cancelled_at_every_step_it_touches_nothing():
    async def life():
        return Settling()

    assert cancel_at_every_step(life, stride=3) > 10


async def test_called_again_it_returns_at_once(scene):
    s = scene()
    s.answer_all()
    leg = s.leg()
    for _ in range(2):
        assert await lionnb.settle(store=s.store) == (leg,)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "soon", True])
async def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises((ValueError, TypeError)):
        await lionnb.settle(limit)


async def test_inside_of_the_turn_that_a_leg_waits_for_it_is_a_deadlock_and_says_so(scene):
    s = scene()
    raised: list = []

    async def middle(branch, *args, **kwargs):
        try:
            await lionnb.settle(store=s.store)
        except TurnDeadlockError as exc:
            raised.append(exc)
        return "done"

    await s.leg(middle=middle)
    assert len(raised) == 1


async def test_another_loop_may_wait(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    waiting = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(lionnb.settle(store=s.store))))
    s.answer_all()
    assert await waiting == (leg,)
