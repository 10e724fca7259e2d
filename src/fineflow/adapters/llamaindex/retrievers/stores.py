"""The vector stores of LlamaIndex whose search methods were read, and searches that several queries make as one.

Read: SimpleVectorStore of llama-index-core 0.14.25, ChromaVectorStore of llama-index-vector-stores-chroma 0.6.0,
FaissVectorStore of llama-index-vector-stores-faiss 0.7.0.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode

from fineflow.adapters.llamaindex.methods import as_written, method
from fineflow.adapters.resources import StoreEngine, stand
from fineflow.adapters.together import CHROMA, OneMatrix, Outcome, Together, chroma_contents
from fineflow.ir import Op
from fineflow.runtime.loop import on_engine_loop

_SEARCHING = ("query", "aquery")


def _over(store: Any, held: dict[str, Any]) -> Any:
    made = copy.copy(store)
    made.data = replace(store.data, embedding_dict=held)
    return made


MATRIX = OneMatrix(
    held=lambda store: store.data.embedding_dict,
    least=64,
    vector=lambda vector: vector,
    with_vector=lambda vector, row: row,
    over=_over,
)
"""``SimpleVectorStore``, which makes a matrix of its lists in every search; what it does with each row stays."""


@dataclass(frozen=True, slots=True)
class Known:
    """A store class. methods: all that a search may call. contents: what it shares with other ways to the same.

    together: how searches of several queries are made as one, where they are.
    """

    module: str
    name: str
    methods: tuple[str, ...]
    contents: Callable[[Any], Any]
    together: Together | None = None


# FAISS: ``index.search`` takes many vectors, but the distances then differ in the last bits; see LangChain's row.
KNOWN = (
    Known("llama_index.core.vector_stores.simple", "SimpleVectorStore", _SEARCHING, lambda store: store.data, MATRIX),
    Known(
        "llama_index.vector_stores.chroma.base",
        "ChromaVectorStore",
        (*_SEARCHING, "_query", "_get", "_mmr_search"),
        chroma_contents,
        CHROMA,
    ),
    Known("llama_index.vector_stores.faiss.base", "FaissVectorStore", _SEARCHING, lambda store: store._faiss_index),
)


def _known(store: Any) -> Known | None:
    """What is known of a store, for classes whose search methods are exactly those that were read."""
    for row in KNOWN:
        base = getattr(sys.modules.get(row.module), row.name, None)
        if base is not None and isinstance(store, base):
            return row if as_written(store, base, *row.methods) else None
    return None


def resource_of(store: Any) -> Any:
    """What two stores share that are two ways to the same nodes, as ``Builder.contents`` says; else the store itself.

    A ChromaVectorStore and a store of LangChain's over one collection are one resource.
    """
    for row in KNOWN:
        base = getattr(sys.modules.get(row.module), row.name, None)
        if base is not None and isinstance(store, base):
            return row.contents(store)
    return chroma_contents(store)


def engine_of(store: Any) -> StoreEngine | None:
    """The engine in front of a known store that does better with several searches at once; None for others."""
    row = _known(store)
    if row is None or row.together is None or not row.together.pays(store):
        return None
    together = row.together
    found = stand(store, lambda: StoreEngine(type(store).__name__, together), row.contents)
    return found if isinstance(found, StoreEngine) else None


@dataclass(frozen=True, slots=True)
class Search:
    """A query for a store, with the settings of its retriever."""

    store: Any
    query: VectorStoreQuery
    settings: Mapping[str, Any]

    def made(self, store: Any = None) -> Any:
        """What the store's own method finds, in ``store`` where one is given. Raises what that raises."""
        own = method(type(self.store), "query")
        assert own is not None
        return own.function(self.store if store is None else store, self.query, **self.settings)


def _queued(store: Any, query: Any, settings: Mapping[str, Any]) -> tuple[StoreEngine, Search] | None:
    """The queue that a search goes through, and what it is there; None for one that is made alone.

    Other modes than the default one ask a collection more than once, or fit models to what they have found.
    """
    if type(query) is not VectorStoreQuery or query.mode != VectorStoreQueryMode.DEFAULT or not query.query_embedding:
        return None
    engine = engine_of(store)
    return None if engine is None else (engine, Search(store, query, settings))


def searched(store: Any, query: Any, settings: Mapping[str, Any]) -> Any:
    """``store.query(query, **settings)``, made together with what other queries search. From plain threads; blocks."""
    queued = None if on_engine_loop() else _queued(store, query, settings)
    if queued is not None:
        engine, search = queued
        found: list[Outcome] = []
        with suppress(Exception):  # of the queue, not of a search: then it is made alone
            found = engine.queue.submit_sync(Op.SEARCH, [search])
        if found:
            return found[0].result()
    return store.query(query, **settings)


async def asearched(store: Any, query: Any, settings: Mapping[str, Any], own: Callable[[], Awaitable[Any]]) -> Any:
    """The same from a coroutine, on any loop; it does not block. own: makes the search where it is made alone."""
    queued = _queued(store, query, settings)
    if queued is not None:
        engine, search = queued
        found: list[Outcome] = []
        with suppress(Exception):
            found = await engine.queue.submit_async(Op.SEARCH, [search])
        if found:
            return found[0].result()
    return await own()
