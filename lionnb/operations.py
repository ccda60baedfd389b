"""The nine operations that call a model, each of them a turn: mixed into `lionnb.branch.Branch`.

Each enters the driver and then runs lionagi's own method through ``super()``, so that an adopted subclass keeps its
overrides. Public lionagi names only. `act` is no model turn and is not here.

Source: ADR-0018 D2.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from lionagi.ln.types import not_sentinel
from lionagi.session.branch import Branch as StockBranch

from lionnb import taps
from lionnb.turns.driver import run_in_turn
from lionnb.turns.stream import TurnStream, stream_in_turn

__all__ = ("Operations",)


def _given(value: Any) -> Any:
    """A model argument as the driver takes it: lionagi's sentinels mean that none was given."""
    return value if value is not None and not_sentinel(value) else None


def _argument(func: Callable[..., Any], name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """A reader of the argument called *name* in a call of the method *func*; ``None`` when it was not given."""
    names = [p.name for p in inspect.signature(func).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    at = names.index(name) if name in names else None

    def read(args: tuple[Any, ...], kw: dict[str, Any]) -> Any:
        return _given(args[at] if at is not None and len(args) > at else kw.get(name))

    return read


def _turn(name: str, model_argument: str, prompt_argument: str = "instruction") -> Any:
    """Lionagi's coroutine method *name*, run inside a turn."""
    stock = getattr(StockBranch, name)
    model_of = _argument(stock, model_argument)

    @functools.wraps(stock)
    async def method(self: Any, *args: Any, **kw: Any) -> Any:
        below = getattr(super(Operations, self), name)
        return await run_in_turn(
            self,
            invoke=lambda scope: below(*args, **kw),
            model=model_of(args, kw),
            operation=name,
            prompt=taps.prompt_of(args, kw, prompt_argument),
        )

    return method


_react_model = _argument(StockBranch.ReActStream, "analysis_model")
# What lionagi's `run` hands to its operation under the same name, and what it does when it is not given.
_RUN_DEFAULTS = {
    name: inspect.signature(StockBranch.run).parameters[name].default
    for name in (
        "sender",
        "recipient",
        "guidance",
        "context",
        "images",
        "image_detail",
        "stream_persist",
        "response_format",
    )
}


class Operations:
    """See the module. What it is mixed into fulfils `lionnb.turns.TurnHost`."""

    chat = _turn("chat", "imodel")
    chat_and_record = _turn("chat_and_record", "imodel")
    operate = _turn("operate", "chat_model")
    communicate = _turn("communicate", "chat_model")
    interpret = _turn("interpret", "interpret_model", "text")
    ReAct = _turn("ReAct", "analysis_model")

    @functools.wraps(StockBranch.parse)
    async def parse(self: Any, *args: Any, **kw: Any) -> Any:
        """As lionagi's, inside a turn; its model is the configured parse model."""
        below = super().parse  # type: ignore[misc]
        return await run_in_turn(
            self,
            invoke=lambda scope: below(*args, **kw),
            operation="parse",
            prompt=taps.prompt_of(args, kw, "text"),
            resolve=lambda: self.mdls.parse,
        )

    @functools.wraps(StockBranch.ReActStream)
    def ReActStream(self: Any, *args: Any, **kw: Any) -> TurnStream[Any]:
        """As lionagi's: the whole loop is one turn."""
        below = super().ReActStream  # type: ignore[misc]
        return stream_in_turn(
            self,
            invoke=lambda scope: below(*args, **kw),
            model=_react_model(args, kw),
            operation="ReActStream",
            prompt=taps.prompt_of(args, kw),
        )

    @functools.wraps(StockBranch.run)
    def run(
        self: Any,
        instruction: Any = "",
        *,
        chat_model: Any = None,
        persist_dir: str | None = None,
        snapshot_dir: str | None = None,
        **kw: Any,
    ) -> TurnStream[Any]:
        """As lionagi's. The operation's generator is driven directly: the facade drops it without closing it."""
        from lionagi.operations.run.run import run as operation
        from lionagi.operations.types import RunParam

        param = {name: kw.pop(name, default) for name, default in _RUN_DEFAULTS.items()}
        model = _given(chat_model)
        given = {"imodel": model, "persist_dir": persist_dir, "snapshot_dir": snapshot_dir, "imodel_kw": kw or None}
        param.update({name: value for name, value in given.items() if value is not None})
        return stream_in_turn(
            self,
            invoke=lambda scope: operation(self, instruction, RunParam(**param)),
            model=model,
            operation="run",
            prompt=taps.prompt_of((instruction,), {}),
        )
