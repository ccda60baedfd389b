"""Many tasks over one, two and three Branches, in any order: T1 to T6 hold after every step of the loop.

Hypothesis decides who does what and how far the loop turns in between; nothing here waits for time. Each actor is a task
whose body takes commands: it returns, raises, yields, calls its Branch again, spawns a child, calls another Branch, adds
a message, polls for control. The same machine runs over the twenty-line fake host and over real Branches.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from lionagi import Branch as StockBranch
from lionagi.operations._observe import StopStream
from lionagi.session.control import LoopControl, LoopDirective
from lionagi.session.signal import MessageAdded, RunEnd, RunFailed, RunStart
from turnkit import CleanStop, Host, Watched, assert_between_turns, assert_paired

import lionnb
from lionnb.errors import TurnDeadlockError, TurnFinalizingError
from lionnb.testing import scripted_model
from lionnb.turns import Phase, run_in_turn, stream_in_turn
from lionnb.turns.driver import schedule_signal
from lionnb.turns.finalize import release

QUIET = (ValueError, CleanStop, StopStream, TurnDeadlockError, TurnFinalizingError, asyncio.CancelledError)
COMMANDS = (
    "return",
    "yield",
    "other",
    "child",
    "raise",
    "stop",
    "yield",
    "nest",
    "child",
    "other",
    "message",
    "poll",
    "pause",
)


scripts = st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=4)
steps = st.sampled_from(("step", "step", "step", "close", "drop", "call", "talk"))
spins = st.integers(0, 6)


class Site:
    """One Branch of the machine: the host, what its observers saw, and how they behave."""

    def __init__(self, name: str) -> None:
        self.name, self.mode = name, "quick"
        self.held: list[asyncio.Future[None]] = []
        self.top: list[Any] = []  # bodies that own a lifecycle and are past the lock
        self.given: dict[Any, int] = {}  # turn id -> controls that were stored on it

    async def observe(self, kind: str) -> None:
        if self.mode == "raise":
            raise ValueError("observer")
        if self.mode == "slow":
            gate = asyncio.get_running_loop().create_future()
            self.held.append(gate)
            await gate
        if self.mode == "reenter":

            async def nothing(scope: Any) -> None: ...

            try:
                await run_in_turn(self.host, invoke=nothing)
            except TurnFinalizingError:
                assert kind != "RunStart"

    def open(self) -> None:
        held, self.held = self.held, []
        for gate in held:
            if not gate.done():
                gate.set_result(None)


class FakeSite(Site):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.host = Host(name)
        self.host.on_signal = lambda kind, ctx: self.observe(kind)

    @property
    def seen(self) -> list[Any]:
        return self.host.seen

    def message(self) -> None:
        schedule_signal(self.host.turn_state, lambda: self.observe("MessageAdded"))

    def control(self) -> bool:
        turn = self.host.turn_state.turn
        stored = self.host.turn_state.control(lambda: LoopControl(LoopDirective.CONTINUE), None)
        return self._count(turn, stored)

    def _count(self, turn: Any, stored: bool) -> bool:
        assert stored == (turn is not None and turn.context.phase is Phase.ACTIVE)
        if stored:
            self.given[turn.context.turn_id] = self.given.get(turn.context.turn_id, 0) + 1
        return stored


class BranchSite(FakeSite):
    """The same over a real Branch: made, adopted or cloned."""

    def __init__(self, name: str, branch: Any) -> None:
        Site.__init__(self, name)
        watched = Watched.__new__(Watched)
        watched.seen, watched.branch = [], branch
        watched.session = lionnb.Session(default_branch=branch)
        for signal in (RunStart, RunEnd, RunFailed, MessageAdded):
            watched.session.observe(signal, handler=watched._see)
        for signal in (RunStart, RunEnd, RunFailed):
            watched.session.observe(signal, handler=lambda e, _: self.observe(type(e).__name__))
        self.watched, self.host = watched, branch

    @property
    def seen(self) -> list[Any]:
        # a message of a turn that has ended is nobody's: whether its observers came late is not the turn's affair
        return [s for s in self.watched.seen if s.kind != "MessageAdded"]

    def message(self) -> None:
        self.host.msgs.add_message(instruction="a message", sender="user", recipient=self.host.id)

    def control(self) -> bool:
        return self._count(self.host.turn_state.turn, self.host.control(LoopDirective.CONTINUE))


async def quietly(make: Any) -> None:
    """Await it; what may be raised is dropped, for its traceback would keep a stream alive."""
    try:
        await make()
    except QUIET:
        pass
    except RuntimeError as exc:
        assert "already running" in str(exc) or "was let go of" in str(exc), exc


class Actor:
    """A task and what it was told to do."""

    def __init__(self, machine: Machine, site: Site, *, streams: bool) -> None:
        self.machine, self.site, self.streams = machine, site, streams
        self.inbox: list[str] = []
        self.steps: list[str] = []
        self.wakes: list[asyncio.Future[None]] = []
        self.stream: Any = None
        self.task: asyncio.Task[Any] | None = None
        self.within: list[Any] = []  # contexts of the turns its bodies are in

    def tell(self, command: str) -> None:
        (self.steps if command in ("step", "close", "drop", "call", "talk") else self.inbox).append(command)
        for wake in self.wakes:
            if not wake.done():
                wake.set_result(None)
        self.wakes.clear()

    async def _next(self, box: list[str]) -> str:
        while not box:
            wake = asyncio.get_running_loop().create_future()
            self.wakes.append(wake)
            await wake
        return box.pop(0)

    async def main(self) -> None:
        if not self.streams:
            await run_in_turn(self.site.host, invoke=self.body, operation="coroutine")
            return
        self.stream = stream_in_turn(self.site.host, invoke=self.items, operation="stream")
        while self.stream is not None:
            step = await self._next(self.steps)
            if step == "step":
                try:
                    await anext(self.stream)
                except StopAsyncIteration:
                    return
            elif step == "close":
                await self.stream.aclose()
                return
            elif step == "drop":
                self.stream = None
            else:  # between two items; "talk" goes on until it is told to return
                invoke = self.quick if step == "call" else self.body
                await run_in_turn(self.site.host, invoke=invoke, operation="consumer")

    # ---- what runs inside
    async def quick(self, scope: Any) -> None:
        with self.machine.inside(self, scope):
            await asyncio.sleep(0)

    async def body(self, scope: Any) -> None:
        with self.machine.inside(self, scope):
            while await self._obey(scope) != "return":
                pass

    async def items(self, scope: Any) -> Any:
        with self.machine.inside(self, scope):
            while (command := await self._obey(scope)) != "return":
                if command == "yield":
                    yield command

    async def _obey(self, scope: Any) -> str:
        command, host = await self._next(self.inbox), self.site.host
        if command == "raise":
            raise ValueError("told to")
        if command == "stop":
            raise self.machine.clean_stop
        if command == "nest":
            await run_in_turn(host, invoke=self.quick, operation="nested")
        elif command == "child":
            self.machine.enlist(Actor(self.machine, self.site, streams=len(self.machine.actors) % 2 == 0))
        elif command == "other":
            others = self.machine.sites
            await run_in_turn(
                others[(others.index(self.site) + 1) % len(others)].host, invoke=self.quick, operation="other"
            )
        elif command == "message":
            self.site.message()
        elif command == "poll" and host.turn_state.context is scope.context:
            if host.turn_state.take_control(None) is not None:
                assert self.site.given.get(scope.context.turn_id), "a control of another turn was taken"
        elif command == "pause":
            await asyncio.sleep(0)
        return command


class Machine(RuleBasedStateMachine):
    clean_stop: Any = CleanStop

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.complaints: list[str] = []
        self.loop.set_exception_handler(
            lambda _, c: self.complaints.append(f"{c.get('message')} {c.get('exception')!r}")
        )
        self.actors: list[Actor] = []
        self.nested: list[Any] = []  # contexts of nested bodies that are running, in whatever task
        self.releases: set[asyncio.Task[Any]] = set()
        self.sites: list[Site] = []

    def make_site(self, name: str) -> Site:
        return FakeSite(name)

    @initialize(n=st.integers(1, 2))
    def begin(self, n: int) -> None:
        self.sites += [self.make_site("AB"[i]) for i in range(n)]

    # ---- bookkeeping of the bodies
    @contextmanager
    def inside(self, actor: Actor, scope: Any) -> Any:
        ctx, site = scope.context, self.site_of(scope, actor)
        assert ctx.phase is Phase.ACTIVE, "work began in a turn that is over"
        assert site.host.turn_state.context is ctx, "work began in a turn that is not the active one"
        box = site.top if scope.owns_lifecycle else self.nested
        box.append(ctx)
        actor.within.append(ctx)
        try:
            yield
        finally:
            actor.within.remove(ctx)
            box.remove(ctx)

    def site_of(self, scope: Any, actor: Actor) -> Site:
        return next((s for s in self.sites if s.host.turn_state.context is scope.context), actor.site)

    def enlist(self, actor: Actor) -> None:
        actor.task = self.loop.create_task(quietly(actor.main))
        self.actors.append(actor)

    def spin(self, n: int = 1) -> None:
        for _ in range(n):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            self.check_now()

    def pick(self, i: int) -> Actor | None:
        live = [a for a in self.actors if a.task is not None and not a.task.done()]
        return live[i % len(live)] if live else None

    def inside_now(self, i: int) -> Actor | None:
        """Whoever's body runs in the active turn of a Branch: telling anybody else only adds to an inbox."""
        ctx = self.sites[i % len(self.sites)].host.turn_state.context
        return next((a for a in self.actors if ctx is not None and ctx in a.within), self.pick(i))

    # ---- rules
    @rule(i=st.integers(0, 2), streams=st.booleans(), script=scripts, steps=st.lists(steps, max_size=4), n=spins)
    def start(self, i: int, streams: bool, script: list[str], steps: list[str], n: int) -> None:
        actor = Actor(self, self.sites[i % len(self.sites)], streams=streams)
        self.enlist(actor)
        for word in (*script, *(("step", *steps) if streams else ())):
            actor.tell(word)
        self.spin(n)

    @rule(i=st.integers(0, 2), script=scripts, n=spins)
    def tell_who_is_inside(self, i: int, script: list[str], n: int) -> None:
        if (actor := self.inside_now(i)) is not None:
            for command in script:
                actor.tell(command)
        self.spin(n)

    @rule(i=st.integers(0, 20), script=scripts, n=spins)
    def tell_anybody(self, i: int, script: list[str], n: int) -> None:
        if (actor := self.pick(i)) is not None:
            for command in script:
                actor.tell(command)
        self.spin(n)

    @rule(i=st.integers(0, 2), step=steps, n=spins)
    def consume(self, i: int, step: str, n: int) -> None:
        if (actor := self.inside_now(i)) is not None and actor.streams:
            actor.tell(step)
        self.spin(n)

    @rule(i=st.integers(0, 20), times=st.integers(1, 3), n=spins)
    def cancel(self, i: int, times: int, n: int) -> None:
        if (actor := self.pick(i)) is not None:
            for _ in range(times):
                actor.task.cancel()
                self.spin(n)

    @rule(i=st.integers(0, 20))
    def close_from_elsewhere(self, i: int) -> None:
        """A second task closes a stream; in the middle of a step it is refused."""
        if (actor := self.pick(i)) is not None and actor.stream is not None:
            self._detach(actor.stream.aclose)
            self.spin(1)

    @rule(i=st.integers(0, 2))
    def control(self, i: int) -> None:
        self.sites[i % len(self.sites)].control()

    @rule(i=st.integers(0, 2), mode=st.sampled_from(("quick", "quick", "raise", "slow", "reenter")))
    def observers(self, i: int, mode: str) -> None:
        site = self.sites[i % len(self.sites)]
        site.mode = mode
        if mode != "slow":
            site.open()

    @rule(i=st.integers(0, 2))
    def let_go(self, i: int) -> None:
        turn = self.sites[i % len(self.sites)].host.turn_state.turn
        if turn is not None:
            self._detach(lambda: release(turn, 0))
        self.spin(2)

    @rule()
    def collect(self) -> None:
        gc.collect(1)  # the youngest: Hypothesis keeps much in the oldest
        self.spin(1)

    def _detach(self, make: Any) -> None:
        self.releases.add(self.loop.create_task(quietly(make)))

    # ---- what always holds
    @invariant()
    def check_now(self) -> None:
        for site in self.sites:
            state = site.host.turn_state
            turn = state.turn
            assert len(site.top) <= 1, "T1: two turns are past the lock"
            if turn is not None:
                assert state.lock.locked(), "T1: a turn without the lock"
                assert turn.context.phase is not Phase.CLOSED
            if site.top:
                assert turn is not None and site.top[0] is turn.context, (
                    "T1: the body that runs is not the active turn's"
                )
            rows = list(state.log._rows)
            started = [i for i, r in enumerate(rows) if r.turn_id is not None]
            waiting = [i for i, r in enumerate(rows) if r.outcome == "waiting"]
            assert not started or not waiting or max(started) < min(waiting), "T1: somebody overtook a waiter"
            assert len(state.queue()) <= len(waiting), "T1: the queue shows a waiter that has gone"
            running = [r for r in rows if r.outcome == "running"]
            assert len(running) == (turn is not None), "the log disagrees with the pointer"
            self.check_signals(site, turn)
            assert turn is None or turn.context.control is None or site.given.get(turn.context.turn_id), "T4"
        assert all(ctx.phase is not Phase.CLOSED for ctx in self.nested), "T6: nested work outlived its turn"

    def check_signals(self, site: Site, turn: Any) -> None:
        seen = site.seen
        if turn is not None and seen and seen[-1].turn_id == turn.context.turn_id and seen[-1].kind == "RunStart":
            seen = seen[:-1]  # the active turn's start has no terminal yet
        elif turn is not None:
            seen = [s for s in seen if s.turn_id != turn.context.turn_id]
        assert_paired(seen)

    def teardown(self) -> None:
        try:
            self._wind_down()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            asyncio.set_event_loop(None)

    def _wind_down(self) -> None:
        """T5: whatever has happened, everybody gets out and every Branch is free."""
        for site in self.sites:
            site.mode = "quick"
        for round_ in range(40):
            live = [a for a in self.actors if not a.task.done()]
            if (
                not live
                and all(t.done() for t in self.releases)
                and not any(s.host.turn_state.turn for s in self.sites)
            ):
                break
            for site in self.sites:
                site.open()
            for actor in self.actors:
                if actor.task.done():
                    actor.stream = None  # its consumer has gone
            for actor in live:
                actor.tell("close" if actor.streams else "return")
                actor.tell("return")
                if round_ > 20:  # waits that can never end, shown as such, end by cancellation
                    actor.stream = None
                    actor.task.cancel()
            if round_ > 20:
                gc.collect()
            self.spin(8)
        self.spin(3)  # what was closed outside of the loop is released in it
        for task in [a.task for a in self.actors] + list(self.releases):
            assert task.done(), f"T5: {task} never ended"
            assert task.cancelled() or task.exception() is None
        for site in self.sites:
            assert_between_turns(site.host)
            assert_paired(site.seen)
        assert self.nested == []
        assert not self.complaints, self.complaints


class BranchMachine(Machine):
    clean_stop = StopStream

    def make_site(self, name: str) -> Site:
        if name == "A":
            return BranchSite(name, lionnb.Branch(chat_model=scripted_model("x"), name=name))
        return BranchSite(name, lionnb.wrap(StockBranch(chat_model=scripted_model("x"), name=name)))

    @rule(i=st.integers(0, 2))
    @precondition(lambda self: len(self.sites) < 3)
    def clone(self, i: int) -> None:
        """In the middle of anything: the clone begins between turns."""
        made = self.sites[i % len(self.sites)].host.clone()
        assert_between_turns(made)
        self.sites.append(BranchSite("C", made))

    @rule(i=st.integers(0, 2))
    def wrap_again(self, i: int) -> None:
        host = self.sites[i % len(self.sites)].host
        state = host.turn_state
        assert lionnb.wrap(host) is host and host.turn_state is state


def run(machine: type[Machine], examples: int, *, explore: bool) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=not explore,  # the fast tier tries the same cases each time
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
def _quick():
    """Thousands of loops and collections: without tracebacks of log records, and past what was there before."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)


ignore_history = pytest.mark.filterwarnings("ignore:turn .* left a question")


def test_the_invariants_hold_over_the_driver_alone():
    run(Machine, 300, explore=False)


@ignore_history
def test_the_invariants_hold_over_real_branches():
    run(BranchMachine, 60, explore=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_invariants_hold_over_the_driver_alone_in_thousands_of_cases():
    run(Machine, 2_000, explore=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@ignore_history
def test_the_invariants_hold_over_real_branches_in_many_cases():
    run(BranchMachine, 400, explore=True)
