"""A scripted model on lionagi's own ``ScriptedEndpoint``: the streaming road of command-line providers.

It adds to lionagi's: a `Gate`, a pace, word-by-word streaming, callables and exceptions as replies, a script
that copies share, and reported usage. May import lionagi; needs no network, no key and no pytest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

from lionagi.service.connections.registry import EndpointType, register_endpoint
from lionagi.service.imodel import iModel
from lionagi.service.types.stream_chunk import StreamChunk
from lionagi.testing import RecordedCall, ScriptedEndpoint

from lionnb.testing.gate import Gate
from lionnb.testing.replies import Reply, Script

__all__ = ("LionnbScriptedEndpoint", "calls_of", "scripted_model")

PROVIDER = "lionnb-scripted"


@dataclass(eq=False, slots=True)
class Part:
    """What one scripted provider plays, shared by the model and its copies."""

    script: Script
    gate: Gate | None = None
    gate_at: str = "last"
    pace_s: float = 0.0


@register_endpoint(
    provider=PROVIDER,
    endpoint="chat/completions",
    aliases=["chat", "query_cli", "cli"],
    endpoint_type=EndpointType.AGENTIC,
    base_url="internal",
    auth_type="bearer",
)
class LionnbScriptedEndpoint(ScriptedEndpoint):
    """lionagi's scripted endpoint with a gate, a pace and a shared script. Use `scripted_model`."""

    def __init__(self, config: Any = None, **kwargs: Any) -> None:
        # Popped before super(), as lionagi does with its own: what is left would end up in the request.
        self.part: Part = kwargs.pop("part", None) or Part(Script(["(no script)"]))
        kwargs.setdefault("script", [{"type": "text", "content": ""}])  # unused; without it lionagi warns
        super().__init__(config, **kwargs)

    def copy_runtime_state_to(self, other: Any) -> None:
        """Share script, calls, gate and pace with a copy.

        lionagi gives each copy a script of its own that starts over. A provider does not start over because a
        model object was copied, and lionnb copies a model for every turn.
        """
        super().copy_runtime_state_to(other)
        if isinstance(other, LionnbScriptedEndpoint):
            other.part, other.calls = self.part, self.calls

    async def _call(self, payload: dict[str, Any], headers: dict[str, Any], **_: Any) -> dict[str, Any]:
        reply, record = self._take(payload, headers, streamed=False)
        await self._pause(reply, gated=True)
        if reply.error is not None:
            raise reply.error
        record.response = response = reply.completion(payload)
        return response

    async def stream(
        self, request: Any, extra_headers: dict[str, Any] | None = None, **kwargs: Any
    ) -> AsyncGenerator[StreamChunk, None]:
        """Yield the reply's chunks: words, or what a stream entry lists; then usage, in a result chunk."""
        payload, headers = self.create_payload(request, extra_headers=extra_headers, **kwargs)
        # Read and written before the first await: the order of calls is the order of replies.
        reply, record = self._take(payload, headers, streamed=True)
        record.response = []
        if reply.error is not None:
            await self._pause(reply, gated=True)
            raise reply.error
        chunks = _chunks(reply)
        spoken = [i for i, c in enumerate(chunks) if c.type == "text"] or [0]
        gated = spoken[0] if self.part.gate_at == "first" else spoken[-1]
        for i, chunk in enumerate(chunks):
            await self._pause(reply, gated=i == gated)
            record.response.append(chunk)
            yield chunk
        yield _result(reply, payload)

    def _take(self, payload: dict[str, Any], headers: dict[str, Any], *, streamed: bool) -> tuple[Reply, RecordedCall]:
        # Recorded when it starts, where lionagi records at the end: a cancelled call was a call.
        record = RecordedCall(
            index=len(self.calls),
            payload=dict(payload),
            headers=dict(headers),
            response_type="reply",
            response=None,
            was_streamed=streamed,
        )
        self.calls.append(record)
        return self.part.script.take(payload), record

    async def _pause(self, reply: Reply, *, gated: bool) -> None:
        # Also when the pace is 0: a provider that never gave way would hide every interleaving, and every point of
        # a stream at which its turn can be cancelled.
        await asyncio.sleep(self.part.pace_s)
        gate = reply.gate or self.part.gate
        if gated and gate is not None:
            await gate.wait()


def _chunks(reply: Reply) -> list[StreamChunk]:
    if reply.chunks:
        return [StreamChunk(**spec.model_dump()) for spec in reply.chunks]
    calls = [
        StreamChunk(type="tool_use", tool_name=c["name"], tool_id=c.get("id"), tool_input=dict(c["arguments"]))
        for c in reply.tool_calls
    ]
    return calls or [StreamChunk(type="text", content=word, is_delta=True) for word in reply.pieces()]


def _result(reply: Reply, payload: dict[str, Any]) -> StreamChunk:
    counted = reply.counted(payload)
    usage = {"usage": {"input_tokens": counted[0], "output_tokens": counted[1]}} if counted else {}
    return StreamChunk(type="result", metadata={"done": True, **usage})


def scripted_model(
    replies: Any,
    *,
    gate: Gate | None = None,
    gate_at: Literal["first", "last"] = "last",
    pace_s: float = 0.0,
    model: str = "scripted",
    repeat_last: bool = True,
    **imodel_kwargs: Any,
) -> iModel:
    """A model that answers from a script, on the streaming road (``is_cli`` is True). No network, no key.

    Args:
        replies: What it answers (see `lionnb.testing.replies`): a list, in order, or one reply.
        gate: Awaited once in every call.
        gate_at: Before the *first* text chunk, or before the *last*, when the others are out already; a call that is
            not streamed waits before its answer.
        pace_s: Seconds before each chunk; with 0 the loop still gets its turn.
        model: The model's name.
        repeat_last: Go on with the last reply when the script has run out.
        imodel_kwargs: Passed to lionagi's ``iModel``.
    """
    return iModel(
        provider=PROVIDER,
        endpoint="chat",
        model=model,
        part=Part(Script(replies, repeat_last=repeat_last), gate, gate_at, pace_s),
        **imodel_kwargs,
    )


def calls_of(model: iModel) -> list[RecordedCall]:
    """The calls that this scripted model and its copies have had so far, cancelled ones included."""
    return model.endpoint.calls  # type: ignore[no-any-return]
