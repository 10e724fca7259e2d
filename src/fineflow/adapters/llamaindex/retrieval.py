"""Retrievers: EMBED, SEARCH and fusion as primitives, how they run ahead of stock, and their shadows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import wrapt
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import QueryFusionRetriever, VectorIndexRetriever
from llama_index.core.schema import QueryBundle

from fineflow.adapters.base import DOCUMENTS, TEXT, VALUE, Builder, Leaf
from fineflow.adapters.llamaindex.claiming import Claiming
from fineflow.adapters.llamaindex.components.embedding import EngineEmbedding
from fineflow.adapters.llamaindex.components.llm import EngineLLM
from fineflow.adapters.llamaindex.local_models import encoder_of
from fineflow.adapters.llamaindex.lowering import Place, Seen
from fineflow.adapters.llamaindex.methods import believed_class, blocks, method, quiet, same, unblocked
from fineflow.adapters.llamaindex.models import model_effects, shadow_llm
from fineflow.adapters.recognition import NotLowered, believed
from fineflow.ir import PURE, Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.runtime.executor import Execution, Work
from fineflow.runtime.query import LeftToStock
from fineflow.runtime.threads import in_thread

RETRIEVING = ("retrieve", "aretrieve", "_retrieve", "_aretrieve")
_EMBEDDING = ("_get_query_embedding", "_aget_query_embedding")
_AROUND = ("get_query_embedding", "aget_query_embedding")
_AGGREGATING = ("get_agg_embedding_from_queries", "aget_agg_embedding_from_queries")
_QUERYING = (*RETRIEVING, "_needs_embedding", "_build_vector_store_query")
_NODES = ("_get_nodes_with_embeddings", "_aget_nodes_with_embeddings")
_FUSING = (*RETRIEVING, "_get_queries", "_aget_queries")
_RUNNING = ("_run_nested_async_queries", "_run_async_queries", "_run_sync_queries")


def as_written(obj: Any, base: type, *names: str) -> bool:
    """Whether an object has these methods of a class, and none of them was put on it."""
    return isinstance(obj, base) and vars(obj).keys().isdisjoint(names) and same(type(obj), base, *names)


# Lowering


def lower_retriever(retriever: Any, query: Leaf, seen: Seen) -> Leaf:
    """The primitives of a retriever; those of one search after another are stock's, which has nothing to wait for."""
    seen.objects[seen.b.leaf] = retriever
    if as_written(retriever, QueryFusionRetriever, *_FUSING, *_RUNNING):
        return _lower_fusion(retriever, query, seen)
    if as_written(retriever, VectorIndexRetriever, *_QUERYING, *_NODES):
        return _stock_search(retriever, query, seen.b)
    return seen.opaque(retriever, {"query": query.ref}, "is not recognised: runs through its own methods", DOCUMENTS)


def _stock_search(retriever: Any, query: Leaf, b: Builder) -> Leaf:
    args = {"query": query.ref}
    store = retriever._vector_store
    if retriever._needs_embedding():
        model = retriever._embed_model
        vector = b.add(
            Op.EMBED, {"texts": query.ref}, component=model, engine=_engine(model), kind=VALUE, of="query", by="stock"
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


def _lower_fusion(fusion: Any, query: Leaf, seen: Seen) -> Leaf:
    b = seen.b
    found = _searches(fusion, query, seen)
    args = {f"original {i}": leaf.ref for i, leaf in enumerate(found)}
    whole = len(found) == len(fusion._retrievers)
    if whole and fusion.num_queries > 1 and (queries := _generated(fusion, query, seen)) is not None:
        inner = seen.inside_map()
        results = _searches(fusion, Leaf(Ref("item"), TEXT), inner)
        if results:
            body = Graph(tuple(inner.b.primitives), results[-1].ref, ("item",), tuple(inner.b.notes))
            mapped = b.add(Op.MAP, {"items": queries.ref}, name="queries", body=body, kind=DOCUMENTS, batched=True)
            args["generated"] = mapped.ref
    if not args:
        return seen.opaque(fusion, {"query": query.ref}, "none of its parts can be run ahead of it", DOCUMENTS)
    how = str(getattr(fusion.mode, "value", fusion.mode))
    return b.add(Op.AGGREGATE, args, component=fusion, kind=DOCUMENTS, how=how)


def _searches(fusion: Any, query: Leaf, seen: Seen) -> list[Leaf]:
    """A search by each of the retrievers, up to one that is not known: it may be user code, which nothing overtakes."""
    found: list[Leaf] = []
    vector: Leaf | None = None
    for i, retriever in enumerate(fusion._retrievers):
        with seen.b.inside(str(i)):
            try:
                found_here, made = lower_search(retriever, query, vector, seen)
            except NotLowered as why:
                seen.objects[seen.b.leaf] = retriever
                seen.b.note(seen.b.leaf, False, f"{why}; what comes behind it waits for it")
                break
            found.append(found_here)
            if made is not None and seen.one_by_one and not fusion.use_async:
                vector = made  # stock's sync method keeps the first vector with the query, and takes it for all
    return found


def lower_search(retriever: Any, query: Leaf, vector: Leaf | None, seen: Seen) -> tuple[Leaf, Leaf | None]:
    """EMBED and SEARCH, run ahead of stock; the vector too, where one was made. Raises NotLowered."""
    b = seen.b
    if not as_written(retriever, VectorIndexRetriever, *_QUERYING, *_NODES):
        raise NotLowered(f"{type(retriever).__name__} is not recognised: runs through its own methods")
    store, args = retriever._vector_store, {"query": query.ref}
    believed_class(store, b)
    believed(store, ("query", "aquery"), b)
    seen.objects[b.leaf] = retriever
    if retriever._needs_embedding():
        if vector is None:
            vector = _vector(retriever._embed_model, query, seen)
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
    )
    return found, vector


def _vector(model: Any, query: Leaf, seen: Seen) -> Leaf:
    if not as_written(model, BaseEmbedding, *_AROUND, *_AGGREGATING) or not vars(model).keys().isdisjoint(_EMBEDDING):
        raise NotLowered(f"how {type(model).__name__} embeds queries is not recognised")
    if model.embeddings_cache is not None or model.rate_limiter is not None:
        raise NotLowered("the embedding model has a cache or a rate limiter")
    ours = type(model) is EngineEmbedding
    local = encoder_of(model)
    if not ours and local is None:
        believed_class(model, seen.b)
        believed(model, _EMBEDDING, seen.b)
        if not _quiet(model):
            raise NotLowered(f"it is not known that {type(model).__name__} does no more than embed")
    effects = PURE if ours else Effects(Effect.EXTERNAL, "", f"{type(model).__name__} calls out")
    made = seen.b.add(
        Op.EMBED,
        {"texts": query.ref},
        component=model,
        engine=_engine(model),
        effects=effects,
        kind=VALUE,
        of="query",
        foreign=not ours and local is None,
    )
    seen.at(seen.shared(model))
    return made


def _quiet(model: Any) -> bool:
    return all(quiet(type(model), name) for name in _EMBEDDING)


def _generated(fusion: Any, query: Leaf, seen: Seen) -> Leaf | None:
    """The queries that a model writes, one on each line; None where it is left to stock."""
    b, llm = seen.b, fusion._llm
    try:
        if type(fusion.query_gen_prompt) is not str:
            raise NotLowered("its prompt is no text")
        effects = model_effects(llm, b, "complete")
    except NotLowered as why:
        b.note(b.leaf, False, str(why))
        return None
    ours = type(llm) is EngineLLM
    with b.inside("llm"):
        seen.objects[b.leaf] = llm
        engine = llm.engine.name if ours else type(llm).__name__
        prompt = b.add(Op.RENDER, {"key:query": query.ref}, component=fusion, kind=TEXT)
        cache = b.add(Op.PREFILL, {"prompt": prompt.ref}, component=llm, engine=engine, effects=effects)
        written = b.add(
            Op.DECODE,
            {"cache": cache.ref},
            component=llm,
            engine=engine,
            effects=effects,
            kind=TEXT,
            foreign=not ours,
            pieces=ours,
        )
    return b.add(Op.PARSE, {"text": written.ref}, name="lines", component=fusion, kind=VALUE, items="lines")


def lower_postprocessor(processor: Any, nodes: Leaf, query: Leaf, seen: Seen) -> Leaf:
    """A step of stock's: it needs all that comes before it, and what comes behind needs all of it."""
    args = {"query": query.ref, "documents": nodes.ref}
    seen.objects[seen.b.leaf] = processor
    if "rerank" not in type(processor).__name__.lower():
        return seen.opaque(processor, args, "may be user code, and runs when stock runs it", DOCUMENTS)
    engine = getattr(getattr(processor, "engine", None), "name", type(processor).__name__)
    return seen.b.add(Op.RERANK, args, component=processor, engine=engine, kind=DOCUMENTS, by="stock")


def _engine(model: Any) -> str:
    if type(model) is EngineEmbedding:
        return str(model.engine.name)
    local = encoder_of(model)
    return type(model).__name__ if local is None else local.engine.name


# Running ahead


def embed(p: Primitive, args: Mapping[str, Any], run: Execution) -> Work:
    """The vector of a query."""
    model, text = p.component, _text(p, "texts", args, run)
    ours = type(model) is EngineEmbedding  # its async methods work on every loop
    local = encoder_of(model)
    if local is None and not ours and not _quiet(model):
        raise LeftToStock("the embedding model is not what it was any more")

    async def start(entry: Any) -> Any:
        entry.begun = True
        if local is not None:
            return await local.aembed_query(text)
        return await _called(model, "_get_query_embedding", text, sync=run.call.sync and not ours)

    return Work(run.work(p, ("query", text), start, shared=ours), lambda vector: vector)


async def _called(component: Any, name: str, *args: Any, sync: bool, **kwargs: Any) -> Any:
    """A method of a component, from inside of its wrappers: the sync one in a thread, or the async one."""
    found = method(type(component), name if sync else _async_name(name))
    assert found is not None
    function = found.function
    if sync:
        return await in_thread(lambda: function(component, *args, **kwargs))
    if blocks(type(component), _async_name(name)):
        return await unblocked(function, component, *args, **kwargs)
    return await function(component, *args, **kwargs)


def _async_name(name: str) -> str:
    return f"_a{name[1:]}" if name.startswith("_") else f"a{name}"


def search(p: Primitive, args: Mapping[str, Any], run: Execution) -> Work:
    """What a vector store finds for a query, as its retriever asks."""
    retriever, text = p.component, _text(p, "query", args, run)
    wanted = retriever._build_vector_store_query(QueryBundle(text, embedding=args.get("vector")))
    settings = dict(retriever._kwargs)

    async def start(entry: Any) -> Any:
        entry.begun = True
        store = retriever._vector_store
        return await _called(store, "query", replace(wanted), sync=run.call.sync, **settings)

    return Work(run.work(p, (wanted, settings), start), lambda found: found)


def _text(p: Primitive, arg: str, args: Mapping[str, Any], run: Execution) -> str:
    value = args[arg]
    if type(value) is not str or (p.args[arg].name == "input" and not run.call.tables[PLAIN]):
        raise LeftToStock("the query is more than a text")
    return value


PLAIN = "plain query"
"""Key of ``Call.tables``: whether the query came as text, with nothing about how it is embedded."""


def query_prompt(fusion: Any, query: str) -> str:
    """What the model is asked for more queries with."""
    return str(fusion.query_gen_prompt.format(num_queries=fusion.num_queries - 1, query=query))


def queries_of(fusion: Any, text: str, *, ended: bool = True) -> list[str]:
    """The queries in what a model has written; where it has not ended, those that are final.

    A line is final when the next one has begun: backticks are stripped off the ends of the whole text only.
    """
    lines = text.strip("`").split("\n") if ended else text.lstrip("`").split("\n")[:-1]
    return [line.strip() for line in lines if line.strip()][: fusion.num_queries - 1]


class Queries:
    """The queries in what a model writes for a fusion."""

    def __init__(self, fusion: Any) -> None:
        self._fusion = fusion

    def so_far(self, text: str) -> list[str]:
        """Those that are final in a text that has not ended."""
        return queries_of(self._fusion, text, ended=False)

    def all(self, text: str) -> list[str]:
        """Those in the whole text."""
        return queries_of(self._fusion, text)


# Shadows


class _Store(wrapt.ObjectProxy[Any]):
    """A vector store whose searches claim what was searched ahead."""

    def __init__(self, store: Any, leaf: str, claims: Claiming) -> None:
        super().__init__(store)
        self._self_leaf = leaf
        self._self_claims = claims

    def query(self, query: Any, **kwargs: Any) -> Any:
        own = self.__wrapped__.query
        return self._self_claims.claim(self._self_leaf, (query, kwargs), lambda: own(query, **kwargs))

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        store = self.__wrapped__
        own = store.aquery

        async def ask() -> Any:
            return await (unblocked(own, query, **kwargs) if blocks(type(store), "aquery") else own(query, **kwargs))

        return await self._self_claims.aclaim(self._self_leaf, (query, kwargs), ask)


def shadow_retriever(retriever: Any, place: Place) -> Any:
    """A copy of a retriever whose parts claim; in async calls none of them blocks the event loop."""
    if as_written(retriever, QueryFusionRetriever, *_FUSING, *_RUNNING):
        made = copy.copy(retriever)
        made._retrievers = [shadow_retriever(part, place.part(str(i))) for i, part in enumerate(retriever._retrievers)]
        if model_known(retriever._llm):
            made._llm = shadow_llm(retriever._llm, place.part("llm").leaf, place.claims, sync=place.sync)
        return made
    if as_written(retriever, VectorIndexRetriever, *_QUERYING, *_NODES):
        made = copy.copy(retriever)
        made._embed_model = _shadow_embedding(retriever._embed_model, place)
        made._vector_store = _Store(retriever._vector_store, place.leaf, place.claims)
        return made
    if isinstance(retriever, BaseRetriever) and not place.sync:
        return off_loop(retriever, "_aretrieve")
    return retriever


def shadow_postprocessor(processor: Any, place: Place) -> Any:
    """The postprocessor, or one that blocks no event loop where its own async method would."""
    if isinstance(processor, BaseNodePostprocessor) and not place.sync:
        return off_loop(processor, "_apostprocess_nodes")
    return processor


def off_loop(obj: Any, name: str) -> Any:
    """A copy of an object whose async method ``name`` is done in a thread, by the object itself; where it blocks."""
    found = method(type(obj), name)
    if found is None or name in vars(obj) or not blocks(type(obj), name):
        return obj
    function, made = found.function, copy.copy(obj)

    async def run(_: Any, *args: Any, **kwargs: Any) -> Any:
        return await unblocked(function, obj, *args, **kwargs)

    made.__dict__[name] = found.around(made, run)
    return made


def model_known(llm: Any) -> bool:
    """Whether an LLM can be copied for a call: a pydantic model as LlamaIndex makes them."""
    return hasattr(llm, "model_copy") and hasattr(type(llm), "predict")


def _shadow_embedding(model: Any, place: Place) -> Any:
    if not as_written(model, BaseEmbedding, *_AROUND, *_AGGREGATING):
        return model
    leaf, claims = place.shared(model), place.claims
    made, held = model.model_copy(), {}
    # That of a local model calls the sync one, in a thread and with a span of its own: it claims there.
    for name in _EMBEDDING if encoder_of(model) is None else _EMBEDDING[:1]:
        found = method(type(model), name)
        if found is None or name in vars(model):
            continue
        function = found.function
        claiming = _claiming_async if name.startswith("_a") else _claiming_sync
        held[name] = found.around(made, claiming(model, name, function, leaf, claims))
    made.__dict__.update(held)
    return made


def _claiming_sync(model: Any, name: str, function: Any, leaf: str, claims: Claiming) -> Any:
    def embed_query(_: Any, query: str) -> Any:
        return claims.claim(leaf, ("query", query), lambda: function(model, query))

    return embed_query


def _claiming_async(model: Any, name: str, function: Any, leaf: str, claims: Claiming) -> Any:
    async def own(query: str) -> Any:
        return await (unblocked(function, model, query) if blocks(type(model), name) else function(model, query))

    async def embed_query(_: Any, query: str) -> Any:
        return await claims.aclaim(leaf, ("query", query), lambda: own(query))

    return embed_query
