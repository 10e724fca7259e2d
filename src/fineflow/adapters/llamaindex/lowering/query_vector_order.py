"""Retrievers that are asked at once by one query, of which some leave a vector with it that others then search by.

Sync vector searches leave it; so do retrievers whose async methods are the sync ones (``AutoMergingRetriever``).
Stock's loop does these one by one, so that all that starts later finds the vector. Here they are done in threads, and
the others wait.
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
from fineflow.adapters.llamaindex.lowering.direct_retrievers import direct_of
from fineflow.adapters.llamaindex.lowering.vector_search import is_auto, is_search
from fineflow.adapters.llamaindex.methods import blocks


def keeps_vector(retriever: Any) -> bool:
    """Whether it may leave a vector with the query in async calls, too."""
    ours = type(retriever).__module__.startswith("llama_index.")
    makes_none = container_of(retriever) is None or isinstance(retriever, TransformRetriever)
    if ours and makes_none and "_embed_model" not in vars(retriever):
        return False
    return blocks(type(retriever), "_aretrieve")


def stay(retrievers: Sequence[Any]) -> bool:
    """Whether those that leave a vector stay on the loop in async calls.

    So it is beside a retriever that calls others later on, by the same query: only on the loop the order is stock's.
    """
    return any(map(keeps_vector, retrievers)) and any(
        not is_search(each) and not is_auto(each) and not blocks(type(each), "_aretrieve") for each in retrievers
    )


def in_turn(shadows: Sequence[Any], retrievers: Sequence[Any], site: Site) -> list[Any]:
    """The shadows of retrievers for an async call; each waits for those called before it that leave a vector."""
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
    """Of one call, by place and query: the searches that leave a vector; set when they have ended."""

    def __init__(self) -> None:
        super().__init__(list)


class _InTurn(wrapt.ObjectProxy[Any]):
    """A retriever that waits for others that were called before it with the same query."""

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
