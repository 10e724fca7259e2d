"""VectorIndexRetriever: its search as a primitive, the kernel that runs it ahead of stock, and its shadow."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import wrapt
from llama_index.core.indices.vector_store.retrievers import VectorIndexAutoRetriever
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import QueryBundle

from fineflow.adapters.core.builder import VALUE, Leaf, Symbol
from fineflow.adapters.core.devices import store_on
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, believed
from fineflow.adapters.core.unfinished import unfinished
from fineflow.adapters.llamaindex.builder import IndexBuilder, query_in, unlowered
from fineflow.adapters.llamaindex.methods import as_written, believed_class, instead
from fineflow.adapters.llamaindex.models.embeddings import engine_name, lower_vector, query_text, shadow_embedding
from fineflow.adapters.llamaindex.models.llms import model_known, shadow_llm
from fineflow.adapters.llamaindex.stores.searches import (
    acounted,
    asearched,
    check_store,
    connections,
    engine_of,
    first,
    searched,
    unready,
)
from fineflow.adapters.llamaindex.thread_affinity import blocks, called, may_leave, unblocked
from fineflow.ir import Op, Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.work import Work
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.component_calls import permit_block

RETRIEVING = ("retrieve", "aretrieve", "_retrieve", "_aretrieve")
_AUTO = (
    *(*RETRIEVING, "generate_retrieval_spec", "agenerate_retrieval_spec", "_build_retriever_from_spec"),
    *("_get_query_bundle", "_parse_generated_spec"),
)
_SEARCHING = (
    *(*RETRIEVING, "_needs_embedding", "_build_vector_store_query"),
    *("_get_nodes_with_embeddings", "_aget_nodes_with_embeddings"),
)


def is_search(retriever: Any) -> bool:
    """Returns True for a VectorIndexRetriever with LlamaIndex's own methods."""
    return as_written(retriever, VectorIndexRetriever, *_SEARCHING)


def is_auto(retriever: Any) -> bool:
    """Returns True for a VectorIndexAutoRetriever with LlamaIndex's own methods."""
    return as_written(retriever, VectorIndexAutoRetriever, *_AUTO)


def _stock_search(retriever: Any, query: Leaf, b: IndexBuilder) -> Leaf:
    args = {"query": query.ref}
    store = retriever._vector_store
    if retriever._needs_embedding():
        model = retriever._embed_model
        vector = b.add(
            Op.EMBED,
            {"texts": query.ref},
            component=model,
            engine=engine_name(model),
            kind=VALUE,
            of="query",
            by_stock=True,
        )
        args["vector"] = vector.ref
    return b.search(retriever, args, store, by_stock=True)


def _lower_lone(retriever: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    """Appends a single search: run by stock, unless it has to wait anyway: for its index, or for stock's engine."""
    query = query_in(value)
    if b.early or unfinished(retriever) is not None:
        try:
            return lower_search(retriever, query, None, b)[0]
        except NotLowered as why:
            b.note(b.leaf, False, str(why))
    return _stock_search(retriever, query, b)


def lower_search(retriever: Any, query: Leaf, vector: Leaf | None, b: IndexBuilder) -> tuple[Leaf, Leaf | None]:
    """Appends EMBED and SEARCH, run ahead of stock; returns the nodes, and the vector if any. Raises NotLowered."""
    if not is_search(retriever):
        raise NotLowered(f"{type(retriever).__name__} is not recognised: runs through its own methods")
    store, args = retriever._vector_store, {"query": query.ref}
    believed_class(store, b)
    believed(store, ("query", "aquery"), b)
    check_store(store, b)
    b.objects[b.leaf] = retriever
    if retriever._needs_embedding():
        if vector is None:
            vector = lower_vector(retriever._embed_model, query, b)
        args["vector"] = vector.ref
    facts = {"foreign": True, "by_sync": b.by_sync, **store_on(store), "late": b.early}
    return b.search(retriever, args, store, **facts), vector


class LateRetrievers:
    """Retrievers that stock makes during a call, by path. Used on the loop of the call."""

    def __init__(self) -> None:
        self._found: Mapping[str, Any] = {}
        self._there = asyncio.Event()

    def there(self, found: Mapping[str, Any]) -> None:
        """Sets the retrievers, once stock has made them."""
        self._found = found
        self._there.set()

    async def component(self, leaf: str) -> Any:
        """Waits for the retriever at a path. Raises LeftToStock if stock made an engine without it."""
        await self._there.wait()
        if leaf not in self._found:
            raise LeftToStock("another engine was made")
        return self._found[leaf]


def search(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """Searches a vector store as its retriever does; if ``late``, waits for the retriever that stock makes instead."""
    return run.spawn(_later(p, args, run), p) if p.meta.get("late") else _search(p, args, run)


async def _later(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    component = await run.call.memory(LateRetrievers).component(p.leaf)
    work = _search(p.with_(component=component), args, run)
    await work.entry.wait()
    return work.view(work.entry.result())


def _search(p: Primitive, args: Mapping[str, Any], run: Execution) -> Work:
    retriever, text = p.component, query_text(p, "query", args, run)
    wanted = retriever._build_vector_store_query(QueryBundle(text, embedding=args.get("vector")))
    settings, store = dict(retriever._kwargs), retriever._vector_store
    by_sync = p.meta["by_sync"]
    sync = run.call.sync or by_sync
    if why := unready(store, wanted, sync=sync, by_sync=by_sync):
        raise LeftToStock(why)
    other = sync and not by_sync and not blocks(type(store), "aquery")

    async def start(entry: Any) -> Any:
        entry.running()
        given = replace(wanted)

        async def alone() -> Any:
            async with run.slot(p, entry), permit_block(connections(store) if sync else None):
                try:
                    return await called(store, "query", given, sync=sync, **settings)
                except Exception as error:
                    if other:  # stock calls the async method, on a loop of its own, which may succeed
                        raise LeftToStock(f"its sync method raised {type(error).__name__}") from error
                    raise

        return await asearched(store, given, settings, alone)

    measured = engine_of(store) is not None  # the store's queue measures its searches
    started = p.with_(meta={**p.meta, "foreign": False}) if measured else p
    return Work(run.work(started, (wanted, settings), start, in_slot=False), lambda found: found)


def shadow_search(retriever: Any, site: Site) -> Any:
    """Returns a copy of a retriever whose embedding model and store claim."""
    made = copy.copy(retriever)
    made._embed_model = shadow_embedding(retriever._embed_model, site)
    made._vector_store = shadow_store(retriever._vector_store, site)
    return made


def shadow_store(store: Any, site: Site) -> Any:
    """Returns a vector store whose searches claim, or else use the store's queue; async ones do not block the loop."""
    return _Store(store, site)


def _shadow_auto(retriever: Any, site: Site) -> Any:
    """Returns a copy of a retriever that builds another one for each query, whose parts do not block the event loop."""
    made = copy.copy(retriever)
    if model_known(retriever._llm):
        made._llm = shadow_llm(retriever._llm, site.part("llm"))
    instead(made, "_build_retriever_from_spec", partial(_building, site))
    return made


def _building(site: Site, own: Callable[..., Any]) -> Callable[..., Any]:
    def build(*args: Any, **kwargs: Any) -> Any:
        built, bundle = own(*args, **kwargs)
        return site.of(built, "built"), bundle

    return build


ROWS = (
    Row(
        VectorIndexRetriever,
        _SEARCHING,
        _lower_lone,
        shadow_search,
        components=lambda retriever: (retriever._vector_store, retriever._embed_model),
        composite=True,
    ),
    Row(
        VectorIndexAutoRetriever,
        _AUTO,
        unlowered(),
        _shadow_auto,
        components=lambda each: (each._llm, each._index.vector_store, each._index._embed_model),
        composite=True,
    ),
)


class _Store(wrapt.ObjectProxy[Any]):
    """Vector store whose searches claim the results of searches run ahead."""

    def __init__(self, store: Any, site: Site) -> None:
        super().__init__(store)
        self._self_site = site
        self._self_leaves = not site.sync and blocks(type(store), "aquery") and may_leave(store, site.options.trusting)

    def query(self, query: Any, **kwargs: Any) -> Any:
        store, site = self.__wrapped__, self._self_site
        return site.claim((query, kwargs), lambda: searched(store, query, kwargs, site.leaf))[1]

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        store, site = self.__wrapped__, self._self_site
        own = store.aquery

        async def call() -> Any:
            if (prepare := first(store)) is not None:
                await in_thread(prepare)
            return await (unblocked(own, query, **kwargs) if self._self_leaves else own(query, **kwargs))

        alone = lambda: acounted(store, site.leaf, call)  # noqa: E731
        ask = lambda: asearched(store, query, kwargs, alone)  # noqa: E731
        return (await site.aclaim((query, kwargs), ask))[1]
