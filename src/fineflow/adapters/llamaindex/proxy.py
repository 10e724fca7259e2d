"""Proxies that ``optimize`` returns for LlamaIndex objects: the entry methods, with stock's parameter names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from llama_index.core.schema import QueryBundle

from fineflow.adapters.core.invocation import Again, Invocation, copied, sync_name
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.entry_wrappers import aclaimed, claimed
from fineflow.adapters.llamaindex.builder import CHAT, QUERY, RETRIEVE, STREAM_CHAT, SYNTHESIZE, Way
from fineflow.adapters.llamaindex.models.embeddings import several


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

        def own(*args: Any, **kwargs: Any) -> Any:
            stock = lambda runs: getattr(runs, method)(*args, **kwargs)  # noqa: E731
            return self._self_call(IndexCall(Way(part, True), method, query, stock, (args, kwargs)))

        return claimed(self.__wrapped__, method, own, args, kwargs)

    async def _self_part_acall(
        self, part: str, method: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls an async method of a part of the object."""

        async def own(*args: Any, **kwargs: Any) -> Any:
            stock = lambda runs: getattr(runs, method)(*args, **kwargs)  # noqa: E731
            return await self._self_acall(IndexCall(Way(part, False), method, query, stock, (args, kwargs)))

        return await aclaimed(self.__wrapped__, method, own, args, kwargs)


class OptimizedRetriever(Optimized):
    """Retriever that runs ahead."""

    def retrieve(self, str_or_query_bundle: Any) -> Any:
        return self._self_part_call(RETRIEVE, "retrieve", str_or_query_bundle, (str_or_query_bundle,), {})

    async def aretrieve(self, str_or_query_bundle: Any) -> Any:
        return await self._self_part_acall(RETRIEVE, "aretrieve", str_or_query_bundle, (str_or_query_bundle,), {})


class OptimizedSynthesizer(Optimized):
    """Response synthesizer that runs ahead."""

    def synthesize(self, query: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        args = (query, nodes, *args)
        return self._self_part_call(SYNTHESIZE, "synthesize", query, args, kwargs)

    async def asynthesize(self, query: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        args = (query, nodes, *args)
        return await self._self_part_acall(SYNTHESIZE, "asynthesize", query, args, kwargs)


class OptimizedQueryEngine(Optimized):
    """Query engine that runs ahead."""

    def query(self, str_or_query_bundle: Any) -> Any:
        return self._self_part_call(QUERY, "query", str_or_query_bundle, (str_or_query_bundle,), {})

    async def aquery(self, str_or_query_bundle: Any) -> Any:
        return await self._self_part_acall(QUERY, "aquery", str_or_query_bundle, (str_or_query_bundle,), {})

    def _query(self, query_bundle: Any) -> Any:  # the retry engines call this method of their engine
        return self._self_part_call(QUERY, "_query", query_bundle, (query_bundle,), {})

    def retrieve(self, query_bundle: Any) -> Any:
        return self._self_part_call(RETRIEVE, "retrieve", query_bundle, (query_bundle,), {})

    async def aretrieve(self, query_bundle: Any) -> Any:
        return await self._self_part_acall(RETRIEVE, "aretrieve", query_bundle, (query_bundle,), {})

    def synthesize(self, query_bundle: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        args = (query_bundle, nodes, *args)
        return self._self_part_call(SYNTHESIZE, "synthesize", query_bundle, args, kwargs)

    async def asynthesize(self, query_bundle: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        args = (query_bundle, nodes, *args)
        return await self._self_part_acall(SYNTHESIZE, "asynthesize", query_bundle, args, kwargs)


class OptimizedChatEngine(Optimized):
    """Chat engine that runs ahead. Its memory stays with the user's object."""

    def chat(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        return self._self_part_call(CHAT, "chat", message, (message, *args), kwargs)

    async def achat(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._self_part_acall(CHAT, "achat", message, (message, *args), kwargs)

    def stream_chat(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        return self._self_part_call(STREAM_CHAT, "stream_chat", message, (message, *args), kwargs)

    async def astream_chat(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._self_part_acall(STREAM_CHAT, "astream_chat", message, (message, *args), kwargs)
