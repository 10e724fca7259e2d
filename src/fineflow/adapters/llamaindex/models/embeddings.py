"""Embedding models: the vector of a query as a primitive, the kernel that runs it ahead of stock, and their shadows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import QueryBundle

from fineflow.adapters.core.builder import VALUE, Leaf
from fineflow.adapters.core.devices import engine_on
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, believed, put_on
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.components.embedding import EngineEmbedding
from fineflow.adapters.llamaindex.methods import as_written, believed_class, instead, method, preceded, quiet
from fineflow.adapters.llamaindex.models.local import encoder_of
from fineflow.adapters.llamaindex.thread_affinity import blocks, called, claiming, may_leave
from fineflow.ir import PURE, Effect, Effects, Op, Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.work import Work

_TEXT = "_get_text_embedding"
_EMBEDDING = ("_get_query_embedding", "_aget_query_embedding")
_AROUND = ("get_query_embedding", "aget_query_embedding")
_AGGREGATING = ("get_agg_embedding_from_queries", "aget_agg_embedding_from_queries")


def several(query: Any) -> bool:
    """Returns True if a query has several texts to embed for one vector, which can run concurrently."""
    return isinstance(query, QueryBundle) and query.embedding is None and len(query.custom_embedding_strs or ()) > 1


def lower_vector(model: Any, query: Leaf, b: IndexBuilder) -> Leaf:
    _check(model, _EMBEDDING, b)
    ours, local = type(model) is EngineEmbedding, encoder_of(model)
    effects = PURE if ours else Effects(Effect.EXTERNAL, "", f"{type(model).__name__} calls out")
    made = b.add(
        Op.EMBED,
        {"texts": query.ref},
        component=model,
        engine=engine_name(model),
        effects=effects,
        kind=VALUE,
        of="query",
        foreign=not ours and local is None,
        by_sync=b.by_sync,
        **engine_on(model.engine if ours else getattr(local, "engine", None)),
    )
    b.at(b.shared_leaf(model))
    return made


def check_embedding(model: Any, b: IndexBuilder) -> None:
    """Raises NotLowered unless a model is known to do no more than embed queries."""
    _check(model, _EMBEDDING, b)


def _check(model: Any, names: tuple[str, ...], b: IndexBuilder) -> None:
    """Raises NotLowered unless a model's methods ``names`` are known to do no more than embed."""
    if not as_written(model, BaseEmbedding, *_AROUND, *_AGGREGATING):
        raise NotLowered(f"how {type(model).__name__} embeds queries is not recognised")
    local = encoder_of(model)
    known = type(model) is EngineEmbedding or (local is not None and (names == _EMBEDDING or local.embeds_texts))
    check_embeds(model, "queries", names, () if known else names, b)


def check_embeds(model: Any, what: str, names: tuple[str, ...], asked: tuple[str, ...], b: IndexBuilder) -> None:
    """Raises NotLowered unless a model's methods do no more than embed, as they are wrapped and as they are called.

    names: of methods, which may not be set on the model itself. asked: those that do the work, for a model that is not
    known; empty if it is.
    """
    kind = type(model)
    if put_on(model, names):
        raise NotLowered(f"how {kind.__name__} embeds {what} is not recognised")
    if model.embeddings_cache is not None or getattr(model, "rate_limiter", None) is not None:
        raise NotLowered("the embedding model has a cache or a rate limiter")
    if asked:
        believed_class(model, b)
        believed(model, names, b)
        if not all(quiet(kind, name) for name in asked):
            raise NotLowered(f"it is not known that {kind.__name__} does no more than embed")


def _quiet(model: Any) -> bool:
    return all(quiet(type(model), name) for name in _EMBEDDING)


def engine_name(model: Any) -> str:
    if type(model) is EngineEmbedding:
        return str(model.engine.name)
    local = encoder_of(model)
    return type(model).__name__ if local is None else local.engine.name


def embed(p: Primitive, args: Mapping[str, Any], run: Execution) -> Work:
    """Embeds a query."""
    model, text = p.component, query_text(p, "texts", args, run)
    ours = type(model) is EngineEmbedding  # its async methods work on any loop
    local = encoder_of(model)
    if local is None and not ours and not _quiet(model):
        raise LeftToStock("the embedding model has changed since planning")
    sync = run.call.sync or p.meta["by_sync"]

    async def start(entry: Any) -> Any:
        entry.running()
        if local is not None:
            return await local.aembed_query(text)
        return await called(model, "_get_query_embedding", text, sync=sync and not ours)

    return Work(run.work(p, ("query", text), start, shared=ours), lambda vector: vector)


def query_text(p: Primitive, arg: str, args: Mapping[str, Any], run: Execution) -> str:
    value = args[arg]
    if type(value) is not str or (p.args[arg].name == "input" and not run.call.facts.plain):
        raise LeftToStock("the query is not only a text")
    if not value:
        raise LeftToStock("the query is empty, which stock does not embed")
    return value


def shadow_embedding(model: Any, site: Site) -> Any:
    """Returns a copy of an embedding model that claims queries and texts.

    Several queries for one vector are embedded concurrently.
    """
    if not as_written(model, BaseEmbedding, *_AROUND, *_AGGREGATING):
        return model
    at = site.shared(model)
    site.reads(model)
    made = model.model_copy()
    # The async method of a local model calls the sync one, in a thread and with its own span: that one claims.
    names = _EMBEDDING if encoder_of(model) is None else _EMBEDDING[:1]
    site.calls(type(model), *names, _TEXT, *_AGGREGATING)
    leaves = blocks(type(model), names[-1]) and may_leave(model, site.options.trusting)
    for name in (*names, _TEXT):
        if method(type(model), name) is not None and name not in vars(model):
            key = partial(_key, "text" if name == _TEXT else "query")
            claiming(made, name, at, key, model, leaves=leaves)
    for name in _AGGREGATING:  # stock embeds one text after the other
        begin = partial(_begin_queries, model, at, name[0] != "a")
        instead(made, name, partial(preceded, then=begin))
    return made


def _key(kind: str, /, *args: Any, **kwargs: Any) -> Any:
    return kind, *args, *kwargs.values()


def _begin_queries(model: Any, site: Site, sync: bool, queries: Any, *args: Any, **kwargs: Any) -> None:
    """Starts to embed all queries at once whose vectors stock is about to combine."""
    _begin(model, "query", list(queries), site, sync=sync)


def begin_texts(model: Any, texts: Sequence[str], site: Site) -> None:
    """Starts to embed texts of nodes concurrently that stock is about to embed one after the other, by sync methods."""
    _begin(model, "text", texts, site.shared(model), sync=True)


def _begin(model: Any, kind: str, texts: Sequence[str], site: Site, *, sync: bool) -> None:
    names = _EMBEDDING if kind == "query" else (_TEXT,)
    here = site.here
    if here is None or len(texts) < 2:
        return
    try:
        _check(model, names, IndexBuilder(()))
    except NotLowered:
        return
    ours, local = type(model) is EngineEmbedding, encoder_of(model)

    async def one(text: str) -> Sequence[Any]:
        if local is None:
            return [await called(model, names[0], text, sync=sync)]
        return [await local.aembed_query(text)] if kind == "query" else await local.aembed_texts([text])

    whole = {"query": "aembed_queries", "text": "_aget_text_embeddings"}[kind]
    if ours:
        here.begin(site.leaf, [([(kind, text) for text in texts], lambda: getattr(model, whole)(list(texts)))])
    else:
        here.begin(site.leaf, [([(kind, text)], partial(one, text)) for text in texts])
