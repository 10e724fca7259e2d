"""Connections of uvicorn that end when a client takes too long to send the headers of a request.

uvicorn bounds their size, and the time between two requests, but not how long they may be under way (seen on 0.54). A
client that sends them byte by byte, or nothing at all, would hold its connection for ever (a "slow loris").
"""

from __future__ import annotations

import asyncio
import json
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fineflow.serving import refusals


class TimedConnection(H11Protocol):
    """Answers 408 if the headers of a request are not complete in time; closes if nothing has come.

    seconds: from the connection, or the first byte of a later request, until the headers are complete.
    """

    seconds: ClassVar[float] = 30.0

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Sets the time for the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.seconds, self._late)

    def data_received(self, data: bytes) -> None:
        """Ends the time if the headers are complete; sets it when another request begins."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._in_time()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the time."""
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.conn.trailing_data[0]:
            text = f"the headers were not complete within {self.seconds:g} s; send them at once"
            answer = json.dumps(refusals.body(408, text)).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(answer)))]
            head = h11.Response(status_code=408, reason=b"Request Timeout", headers=[*headers, ("connection", "close")])
            for event in (head, h11.Data(data=answer), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
