"""Calls on behalf of requests: within a time limit, cancelled when the client leaves, counted by the gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from fineflow.runtime.call.identity import identity
from fineflow.serving.gate import Place
from fineflow.serving.refusals import Refused, of
from fineflow.serving.settings import ServerSettings

T = TypeVar("T")

AHEAD = 16
"""Pieces of a stream that may wait for the client to read them; the object then waits, too."""

_END: Any = object()


class PerRequest(BaseModel):
    """The field ``"fineflow"`` of a request. deadline: seconds for the call, at most the server's own limit."""

    model_config = ConfigDict(extra="forbid", strict=True)

    priority: int | None = Field(default=None, ge=-100, le=100)
    objective: Literal["latency", "throughput", "ttft", "tpot"] | None = None
    deadline: float | None = Field(default=None, gt=0)
    tenant: str | None = Field(default=None, min_length=1, max_length=64)

    def check(self, settings: ServerSettings) -> None:
        """Raises Refused for a field that the operator does not allow."""
        if unwanted := [name for name in self.model_fields_set if name not in settings.allow]:
            allowed = f"it allows {', '.join(settings.allow)}" if settings.allow else "it allows none"
            text = f"fineflow.{unwanted[0]}: this server does not let clients set it ({allowed}); leave it out"
            raise Refused(422, text, code="not_allowed")


class Calling:
    """How one call runs. place: given back when it ends. run: its id, for the log."""

    def __init__(self, settings: ServerSettings, given: PerRequest, place: Place, run: str = "") -> None:
        self.seconds = min(settings.timeout, given.deadline or settings.timeout)
        self.given, self.place, self.run = given, place, run

    async def answer(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        """Returns what a call returns; in any case nothing of it is left.

        Raises Refused: 504 after the time limit, 500 if it raises, 499 if the client has gone.
        """
        work = asyncio.create_task(self._bounded(call))
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Refused(499, "the client has closed the connection")
            return work.result()
        finally:
            await _ended(work, gone)
            self.place.leave()

    async def pieces(self, stream: Callable[[], AsyncIterator[T]]) -> AsyncGenerator[T, None]:
        """Yields what a stream yields; raises as ``answer`` does.

        The stream runs in a task of its own, which ends with this generator, so that it may be closed anywhere.
        """
        queue: asyncio.Queue[Any] = asyncio.Queue(AHEAD)

        async def read() -> None:
            async with aclosing(stream()) as found:  # type: ignore[type-var]
                async for piece in found:
                    await queue.put(piece)

        async def pump() -> None:
            last: Any = _END
            try:
                await self._bounded(read)
            except Exception as error:
                last = error
            finally:
                self.place.leave()
            await queue.put(last)

        work = asyncio.create_task(pump())
        try:
            while (piece := await queue.get()) is not _END:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            await _ended(work)

    async def _bounded(self, call: Callable[[], Awaitable[T]]) -> T:
        given = self.given
        limit = asyncio.timeout(self.seconds)
        try:
            with identity(tenant=given.tenant, priority=given.priority, objective=given.objective):
                async with limit:
                    return await call()
        except Exception as error:
            if limit.expired():
                text = f"the call took longer than {self.seconds:g} s and was stopped; ask for less, or for more time"
                raise Refused(504, text, code="timeout") from None
            raise of(error, self.run) from error


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(StreamingResponse):
    """Server-sent events. Ends its generator when the client leaves, wherever it is then."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], place: Place) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events, self._place = events, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            self._place.leave()  # of a generator that never began


def encoded(value: Any) -> bytes:
    """Returns a value as JSON on one line. Raises Refused if it holds what JSON cannot."""
    try:
        return to_json(value, inf_nan_mode="null", bytes_mode="base64")
    except ValueError as error:  # of an object that has no form in JSON
        raise of(TypeError(f"the object answered with what JSON cannot hold: {error}")) from error


def event(name: str, data: bytes = b"") -> bytes:
    """Returns a server-sent event; ``data`` is JSON, which has no line breaks. name "": an event without a name."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + data + b"\n\n"
