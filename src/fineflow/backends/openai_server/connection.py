"""Connection to one OpenAI-compatible server: its client, detection of vLLM, and translation of its errors."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import openai

from fineflow.errors import BackendError, RequestError

_LOOK_SECONDS = 10.0  # timeout of the request for the list of models
_SHOWN = 200  # characters of an error that are shown
_UNSERVED = (401, 403, 404)  # errors that concern every request to the server, not one request


def without_secrets(url: str) -> str:
    """Returns a URL for messages: without the user, the password and the query, which may hold a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    host = parts.netloc.rpartition("@")[2]
    shown = urlunsplit((parts.scheme, f"…@{host}" if "@" in parts.netloc else host, parts.path, "", ""))
    return f"{shown}?…" if parts.query else shown


@dataclass(slots=True)
class Connection:
    """Connection that the engines of all models of a server share. Methods run on the runtime's loop.

    url: base address. vllm: the server is vLLM; None: detected on first use. options: of ``openai.AsyncOpenAI``.
    priority: requests carry a priority.
    """

    url: str
    vllm: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    priority: bool = False
    _client: openai.AsyncOpenAI | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """Host of the server, with the port if it is not the default one."""
        parts = urlsplit(self.url)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.hostname}" if parts.port in (None, usual) else f"{parts.hostname}:{parts.port}"

    def client(self) -> openai.AsyncOpenAI:
        """Returns the client of the running event loop: its connections belong to one loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            key = self.options.get("api_key") or os.environ.get("OPENAI_API_KEY") or "none"
            self._client = openai.AsyncOpenAI(base_url=self.url, **{**self.options, "api_key": key})
            self._loop = loop
        return self._client

    def like(self, user: openai.AsyncOpenAI | Mapping[str, Any]) -> openai.AsyncOpenAI:
        """Returns a client with the key, headers, query and timeouts of another one, without retries.

        It has its own connections: those of the other client may belong to another event loop. user: the other client,
        or the arguments of one.
        """
        if isinstance(user, Mapping):
            return openai.AsyncOpenAI(**{**user, "http_client": self.client()._client, "max_retries": 0})
        return user.copy(http_client=self.client()._client, max_retries=0)

    async def is_vllm(self, client: openai.AsyncOpenAI) -> bool:
        """Returns True if the server is vLLM; detected once. Raises ``openai.APIError`` if it cannot be reached."""
        if self.vllm is None:
            try:
                page = await client.models.list(timeout=_LOOK_SECONDS)
                self.vllm = any(getattr(each, "owned_by", None) == "vllm" for each in page.data)
            except openai.APIConnectionError:
                raise
            except Exception:  # it has no list of models, refuses to send it, or sends something else, such as a page
                self.vllm = False
        return self.vllm

    async def served(self) -> tuple[str, ...]:
        """Returns the names of the models. Raises ``openai.APIError``; BackendError for what is no list of models."""
        try:
            page = await self.client().models.list(timeout=_LOOK_SECONDS)
            return tuple(each.id for each in page.data)
        except openai.APIError:
            raise
        except Exception as error:
            raise BackendError(
                f"expected a list of models from {self.address}, which sent something else ({described(error)}); "
                "is the address right? Else say which model: fineflow.engine(url, model=...)"
            ) from error

    async def aclose(self) -> None:
        """Closes the connections of this event loop, except those of an HTTP client that the user passed in."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop() and "http_client" not in self.options:
            await client.close()


def described(error: Exception) -> str:
    """Returns the kind and the beginning of the message of an error."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def failures() -> tuple[type[Exception], ...]:
    """Returns the errors that requests raise: of the client, and of HTTP, which openai 2 does not wrap in streams."""
    return openai.APIError, *_of_http("TransportError")


def _of_http(name: str) -> tuple[type[Exception], ...]:
    # The version of openai and the user's own HTTP client determine which of the two libraries is in use.
    return tuple(getattr(sys.modules[library], name) for library in ("httpx", "httpx2") if library in sys.modules)


def backend_error(name: str, error: Exception) -> BackendError:
    """Returns the BackendError for one of ``failures``; a RequestError if it concerns one request only."""
    if isinstance(error, (openai.APITimeoutError, *_of_http("TimeoutException"))):
        return BackendError(f"{name} did not answer in time; is it overloaded, or the timeout too short?")
    if not isinstance(error, openai.APIError) or isinstance(error, openai.APIConnectionError):
        return BackendError(f"{name} cannot be reached, or closed the connection: {error.__cause__ or error}")
    said = error.body.get("message") if isinstance(error.body, Mapping) else None
    if not isinstance(error, openai.APIStatusError):
        return BackendError(f"{name} failed during the answer: {said or error.message}")
    refused = error.status_code < 500 and error.status_code not in _UNSERVED
    return (RequestError if refused else BackendError)(f"{name} answered {error.status_code}: {said or error.message}")
