"""Cancellation at every step: it must find what it is for, and must not be able to pass by doing nothing."""

from __future__ import annotations

import asyncio

import pytest
from lionagi import Branch

from lionnb.testing import cancel_at_every_step


class _Hop:
    """Three awaits: a plain one, one on a thread, one on another task."""

    def __init__(self):
        self.trail = []

    async def run(self):
        await asyncio.sleep(0)
        self.trail.append(1)
        await asyncio.to_thread(lambda: None)
        self.trail.append(2)
        await asyncio.create_task(asyncio.sleep(0))
        self.trail.append(3)
        return "done"

    def check(self, outcome):
        self.outcomes.append((outcome.cancelled, len(self.trail)))
        assert outcome.cancelled or outcome.value == "done"

    outcomes: list = []


def test_every_point_between_the_first_and_the_last_await_is_tried():
    class World(_Hop):
        outcomes = []

    async def scenario():
        return World()

    tried = cancel_at_every_step(scenario)
    assert tried > 6
    assert {n for cancelled, n in World.outcomes if cancelled} == {0, 1, 2}
    assert World.outcomes[-1] == (False, 3)  # the last run finished first


def test_a_woken_task_that_has_not_run_is_cancelled_too():
    """A hand-over that forgets the woken-but-cancelled receiver loses the thing handed over: this finds it."""

    class Lossy:
        def __init__(self):
            self.held, self.slot = 0, asyncio.get_running_loop().create_future()

        async def giver(self):
            self.held = 1
            self.slot.set_result("it")

        async def run(self):
            give = asyncio.ensure_future(self.giver())
            try:
                await self.slot
                self.held = 0
            finally:
                await asyncio.wait((give,))

        def check(self, outcome):
            assert outcome.delivered == 0 or self.held == 0, "lost in hand-over"

    async def scenario():
        return Lossy()

    with pytest.raises(AssertionError, match="lost in hand-over") as caught:
        cancel_at_every_step(scenario)
    assert "cancellation step" in caught.value.__notes__[0]


def test_two_cancellations_find_what_one_does_not():
    """A cleanup that is shielded once survives one cancellation and is lost with the second."""

    class ShieldedOnce:
        def __init__(self):
            self.clean = False

        async def tidy(self):
            for _ in range(3):
                await asyncio.sleep(0)
            self.clean = True

        async def run(self):
            try:
                await asyncio.sleep(0)
            finally:
                await asyncio.shield(asyncio.ensure_future(self.tidy()))

        def check(self, outcome):
            assert self.clean or not outcome.delivered or outcome.step == 0, "not cleaned up"

    async def scenario():
        return ShieldedOnce()

    with pytest.raises(AssertionError, match=r"not cleaned up|left behind"):
        cancel_at_every_step(scenario, cancels=2)


def test_a_task_that_is_left_behind_fails_the_step():
    class Leaves:
        async def run(self):
            self.task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")

        def check(self, outcome):
            pass

    async def scenario():
        return Leaves()

    with pytest.raises(AssertionError, match="forgotten"):
        cancel_at_every_step(scenario)


def test_an_exception_that_nobody_retrieves_fails_the_step():
    class Silent:
        async def run(self):
            async def boom():
                raise ValueError("unheard")

            asyncio.ensure_future(boom())
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        def check(self, outcome):
            pass

    async def scenario():
        return Silent()

    with pytest.raises(AssertionError, match="unheard"):
        cancel_at_every_step(scenario)


def test_a_run_that_hangs_is_named_with_where_it_waits():
    class Stubborn:
        async def run(self):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                await asyncio.Event().wait()

        def check(self, outcome):
            pass

    async def scenario():
        return Stubborn()

    with pytest.raises(AssertionError, match=r"hangs, 1 cancellation.*\n.*Stubborn.run"):
        cancel_at_every_step(scenario, hang_s=0.01)


def test_a_victim_may_be_another_task_than_the_one_that_runs():
    class Neighbours:
        def __init__(self):
            self.ran, self.hit = [], None

        def victim(self):
            return self.hit

        async def one(self, name):
            await asyncio.sleep(0)
            self.ran.append(name)

        async def run(self):
            self.hit = asyncio.ensure_future(self.one("hit"))
            await asyncio.wait((self.hit, asyncio.ensure_future(self.one("safe"))))

        async def check(self, outcome):
            assert outcome.error is None and "safe" in self.ran

    async def scenario():
        return Neighbours()

    assert cancel_at_every_step(scenario) >= 2


async def test_it_works_where_a_loop_runs_already():
    class World(_Hop):
        outcomes = []

    async def scenario():
        return World()

    assert cancel_at_every_step(scenario, cancels=3) > 6


@pytest.mark.slow
def test_a_stock_branch_can_be_cancelled_at_every_step_on_both_roads(road):
    class Chat:
        def __init__(self):
            self.branch = Branch(chat_model=road.model("hello world"))

        async def run(self):
            return await self.branch.chat("hi")

        def check(self, outcome):
            assert outcome.cancelled or outcome.value == "hello world"

        async def aclose(self):
            await self.branch.chat_model.close()
            road.close()

    async def scenario():
        return Chat()

    assert cancel_at_every_step(scenario) > 5
