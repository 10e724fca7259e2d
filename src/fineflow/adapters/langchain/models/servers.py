"""``ChatOpenAI`` and ``OpenAI`` of langchain-openai: their lanes, and prompts sent ahead to servers fineflow knows.

The user's own model requests answers, on its own client. A prompt is sent ahead on a connection of fineflow's, with the
key, headers, query and timeouts of that client; if the client has more (its own HTTP client or proxy, a function that
makes keys), nothing is sent ahead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from fineflow.adapters.core import server_requests
from fineflow.adapters.core.trust import keeps_promise
from fineflow.runtime import servers
from fineflow.runtime.queues.component_calls import LimitedComponent
from fineflow.runtime.servers import Server

_INNER = ("_generate", "_agenerate", "_stream", "_astream")


@dataclass(frozen=True, slots=True)
class Served:
    """A user's model, and the engine that represents its server.

    options: bound to the model on the path to it. client: the ``openai.AsyncOpenAI`` of the model.
    """

    model: Any
    server: Server
    options: Mapping[str, Any]
    client: Any

    @property
    def name(self) -> str:
        return self.server.name

    def prompt_text(self, messages: Sequence[BaseMessage], *, late: str) -> str:
        """Returns the conversation that the model would send, to be cut at ``late`` (``server_requests.cut``)."""
        return server_requests.cut(self.server, self._payload(messages)["messages"], late)

    async def awarm(self, text: str) -> int:
        """Sends the beginning of a prompt ahead; returns the number of characters sent, 0 if none. Never raises."""
        request: dict[str, Any] = {}
        with suppress(Exception):  # the model itself reports what no request can be made of
            request = self._payload([]) if isinstance(self.model, BaseChatModel) else self._parameters()
        return await server_requests.awarm(self.server, text, request, self.client)

    def with_priority(self) -> dict[str, Any] | None:
        """Returns the ``extra_body`` that sends a request's priority; None if not allowed (``server_requests``)."""
        if not self.server.priority:
            return None
        own, bound = self.model._default_params.get("extra_body"), self.options.get("extra_body")
        return server_requests.with_priority(self.server, {**(own or {}), **(bound or {})})

    def _payload(self, messages: Sequence[BaseMessage]) -> dict[str, Any]:
        return dict(self.model._get_request_payload(list(messages), **self.options))

    def _parameters(self) -> dict[str, Any]:
        return {**self.model._invocation_params, **self.options}


def served(model: Any, options: Mapping[str, Any]) -> Served | None:
    """Returns the model with its server if fineflow.engine registered the server; None for any other model."""
    client = _client(model)
    if client is None or (found := servers.at(str(client.base_url))) is None:
        return None
    return Served(model, found.of(_name(model, options)), options, client)


def bound(obj: Any) -> LimitedComponent | None:
    """Returns the queue entry of a model's server, if it has a limit."""
    if not servers.bounded() or (client := _client(obj)) is None:
        return None
    return servers.component_at(str(client.base_url))


def lane(model: Any, options: Mapping[str, Any]) -> str:
    """Returns the name in plans and timelines of a model that is not an engine of fineflow's."""
    client = _client(model)
    if client is None:
        return type(model).__name__
    return f"{_name(model, options)}@{servers.address(str(client.base_url))}"


def warmed(found: Served) -> str:
    """Returns why nothing may be sent ahead for a model; "" if it may."""
    model = found.model
    if not found.server.can_prefill:
        return f"{server_requests.NOT_TOLD} {found.name}"
    own = any(getattr(model, name, None) for name in ("http_client", "http_async_client", "openai_proxy"))
    if own and not found.server.own_http:
        return server_requests.OWN_HTTP
    if callable(getattr(model, "openai_api_key", None)):
        return server_requests.MADE_KEY
    responses = getattr(model, "_use_responses_api", None)
    if responses is not None and responses({**model.model_kwargs, **found.options}):
        return "its requests go to the Responses API"
    return ""


def _name(model: Any, options: Mapping[str, Any]) -> str:
    return str(options.get("model") or model.model_name)


def _client(model: Any) -> Any:
    """Returns the async client of an unmodified langchain-openai model that uses the library's own client, or None."""
    library = sys.modules.get("langchain_openai")  # any such model's owner has imported it
    if library is None:
        return None
    if type(model) is library.ChatOpenAI:
        client, promise = model.root_async_client, "_get_request_payload"
        resource = getattr(getattr(client, "chat", None), "completions", None)
    elif type(model) is library.OpenAI:
        client, promise = getattr(model.async_client, "_client", None), "_invocation_params"
        resource = getattr(client, "completions", None)
    else:
        return None
    genuine = type(client).__module__.startswith("openai.") or type(client).__module__ == "openai"
    usable = genuine and hasattr(client, "copy") and resource is model.async_client
    return client if usable and keeps_promise(model, promise, _INNER) else None
