"""Words in which the tests of legs tell their stories; every one is told on both of lionagi's roads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import lionnb
from lionnb.legs import Leg, start_leg
from lionnb.legs.states import TurnEnd
from lionnb.records import ControlRecord, FeedEvent, SessionRecord, TurnRecord
from lionnb.store import Store
from lionnb.testing import Gate

Hook = Callable[..., Awaitable[Any]]


class HookedStore(Store):
    """A store whose operations a test can hold, change or fail, by their name, on the control thread.

    ``hooks[name]`` is ``async (operation, *args, **kwargs)``: it calls *operation* when, and if, it wants to.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hooks: dict[str, Hook] = {}
        self.said: list[str] = []  # the operations that were asked for, in order
        self.hurry: Callable[[], None] = lambda: None  # let `steer` wait for nothing that is held here

    async def _opened(self) -> Any:
        if (hook := self.hooks.get("open")) is not None:
            await hook()
        return _Hooked(self, await super()._opened())

    # ------------------------------------------------------------------ what tests ask of it, from any thread
    def ask(self, work: Callable[[Any], Any]) -> Any:
        return self.submit(work).result(timeout=30)

    def hold(self, name: str) -> Gate:
        """Hold every *name* at a gate, before it reaches the database."""
        gate = Gate(name=name)
        self.hurry()

        async def hook(operation: Hook, *args: Any, **kwargs: Any) -> Any:
            await gate.wait()
            return await operation(*args, **kwargs)

        self.hooks[name] = hook
        return gate

    def fail(self, name: str, *errors: BaseException) -> None:
        """Let *name* fail with each of *errors*, once; then it works again."""
        left = list(errors)

        async def hook(operation: Hook, *args: Any, **kwargs: Any) -> Any:
            if left:
                raise left.pop(0)
            return await operation(*args, **kwargs)

        self.hooks[name] = hook


class _Hooked:
    def __init__(self, store: HookedStore, core: Any) -> None:
        self._store, self._core = store, core

    def __getattr__(self, name: str) -> Any:
        operation, hooks = getattr(self._core, name), self._store.hooks

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._store.said.append(name)
            if (hook := hooks.get(name)) is not None:
                return await hook(operation, *args, **kwargs)
            return await operation(*args, **kwargs)

        return call


@dataclass
class Scene:
    """A Branch with a scripted provider behind a gate, and what became of what was sent to it."""

    road: Any
    store: HookedStore
    replies: Any
    gate: Gate = field(default_factory=Gate)
    how: dict[str, Any] = field(default_factory=dict)
    legs: list[Leg] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.road.model(self.replies, gate=self.gate, **self.how)
        self.branch = lionnb.Branch(chat_model=self.model)

    @property
    def cli(self) -> bool:
        return self.road.name == "cli"

    def leg(self, instruction: Any = "Survey X", **how: Any) -> Leg:
        leg = start_leg(self.branch, instruction, **{"store": self.store, "by": "ana"} | how)
        self.legs.append(leg)
        return leg

    # ------------------------------------------------------------------ time, as events
    async def working(self, n: int = 1) -> None:
        """The provider works on *n* calls. A leg that ends instead is told, not waited for."""
        reached = asyncio.ensure_future(self.gate.reached(n))
        ended = [leg.task for leg in self.legs]
        await asyncio.wait((reached, *ended), return_when=asyncio.FIRST_COMPLETED)
        if not reached.done() and self.legs and all(task.done() for task in ended):
            reached.cancel()
            raise AssertionError(f"nobody works any more: {self.legs}, {[leg.note for leg in self.legs]}")
        await reached

    async def answer(self) -> None:
        """Let the call pass that is at the gate, and wait until the provider is at work again or nobody is."""
        await self.working()
        self.gate.open()
        self.gate.close()
        await self.gate.left()

    def answer_all(self) -> None:
        self.gate.open()

    # ------------------------------------------------------------------ what became of it
    @property
    def requests(self) -> list[dict[str, Any]]:
        return self.road.requests(self.model)

    def sent(self, n: int) -> str:
        """Everything that the *n*-th request says, as one text."""
        return "\n".join(str(m.get("content")) for m in self.requests[n]["messages"])

    def last(self, n: int) -> str:
        """What the newest message of the *n*-th request says."""
        return str(self.requests[n]["messages"][-1]["content"])

    def rows(self, leg: Leg) -> list[ControlRecord]:
        return self.store.ask(lambda core: core.list_controls(leg.session_id))

    def states(self, leg: Leg) -> list[str]:
        return [row.state.value for row in self.rows(leg)]

    def run(self, leg: Leg) -> SessionRecord:
        return self.store.ask(lambda core: core.get_session(leg.session_id))

    def stored_turns(self, leg: Leg) -> list[TurnRecord]:
        return self.store.ask(lambda core: core.list_turns(leg.session_id))

    def carried(self) -> list[list[str]]:
        """For each message of the history, the ids of the controls that it carried."""
        return [m.metadata.get("lionnb_controls", []) for m in self.branch.messages]


async def heard(feed: Any, when: Callable[[FeedEvent], Any]) -> FeedEvent:
    """The first event of *feed* for which *when* holds, from its beginning on."""
    for event in feed.events():
        if when(event):
            return event
    found: asyncio.Future[FeedEvent] = asyncio.get_running_loop().create_future()
    stop = feed.listen(lambda e: found.set_result(e) if not found.done() and when(e) else None)
    try:
        return await found
    finally:
        stop()


async def phase(leg: Leg, name: str) -> None:
    """Return once the leg is (or has been) in this phase."""
    await heard(leg.feed, lambda e: e.kind == "leg" and e.data["sentence"] == name)


async def ended(leg: Leg) -> None:
    """Return once the leg has ended, however: unlike an await, it raises nothing."""
    await asyncio.wait((leg.task,))


def spend(leg: Leg, seconds: float) -> None:
    """Let *seconds* of the leg's budget have passed."""
    leg.budget.started -= seconds


def deadline(leg: Leg) -> None:
    """The budget is spent, and the timer of the running turn fires: what the loop would do at that moment."""
    spend(leg, leg.budget.timeout_s)
    leg._turn.cancel(TurnEnd.DEADLINE)
