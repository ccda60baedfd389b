"""An OpenAI-compatible provider on 127.0.0.1, so that the API road is lionagi's own code down to the socket.

Standard library only, on a daemon thread with its own loop: it answers while the loop under test is held,
blocked or being cancelled. What it answers is told like a scripted model's (`lionnb.testing.replies`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any, Literal

from lionnb.aio import LoopThread, OwnedTasks
from lionnb.testing.gate import Gate
from lionnb.testing.replies import Reply, Script

__all__ = ("LoopbackServer",)

_REASON = {200: "OK", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}
_LIMIT = 16 * 2**20  # bytes of a request's head or body; a long history is far below


class LoopbackServer:
    """A scripted provider behind real HTTP; a context manager, usable from any thread.

    Chat completions as JSON and as server-sent events. A client that goes away frees the gate it was held at.
    Closing is idempotent, and cuts off who is still being served.

    Args:
        replies: What it answers: a list, in order of arrival, or one reply.
        gate: Awaited once per request.
        gate_at: Streamed, before the *first* piece of text or before the *last*; otherwise before the answer.
        pace_s: Seconds before each streamed piece, or before the answer.
        repeat_last: Go on with the last reply when the script has run out.
    """

    def __init__(
        self,
        replies: Any,
        *,
        gate: Gate | None = None,
        gate_at: Literal["first", "last"] = "last",
        pace_s: float = 0.0,
        repeat_last: bool = True,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self._script = Script(replies, repeat_last=repeat_last)
        self._gate, self._gate_at, self._pace_s = gate, gate_at, pace_s
        self._exchanges = OwnedTasks("exchange")
        self._thread = LoopThread("lionnb-loopback")
        self.port: int = self._thread.submit(self._listen()).result()

    def __enter__(self) -> LoopbackServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """Where it listens, as an OpenAI base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    def model(self, model: str = "gpt-4o-mini", **imodel_kwargs: Any) -> Any:
        """A model behind lionagi's own OpenAI code that talks to this server; ``is_cli`` is False.

        lionagi blocks addresses of this machine unless the endpoint is told that they are meant, and retries
        a failed request after seconds: both are set here, and can be overridden.
        """
        from lionagi.service.imodel import iModel

        # Token counting would need tiktoken's data on every call, only to feed a rate limit that is not set.
        defaults = {
            "allow_local_network": True,
            "max_retries": 1,
            "requires_tokens": False,
            "api_key": "test",
        }
        return iModel(
            provider="openai",
            endpoint="chat",
            base_url=self.base_url,
            model=model,
            **{**defaults, **imodel_kwargs},
        )

    def close(self) -> None:
        """Stop listening, cut off open connections and end the thread. Idempotent."""
        if self._thread.alive:
            self._thread.submit(self._stop()).result()
            self._thread.close()

    async def _listen(self) -> int:
        # Not asyncio.start_server: a connection that is on its way in while the server closes trips an assertion
        # there and leaks its socket (CPython 3.11), and the test that closed the server would be blamed.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return int(self._listener.getsockname()[1])

    async def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        await self._exchanges.aclose()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # gone before we came
        connection.setblocking(False)
        task = self._exchanges.create(self._serve(connection), name="exchange")
        # By callback: a task that is cancelled before its first step could not close it.
        task.add_done_callback(lambda _: connection.close())

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LIMIT)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await _Exchange(self, reader, writer).run()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone: nobody is left to be told
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def take(self, body: dict[str, Any]) -> Reply:
        """Record a request and pick the reply to it."""
        self.requests.append(body)
        try:
            return self._script.take(body)
        except Exception as exc:
            return Reply(error=exc, status=500)

    async def hold(self, reply: Reply, reader: asyncio.StreamReader, *, gated: bool) -> None:
        """Wait for the pace and the gate, unless the client goes away first."""
        if self._pace_s > 0:
            await asyncio.sleep(self._pace_s)
        gate = reply.gate or self._gate
        if not gated or gate is None:
            return
        passed, gone = asyncio.ensure_future(gate.wait()), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((passed, gone), return_when=asyncio.FIRST_COMPLETED)
            if not passed.done():
                raise ConnectionResetError
        finally:
            passed.cancel()
            gone.cancel()
            await asyncio.wait((passed, gone))

    def gated_piece(self, n: int) -> int:
        """Which of *n* streamed pieces the gate stands before."""
        return 0 if self._gate_at == "first" else n - 1


class _Exchange:
    """One request and its answer."""

    def __init__(self, server: LoopbackServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server, self._reader, self._writer = server, reader, writer

    async def run(self) -> None:
        target, body = await self._read()
        if not target.endswith("/chat/completions") or not isinstance(body, dict):
            await self._send(404, _error(404, "only POST …/chat/completions is served here"))
            return
        reply = self._server.take(body)
        if reply.error is not None or reply.status != 200:
            await self._server.hold(reply, self._reader, gated=True)
            text = str(reply.error) if reply.error is not None else reply.text or "scripted failure"
            await self._send(reply.status, _error(reply.status, text), retry_after_s=reply.retry_after_s)
        elif body.get("stream"):
            await self._stream(reply, body)
        else:
            await self._whole(reply, body)

    async def _read(self) -> tuple[str, Any]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        data = await self._reader.readexactly(int(headers.get("content-length") or 0))
        return request.split(" ")[1], json.loads(data) if data else None

    async def _send(self, status: int, data: bytes, *, retry_after_s: float | None = None, cut: bool = False) -> None:
        retry = "" if retry_after_s is None else f"Retry-After: {retry_after_s:g}\r\n"
        self._writer.write(
            f"HTTP/1.1 {status} {_REASON.get(status, 'Error')}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n{retry}\r\n".encode()
        )
        self._writer.write(data[: len(data) // 2] if cut else data)
        await self._writer.drain()

    async def _whole(self, reply: Reply, body: dict[str, Any]) -> None:
        await self._server.hold(reply, self._reader, gated=True)
        data = json.dumps(reply.completion(body)).encode()
        await self._send(200, b'{"choices": [oops' if reply.malformed else data, cut=reply.hang_up)

    async def _stream(self, reply: Reply, body: dict[str, Any]) -> None:
        self._writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n"
        )
        events = _deltas(reply)
        gated = self._server.gated_piece(len(events))
        for i, delta in enumerate(events):
            await self._server.hold(reply, self._reader, gated=i == gated)
            if reply.hang_up and i == len(events) - 1:
                return  # no closing chunk: the client sees that the body was cut
            await self._event(b'{"choices": [oops' if reply.malformed else _piece(body, delta, None))
        await self._event(_piece(body, {}, "tool_calls" if reply.tool_calls else "stop"))
        if usage := reply.completion(body).get("usage"):
            await self._event(json.dumps({"object": "chat.completion.chunk", "choices": [], "usage": usage}).encode())
        await self._event(b"[DONE]")
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _event(self, data: bytes) -> None:
        data = b"data: " + data + b"\n\n"
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()


def _error(status: int, text: str) -> bytes:
    return json.dumps({"error": {"message": text, "type": "scripted", "code": status}}).encode()


def _deltas(reply: Reply) -> list[dict[str, Any]]:
    calls = reply.completion({})["choices"][0]["message"].get("tool_calls")
    if calls:
        return [{"tool_calls": [{**call, "index": i}]} for i, call in enumerate(calls)]
    return [{"content": word} for word in reply.pieces()]


def _piece(body: dict[str, Any], delta: dict[str, Any], finish: str | None) -> bytes:
    return json.dumps(
        {
            "id": "chatcmpl-lionnb",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": body.get("model") or "scripted",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }
    ).encode()
