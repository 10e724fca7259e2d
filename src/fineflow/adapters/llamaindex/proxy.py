"""Proxies that ``optimize`` returns for LlamaIndex objects: the entry methods, with stock's parameter names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, NamedTuple

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import QueryBundle

from fineflow.adapters.core.invocation import Again, Invocation, copied, sync_name
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.entry_wrappers import claimed
from fineflow.adapters.llamaindex.builder import CHAT, QUERY, RETRIEVE, STREAM_CHAT, SYNTHESIZE, Way
from fineflow.adapters.llamaindex.models.embeddings import several

_QUERIES = ("str_or_query_bundle", "query_bundle", "query", "message")
"""Names by which entry methods take their query, if not as the first argument."""


class Facts(NamedTuple):
    """Facts of a call for kernels. plain: the query is only text; it does not say how it is embedded."""

    plain: bool


class IndexCall(Invocation):
    """One call of a part of an object, for a query."""

    __slots__ = ("given", "query")

    def __init__(
        self, way: Way, method: str, query: Any, stock: Callable[[Any], Any], given: tuple[Any, Mapping[str, Any]]
    ) -> None:
        """given: the arguments, by position and by name."""
        super().__init__(way.entry, way, stock, sync=way.sync, method=method)
        self.query, self.given = query, given

    def inputs(self) -> Mapping[str, Any]:
        query = self.query
        return {"input": query if isinstance(query, str) else getattr(query, "query_str", None), "nodes": None}

    def again(self) -> Again:
        method = sync_name(self.method)
        given = copied(self.given, "arguments")

        def call(runs: Any) -> Any:
            args, kwargs = copied(given, "arguments")
            return getattr(runs, method)(*args, **kwargs)

        return method, call, lambda: (*given[0], *given[1].values())

    def facts(self) -> Facts:
        query = self.query
        return Facts(
            isinstance(query, str)
            or (
                type(query) is QueryBundle
                and query.embedding is None
                and not query.custom_embedding_strs
                and query.image_path is None
            )
        )


class Optimized(Planned):
    """Proxy of an object that runs ahead. Everything except its entry methods is the user's object."""

    def _self_followed(self, plan: Plan | None, invocation: Any) -> Plan | None:
        # Several texts for one vector are embedded concurrently.
        return super()._self_followed(plan, invocation) or (plan if several(invocation.query) else None)

    def _self_part_call(self, part: str, method: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a sync method of a part of the object."""
        own = lambda *args, **kwargs: self._self_call(_call(Way(part, True), method, query, args, kwargs))  # noqa: E731
        return claimed(self.__wrapped__, method, own, args, kwargs, awaits=False)

    async def _self_part_acall(
        self, part: str, method: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls an async method of a part of the object."""
        own = lambda *args, **kwargs: self._self_acall(_call(Way(part, False), method, query, args, kwargs))  # noqa: E731
        return await claimed(self.__wrapped__, method, own, args, kwargs, awaits=True)


def _call(way: Way, method: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> IndexCall:
    return IndexCall(way, method, query, lambda runs: getattr(runs, method)(*args, **kwargs), (args, kwargs))


def entry(base: Any, part: str, method: str) -> Any:
    """Returns an entry method of a proxy, as the class ``base`` of stock has it. Its query is the first argument."""
    stock = inspect.getattr_static(base, method)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._self_part_call(part, method, _query(args, kwargs), args, kwargs)

    async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._self_part_acall(part, method, _query(args, kwargs), args, kwargs)

    return update_wrapper(acall if inspect.iscoroutinefunction(inspect.unwrap(stock)) else call, stock, updated=())


def _query(args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return next(iter((*args, *(named[name] for name in _QUERIES if name in named))), None)


class OptimizedRetriever(Optimized):
    """Retriever that runs ahead."""

    retrieve = entry(BaseRetriever, RETRIEVE, "retrieve")
    aretrieve = entry(BaseRetriever, RETRIEVE, "aretrieve")


class OptimizedSynthesizer(Optimized):
    """Response synthesizer that runs ahead."""

    synthesize = entry(BaseSynthesizer, SYNTHESIZE, "synthesize")
    asynthesize = entry(BaseSynthesizer, SYNTHESIZE, "asynthesize")


class OptimizedQueryEngine(Optimized):
    """Query engine that runs ahead."""

    query = entry(BaseQueryEngine, QUERY, "query")
    aquery = entry(BaseQueryEngine, QUERY, "aquery")
    _query = entry(BaseQueryEngine, QUERY, "_query")  # the retry engines call this method of their engine
    retrieve = entry(BaseQueryEngine, RETRIEVE, "retrieve")
    aretrieve = entry(RetrieverQueryEngine, RETRIEVE, "aretrieve")
    synthesize = entry(BaseQueryEngine, SYNTHESIZE, "synthesize")
    asynthesize = entry(BaseQueryEngine, SYNTHESIZE, "asynthesize")


class OptimizedChatEngine(Optimized):
    """Chat engine that runs ahead. Its memory stays with the user's object."""

    chat = entry(BaseChatEngine, CHAT, "chat")
    achat = entry(BaseChatEngine, CHAT, "achat")
    stream_chat = entry(BaseChatEngine, STREAM_CHAT, "stream_chat")
    astream_chat = entry(BaseChatEngine, STREAM_CHAT, "astream_chat")
