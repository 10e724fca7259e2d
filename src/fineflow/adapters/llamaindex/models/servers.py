"""``OpenAI`` and ``OpenAILike`` of LlamaIndex: asked by their own clients; prompts go ahead to servers fineflow knows.

Their public methods lead to four inner ones (``_chat``, ``_complete``, and async), around each of which the library
tries again, and outside of which all spans and events are. The graph calls these, and on shadows they claim. Read:
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
from fineflow.adapters.core.shadows import Site
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
"""What answers, called with messages or with the text of a prompt."""

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
    """Whether it is one of these, with the library's own methods."""
    return _base(llm) is not None


def _base(llm: Any) -> type | None:
    """The class whose methods it has."""
    base = next((base for each in _CLASSES if (base := _class(each)) is not None and isinstance(llm, base)), None)
    kind: Any = type(llm)
    known = base is not None and vars(llm).keys().isdisjoint(_METHODS) and _unchanged(kind, base)
    return base if known else None


def _class(named: tuple[str, str]) -> Any:
    return getattr(sys.modules.get(named[0]), named[1], None)  # whoever has such a model has imported it


@lru_cache(maxsize=64)
def _unchanged(kind: type, base: type) -> bool:
    return same(kind, base, *_METHODS)


def speaks_aloud(llm: Any) -> bool:
    """Whether one of these answers in sound, which some of its methods refuse to do."""
    return "audio" in (llm.modalities or ())


def lane(llm: Any) -> str:
    """What a model that is no engine of ours is called in plans and timelines."""
    url = _url(llm)
    return type(llm).__name__ if url is None else f"{llm.model}@{servers.address(url)}"


def _url(llm: Any) -> str | None:
    """The address that it asks; None where that is not known, or its two clients ask two."""
    if not speaks(llm):
        return None
    clients = (llm._client, llm._aclient)
    if any(client is not None and not _genuine(client) for client in clients):
        return None
    asked = [str(llm.api_base) if client is None else str(client.base_url) for client in clients]
    with suppress(ValueError):  # an address that is none
        return asked[0] if servers.normal(asked[0]) == servers.normal(asked[1]) else None
    return None


def _genuine(client: Any) -> bool:
    return type(client).__module__.partition(".")[0] == "openai" and hasattr(client, "base_url")


# What an answer is asked for with


def completion(llm: Any, prompt: str) -> tuple[str, Any]:
    """What ``llm.complete(prompt)`` asks in the end: "chat" with messages, or "complete" with a text."""
    if _base(llm) is _class(_LIKE):
        prompt = llm.completion_to_prompt(prompt)
    return ("chat", prompt_to_messages(prompt)) if llm.metadata.is_chat_model else ("complete", prompt)


async def ask(llm: Any, family: str, prompt: Any, kwargs: Mapping[str, Any], *, sync: bool) -> Any:
    """The response, from the model's own inner method: its client, its retries. Raises what that raises.

    Says how urgent it is where the server may be told; one that refuses that is asked again without.
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
    """A sync call that has a model make its client first, if it has none: threads would each make one."""
    if llm.reuse_client and llm._client is None:
        with _making:
            llm._get_client()
    return function(*args, **kwargs)


# Shadows


def shadow(llm: Any, site: Site) -> Any:
    """A copy whose inner methods claim, or are the model's own, so that it asks by the model's clients."""
    copy, held = llm.model_copy(), dict[str, Any]()
    for name in INNER:
        held[name] = (_aclaiming if name.startswith("_a") else _claiming)(llm, name, site)
    for name in _STREAMS:
        held[name] = (_astreaming if name.startswith("_a") else _streaming)(llm, site.leaf, name)
    copy.__dict__.update(held)
    return copy


def _key(name: str, prompt: Any, kwargs: dict[str, Any]) -> Any:
    """As ``models.Request.key`` has it, of a text that needs no template any more."""
    return ("chat", prompt, kwargs) if name.endswith("chat") else ("complete", prompt, True, kwargs)


def _claiming(llm: Any, name: str, site: Site) -> Callable[..., Any]:
    def call(prompt: Any, **kwargs: Any) -> Any:
        def own() -> Any:
            component, ask = bound(llm), partial(_with_client, llm, getattr(llm, name), prompt, **kwargs)
            return ask() if component is None else call_component(lane(llm), site.leaf, component, ask)

        return site.claim(_key(name, prompt, kwargs), own)[1]

    return call


def _aclaiming(llm: Any, name: str, site: Site) -> Callable[..., Any]:
    async def call(prompt: Any, **kwargs: Any) -> Any:
        async def own() -> Any:
            component, ask = bound(llm), getattr(llm, name)
            if component is None:
                return await ask(prompt, **kwargs)
            return await acall_component(lane(llm), site.leaf, component, lambda: ask(prompt, **kwargs))

        return (await site.aclaim(_key(name, prompt, kwargs), own))[1]

    return call


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
    """What stands in queues for the server of a model, if it has a limit."""
    if not servers.bounded() or (url := _url(llm)) is None:
        return None
    return servers.component_at(url)


def held(obj: Any) -> Iterator[Any]:
    """The models that an object holds, or is."""
    known = getattr(obj, "__dict__", {})
    yield from (each for each in (obj, known.get("_llm"), known.get("llm")) if isinstance(each, LLM))


def find(obj: Any) -> LimitedComponent | None:
    """What stands for the server of the model that an object asks, if that has a limit."""
    return next((found for llm in held(obj) if (found := bound(llm)) is not None), None)


component_finders.append(find)


# Beginnings of prompts


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the user's whose server fineflow was told of."""

    model: Any
    server: Server

    def prompt_text(self, messages: Sequence[ChatMessage], *, late: str) -> str:
        """The conversation that the model would send, as text that can be cut at ``late`` (``serving.cut``)."""
        to_openai = sys.modules["llama_index.llms.openai.utils"].to_openai_message_dicts
        return server_requests.cut(self.server, to_openai(messages, model=self.model.model), late)

    async def awarm(self, text: str) -> int:
        """Sends the beginning of a prompt ahead; returns its characters, 0 where it did not. Never raises."""
        request: Mapping[str, Any] = {}
        with suppress(Exception):  # what a request cannot be made of is for the model itself to say
            request = self.model._get_model_kwargs()
        client = self.model._aclient or self.model._get_credential_kwargs(is_async=True)
        return await server_requests.awarm(self.server, text, request, client)


def _server(llm: Any) -> Server | None:
    url = _url(llm)
    found = None if url is None else servers.at(url)
    return None if found is None else found.of(llm.model)


def served(llm: Any) -> Served | None:
    """Of a model whose requests go to a server that fineflow was told of; None for any other."""
    found = _server(llm)
    return None if found is None else Served(llm, found)


def warmed(found: Served) -> str:
    """Why nothing may be sent ahead for a model; "" if it may."""
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
    """Whether a client of openai has the HTTP client that it makes for itself."""
    made = sys.modules["openai._base_client"]
    return type(client._client) in (made.SyncHttpxClientWrapper, made.AsyncHttpxClientWrapper)


def _its_own(client: Any, model: Any) -> bool:
    """Whether a client says what the clients do that the model makes itself."""
    headers, query = dict(client._custom_headers or {}), client._custom_query
    return client.api_key == model.api_key and headers == dict(model.default_headers or {}) and not query
