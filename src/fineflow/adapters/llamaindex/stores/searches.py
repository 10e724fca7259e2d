"""Vector stores of LlamaIndex: known search methods, batched searches across queries, and limits.

Written against llama-index-core 0.14.25 (SimpleVectorStore), llama-index-vector-stores-chroma 0.6.0,
llama-index-vector-stores-faiss 0.7.0 and llama-index-vector-stores-postgres 0.9.0.
"""

from __future__ import annotations

import asyncio
import copy
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
from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.resources import StoreEngine, any_stand, stand, standing_for
from fineflow.adapters.core.trust import NotLowered
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
"""``SimpleVectorStore``, which builds a matrix from its lists in every search. A batch builds it once; the store's own
code still processes the rows.
"""


def _ready(store: Any, query: Any, *, sync: bool, by_sync: bool) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Known:
    """A known store class. methods: all methods that a search may call. contents: returns the object or key that stores
    with the same nodes share.

    together: the batched search over several queries, if there is one. own_code: returns the reason not to search a
    store ahead of stock, or "". unready: returns the reason not to run a search now, or ""; sync: it uses the sync
    method; by_sync: stock would. connections: returns the limit on concurrent sync searches. first: returns the setup
    that the first call of a store has to do, if it is still to be done.
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
    """Returns the row of a store whose search methods are exactly the known ones; None for others."""
    found = _row(store)
    return found[0] if found is not None and as_written(store, found[1], *found[0].methods) else None


def _row(store: Any) -> tuple[Known, type] | None:
    """Returns the row of a store's class or base class, and that class; None if there is none."""
    for row in KNOWN:
        base = if_imported(row.module, row.name)
        if base is not None and isinstance(store, base):
            return row, base
    return None


def resource_of(store: Any) -> Any:
    """Returns the object or key that all stores over the same nodes share (``Builder.contents``); else the store.

    A ChromaVectorStore and a LangChain store over one collection are one resource.
    """
    found = _row(store)
    return chroma_contents(store) if found is None else found[0].contents(store)


def engine_of(store: Any) -> StoreEngine | None:
    """Returns the engine in front of a known store for which batching searches pays; None for others."""
    row = _known(store)
    if row is None or row.together is None or not row.together.pays(store):
        return None
    found = store_standing(store)
    return found if isinstance(found, StoreEngine) else None


def check_store(store: Any, b: Builder) -> None:
    """Raises NotLowered if a search of a store may run user code that was passed to the store."""
    found = _row(store)
    if found is not None and not b.assume_pure and (why := found[0].own_code(store)):
        raise NotLowered(why)


def unready(store: Any, query: Any, *, sync: bool, by_sync: bool) -> str:
    """Returns the reason not to run a search now (``Known.unready``); "" if none."""
    found = _row(store)
    return "" if found is None else found[0].unready(store, query, sync=sync, by_sync=by_sync)


def connections(store: Any) -> LimitedComponent | None:
    """Returns the limit on sync searches of a store with a connection pool; None for others."""
    found = _row(store)
    return None if found is None else found[0].connections(store)


def first(store: Any) -> Callable[[], None] | None:
    """Returns the setup that the first call of a known store has to do, which blocks; None if it is done."""
    row = _known(store)
    return None if row is None else row.first(store)


# Queues and limits of stores


def store_standing(store: Any) -> LimitedComponent:
    """Returns the limited component of a store, made on first use.

    It has a batching queue if the store's class supports batched search.
    """
    name, row = type(store).__name__, _row(store)
    together = None if row is None else row[0].together
    make = (lambda: LimitedComponent(name)) if together is None else lambda: StoreEngine(name, together)
    return stand(store, make, resource_of)


def meant(obj: Any) -> Any:
    """Returns the object that limits apply to: the store of a retriever or a vector index; else the object itself."""
    if isinstance(obj, VectorIndexAutoRetriever):
        obj = obj._index
    if isinstance(obj, VectorStoreIndex):
        return obj.vector_store
    held = getattr(obj, "_vector_store", None) if isinstance(obj, BaseRetriever) else None
    return held if isinstance(held, BasePydanticVectorStore) else obj


def find(obj: Any) -> LimitedComponent | None:
    """Returns the limited component of an object; None if there is none so far."""
    if not any_stand():
        return None
    obj = meant(obj)
    return standing_for(obj, resource_of if isinstance(obj, BasePydanticVectorStore) else None)


component_finders.append(find)


def counted(obj: Any, leaf: str, own: Callable[[], T]) -> T:
    """Returns ``own()``, stock's own call of a component, made under a permit if the component has a limit."""
    found = find(obj)
    return own() if found is None or found.permits is None else call_component(found.name, leaf, found, own)


async def acounted(obj: Any, leaf: str, own: Callable[[], Awaitable[T]]) -> T:
    """Like ``counted``, for a coroutine."""
    found = find(obj)
    return await (own() if found is None or found.permits is None else acall_component(found.name, leaf, found, own))


# Searches


@dataclass(frozen=True, slots=True)
class StoreSearch:
    """A query for a store, with the settings of its retriever."""

    store: Any
    query: VectorStoreQuery
    settings: Mapping[str, Any]

    def made(self, store: Any = None) -> Any:
        """Runs the store's own method, on ``store`` if given. Raises what that raises."""
        own = method(type(self.store), "query")
        assert own is not None
        return own.function(self.store if store is None else store, self.query, **self.settings)


def _queued(store: Any, query: Any, settings: Mapping[str, Any]) -> tuple[StoreEngine, StoreSearch] | None:
    """Returns the engine that a search is queued at, and its item there; None if the search runs alone.

    Modes other than the default query a collection more than once, or fit models to the results.
    """
    if type(query) is not VectorStoreQuery or query.mode != VectorStoreQueryMode.DEFAULT or not query.query_embedding:
        return None
    engine = engine_of(store)
    return None if engine is None or not engine.waits else (engine, StoreSearch(store, query, settings))


def searched(store: Any, query: Any, settings: Mapping[str, Any], leaf: str) -> Any:
    """Returns ``store.query(query, **settings)``, batched with searches of other queries. Blocks its thread."""
    queued = None if on_engine_loop() else _queued(store, query, settings)
    if queued is not None and queued[0].permits is not None and asyncio._get_running_loop() is not None:
        queued = None  # holders of permits may need that loop
    if queued is not None:
        engine, search = queued
        found: list[Outcome] = []
        with suppress(Exception):  # raised by the queue, not by the search: the search then runs alone
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
    """Like ``searched``, from a coroutine on any loop; it does not block.

    own: runs the search alone, under a permit if the store has a limit.
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
