"""Clients that send the headers of a request slowly, or never: 408, and the connection ends."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import h11
import pytest
import uvicorn
from serving_kit import chain_of, echo, listening
from uvicorn.server import ServerState

from fineflow.serving import create_app
from fineflow.serving.connections import TimedConnection

FIRST, REST = b"POST /invoke HTTP/1.1\r\nHost: a\r\n", b"Content-Length: 2\r\n\r\n{}"


def answered(url: str, sent: bytes) -> bytes:
    """Sends that, and reads until the server closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as client:
        client.sendall(sent)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_headers_that_are_not_complete_in_time_get_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedConnection, "seconds", 0.02)
    with listening(create_app(chain_of(echo())), http=TimedConnection) as url:
        head, _, body = answered(url, FIRST).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n") and b"connection: close" in head.lower()
        assert "within 0.02 s" in json.loads(body)["error"]["message"]
        assert answered(url, b"") == b""


class Transport:
    """Of a connection: keeps what is written to it."""

    def __init__(self) -> None:
        self.written, self.closed = b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return None


class Timers:
    """An event loop whose time does not pass. due: what waits."""

    def __init__(self) -> None:
        self.due: dict[object, Callable[[], None]] = {}

    def call_later(self, _: float, function: Callable[[], None]) -> Any:
        timer = Timer(self)
        self.due[timer] = function
        return timer

    def create_task(self, running: Any, **_: Any) -> Any:
        running.close()
        return Timer(self)


class Timer:
    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def cancel(self) -> None:
        self._timers.due.pop(self, None)

    def add_done_callback(self, _: Any) -> None:
        pass


@pytest.fixture
def connection() -> Any:
    config = uvicorn.Config(create_app(chain_of(echo())), http=TimedConnection, ws="none")
    made = TimedConnection(config, ServerState(), {}, _loop=Timers())  # type: ignore[arg-type]
    made.connection_made(Transport())  # type: ignore[arg-type]
    return made


def test_complete_headers_end_the_time(connection: Any) -> None:
    for piece in (FIRST[:10], FIRST[10:]):
        connection.data_received(piece)
        assert len(connection.loop.due) == 1, "one time for all pieces"
    connection.data_received(REST[:-1])
    assert not connection.loop.due, "the body has a time of its own"
    connection.data_received(REST[-1:])
    assert not connection.loop.due and not connection.transport.written


def test_each_request_of_a_connection_has_its_time(connection: Any) -> None:
    connection.data_received(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    for event in (h11.Response(status_code=200, headers=[("content-length", "0")]), h11.EndOfMessage()):
        connection.conn.send(event)
    connection.conn.start_next_cycle()
    connection.on_response_complete()
    assert len(connection.loop.due) == 1, "uvicorn's own, between two requests"
    connection.data_received(FIRST)
    (late,) = connection.loop.due.values()
    late()
    assert connection.transport.written.startswith(b"HTTP/1.1 408") and connection.transport.closed


def test_the_end_of_a_connection_ends_the_time(connection: Any) -> None:
    connection.connection_lost(None)
    assert not connection.loop.due
