"""Vectors of queries that are made while the store that will be searched is still being made or written."""

from __future__ import annotations

from functools import partial
from typing import Any

from fineflow.adapters.core.builder import VALUE, Leaf
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.kernels.common import Args, current, is_text
from fineflow.adapters.langchain.kernels.vectors import Direct, QueryVector
from fineflow.adapters.langchain.models.local import encoder_of
from fineflow.adapters.langchain.stores.known_stores import Known
from fineflow.ir import Effect, Effects, Op, Primitive
from fineflow.runtime.call.executor import Execution


def embed_early(embeddings: Any, row: Known, query: Leaf, b: ChainBuilder) -> Leaf:
    """Appends the embedding of a query, which begins as soon as the query is known. row: of the store's class."""
    encoder = encoder_of(embeddings)
    if encoder is not None:
        name, own = encoder.engine.name, {"component": encoder}
    else:
        name = type(embeddings).__name__
        effects = Effects(Effect.EXTERNAL, "", f"{name} embeds the query")
        own = {"component": embeddings, "effects": effects, "foreign": True}
    kernel = partial(_begin_vector, row)
    return b.add(Op.EMBED, {"texts": query.ref}, engine=name, kind=VALUE, of="query", kernel=kernel, **own)


def _begin_vector(row: Known, p: Primitive, args: Args, run: Execution) -> Any:
    current(run)
    if p.meta.get("foreign"):
        p = p.with_(component=Direct(p.component, sync=run.call.sync or not row.asynchronous))
    vector = QueryVector(p, args["texts"], run)
    if is_text(args["texts"]):
        vector.begin_early()
    return vector
