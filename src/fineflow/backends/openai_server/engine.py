"""``LLMEngine`` for a model on an OpenAI-compatible server: vLLM, SGLang, llama.cpp, TGI, OpenAI itself.

The server has the tokenizer and the chat template. So the tokens of this engine are the characters of a prompt, and the
prompt of a conversation is text in its own format (``conversation``), which is sent as messages.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import openai

from fineflow.backends.openai_server import requests
from fineflow.backends.openai_server.connection import Connection, backend_error, described, failures, without_secrets
from fineflow.backends.openai_server.conversation import as_openai, written
from fineflow.backends.openai_server.deltas import deltas
from fineflow.backends.openai_server.identity import OWN_PRIORITY, ROUTERS, SALTED, merged, router_fields
from fineflow.backends.openai_server.warmed import BLOCK, Warmed, log
from fineflow.errors import BackendError, RequestError
from fineflow.protocols import Delta, Message, RequestIdentity, Sampling
from fineflow.runtime import events

_OPTIONS = frozenset(inspect.signature(openai.AsyncOpenAI).parameters) - {"base_url"}


def _shown(url: Any) -> str:
    return repr(without_secrets(url) if isinstance(url, str) else url)


def _check(base_url: Any, options: Mapping[str, Any], router: Any, *, priority: bool) -> None:
    try:
        parts = urlsplit(base_url) if isinstance(base_url, str) else None
        good = parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # invalid port
        good = False
    if not good:
        raise ValueError(f"expected the address of a server, as http://localhost:8000/v1; got {_shown(base_url)}")
    if base_url.rstrip("/").endswith("/completions"):
        raise ValueError(f"expected the address before /chat/completions or /completions; got {_shown(base_url)}")
    if router is not None and router not in tuple(ROUTERS):
        raise ValueError(f"router is one of {', '.join(map(repr, ROUTERS))}, or None for no router; got {router!r}")
    if priority and router in OWN_PRIORITY:
        raise ValueError(
            f"priority=True is for vLLM's field; with router={router!r} requests carry the priorities of calls "
            "(fineflow.identity) in that router's own; leave priority out"
        )
    if unknown := options.keys() - _OPTIONS:
        raise TypeError(
            f"there is no option {', '.join(sorted(unknown))}; options are model, warm, priority, vllm and router, "
            "max_requests of fineflow.engine, and those of openai.AsyncOpenAI: "
            f"{', '.join(sorted(name for name in _OPTIONS if not name.startswith('_')))}"
        )


class OpenAIServerEngine:
    """Model on an OpenAI-compatible server. ``fineflow.engine`` creates one and registers it for chains.

    base_url: address, e.g. ``http://localhost:8000/v1``. model: its name there; None: the only model of the server.
    warm: prefixes of prompts may be sent ahead, in requests for one token. priority: requests carry a priority, as vLLM
    with ``--scheduling-policy priority`` understands it. vllm: the server is vLLM (None: detected when needed).
    router: kind of the router at that address, one of ``identity.ROUTERS``: requests say what is known of their calls,
    in that router's own fields (None: they do not). options: of ``openai.AsyncOpenAI``, e.g. ``api_key``, ``timeout``
    (seconds), ``max_retries``, ``default_headers``, ``http_client``.

    Messages go to ``/chat/completions``, texts to ``/completions``; both are streamed, and cancelled by closing the
    connection. ``top_k``, ``min_p``, ``repetition_penalty``, ``min_tokens``, ``regex`` and ``choices`` need vLLM.
    Tokens in deltas are -1 if the server does not report them.

    Raises: ValueError for an invalid address or router, TypeError for an unknown option. Requests raise RequestError if
    the server refuses one, BackendError if it cannot be reached, closes the connection or fails; the openai library's
    exception is the cause.
    """

    block_size = BLOCK  # characters
    tool_format = "hermes"  # format in which ``deltas`` writes the calls that the server has parsed

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        warm: bool = False,
        priority: bool = False,
        vllm: bool | None = None,
        router: str | None = None,
        **options: Any,
    ) -> None:
        _check(base_url, options, router, priority=priority)
        self.connection = Connection(base_url.rstrip("/"), vllm, options, priority)
        self.model = model
        self.name = self._lane(model)
        self.can_prefill = warm
        self.router = router
        self.identifies = router is not None
        self.salts = router in SALTED
        self.warmed = Warmed()
        self._siblings: dict[str, OpenAIServerEngine] = {} if model is None else {model: self}

    @property
    def priority(self) -> bool:
        """True if requests carry a priority: enabled, and not refused by the server."""
        return self.connection.priority

    def without_priority(self, why: Exception) -> None:
        """Stops sending priorities, after the server has refused one."""
        self.connection.priority = False
        log.warning("%s refuses priorities; requests carry none from now on: %s", self.connection.address, why)

    @property
    def base_url(self) -> str:
        """Address of the server."""
        return self.connection.url

    @property
    def own_http(self) -> bool:
        """True if it uses an HTTP client of the user."""
        return "http_client" in self.connection.options

    @property
    def constraints(self) -> frozenset[str]:
        """Forms of constrained output: a JSON schema; on a server known to be vLLM also the others."""
        return frozenset({"schema", "regex", "choices"} if self.connection.vllm else {"schema"})

    def of(self, model: str) -> OpenAIServerEngine:
        """Returns the engine of another model on the same server, with the same settings."""
        found = self._siblings.get(model)
        if found is None:
            found = object.__new__(OpenAIServerEngine)
            found.__dict__.update(self.__dict__, model=model, name=self._lane(model), warmed=Warmed())
            found = self._siblings.setdefault(model, found)
        return found

    def _lane(self, model: str | None) -> str:
        return f"{model}@{self.connection.address}" if model else self.connection.address

    def __repr__(self) -> str:
        return f"OpenAIServerEngine({without_secrets(self.connection.url)!r}, {self.model!r})"

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Returns the conversation in this engine's own format; the server applies the model's chat template."""
        return written([as_openai(message) for message in messages], tools, asks=add_generation_prompt)

    def write(self, messages: Sequence[Mapping[str, Any]], *, asks: bool = True) -> str:
        """Returns the same for messages in OpenAI's form. RequestError if they are not plain JSON data."""
        return written(messages, asks=asks)

    def encode(self, text: str) -> list[int]:
        """Returns the code points of a text."""
        return [ord(character) for character in text]

    def cached(self, tokens: Sequence[int], *, salt: str = "") -> int:
        """Returns the number of leading characters of a prompt that were sent ahead recently."""
        return self.warmed.known(_text(tokens), salt)

    async def prefill(
        self, tokens: Sequence[int], *, priority: int = 0, salt: str = "", identity: RequestIdentity | None = None
    ) -> None:
        """Sends a prefix of a prompt ahead, in a request for one token."""
        client = self.connection.client()
        try:
            with self.warmed.sending(_text(tokens), salt):
                await self._send_ahead(_text(tokens), self._identified({}, client, identity, salt), client, priority)
        except failures() as error:
            raise backend_error(self.name, error) from error

    def wants(self, text: str, body: Mapping[str, Any]) -> bool:
        """Returns True if ``warm`` would send the prefix. Thread-safe."""
        if not self.can_prefill or self.warmed.resting():
            return False
        return len(text) - self.warmed.known(text, repr(body)) >= BLOCK

    async def warm(self, text: str, body: Mapping[str, Any], user: Any, *, priority: int = 0) -> int:
        """Sends a prefix of a prompt ahead for a client of the user; returns its characters, 0 if it was not sent.

        body: the client's own request without the prompt. user: the ``openai.AsyncOpenAI`` whose key, headers, query
        and timeouts are used, or the arguments of one. Sends once and never raises; pauses for a while if the server
        refuses several times in a row.
        """
        if not self.wants(text, body):
            return 0
        try:
            with self.warmed.sending(text, repr(body)):
                await self._send_ahead(text, body, self.connection.like(user), priority)
        except Exception as error:  # any error: the user did not request this
            self.warmed.refused(self.name, error)
            return 0
        return len(text)

    async def _send_ahead(self, text: str, body: Mapping[str, Any], client: openai.AsyncOpenAI, priority: int) -> None:
        given = requests.ahead(text, vllm=await self.connection.is_vllm(client))
        if given is None:
            return
        sent = {"model": await self._model(), **given, **body}
        urgency = {"priority": -priority} if self.priority else {}
        # vLLM's fields, merged with those of the user's own request.
        sent["extra_body"] = urgency | (body.get("extra_body") or {}) | (given.get("extra_body") or {})
        start = events.now()
        resource: Any = client.chat.completions if "messages" in sent else client.completions
        await resource.create(**sent)
        events.ended(self.name, "prefill", start, start, -1)

    def _identified(
        self, body: dict[str, Any], client: openai.AsyncOpenAI, identity: RequestIdentity | None, salt: str
    ) -> dict[str, Any]:
        """Adds the identity of its call to a request. Fields and headers that the user has set count before it."""
        if self.router is None:
            return body
        fields, headers = router_fields(self.router, identity or RequestIdentity(), salt)
        own = {name.lower() for name in client.default_headers}
        if headers := {name: value for name, value in headers.items() if name.lower() not in own}:
            body["extra_headers"] = headers
        if fields:
            body["extra_body"] = merged(body.get("extra_body") or {}, fields)
        return body

    async def generate(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        *,
        priority: int = 0,
        salt: str = "",
        identity: RequestIdentity | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Decodes on the server. Higher priority first, if enabled; vLLM's own order is reversed."""
        text, client = _text(tokens), self.connection.client()
        try:
            vllm = await self.connection.is_vllm(client)
            body = requests.decode(text, sampling, vllm=vllm, name=self.name)
            if self.priority:
                requests.add(body, {"priority": -priority})
            self._identified(body, client, identity, salt)
            resource: Any = client.chat.completions if "messages" in body else client.completions
            model = await self._model()
            async with aclosing(self._answer(resource, {"model": model, **body})) as found:
                async for delta in found:
                    yield delta
        except failures() as error:
            raise backend_error(self.name, error) from error

    async def _answer(self, resource: Any, body: Mapping[str, Any]) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of an answer. BackendError for one that is not of OpenAI's form."""
        try:
            chunks = await resource.create(**body)
            async with chunks, aclosing(deltas(chunks)) as found:
                async for delta in found:
                    yield delta
        except Exception as error:
            if isinstance(error, (BackendError, *failures())):
                raise
            raise BackendError(
                f"expected a streamed answer of OpenAI's form from {self.name}, which sent something else "
                f"({described(error)}); is {self.connection.address} such a server?"
            ) from error

    async def _model(self) -> str:
        if self.model is None:
            served = await self.connection.served()
            if len(served) != 1:
                names = ", ".join(served) or "none"
                raise RequestError(f"{self.name} serves {names}; say which: fineflow.engine(url, model=...)")
            self.model = served[0]
        return self.model

    async def aclose(self) -> None:
        """Closes the connections to the server, which are shared by all its models."""
        await self.connection.aclose()


def _text(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))
