"""Responses of providers to requests of optimized calls, as the HTTP client in the user's component gets them.

Clients such as those of openai and anthropic repeat a refused request themselves, after a pause. Of a request that
was sent ahead that would be too late, and nobody else would get to know. So the method by which ``httpx`` sends has a
wrapper, as instrumentation libraries have one; outside of optimized calls it reads one context variable.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol


class Listener(Protocol):
    """A call of a component, which gets to know the responses to its requests."""

    def responded(self, status: int, headers: Mapping[str, Any]) -> bool:
        """Returns True if the client shall not repeat the request."""


listener: ContextVar[Listener | None] = ContextVar("fineflow_listener", default=None)
"""The call of a component that the current code works for."""

_DO_NOT_REPEAT = "x-should-retry", "false"  # obeyed by the clients of openai and anthropic
_LIBRARIES = ("httpx", "httpx2")
_installing = threading.Lock()
_installed = set[str]()


def install() -> None:
    """Listens to the clients of the libraries that are imported by now, once each."""
    for name in _LIBRARIES:
        if name not in _installed and (library := sys.modules.get(name)) is not None:
            with _installing, suppress(AttributeError):  # a library that is still being imported
                if name not in _installed:
                    client, aclient = library.Client, library.AsyncClient
                    client.send, aclient.send = _listening(client.send), _alistening(aclient.send)
                    _installed.add(name)


def _listening(send: Any) -> Any:
    @functools.wraps(send)
    def method(client: Any, /, *args: Any, **named: Any) -> Any:
        call = listener.get()
        response = send(client, *args, **named)
        if call is not None:
            _tell(call, response)
        return response

    return method


def _alistening(send: Any) -> Any:
    @functools.wraps(send)
    async def method(client: Any, /, *args: Any, **named: Any) -> Any:
        call = listener.get()
        response = await send(client, *args, **named)
        if call is not None:
            _tell(call, response)
        return response

    return method


def _tell(call: Listener, response: Any) -> None:
    with suppress(Exception):  # the response is the user's whatever we make of it
        if call.responded(response.status_code, response.headers):
            name, value = _DO_NOT_REPEAT
            response.headers[name] = value
