"""VectorIndexRetriever: a search as a primitive, how it runs ahead of stock, and its shadow."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import wrapt
from llama_index.core.indices.vector_store.retrievers import VectorIndexAutoRetriever
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import QueryBundle

from fineflow.adapters.core.builder import DOCUMENTS, VALUE, Builder, Leaf
from fineflow.adapters.core.recognition import NotLowered, believed
from fineflow.adapters.llamaindex.claiming import Claiming
from fineflow.adapters.llamaindex.lowering.context import Place, Seen
from fineflow.adapters.llamaindex.methods import as_written, believed_class, blocks, called, unblocked
from fineflow.adapters.llamaindex.models.embeddings import engine_name, lower_vector, query_text, shadow_embedding
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
from fineflow.ir import Effect, Effects, Op, Primitive
from fineflow.runtime.call.executor import Execution, Work
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.component_calls import permit_block

LATE = "late retrievers"
"""Key of ``Call.tables``: what tells which retrievers search that stock has not made yet (``documents.Late``)."""

RETRIEVING = ("retrieve", "aretrieve", "_retrieve", "_aretrieve")
_AUTO = (
    *(*RETRIEVING, "generate_retrieval_spec", "agenerate_retrieval_spec", "_build_retriever_from_spec"),
    *("_get_query_bundle", "_parse_generated_spec"),
)
_QUERYING = (*RETRIEVING, "_needs_embedding", "_build_vector_store_query")
_NODES = ("_get_nodes_with_embeddings", "_aget_nodes_with_embeddings")


def is_search(retriever: Any) -> bool:
    """Whether an object is a VectorIndexRetriever as LlamaIndex wrote it."""
    return as_written(retriever, VectorIndexRetriever, *_QUERYING, *_NODES)


def is_auto(retriever: Any) -> bool:
    """Whether an object is a VectorIndexAutoRetriever as LlamaIndex wrote it."""
    return as_written(retriever, VectorIndexAutoRetriever, *_AUTO)


def stock_search(retriever: Any, query: Leaf, b: Builder) -> Leaf:
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
            by="stock",
        )
        args["vector"] = vector.ref
    effects = Effects(Effect.READ, b.resource(store), f"searches {type(store).__name__}")
    return b.add(
        Op.SEARCH,
        args,
        component=retriever,
        engine=type(store).__name__,
        effects=effects,
        kind=DOCUMENTS,
        by="stock",
    )


def lone_search(retriever: Any, query: Leaf, seen: Seen) -> Leaf:
    """One search by itself: stock's, unless there is time before it."""
    if seen.early:
        try:
            return lower_search(retriever, query, None, seen)[0]
        except NotLowered as why:
            seen.b.note(seen.b.leaf, False, str(why))
    return stock_search(retriever, query, seen.b)


def lower_search(retriever: Any, query: Leaf, vector: Leaf | None, seen: Seen) -> tuple[Leaf, Leaf | None]:
    """EMBED and SEARCH, run ahead of stock; the vector too, where one was made. Raises NotLowered."""
    b = seen.b
    if not is_search(retriever):
        raise NotLowered(f"{type(retriever).__name__} is not recognised: runs through its own methods")
    store, args = retriever._vector_store, {"query": query.ref}
    believed_class(store, b)
    believed(store, ("query", "aquery"), b)
    check_store(store, b)
    seen.objects[b.leaf] = retriever
    if retriever._needs_embedding():
        if vector is None:
            vector = lower_vector(retriever._embed_model, query, seen)
        args["vector"] = vector.ref
    effects = Effects(Effect.READ, b.resource(store), f"searches {type(store).__name__}")
    found = b.add(
        Op.SEARCH,
        args,
        component=retriever,
        engine=type(store).__name__,
        effects=effects,
        kind=DOCUMENTS,
        foreign=True,
        by_sync=seen.by_sync,
    )
    return found, vector


def search(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """What a vector store finds for a query, as its retriever asks; or the one that stock will make in its place."""
    late = run.call.tables.get(LATE)
    return _search(p, args, run) if late is None else run.spawn(_later(p, late, args, run), p)


async def _later(p: Primitive, late: Any, args: Mapping[str, Any], run: Execution) -> Any:
    work = _search(p.with_(component=await late.component(p.meta["leaf"])), args, run)
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
        entry.begun = True
        given = replace(wanted)

        async def alone() -> Any:
            async with run.place(p, entry), permit_block(connections(store) if sync else None):
                try:
                    return await called(store, "query", given, sync=sync, **settings)
                except Exception as error:
                    if other:  # stock asks on a loop of its own, which may succeed
                        raise LeftToStock(f"its sync method raised {type(error).__name__}") from error
                    raise

        return await asearched(store, given, settings, alone)

    measured = engine_of(store) is not None  # by the queue in front of it
    started = p.with_(meta={**p.meta, "foreign": False}) if measured else p
    return Work(run.work(started, (wanted, settings), start, placed=False), lambda found: found)


def shadow_search(retriever: Any, place: Place) -> Any:
    """A copy of a retriever whose embedding model and store claim."""
    made = copy.copy(retriever)
    made._embed_model = shadow_embedding(retriever._embed_model, place)
    made._vector_store = shadow_store(retriever._vector_store, place)
    return made


def shadow_store(store: Any, place: Place) -> Any:
    """A vector store whose searches claim, and go through the queue of the store; none blocks the event loop."""
    return _Store(store, place.leaf, place.claims)


class _Store(wrapt.ObjectProxy[Any]):
    """A vector store whose searches claim what was searched ahead."""

    def __init__(self, store: Any, leaf: str, claims: Claiming) -> None:
        super().__init__(store)
        self._self_leaf = leaf
        self._self_claims = claims

    def query(self, query: Any, **kwargs: Any) -> Any:
        store, leaf = self.__wrapped__, self._self_leaf
        return self._self_claims.claim(leaf, (query, kwargs), lambda: searched(store, query, kwargs, leaf))

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        store, leaf = self.__wrapped__, self._self_leaf
        own = store.aquery

        async def call() -> Any:
            if (prepare := first(store)) is not None:
                await in_thread(prepare)
            return await (unblocked(own, query, **kwargs) if blocks(type(store), "aquery") else own(query, **kwargs))

        alone = lambda: acounted(store, leaf, call)  # noqa: E731
        ask = lambda: asearched(store, query, kwargs, alone)  # noqa: E731
        return await self._self_claims.aclaim(leaf, (query, kwargs), ask)
