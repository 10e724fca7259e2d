"""Order of retrievers that run concurrently on one query, when some store a vector in it that others then search by.

Sync vector searches store it; so do retrievers whose async methods are the sync ones (``AutoMergingRetriever``). In
stock these block the event loop, so all later ones find the vector. Here they run in threads, and the others wait.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import wrapt
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import TransformRetriever

from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.lowering.containers import container_of
from fineflow.adapters.llamaindex.lowering.retrieval.direct_retrievers import direct_of
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import is_auto, is_search
from fineflow.adapters.llamaindex.thread_affinity import blocks


def keeps_vector(retriever: Any) -> bool:
    """Returns True if a retriever may store a vector in the query in async calls, too."""
    ours = type(retriever).__module__.startswith("llama_index.")
    makes_none = container_of(retriever) is None or isinstance(retriever, TransformRetriever)
    if ours and makes_none and "_embed_model" not in vars(retriever):
        return False
    return blocks(type(retriever), "_aretrieve")


def stay(retrievers: Sequence[Any]) -> bool:
    """Returns True if retrievers that store a vector have to stay on the event loop in async calls.

    That is so beside a retriever that calls others later with the same query: only on the loop is the order stock's.
    """
    return any(map(keeps_vector, retrievers)) and any(
        not is_search(each) and not is_auto(each) and not blocks(type(each), "_aretrieve") for each in retrievers
    )


def in_turn(shadows: Sequence[Any], retrievers: Sequence[Any], site: Site) -> list[Any]:
    """Returns the shadows for an async call; each waits for those called before it that store a vector."""
    if not any(map(keeps_vector, retrievers)):
        return list(shadows)
    pairs = list(zip(shadows, retrievers, strict=True))
    if stay(retrievers):
        return [retriever if keeps_vector(retriever) else made for made, retriever in pairs]
    free = [direct_of(each) is not None or not isinstance(each, BaseRetriever) for each in retrievers]
    return [
        made if alone else _InTurn(made, site, keeps_vector(retriever))
        for (made, retriever), alone in zip(pairs, free, strict=True)
    ]


class _UnderWay(defaultdict[Any, list[asyncio.Event]]):
    """Searches of one call that store a vector, by path and query; an event is set when its search has ended."""

    def __init__(self) -> None:
        super().__init__(list)


class _InTurn(wrapt.ObjectProxy[Any]):
    """Retriever that waits for those that were called before it with the same query and store a vector."""

    def __init__(self, retriever: Any, site: Site, keeps: bool) -> None:
        super().__init__(retriever)
        self._self_site, self._self_keeps = site, keeps

    def aretrieve(self, query: Any) -> Any:
        here = self._self_site.here
        if here is None:
            return self.__wrapped__.aretrieve(query)
        known, ended = here.call.memory(_UnderWay)[self._self_site.leaf, id(query)], asyncio.Event()
        before = tuple(known)
        if self._self_keeps:
            known.append(ended)
        return self._self_run(query, before, ended)

    async def _self_run(self, query: Any, before: Sequence[asyncio.Event], ended: asyncio.Event) -> Any:
        try:
            for each in before:
                await each.wait()
            return await self.__wrapped__.aretrieve(query)
        finally:
            ended.set()
