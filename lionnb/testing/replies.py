"""What a scripted provider answers, told once and served on both roads. Knows lionagi's script entries.

A *reply* is a ``str``, one of lionagi's response entries (a dict with ``type``: text, structured, tool_call,
stream, error), an exception, a `Reply`, or a callable that takes the request's payload and returns one.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lionagi.testing import ScriptExhaustedError, ScriptModel, StreamChunkSpec, TextResponse

from lionnb.testing.gate import Gate

__all__ = ("Reply", "Script", "usage_of")

_STATUS_OF_KIND = {
    "rate_limit": 429,
    "server_error": 500,
    "bad_request": 400,
    "timeout": 504,
    "value_error": 500,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a scripted provider. The faults below ``gate`` are served by `LoopbackServer` only.

    Args:
        text: What the model says; streamed word by word.
        chunks: The chunks to stream instead, as lionagi's ``StreamChunkSpec``.
        tool_calls: ``{"name", "arguments"}`` per native tool call.
        usage: ``(input, output)`` tokens to report; ``None`` reports none; by default words are counted.
        error: Raised in place of an answer.
        gate: Awaited before the answer is complete, in place of the model's own gate.
        status: HTTP status; anything but 200 is an error without an answer.
        retry_after_s: Sent as ``Retry-After`` in seconds.
        hang_up: Close the connection in the middle of the body.
        malformed: Send a body that is no JSON.
    """

    text: str = ""
    chunks: tuple[StreamChunkSpec, ...] = ()
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    usage: tuple[int, int] | str | None = "words"
    error: BaseException | None = None
    gate: Gate | None = None
    status: int = 200
    retry_after_s: float | None = None
    hang_up: bool = False
    malformed: bool = False

    def pieces(self) -> list[str]:
        """The text in the pieces it is streamed in: words, each with the space before it."""
        return re.findall(r"\s*\S+\s*$|\s*\S+", self.text) or [self.text]

    def counted(self, payload: Mapping[str, Any]) -> tuple[int, int] | None:
        """``(input, output)`` tokens to report for this request; ``None`` reports none."""
        return usage_of(payload, self.text) if isinstance(self.usage, str) else self.usage

    def completion(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The answer as the body of a chat completion, as OpenAI's API shapes it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": c.get("id") or f"call_{i}",
                    "type": "function",
                    "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])},
                }
                for i, c in enumerate(self.tool_calls)
            ]
        body: dict[str, Any] = {
            "id": "chatcmpl-lionnb",
            "object": "chat.completion",
            "created": 0,
            "model": payload.get("model") or "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if self.tool_calls else "stop"}],
        }
        if (counted := self.counted(payload)) is not None:
            body["usage"] = {
                "prompt_tokens": counted[0],
                "completion_tokens": counted[1],
                "total_tokens": sum(counted),
            }
        return body


def usage_of(payload: Mapping[str, Any], text: str) -> tuple[int, int]:
    """Words of the request and of the answer: deterministic, and never zero for a real request."""
    return len(str(payload.get("messages") or "").split()), len(text.split())


@dataclass(eq=False)
class Script:
    """The queue of replies behind a model; one per model and shared by its copies, as a real provider is.

    ``when`` matchers and order are lionagi's own (``ScriptModel``). Thread-safe.

    Args:
        replies: A list of replies (see the module), or a single one.
        repeat_last: Answer with the last reply when the script has run out, instead of raising lionagi's
            ``ScriptExhaustedError``.
    """

    replies: Any
    repeat_last: bool = True
    served: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.replies, list | tuple):
            self.replies = [self.replies]  # one reply is a script, too
        if not self.replies:
            raise ValueError("a script needs at least one reply.")
        for reply in self.replies:
            if isinstance(reply, Mapping):
                ScriptModel.from_responses([dict(reply)])  # a typo is an error here, not at the call
        self._order = ScriptModel.from_responses(
            # lionagi picks; the content is only the index of what was picked
            [
                TextResponse(content=str(i), when=r.get("when") if isinstance(r, Mapping) else None)
                for i, r in enumerate(self.replies)
            ]
        )

    def take(self, payload: Mapping[str, Any]) -> Reply:
        """The reply to this request. Raises what a callable raises; the reply is used up all the same."""
        with self._lock:
            reply = self.replies[self._pick(payload)]
            self.served += 1
        for _ in range(4):  # a callable may return a callable, but not for ever
            if not callable(reply) or isinstance(reply, type):
                break
            reply = reply(payload)
        return _as_reply(reply)

    def _pick(self, payload: Mapping[str, Any]) -> int:
        try:
            entry, _how = self._order.next(dict(payload), self.served)
        except ScriptExhaustedError:
            if not self.repeat_last:
                raise
            return len(self.replies) - 1
        assert isinstance(entry, TextResponse)
        return int(entry.content)


def _as_reply(reply: Any) -> Reply:
    if isinstance(reply, Reply):
        return reply
    if isinstance(reply, str):
        return Reply(text=reply)
    if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
        error = reply() if isinstance(reply, type) else reply
        return Reply(error=error, status=500)
    if isinstance(reply, Mapping):
        return _from_entry({k: v for k, v in reply.items() if k != "when"})
    raise TypeError(f"a reply is a str, a dict entry, an exception, a Reply or a callable, not {type(reply).__name__}.")


def _from_entry(data: dict[str, Any]) -> Reply:
    (entry,) = ScriptModel.from_responses([data]).responses
    if entry.type == "text":
        return Reply(text=entry.content)
    if entry.type == "structured":
        return Reply(text=json.dumps(entry.data))
    if entry.type == "tool_call":
        call = {"name": entry.name, "arguments": entry.arguments, "id": entry.id}
        return Reply(tool_calls=(call,))
    if entry.type == "stream":
        chunks = tuple(entry.chunks)
        text = "".join(c.content or "" for c in chunks if c.type == "text")
        return Reply(text=text, chunks=chunks)
    return _failure(entry)


def _failure(entry: Any) -> Reply:
    from lionagi.service.resilience import APIClientError

    status = _STATUS_OF_KIND.get(entry.kind, 500)
    error: Exception
    if entry.kind in ("rate_limit", "server_error", "bad_request"):
        error = APIClientError(entry.message, status_code=status)
    else:
        error = TimeoutError(entry.message) if entry.kind == "timeout" else ValueError(entry.message)
    return Reply(error=error, status=status)
