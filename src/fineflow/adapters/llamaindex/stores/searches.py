"""The vector stores of LlamaIndex: which search methods were read, searches that several queries make as one, limits.

Read: SimpleVectorStore of llama-index-core 0.14.25, ChromaVectorStore of llama-index-vector-stores-chroma 0.6.0,
FaissVectorStore of llama-index-vector-stores-faiss 0.7.0, PGVectorStore of llama-index-vector-stores-postgres 0.9.0.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import VectorIndexAutoRetriever
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery, VectorStoreQueryMode

from fineflow.adapters.core.batched_search import CHROMA, OneMatrix, Outcome, Together, chroma_contents
from fineflow.adapters.core.builder import Builder
from fineflow.adapters.core.recognition import NotLowered
from fineflow.adapters.core.resources import StoreEngine, any_stand, stand, standing_for
from fineflow.adapters.llamaindex.methods import as_written, method
from fineflow.adapters.llamaindex.stores import postgres
from fineflow.ir import Op
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.queues.component_calls import LimitedComponent, acall_component, call_component, component_finders

T = TypeVar("T")

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


def _ready(store: Any, query: Any, *, sync: bool, by_sync: bool) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Known:
    """A store class. methods: all that a search may call. contents: what it shares with other ways to the same.

    together: how searches of several queries are made as one, where they are. own_code: what speaks against searching a
    store before stock does. unready: what speaks against a search of a query now, by the sync method (``sync``) where
    stock would make it by that (``by_sync``) or by the async one. connections: what bounds sync searches at once.
    first: what the first call of a store has to do beside its work, if it has not been done.
    """

    module: str
    name: str
    methods: tuple[str, ...]
    contents: Callable[[Any], Any]
    together: Together | None = None
    own_code: Callable[[Any], str] = lambda store: ""
    unready: Callable[..., str] = _ready
    connections: Callable[[Any], LimitedComponent | None] = lambda store: None
    first: Callable[[Any], Callable[[], None] | None] = lambda store: None


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
    Known(
        "llama_index.vector_stores.postgres.base",
        "PGVectorStore",
        (*_SEARCHING, "_initialize"),
        postgres.table_of,
        own_code=postgres.own_code,
        unready=postgres.unready,
        connections=postgres.connections,
        first=postgres.first,
    ),
)


def _known(store: Any) -> Known | None:
    """What is known of a store, for classes whose search methods are exactly those that were read."""
    found = _row(store)
    return found[0] if found is not None and as_written(store, found[1], *found[0].methods) else None


def _row(store: Any) -> tuple[Known, type] | None:
    """The row of a store, or of the class that it is made of, and that class."""
    for row in KNOWN:
        base = getattr(sys.modules.get(row.module), row.name, None)
        if base is not None and isinstance(store, base):
            return row, base
    return None


def resource_of(store: Any) -> Any:
    """What two stores share that are two ways to the same nodes, as ``Builder.contents`` says; else the store itself.

    A ChromaVectorStore and a store of LangChain's over one collection are one resource.
    """
    found = _row(store)
    return chroma_contents(store) if found is None else found[0].contents(store)


def engine_of(store: Any) -> StoreEngine | None:
    """The engine in front of a known store that does better with several searches at once; None for others."""
    row = _known(store)
    if row is None or row.together is None or not row.together.pays(store):
        return None
    found = store_standing(store)
    return found if isinstance(found, StoreEngine) else None


def check_store(store: Any, b: Builder) -> None:
    """Raises NotLowered where a search of a store may run user code that the store was given."""
    found = _row(store)
    if found is not None and not b.assume_pure and (why := found[0].own_code(store)):
        raise NotLowered(why)


def unready(store: Any, query: Any, *, sync: bool, by_sync: bool) -> str:
    """What speaks against making a search ahead, as ``Known.unready`` says; "" if nothing."""
    found = _row(store)
    return "" if found is None else found[0].unready(store, query, sync=sync, by_sync=by_sync)


def connections(store: Any) -> LimitedComponent | None:
    """What bounds the sync searches of a store that has a database's connections for so many; None for others."""
    found = _row(store)
    return None if found is None else found[0].connections(store)


def first(store: Any) -> Callable[[], None] | None:
    """What the first call of a known store has to do beside its work, if it has not been done. It blocks."""
    row = _known(store)
    return None if row is None else row.first(store)


# What stands for stores


def store_standing(store: Any) -> LimitedComponent:
    """What stands for a store in queues, made when it is first asked for.

    With a queue for whoever has it as one that is known, where searches of that are made together.
    """
    name, row = type(store).__name__, _row(store)
    together = None if row is None else row[0].together
    make = (lambda: LimitedComponent(name)) if together is None else lambda: StoreEngine(name, together)
    return stand(store, make, resource_of)


def meant(obj: Any) -> Any:
    """The object that counts: of a retriever that holds a store, and of a vector index, the store; else itself."""
    if isinstance(obj, VectorIndexAutoRetriever):
        obj = obj._index
    if isinstance(obj, VectorStoreIndex):
        return obj.vector_store
    held = getattr(obj, "_vector_store", None) if isinstance(obj, BaseRetriever) else None
    return held if isinstance(held, BasePydanticVectorStore) else obj


def find(obj: Any) -> LimitedComponent | None:
    """What stands for a component, if anything does so far."""
    if not any_stand():
        return None
    obj = meant(obj)
    return standing_for(obj, resource_of if isinstance(obj, BasePydanticVectorStore) else None)


component_finders.append(find)


def counted(obj: Any, leaf: str, own: Callable[[], T]) -> T:
    """What stock's own call ``own()`` of a component returns; under a permit, if it has a limit."""
    found = find(obj)
    return own() if found is None or found.permits is None else call_component(found.name, leaf, found, own)


async def acounted(obj: Any, leaf: str, own: Callable[[], Awaitable[T]]) -> T:
    """The same for a coroutine."""
    found = find(obj)
    return await (own() if found is None or found.permits is None else acall_component(found.name, leaf, found, own))


# Searches


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
    return None if engine is None or not engine.waits else (engine, Search(store, query, settings))


def searched(store: Any, query: Any, settings: Mapping[str, Any], leaf: str) -> Any:
    """``store.query(query, **settings)``, made together with what other queries search. From plain threads; blocks."""
    queued = None if on_engine_loop() else _queued(store, query, settings)
    if queued is not None and queued[0].permits is not None and asyncio._get_running_loop() is not None:
        queued = None  # holders of permits may need that loop
    if queued is not None:
        engine, search = queued
        found: list[Outcome] = []
        with suppress(Exception):  # of the queue, not of a search: then it is made alone
            found = engine.queue.submit_sync(Op.SEARCH, [search])
        if found:
            return found[0].result()
    return counted(store, leaf, lambda: _asked(store, query, settings, leaf))


def _asked(store: Any, query: Any, settings: Mapping[str, Any], leaf: str) -> Any:
    if (prepare := first(store)) is not None:
        prepare()
    bound = connections(store)
    if bound is None:
        return store.query(query, **settings)
    return call_component(bound.name, leaf, bound, lambda: store.query(query, **settings))


async def asearched(store: Any, query: Any, settings: Mapping[str, Any], own: Callable[[], Awaitable[Any]]) -> Any:
    """The same from a coroutine, on any loop; it does not block.

    own: makes the search where it is made alone, in a place of the store's if that has a limit.
    """
    queued = _queued(store, query, settings)
    if queued is not None:
        engine, search = queued
        found: list[Outcome] = []
        with suppress(Exception):
            found = await engine.queue.submit_async(Op.SEARCH, [search])
        if found:
            return found[0].result()
    return await own()
