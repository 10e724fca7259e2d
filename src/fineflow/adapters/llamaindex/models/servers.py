"""LlamaIndex's ``OpenAI`` and ``OpenAILike``: requests use their own clients; prompts are prefilled on known servers.

Their public methods lead to four inner ones (``_chat``, ``_complete``, and async), with the library's retries inside
and all spans and events outside. The graph calls the inner methods; on shadows they claim. Written against
llama-index-llms-openai 0.8.3, llama-index-llms-openai-like 0.8.1.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from llama_index.core.base.llms.generic_utils import prompt_to_messages
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import LLM

from fineflow.adapters.core import server_requests
from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.invocation import is_async
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import put_on
from fineflow.adapters.llamaindex.methods import same
from fineflow.runtime import servers
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.component_calls import (
    LimitedComponent,
    StreamedCall,
    acall_component,
    call_component,
    component_finders,
)
from fineflow.runtime.servers import Server

INNER = ("_chat", "_complete", "_achat", "_acomplete")
"""Methods that send a request, called with messages or with the text of a prompt."""

_LIKE = ("llama_index.llms.openai_like.base", "OpenAILike")
_CLASSES = (_LIKE, ("llama_index.llms.openai.base", "OpenAI"))
_STREAMS = ("_stream_chat", "_stream_complete", "_astream_chat", "_astream_complete")
_LEADING = ("chat", "complete", "achat", "acomplete", "stream_chat", "stream_complete")
_METHODS = (
    *(*_LEADING, "astream_chat", "astream_complete", *INNER, *_STREAMS),
    *("_use_chat_completions", "_get_client", "_get_aclient", "_get_model_kwargs", "_get_credential_kwargs"),
    *("_update_max_tokens", "_get_response_token_counts"),
)
_END: Any = object()
_making = threading.Lock()


def speaks(llm: Any) -> bool:
    """Returns True for an ``OpenAI`` or ``OpenAILike`` with the library's own methods."""
    return _base(llm) is not None


def _base(llm: Any) -> type | None:
    """Returns the library class whose methods an LLM has; None for others."""
    base = next((base for each in _CLASSES if (base := _class(each)) is not None and isinstance(llm, base)), None)
    kind: Any = type(llm)
    known = base is not None and not put_on(llm, _METHODS) and _unchanged(kind, base)
    return base if known else None


def _class(named: tuple[str, str]) -> Any:
    return if_imported(named[0], named[1])  # if such a model exists, its module is imported


@lru_cache(maxsize=64)
def _unchanged(kind: type, base: type) -> bool:
    return same(kind, base, *_METHODS)


def speaks_aloud(llm: Any) -> bool:
    """Returns True if one of these answers with audio, which some of its methods do not support."""
    return "audio" in (llm.modalities or ())


def lane(llm: Any) -> str:
    """Returns the name of a model in plans and timelines, for models that are not fineflow engines."""
    url = _url(llm)
    return type(llm).__name__ if url is None else f"{llm.model}@{servers.address(url)}"


def _url(llm: Any) -> str | None:
    """Returns the address of a model's server; None if it is not known, or the two clients have different ones."""
    if not speaks(llm):
        return None
    clients = (llm._client, llm._aclient)
    if any(client is not None and not _genuine(client) for client in clients):
        return None
    asked = [str(llm.api_base) if client is None else str(client.base_url) for client in clients]
    with suppress(ValueError):  # not a valid address
        return asked[0] if servers.normal(asked[0]) == servers.normal(asked[1]) else None
    return None


def _genuine(client: Any) -> bool:
    return type(client).__module__.partition(".")[0] == "openai" and hasattr(client, "base_url")


# Requests


def completion(llm: Any, prompt: str) -> tuple[str, Any]:
    """Returns the inner request of ``llm.complete(prompt)``: ("chat", messages) or ("complete", text)."""
    if _base(llm) is _class(_LIKE):
        prompt = llm.completion_to_prompt(prompt)
    return ("chat", prompt_to_messages(prompt)) if llm.metadata.is_chat_model else ("complete", prompt)


async def ask(llm: Any, family: str, prompt: Any, kwargs: Mapping[str, Any], *, sync: bool) -> Any:
    """Returns the response of the model's own inner method, with its client and retries. Raises what that raises.

    Sends the request's priority if the server accepts one; if the server refuses it, sends the request without.
    """
    name = f"_{family}" if sync else f"_a{family}"
    server = _server(llm)
    extra = (
        None if server is None else server_requests.with_priority(server, llm.additional_kwargs.get("extra_body") or {})
    )
    if server is None or extra is None:
        return await _ask(llm, name, prompt, kwargs, sync=sync)
    urgent = llm.model_copy(update={"additional_kwargs": {**llm.additional_kwargs, "extra_body": extra}})
    urgent.__dict__.update(_get_client=llm._get_client, _get_aclient=llm._get_aclient)
    try:
        return await _ask(urgent, name, prompt, kwargs, sync=sync)
    except Exception as error:
        if not server_requests.refused(server, error):
            raise
    return await _ask(llm, name, prompt, kwargs, sync=sync)


async def _ask(llm: Any, name: str, prompt: Any, kwargs: Mapping[str, Any], *, sync: bool) -> Any:
    function = getattr(type(llm), name)
    if not sync:
        return await function(llm, prompt, **kwargs)
    return await in_thread(lambda: _with_client(llm, function, llm, prompt, **kwargs))


def _with_client(llm: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Makes a sync call. Has a model without a client create it first: concurrent threads would each create one."""
    if llm.reuse_client and llm._client is None:
        with _making:
            llm._get_client()
    return function(*args, **kwargs)


# Shadows


def shadow(llm: Any, site: Site) -> Any:
    """Returns a copy whose inner methods claim, or are the model's own, so that requests use the model's clients."""
    copy, held = llm.model_copy(), dict[str, Any]()
    for name in INNER:
        own = partial(_aown if name.startswith("_a") else _own, llm, name, site.leaf)
        held[name] = site.claims(own, partial(_key, name), awaits=name.startswith("_a"))
    for name in _STREAMS:
        held[name] = (_astreaming if is_async(name) else _streaming)(llm, site.leaf, name)
    copy.__dict__.update(held)
    return copy


def _key(name: str, prompt: Any, /, **kwargs: Any) -> Any:
    """Returns the same key as ``llms.Request.key``, for a prompt that is already formatted."""
    return ("chat", prompt, kwargs) if name.endswith("chat") else ("complete", prompt, True, kwargs)


def _own(llm: Any, name: str, leaf: str, /, *args: Any, **kwargs: Any) -> Any:
    component, ask = bound(llm), partial(_with_client, llm, getattr(llm, name), *args, **kwargs)
    return ask() if component is None else call_component(lane(llm), leaf, component, ask)


async def _aown(llm: Any, name: str, leaf: str, /, *args: Any, **kwargs: Any) -> Any:
    component, ask = bound(llm), partial(getattr(llm, name), *args, **kwargs)
    return await (ask() if component is None else acall_component(lane(llm), leaf, component, ask))


def _streaming(llm: Any, leaf: str, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        source, component = _with_client(llm, getattr(llm, name), *args, **kwargs), bound(llm)
        return source if component is None else pieces(source, component)

    def pieces(source: Any, component: LimitedComponent) -> Iterator[Any]:
        with closing(source), StreamedCall(lane(llm), leaf, component) as counted:
            while (piece := counted.next(source, _END)) is not _END:
                yield piece

    return call


def _astreaming(llm: Any, leaf: str, name: str) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        source, component = await getattr(llm, name)(*args, **kwargs), bound(llm)
        return source if component is None else pieces(source, component)

    async def pieces(source: Any, component: LimitedComponent) -> AsyncIterator[Any]:
        with StreamedCall(lane(llm), leaf, component) as counted:
            async with aclosing(source):
                while (piece := await counted.anext(source, _END)) is not _END:
                    yield piece

    return call


# Limits


def bound(llm: Any) -> LimitedComponent | None:
    """Returns the limited component of a model's server; None if it has no limit."""
    if not servers.bounded() or (url := _url(llm)) is None:
        return None
    return servers.component_at(url)


def held(obj: Any) -> Iterator[Any]:
    """Yields the models that an object is or holds."""
    known = getattr(obj, "__dict__", {})
    yield from (each for each in (obj, known.get("_llm"), known.get("llm")) if isinstance(each, LLM))


def find(obj: Any) -> LimitedComponent | None:
    """Returns the limited component of the server that an object's model calls; None if it has no limit."""
    return next((found for llm in held(obj) if (found := bound(llm)) is not None), None)


component_finders.append(find)


# Beginnings of prompts


@dataclass(frozen=True, slots=True)
class Served:
    """A user's model whose server is registered with fineflow (``fineflow.engine``)."""

    model: Any
    server: Server

    def prompt_text(self, messages: Sequence[ChatMessage], *, late: str) -> str:
        """Returns the conversation that the model would send, as text to cut at ``late`` (``server_requests.cut``)."""
        to_openai = sys.modules["llama_index.llms.openai.utils"].to_openai_message_dicts
        return server_requests.cut(self.server, to_openai(messages, model=self.model.model), late)

    async def awarm(self, text: str) -> int:
        """Sends the beginning of a prompt ahead; returns its number of characters, 0 if not sent. Never raises."""
        request: Mapping[str, Any] = {}
        with suppress(Exception):  # the model itself raises the error when stock calls it
            request = self.model._get_model_kwargs()
        client = self.model._aclient or self.model._get_credential_kwargs(is_async=True)
        return await server_requests.awarm(self.server, text, request, client)


def _server(llm: Any) -> Server | None:
    url = _url(llm)
    found = None if url is None else servers.at(url)
    return None if found is None else found.of(llm.model)


def served(llm: Any) -> Served | None:
    """Returns the ``Served`` of a model whose server is registered; None for any other model."""
    found = _server(llm)
    return None if found is None else Served(llm, found)


def warmed(found: Served) -> str:
    """Returns the reason why no prompt may be sent ahead for a model; "" if it may."""
    model = found.model
    if not found.server.can_prefill:
        return f"{server_requests.NOT_TOLD} {found.server.name}"
    clients = [client for client in (model._client, model._aclient) if client is not None]
    own = (model._http_client, model._async_http_client, *(client for client in clients if not _plain_http(client)))
    if not found.server.own_http and any(each is not None for each in own):
        return server_requests.OWN_HTTP
    if any(getattr(client, "_api_key_provider", None) is not None for client in clients):
        return server_requests.MADE_KEY
    if model._aclient is None and model._client is not None and not _its_own(model._client, model):
        return "the model was given a client for sync calls only, with a key or headers of its own"
    return ""


def _plain_http(client: Any) -> bool:
    """Returns True if an openai client has the default HTTP client that it creates itself."""
    made = sys.modules["openai._base_client"]
    return type(client._client) in (made.SyncHttpxClientWrapper, made.AsyncHttpxClientWrapper)


def _its_own(client: Any, model: Any) -> bool:
    """Returns True if a client sends the same key, headers and query as the clients that the model creates itself."""
    headers, query = dict(client._custom_headers or {}), client._custom_query
    return client.api_key == model.api_key and headers == dict(model.default_headers or {}) and not query
