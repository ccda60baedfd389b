"""What the turn log learns from lionagi's objects: prompts, messages, usage, provider reports, text as it comes.

It also gives a turn the streams that its provider starts, which the turn closes (`attach`). Reads public attributes of
lionagi's messages and calls; never changes an outcome. Everything handed to the log is a
JSON value. Nothing is computed for a text beyond taking its reference, for this runs once per message of every turn.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable
from typing import Any

from lionagi.ln import is_coro_func
from lionagi.protocols.messages import ActionRequest, ActionResponse, AssistantResponse, Instruction
from lionagi.service.connections import APICalling

from lionnb.turns import context as ctxs
from lionnb.turns.log import TurnLog, TurnRow, clip
from lionnb.turns.phases import Phase
from lionnb.turns.state import TurnState
from lionnb.turns.turn import Turn

__all__ = (
    "ReportSlot",
    "attach",
    "counts_of",
    "detach",
    "mark_instruction",
    "message",
    "model_name",
    "prompt_of",
    "provider_call",
    "report",
)


def model_name(model: Any) -> str:
    """``provider/model``, as far as the model says."""
    provider = getattr(getattr(getattr(model, "endpoint", None), "config", None), "provider", None)
    name = getattr(model, "model_name", None)
    return "/".join(str(p) for p in (provider, name) if p) or type(model).__name__


def as_text(value: Any) -> str:
    """A value as one text; strings are taken as they are."""
    if isinstance(value, str):
        return value
    for write in (_json, str):
        with contextlib.suppress(Exception):  # a value's own code may fail; the log never changes an outcome
            return write(value)
    return f"<{type(value).__name__}>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def prompt_of(args: tuple[Any, ...], kw: dict[str, Any], name: str = "instruction") -> str:
    """What the caller asked, for the log."""
    value = kw.get(name)
    if value is None:
        value = kw.get("instruct") or (args[0] if args else None)
    if isinstance(value, dict):
        value = value.get("instruction", value)
    value = getattr(value, "instruction", value)
    value = getattr(getattr(value, "content", None), "instruction", value)  # an Instruction message
    return "" if value is None else as_text(value)


# ---------------------------------------------------------------------- usage
def _count(found: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = found.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def counts_of(response: Any) -> tuple[int | None, int | None, float | None] | None:
    """Input tokens, output tokens and cost that one provider response reports; ``None`` when it reports nothing."""
    item = response[-1] if isinstance(response, list) and response else response
    if not isinstance(item, dict):
        return None
    usage = item.get("usage")
    found = usage if isinstance(usage, dict) else {}
    cost = item.get("total_cost_usd", item.get("cost"))
    got = (
        _count(found, "input_tokens", "prompt_tokens"),
        _count(found, "output_tokens", "completion_tokens"),
        float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None,
    )
    return None if got == (None, None, None) else got


def provider_call(turn: Turn, event: Any) -> None:
    """A provider call has settled on the API road: its usage is the turn's, also when it failed."""
    if isinstance(event, APICalling) and (counts := counts_of(event.response)) is not None:
        row, said = turn.row, event.response
        row.add_usage(*counts)
        # The message made of it repeats this usage. A list, for nested calls may be under way at the same time.
        row.counted = [*(row.counted or ()), said[0] if isinstance(said, list) and len(said) == 1 else said]


# ---------------------------------------------------------------------- messages
def message(log: TurnLog, turn: Turn | None, msg: Any) -> None:
    """A message was added to the Branch."""
    turn_id = None if turn is None else turn.row.turn_id
    content = msg.content
    if isinstance(msg, AssistantResponse):
        if turn is not None:
            _message_usage(turn.row, msg.metadata.get("model_response"))
        log.event("text", turn_id, role="assistant", text=clip(msg.response or ""), id=str(msg.id))
    elif isinstance(msg, Instruction):
        log.event("text", turn_id, role="user", text=clip(as_text(content.instruction or "")), id=str(msg.id))
    elif isinstance(msg, ActionRequest):
        args = clip(as_text(content.arguments))
        log.event("tool_call", turn_id, id=str(msg.id), name=str(content.function), arguments=args)
    elif isinstance(msg, ActionResponse):
        failed = bool(content.error) or bool(msg.metadata.get("is_error"))
        output = clip(as_text(content.error or content.output))
        name, request = str(content.function), str(content.action_request_id)
        log.event("tool_result", turn_id, id=request, name=name, output=output, error=failed)


def _message_usage(row: TurnRow, response: Any) -> None:
    """On the streaming road usage arrives with the message; on the API road it was counted when the call settled."""
    if response is not None and row.counted and response in row.counted:
        row.counted.remove(response)
        return
    if (counts := counts_of(response)) is not None:
        row.add_usage(*counts)


# ---------------------------------------------------------------------- provider blocks
def report(log: TurnLog, row: TurnRow, turn_id: str, found: Any) -> None:
    """The providers of one request were gathered."""
    blocks = tuple(
        {"name": str(fired.get("provider_name")), "tokens": fired.get("tokens"), "text": clip(str(text))}
        for text, fired in zip(found.blocks, found.fired, strict=False)
    )
    row.blocks, row.skipped, row.failed = blocks, tuple(found.skipped), tuple(found.failed)
    row.degraded = tuple(dict(d) for d in found.degraded)
    log.event(
        "blocks",
        turn_id,
        blocks=list(blocks),
        skipped=list(row.skipped),
        failed=list(row.failed),
        degraded=list(row.degraded),
    )


class ReportSlot:
    """Stands where lionagi keeps a ContextVar for the last provider report: a report belongs to its turn."""

    __slots__ = ("state",)

    def __init__(self, state: TurnState) -> None:
        self.state = state

    def set(self, found: Any) -> None:
        """Called by lionagi when the providers of a request have been gathered."""
        state = self.state
        ctx = ctxs.live_context(state, Phase.ACTIVE, Phase.FINALIZING)
        if ctx is None:  # an operation function called outside of every turn keeps lionagi's behaviour
            state.report = found
            return
        ctx.provider_report, ctx.provider_blocks = found, tuple(found.blocks)
        assert state.turn is not None
        report(state.log, state.turn.row, str(ctx.turn_id), found)

    def get(self) -> Any:
        """What lionagi reads back."""
        ctx = ctxs.live_context(self.state, Phase.ACTIVE, Phase.FINALIZING)
        return self.state.report if ctx is None else ctx.provider_report


# ---------------------------------------------------------------------- text as it comes
def _tell(chunk: Any) -> None:
    """A chunk came on a tapped model: it belongs to the turn in whose lineage the stream is driven.

    A model may be shared by Branches that stream at the same time, so the tap asks the context, not the model.
    """
    text, kind = getattr(chunk, "content", None), getattr(chunk, "type", None)
    if kind != "text" or not isinstance(text, str) or not text:
        return
    if (turn := _turn_here()) is not None and turn.state is not None:
        turn.state.log.event("chunk", turn.row.turn_id, keep=False, text=text)


def _turn_here() -> Turn | None:
    for binding in reversed(ctxs.chain()):
        if binding.turn.scope is not None:
            return binding.turn
    return None


def _make_tap(previous: Callable[[Any], Any] | None) -> Any:
    # lionagi asks whether the function is a coroutine function, so the tap has to be what the previous one was
    if previous is not None and is_coro_func(previous):

        async def async_tap(chunk: Any) -> Any:
            _tell(chunk)
            return await previous(chunk)

        return async_tap

    def tap(chunk: Any) -> Any:
        _tell(chunk)
        return None if previous is None else previous(chunk)

    return tap


class _Tap:
    """A tap on one model, shared by the turns that stream on it."""

    __slots__ = ("function", "model", "previous", "users")

    def __init__(self, model: Any) -> None:
        self.model, self.users = model, 0
        self.previous = model.streaming_process_func
        self.function = _make_tap(self.previous)
        self.function.lionnb_tap = self

    def release(self) -> None:
        """The last user puts back what was there, unless somebody else has replaced the tap meanwhile."""
        self.users -= 1
        if self.users == 0 and self.model.streaming_process_func is self.function:
            self.model.streaming_process_func = self.previous


def _tap(model: Any) -> _Tap:
    tap: _Tap | None = getattr(model.streaming_process_func, "lionnb_tap", None)
    if tap is None or tap.model is not model:  # a copied model carries the function of the one it was copied from
        tap = _Tap(model)
        model.streaming_process_func = tap.function
    tap.users += 1
    return tap


# ---------------------------------------------------------------------- the provider's streams
class _Sources:
    """Hands every stream that an endpoint starts to the turn it is for; shared by the turns that stream on it.

    lionagi 0.36 drops this generator unclosed when its consumer stops early (`iModel.stream`, `APICalling`): the loop
    would close it some steps later, and the child process behind it live on beyond RunEnd and into the next turn.
    """

    __slots__ = ("endpoint", "function", "previous", "users")

    def __init__(self, endpoint: Any) -> None:
        self.endpoint, self.users = endpoint, 0
        self.previous = vars(endpoint).get("stream")  # somebody else's, else the method of the class
        stream = endpoint.stream

        def watched(*args: Any, **kw: Any) -> Any:
            source = stream(*args, **kw)
            if inspect.isasyncgen(source) and (turn := _turn_here()) is not None:
                turn.hold(source)
            return source

        watched.lionnb_sources = self  # type: ignore[attr-defined]
        self.function = watched

    def release(self) -> None:
        """As `_Tap.release`."""
        self.users -= 1
        if self.users or vars(self.endpoint).get("stream") is not self.function:
            return
        if self.previous is None:
            del self.endpoint.stream
        else:
            self.endpoint.stream = self.previous


def _watch(endpoint: Any) -> _Sources:
    sources: _Sources | None = getattr(vars(endpoint).get("stream"), "lionnb_sources", None)
    if sources is None or sources.endpoint is not endpoint:
        sources = _Sources(endpoint)
        endpoint.stream = sources.function
    sources.users += 1
    return sources


# ---------------------------------------------------------------------- both
def attach(model: Any, *, chunks: bool) -> tuple[_Tap | _Sources, ...]:
    """Hold the streams of *model* for the turn they are for, and listen to its *chunks*, until `detach`.

    What it did with its chunks before goes on. Models that do not stream in turns (API models) are left alone.
    """
    if not getattr(model, "is_cli", False):
        return ()
    found: list[_Tap | _Sources] = []
    endpoint = getattr(model, "endpoint", None)
    if hasattr(endpoint, "stream") and hasattr(endpoint, "__dict__"):
        found.append(_watch(endpoint))
    if chunks and hasattr(model, "streaming_process_func"):
        found.append(_tap(model))
    return tuple(found)


def detach(attached: tuple[_Tap | _Sources, ...]) -> None:
    """Undo `attach`."""
    for each in attached:
        each.release()


# ---------------------------------------------------------------------- evidence
def mark_instruction(branch: Any, text: Any, control_ids: tuple[str, ...]) -> bool:
    """Write the control ids into the metadata of the message that carried them; ``False`` when the history has none.

    A saved transcript that contains an id is evidence that its steer was delivered; its absence is none.
    """
    for msg in reversed(list(branch.messages)):
        if isinstance(msg, Instruction) and isinstance(text, str) and text in as_text(msg.content.instruction or ""):
            msg.metadata["lionnb_controls"] = list(control_ids)
            return True
    return False
