"""What the tests of turns share: the nine operations, a Branch that is watched, and what holds between turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from lionagi.session.signal import MessageAdded, RunEnd, RunFailed, RunStart
from pydantic import BaseModel

import lionnb
from lionnb.turns import Phase, TurnState


class Answer(BaseModel):
    answer: str


ROUND = json.dumps({"analysis": "one more look", "extension_needed": True})
ANALYSIS = json.dumps({"analysis": "seen enough", "extension_needed": False})
ANSWER = json.dumps({"answer": "yes"})


async def drain(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


@dataclass(frozen=True)
class Operation:
    """One of the nine: how it is called, the name of its model argument, and replies that make it succeed."""

    name: str
    model_argument: str | None
    replies: tuple[Any, ...]
    positional: dict[str, Any] = field(default_factory=dict)
    streams: bool = False

    def open(self, branch: Any, model: Any = None) -> Any:
        """The coroutine or the stream."""
        kw = dict(self.positional)
        if model is not None and self.model_argument is not None:
            kw[self.model_argument] = model
        return getattr(branch, self.name)(**kw)

    async def call(self, branch: Any, model: Any = None) -> Any:
        """To its end; a stream's items as a list."""
        made = self.open(branch, model)
        return await drain(made) if self.streams else await made


_REACT = {"instruct": {"instruction": "q"}, "extension_allowed": False}

OPERATIONS = {
    op.name: op
    for op in (
        Operation("chat", "imodel", (ANSWER,), {"instruction": "q"}),
        Operation("chat_and_record", "imodel", (ANSWER,), {"instruction": "q"}),
        Operation("parse", None, (ANSWER,), {"text": "no json here", "response_format": Answer}),
        Operation("operate", "chat_model", (ANSWER,), {"instruction": "q", "response_format": Answer}),
        Operation("communicate", "chat_model", (ANSWER,), {"instruction": "q"}),
        Operation("interpret", "interpret_model", (ANSWER,), {"text": "q"}),
        Operation("ReAct", "analysis_model", (ANALYSIS, ANSWER), _REACT),
        Operation("ReActStream", "analysis_model", (ANALYSIS, ANSWER), _REACT, streams=True),
        Operation("run", "chat_model", (ANSWER,), {"instruction": "q"}, streams=True),
    )
}
COROUTINES = [name for name, op in OPERATIONS.items() if not op.streams]
STREAMS = [name for name, op in OPERATIONS.items() if op.streams]


def on_both_roads(names: Iterable[str]) -> Any:
    """Parametrizes ``road`` and ``operation``; lionagi streams `run` from command-line providers only."""
    pairs = [(road, name) for name in names for road in ("cli", "api") if (road, name) != ("api", "run")]
    params = [pytest.param(*pair, id="-".join(pair)) for pair in pairs]
    return pytest.mark.parametrize(("road", "operation"), params, indirect=True)


every_operation = on_both_roads(OPERATIONS)
every_coroutine = on_both_roads(COROUTINES)


@dataclass
class Seen:
    """One signal as an observer saw it."""

    kind: str
    turn_id: Any
    data: Any


class Watched:
    """A turn-aware Branch with everything that its observers saw. Not observed, it has no Session at all."""

    def __init__(self, model: Any, *, observed: bool = True, **kw: Any) -> None:
        self.seen: list[Seen] = []
        self.branch = lionnb.Branch(chat_model=model, **kw)
        self.session = lionnb.Session(default_branch=self.branch) if observed else None
        if self.session is not None:
            for signal in (RunStart, RunEnd, RunFailed, MessageAdded):
                self.session.observe(signal, handler=self._see)

    def _see(self, event: Any, _: Any) -> None:
        if isinstance(event, RunStart | RunEnd | RunFailed | MessageAdded):  # a payload type matches too
            self.seen.append(Seen(type(event).__name__, getattr(event, "turn_id", None), event.data))

    def observe(self, signal: Any, handler: Callable[..., Any]) -> None:
        assert self.session is not None
        self.session.observe(signal, handler=handler)

    @property
    def kinds(self) -> list[str]:
        """The lifecycle signals, in order."""
        return [s.kind for s in self.seen if s.kind != "MessageAdded"]

    @property
    def terminal(self) -> Seen:
        return [s for s in self.seen if s.kind in ("RunEnd", "RunFailed")][-1]

    @property
    def outcomes(self) -> list[str]:
        """What the log says became of each entry, in order of arrival."""
        return [r.outcome.value for r in self.branch.turns.records()]

    def check(self, *terminals: str) -> None:
        """The signals are exactly these turns', and the Branch stands between turns."""
        if self.session is not None:
            assert self.kinds == [k for t in terminals for k in ("RunStart", t)]
            assert_paired(self.seen)
        assert_between_turns(self.branch)


def assert_paired(seen: list[Seen]) -> None:
    """One RunStart and one terminal a turn, both with its id, and no message signal outside of them."""
    open_id, ids = None, []
    for s in seen:
        if s.kind == "RunStart":
            assert open_id is None and s.turn_id is not None, "a turn started inside another"
            open_id = s.turn_id
            ids.append(open_id)
        elif s.kind == "MessageAdded":
            assert open_id is not None, "a message signal came after its turn's terminal"
        else:
            assert s.turn_id == open_id, "a terminal without its start"
            open_id = None
    assert open_id is None, "a turn has no terminal"
    assert len(set(ids)) == len(ids)


def assert_between_turns(branch: Any) -> None:
    """The lock is free, the pointer clear, nobody waits, and every row of the log has ended."""
    state: TurnState = branch.turn_state
    assert not state.lock.locked(), "the lock is held"
    assert state.turn is None and state.context is None, "the pointer is set"
    assert state.waiters == {}, "somebody is left in the queue"
    unended = [r for r in branch.turns.records() if r.ended_at is None] if hasattr(branch, "turns") else []
    assert unended == [], "a row of the log has no end"


async def until(condition: Callable[[], Any], steps: int = 10_000) -> None:
    """Let the loop turn until *condition* holds. Counts steps of the loop, never time."""
    for _ in range(steps):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


async def finalizing(branch: Any) -> None:
    """Until the Branch's active turn finalizes."""
    await until(lambda: (ctx := branch.turn_state.context) is not None and ctx.phase is Phase.FINALIZING)


async def outcome_of(awaitable: Awaitable[Any]) -> BaseException | None:
    """What it raised; ``None`` when it returned."""
    try:
        await awaitable
    except BaseException as exc:
        return exc
    return None


class CleanStop(Exception):
    """The fake host's clean control."""


class Host:
    """A Branch for the driver: twenty lines, no lionagi."""

    turn_clean_stops = (CleanStop,)

    def __init__(self, name: str = "A", *, observed: bool = True) -> None:
        self.name, self.observed, self.model = name, observed, object()
        self.turn_state = TurnState()
        self.seen: list[Seen] = []
        self.on_signal: Callable[[str, Any], Awaitable[None]] | None = None

    @property
    def turns(self) -> Any:
        return self.turn_state.log

    def turn_label(self) -> tuple[str, str | None]:
        return self.name, self.name

    def turn_model(self) -> Any:
        return self.model

    def turn_model_name(self, model: Any) -> str:
        return "fake"

    def turn_observed(self) -> bool:
        return self.observed

    def turn_opened(self, turn: Any) -> None: ...

    def turn_closing(self, turn: Any) -> None: ...

    async def _emit(self, kind: str, ctx: Any, data: Any) -> None:
        self.seen.append(Seen(kind, ctx.turn_id, data))
        if self.on_signal is not None:
            await self.on_signal(kind, ctx)

    async def turn_emit_start(self, ctx: Any) -> None:
        await self._emit("RunStart", ctx, None)

    async def turn_emit_end(self, ctx: Any, *, duration_ms: float, result: Any) -> None:
        await self._emit("RunEnd", ctx, result)

    async def turn_emit_failed(self, ctx: Any, exc: BaseException) -> None:
        await self._emit("RunFailed", ctx, exc)

    @property
    def kinds(self) -> list[str]:
        return [s.kind for s in self.seen if s.kind != "MessageAdded"]

    def check(self, *terminals: str) -> None:
        if self.observed:
            assert self.kinds == [k for t in terminals for k in ("RunStart", t)]
            assert_paired(self.seen)
        assert_between_turns(self)
