"""How long a loop stands still: measured from outside of it, told while it lasts and after, and not confused with sleep."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from lionnb.legs import standstill
from lionnb.legs.standstill import CELL, CODE, TURN, Watch, cause_of, watch
from lionnb.store import Store


class Loop:
    """An event loop in a thread of its own, which a test can make stand still."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._held: threading.Event | None = None

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def block(self, name: str | None = None) -> None:
        """Return once a task (called *name*) keeps the loop."""
        held, begun = threading.Event(), threading.Event()
        self._held = held

        async def computes() -> None:
            begun.set()
            held.wait(60)

        self.loop.call_soon_threadsafe(lambda: setattr(self, "task", self.loop.create_task(computes(), name=name)))
        assert begun.wait(60)

    def let_go(self) -> None:
        assert self._held is not None
        self._held.set()

    def close(self) -> None:
        if self._held is not None:
            self._held.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


class Heard:
    """A watcher. What it is told arrives as events of the test's loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.standing: list[tuple[float, str]] = []
        self.over: list[tuple[float, str]] = []
        self.told, self.moved = asyncio.Event(), asyncio.Event()

    def stands(self, seconds: float, cause: str) -> None:
        self.standing.append((seconds, cause))
        self._loop.call_soon_threadsafe(self.told.set)

    def stood(self, seconds: float, cause: str) -> None:
        self.over.append((seconds, cause))
        self._loop.call_soon_threadsafe(self.moved.set)


@pytest.fixture
def other() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "TICK_S", 0.01)


class Time:
    """The two clocks of a watch, which stand where a test puts them."""

    now = computed = 0.0

    def watch(self, loop: asyncio.AbstractEventLoop) -> Watch:
        return Watch(loop, clock=lambda: self.now, computed=lambda: self.computed)


async def asked(it: Watch) -> None:
    """The probe is on its way. While the loop stands still it stays there."""
    while not it._asked:
        await asyncio.sleep(0)


async def end(task: asyncio.Task) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def test_it_is_seen_while_it_lasts_and_told_when_it_is_over(other) -> None:
    time, heard = Time(), Heard()
    it = time.watch(other.loop)
    it.add(heard)
    probing = asyncio.create_task(it.probe())
    other.block()
    await asked(it)
    time.now, time.computed = 58.0, 58.0
    await heard.told.wait()
    assert heard.standing[-1] == (58.0, CODE) and it.seconds == 58.0 and heard.over == []
    time.now, time.computed = 60.0, 60.0
    other.let_go()
    await heard.moved.wait()
    assert heard.over == [(60.0, CODE)] and it.seconds == 0.0
    await end(probing)


async def test_a_machine_that_slept_is_no_standstill(other) -> None:
    """The clock has gone on for an hour, and the process has computed nothing in it."""
    time, heard = Time(), Heard()
    it = time.watch(other.loop)
    it.add(heard)
    probing = asyncio.create_task(it.probe())
    other.block()
    await asked(it)
    time.now = 3600.0
    assert it.seconds == 0.0
    other.let_go()
    while it._asked:
        await asyncio.sleep(0)
    assert heard.standing == heard.over == []
    await end(probing)


async def test_the_sleep_of_the_machine_is_left_out_of_a_standstill(other) -> None:
    time, heard = Time(), Heard()
    it = time.watch(other.loop)
    it.add(heard)
    probing = asyncio.create_task(it.probe())
    other.block()
    await asked(it)
    time.now = time.computed = 5.0
    await heard.told.wait()
    time.now = 3605.0
    assert it.seconds == pytest.approx(5.0, abs=0.1)
    other.let_go()
    await heard.moved.wait()
    assert heard.over[0][0] == pytest.approx(5.0, abs=0.1)
    await end(probing)


async def test_what_any_busy_loop_has_is_none(other) -> None:
    time, heard = Time(), Heard()
    it = time.watch(other.loop)
    it.add(heard)
    probing = asyncio.create_task(it.probe())
    other.block()
    await asked(it)
    time.now = time.computed = standstill.COUNTS_S
    other.let_go()
    while it._asked:
        await asyncio.sleep(0)
    assert heard.standing == heard.over == []
    await end(probing)


async def test_a_turn_that_ends_before_the_answer_closes_it_and_the_answer_adds_nothing(other) -> None:
    """The loop turns again, and what runs first in it is not the probe."""
    time, heard = Time(), Heard()
    it = time.watch(other.loop)
    it.add(heard)
    probing = asyncio.create_task(it.probe())
    other.block()
    await asked(it)
    time.now = time.computed = 7.0
    it.moves()
    assert heard.over == [(7.0, CODE)]
    other.let_go()
    await asked(it)  # the next probe: that one was answered
    assert len(heard.over) == 1
    await end(probing)


async def test_who_keeps_it(other) -> None:
    other.block(name="lionnb-turn-x-1")
    assert cause_of(other.loop) == TURN
    other.let_go()
    other.block()
    assert cause_of(other.loop) == CODE
    other.let_go()
    kept = threading.Event()
    begun = threading.Event()
    other.loop.call_soon_threadsafe(lambda: (begun.set(), kept.wait(60)))
    assert begun.wait(60)
    assert cause_of(other.loop) == CODE  # a callback is no task
    kept.set()
    assert CELL == "a cell"  # shown in a real kernel, in tests/kernel


async def test_a_closed_loop_ends_the_watch() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    await Watch(loop).probe()


async def test_a_loop_that_nobody_runs_is_not_measured() -> None:
    loop, heard = asyncio.new_event_loop(), Heard()
    it = Time().watch(loop)
    it.add(heard)
    probing = asyncio.create_task(it.probe())
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not it._asked
    await end(probing)
    loop.close()


async def test_several_watchers_share_one_probe_and_the_last_ends_it(other, tmp_path) -> None:
    store = Store(":memory:")
    one, two = Heard(), Heard()
    it, leave_one = watch(store, other.loop, one)
    same, leave_two = watch(store, other.loop, two)
    assert it is same and len(store._hearts) == 1
    leave_one()
    leave_one()
    assert len(store._hearts) == 1
    leave_two()
    assert not standstill._watches and not store._hearts
    again, leave = watch(store, other.loop, one)
    assert again is not it
    leave()
    store.close()
    gc.collect()


async def test_a_store_that_is_closed_meanwhile_ends_it_quietly(other) -> None:
    store, heard = Store(":memory:"), Heard()
    it, leave = watch(store, other.loop, heard)
    other.block()
    await asked(it)
    await asyncio.to_thread(store.close)
    other.let_go()
    leave()
