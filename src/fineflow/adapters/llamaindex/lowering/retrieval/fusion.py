"""QueryFusionRetriever: searches for the query and for the queries that a model generates, and its shadow."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from llama_index.core.retrievers import QueryFusionRetriever

from fineflow.adapters.core.builder import DOCUMENTS, TEXT, VALUE, Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder, query_in
from fineflow.adapters.llamaindex.kernels.written import items_written
from fineflow.adapters.llamaindex.lowering.containers import container_of
from fineflow.adapters.llamaindex.lowering.retrieval.direct_retrievers import check_known, direct_of, lower_known
from fineflow.adapters.llamaindex.lowering.retrieval.query_vector_order import in_turn, keeps_vector, stay
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import RETRIEVING
from fineflow.adapters.llamaindex.models.llms import (
    Request,
    completion,
    lower_answer,
    model_effects,
    model_known,
    shadow_llm,
)
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.runtime.call.executor import Execution

_FUSING = (*RETRIEVING, "_get_queries", "_aget_queries")
_RUNNING = ("_run_nested_async_queries", "_run_async_queries", "_run_sync_queries")


def is_fusion(retriever: Any) -> bool:
    """Returns True for a QueryFusionRetriever with LlamaIndex's own methods."""
    return ROWS[0].matches(retriever)


def _lower_fusion(fusion: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    with b.asked(sync=b.by_sync and not fusion.use_async):
        return _lowered(fusion, query_in(value), b)


def _lowered(fusion: Any, query: Leaf, b: IndexBuilder) -> Leaf:
    found, whole = _searches(fusion, query, b)
    args = {f"original {i}": leaf.ref for i, leaf in enumerate(found)}
    together = bool(fusion.use_async)  # then also sync methods search side by side
    if whole and fusion.num_queries > 1 and (queries := lower_queries(fusion, query, b)) is not None:
        inner = b.body()
        results, _ = _searches(fusion, Leaf(Ref("item"), TEXT), inner)
        if results:
            body = Graph(tuple(inner.primitives), results[-1].ref, ("item",), tuple(inner.notes))
            given = {"items": queries.ref}
            mapped = b.add(Op.MAP, given, name="queries", body=body, kind=DOCUMENTS, batched=together)
            args["generated"] = mapped.ref
    if not args:
        return b.left_to_stock(fusion, {"query": query.ref}, "none of its parts can run ahead", DOCUMENTS)
    how = str(getattr(fusion.mode, "value", fusion.mode))
    return b.add(Op.AGGREGATE, args, component=fusion, kind=DOCUMENTS, how=how, batched=together)


def _searches(fusion: Any, query: Leaf, b: IndexBuilder) -> tuple[list[Leaf], bool]:
    """Appends a search by each retriever, up to the first unknown one: it may be user code, which nothing overtakes.

    Returns the results, and True if all retrievers are known.
    """
    found: list[Leaf] = []
    vector: Leaf | None = None
    in_turn, certain = b.sync and not fusion.use_async, True
    staying = not b.sync and stay(fusion._retrievers)
    for i, retriever in enumerate(fusion._retrievers):
        certain = certain and not (staying and keeps_vector(retriever))
        with b.inside(str(i)):
            try:
                if certain or direct_of(retriever) is not None:
                    found_here, made = lower_known(retriever, query, vector, b)
                else:  # the vector it searches by is not known, or it does not claim
                    check_known(retriever, b)
                    found_here = made = None
            except NotLowered as why:
                b.objects[b.leaf] = retriever
                b.note(b.leaf, False, f"{why}; later steps wait for it")
                return found, False
            if found_here is not None:
                found.append(found_here)
            if made is not None and (in_turn or keeps_vector(retriever)):
                vector = made  # stock's sync methods store the first vector in the query and use it for all searches
            certain = certain and not (in_turn and found_here is None and container_of(retriever))
    return found, True


def lower_queries(fusion: Any, query: Leaf, b: IndexBuilder) -> Leaf | None:
    """Appends the model that writes queries, one per line; returns these, or None if it is left to stock."""
    llm = fusion._llm
    try:
        if type(fusion.query_gen_prompt) is not str:
            raise NotLowered("its prompt is not a plain string")
        effects = model_effects(llm, b, "complete")
    except NotLowered as why:
        b.note(b.leaf, False, str(why))
        return None
    with b.inside("llm"):
        b.objects[b.leaf] = llm
        prompt = b.add(Op.RENDER, {"key:query": query.ref}, component=fusion, kind=TEXT, kernel=_request)
        written = lower_answer(llm, prompt, b, effects)
    return b.add(
        Op.PARSE, {"text": written.ref}, name="lines", component=fusion, kind=VALUE, items="lines", kernel=_queries
    )


def _request(p: Primitive, args: Mapping[str, Any], run: Execution) -> Request:
    """Returns the request that has the model write more queries."""
    fusion = p.component
    prompt = str(fusion.query_gen_prompt.format(num_queries=fusion.num_queries - 1, query=args["key:query"]))
    return completion(fusion._llm, prompt)


def _queries(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """Returns the queries that the model writes, releasing each once it is final."""
    return items_written(p, args["text"], Queries(p.component), run)


def queries_of(fusion: Any, text: str, *, ended: bool = True) -> list[str]:
    """Returns the queries in a model's text; if that is incomplete (``ended=False``), those that are final.

    A line is final once the next one has begun. Backticks are stripped only at the ends of the complete text.
    """
    lines = text.strip("`").split("\n") if ended else text.lstrip("`").split("\n")[:-1]
    return [line.strip() for line in lines if line.strip()][: fusion.num_queries - 1]


class Queries:
    """Reader of the queries that a model writes for a fusion."""

    def __init__(self, fusion: Any) -> None:
        self._fusion = fusion

    def so_far(self, text: str) -> list[str]:
        """Returns the queries that are final in an incomplete text."""
        return queries_of(self._fusion, text, ended=False)

    def all(self, text: str) -> list[str]:
        """Returns the queries in the complete text."""
        return queries_of(self._fusion, text)


def _shadow_fusion(fusion: Any, site: Site) -> Any:
    """Returns a copy of a fusion whose model and retrievers claim."""
    made = copy.copy(fusion)
    made._retrievers = [site.of(part, str(i)) for i, part in enumerate(fusion._retrievers)]
    if not site.sync:
        made._retrievers = in_turn(made._retrievers, fusion._retrievers, site)
    if model_known(fusion._llm):
        made._llm = shadow_llm(fusion._llm, site.part("llm"))
    return made


def _components(fusion: Any) -> Iterator[Any]:
    yield fusion._llm
    yield from fusion._retrievers


ROWS = (
    Row(
        QueryFusionRetriever,
        (*_FUSING, *_RUNNING),
        _lower_fusion,
        _shadow_fusion,
        components=_components,
        composite=True,
    ),
)
