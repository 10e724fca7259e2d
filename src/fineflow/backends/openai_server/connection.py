"""The connection to one OpenAI-compatible server: its client, what kind of server it is, what its errors mean."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import openai

from fineflow.errors import BackendError, RequestError

_LOOK_SECONDS = 10.0  # that a server may take to say what it is
_UNSERVED = (401, 403, 404)  # what a server says to every request of ours


@dataclass(slots=True)
class Connection:
    """A server, as all engines of its models use it. Methods run on the runtime's loop.

    url: base address. vllm: whether it is vLLM; None: it is asked. options: of ``openai.AsyncOpenAI``. priority:
    whether requests say how urgent they are.
    """

    url: str
    vllm: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    priority: bool = False
    _client: openai.AsyncOpenAI | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """The server's host, and its port where it has an unusual one."""
        parts = urlsplit(self.url)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.hostname}" if parts.port in (None, usual) else f"{parts.hostname}:{parts.port}"

    def client(self) -> openai.AsyncOpenAI:
        """The client of the running event loop, to which its connections belong."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            key = self.options.get("api_key") or os.environ.get("OPENAI_API_KEY") or "none"
            self._client = openai.AsyncOpenAI(base_url=self.url, **{**self.options, "api_key": key})
            self._loop = loop
        return self._client

    def like(self, user: openai.AsyncOpenAI | Mapping[str, Any]) -> openai.AsyncOpenAI:
        """A client with the key, headers, query and time limits of another one, which asks once, on connections of
        its own: those of the other may belong to another event loop. user: the other one, or what it would be made of.
        """
        if isinstance(user, Mapping):
            return openai.AsyncOpenAI(**{**user, "http_client": self.client()._client, "max_retries": 0})
        return user.copy(http_client=self.client()._client, max_retries=0)

    async def is_vllm(self, client: openai.AsyncOpenAI) -> bool:
        """Whether the server answers as vLLM; asked once. Raises ``openai.APIError`` where it cannot be reached."""
        if self.vllm is None:
            try:
                page = await client.models.list(timeout=_LOOK_SECONDS)
            except openai.APIStatusError:  # it has no list of models, or does not show it
                self.vllm = False
            else:
                self.vllm = any(each.owned_by == "vllm" for each in page.data)
        return self.vllm

    async def served(self) -> tuple[str, ...]:
        """The names of the models. Raises ``openai.APIError``."""
        page = await self.client().models.list(timeout=_LOOK_SECONDS)
        return tuple(each.id for each in page.data)

    async def aclose(self) -> None:
        """Closes the connections of this event loop, but not those of a client that was handed in."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop() and "http_client" not in self.options:
            await client.close()


def failures() -> tuple[type[Exception], ...]:
    """What requests raise: errors of the client, and of HTTP, which openai 2 does not wrap while a stream is read."""
    return openai.APIError, *_of_http("TransportError")


def _of_http(name: str) -> tuple[type[Exception], ...]:
    # Which of the two carries the requests depends on the version of openai, and on the user's own HTTP client.
    return tuple(getattr(sys.modules[library], name) for library in ("httpx", "httpx2") if library in sys.modules)


def told(name: str, error: Exception) -> BackendError:
    """What one of ``failures`` says about the server or, as RequestError, about one request."""
    if isinstance(error, (openai.APITimeoutError, *_of_http("TimeoutException"))):
        return BackendError(f"{name} did not answer in time; is it overloaded, or the timeout too short?")
    if not isinstance(error, openai.APIError) or isinstance(error, openai.APIConnectionError):
        return BackendError(f"{name} cannot be reached, or has broken off: {error.__cause__ or error}")
    said = error.body.get("message") if isinstance(error.body, Mapping) else None
    if not isinstance(error, openai.APIStatusError):
        return BackendError(f"{name} has broken off: {said or error.message}")
    refused = error.status_code < 500 and error.status_code not in _UNSERVED
    return (RequestError if refused else BackendError)(f"{name} answered {error.status_code}: {said or error.message}")
