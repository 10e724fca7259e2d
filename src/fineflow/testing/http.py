"""The subset of HTTP/1.1 that a scripted server needs, on asyncio: JSON in, JSON or server-sent events out.

A connection serves one request, because a client may outlive the event loops that use it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self, cast


@dataclass(slots=True)
class Request:
    """A request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    data: bytes

    def json(self) -> dict[str, Any]:
        """Returns the body. Raises Refusal if it is not a JSON object."""
        try:
            return dict(json.loads(self.data))
        except (TypeError, ValueError) as error:
            raise Refusal(400, f"expected a JSON object: {error}") from error


@dataclass(slots=True)
class Response:
    """Result of a handler: a JSON object, or the chunks of an answer, streamed as events or sent as their sum."""

    content: Mapping[str, Any] | AsyncIterator[Any]
    stream: bool = False


class Refusal(Exception):
    """An error status, with a message in OpenAI's form."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


Handler = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True)
class Server:
    """A server on the current event loop. ``port``: on the loopback interface."""

    port: int
    _server: asyncio.Server
    _open: set[asyncio.Task[Any]] = field(default_factory=set)

    async def aclose(self) -> None:
        """Ends all connections, including those in progress."""
        self._server.close()
        tasks = tuple(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(handler: Handler) -> Server:
    """Listens on a free port of the loopback interface."""
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _converse(reader, writer, handler)
        except asyncio.CancelledError:  # the server ends, or its client does
            pass
        except ConnectionError:
            writer.transport.abort()
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    return Server(server.sockets[0].getsockname()[1], server, tasks)


class ServedInThread:
    """Serves a handler on an event loop in a thread of its own while its ``with`` block runs; ``port`` is of then."""

    def __init__(self, handler: Handler, name: str) -> None:
        self.port = 0
        self._handler = handler
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(serve(self._handler), self._loop).result(10)
        self.port = self._server.port
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.aclose(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    """Answers one request, unless its client disconnects first."""
    line = await reader.readline()
    if not line:
        return
    request = await _read(line, reader)
    gone = asyncio.ensure_future(reader.read())
    answering = asyncio.ensure_future(_respond(request, writer, handler))
    try:
        await asyncio.wait([gone, answering], return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            await answering
    finally:
        gone.cancel()
        answering.cancel()
        await asyncio.gather(gone, answering, return_exceptions=True)


async def _read(line: bytes, reader: asyncio.StreamReader) -> Request:
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (header := (await reader.readline()).decode("latin-1").strip()) != "":
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    data = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path.partition("?")[0], headers, data)


async def _respond(request: Request, writer: asyncio.StreamWriter, handler: Handler) -> None:
    try:
        response = await handler(request)
    except Refusal as refusal:
        error = {"message": str(refusal), "type": "scripted", "param": None, "code": None}
        await _send(writer, refusal.status, {"error": error}, refusal.headers)
        return
    if isinstance(response.content, Mapping):
        await _send(writer, 200, response.content)
        return
    async with aclosing(cast(Any, response.content)) as chunks:
        if response.stream:
            await _send_events(writer, chunks)
        else:
            await _send(writer, 200, whole([chunk async for chunk in chunks]))


async def _send(
    writer: asyncio.StreamWriter, status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> None:
    data = json.dumps(content).encode()
    sent = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
    writer.write(_head(status, sent) + data)
    await writer.drain()


async def _send_events(writer: asyncio.StreamWriter, chunks: AsyncIterator[Any]) -> None:
    writer.write(_head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}))
    async for chunk in chunks:
        if chunk["choices"] or "usage" in chunk:
            _write_event(writer, json.dumps(chunk))
            await writer.drain()
    _write_event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _write_event(writer: asyncio.StreamWriter, text: str) -> None:
    data = f"data: {text}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", "Connection: close", *(f"{key}: {headers[key]}" for key in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(chunks: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the chunks of a stream as one response, including the last chunk's usage."""
    first, last = chunks[0], chunks[-1]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    made = {"index": 0, "finish_reason": choices[-1]["finish_reason"], "logprobs": _joined(choices)}
    if "delta" in choices[0]:
        text = "".join(choice["delta"]["content"] for choice in choices)
        made["message"] = {"role": "assistant", "content": text}
        if calls := choices[-1]["delta"].get("tool_calls"):
            made["message"]["tool_calls"] = calls
    else:
        made["text"] = "".join(choice["text"] for choice in choices)
    kind = first["object"].removesuffix(".chunk")
    return {**first, "object": kind, "choices": [made], "usage": last["usage"]}


def _joined(choices: list[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    found: dict[str, list[Any]] = {}
    for choice in choices:
        for name, values in (choice["logprobs"] or {}).items():
            found.setdefault(name, []).extend(values)
    return found or None
