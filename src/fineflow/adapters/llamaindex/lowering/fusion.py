"""QueryFusionRetriever: searches for a query and for those that a model writes, as primitives, and its shadow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from llama_index.core.retrievers import QueryFusionRetriever

from fineflow.adapters.core.builder import DOCUMENTS, TEXT, VALUE, Leaf
from fineflow.adapters.core.recognition import NotLowered
from fineflow.adapters.llamaindex.lowering.containers import container_of
from fineflow.adapters.llamaindex.lowering.context import Place, Seen
from fineflow.adapters.llamaindex.lowering.direct_retrievers import check_known, direct_of, lower_known
from fineflow.adapters.llamaindex.lowering.query_vector_order import in_turn, keeps_vector, stay
from fineflow.adapters.llamaindex.lowering.vector_search import RETRIEVING
from fineflow.adapters.llamaindex.methods import as_written
from fineflow.adapters.llamaindex.models.llms import lower_answer, model_effects, model_known, shadow_llm
from fineflow.ir import Graph, Op, Ref

_FUSING = (*RETRIEVING, "_get_queries", "_aget_queries")
_RUNNING = ("_run_nested_async_queries", "_run_async_queries", "_run_sync_queries")


def is_fusion(retriever: Any) -> bool:
    """Whether an object is a QueryFusionRetriever as LlamaIndex wrote it."""
    return as_written(retriever, QueryFusionRetriever, *_FUSING, *_RUNNING)


def lower_fusion(fusion: Any, query: Leaf, seen: Seen) -> Leaf:
    seen = seen.asked(sync=False) if fusion.use_async else seen
    b = seen.b
    found, whole = _searches(fusion, query, seen)
    args = {f"original {i}": leaf.ref for i, leaf in enumerate(found)}
    if whole and fusion.num_queries > 1 and (queries := lower_queries(fusion, query, seen)) is not None:
        inner = seen.inside_map()
        results, _ = _searches(fusion, Leaf(Ref("item"), TEXT), inner)
        if results:
            body = Graph(tuple(inner.b.primitives), results[-1].ref, ("item",), tuple(inner.b.notes))
            mapped = b.add(Op.MAP, {"items": queries.ref}, name="queries", body=body, kind=DOCUMENTS, batched=True)
            args["generated"] = mapped.ref
    if not args:
        return seen.opaque(fusion, {"query": query.ref}, "none of its parts can be run ahead of it", DOCUMENTS)
    how = str(getattr(fusion.mode, "value", fusion.mode))
    return b.add(Op.AGGREGATE, args, component=fusion, kind=DOCUMENTS, how=how)


def _searches(fusion: Any, query: Leaf, seen: Seen) -> tuple[list[Leaf], bool]:
    """A search by each of the retrievers, up to one that is not known: it may be user code, which nothing overtakes.

    Also whether there was none of these.
    """
    found: list[Leaf] = []
    vector: Leaf | None = None
    in_turn, told = seen.one_by_one and not fusion.use_async, True
    staying = not seen.one_by_one and stay(fusion._retrievers)
    for i, retriever in enumerate(fusion._retrievers):
        told = told and not (staying and keeps_vector(retriever))
        with seen.b.inside(str(i)):
            try:
                if told or direct_of(retriever) is not None:
                    found_here, made = lower_known(retriever, query, vector, seen)
                else:  # by which vector it searches is not known, or it claims nothing
                    check_known(retriever, seen)
                    found_here = made = None
            except NotLowered as why:
                seen.objects[seen.b.leaf] = retriever
                seen.b.note(seen.b.leaf, False, f"{why}; what comes behind it waits for it")
                return found, False
            if found_here is not None:
                found.append(found_here)
            if made is not None and (in_turn or keeps_vector(retriever)):
                vector = made  # stock's sync methods keep the first vector with the query, and take it for all
            told = told and not (in_turn and found_here is None and container_of(retriever))
    return found, True


def lower_queries(fusion: Any, query: Leaf, seen: Seen) -> Leaf | None:
    """The queries that a model writes, one on each line; None where it is left to stock."""
    b, llm = seen.b, fusion._llm
    try:
        if type(fusion.query_gen_prompt) is not str:
            raise NotLowered("its prompt is no text")
        effects = model_effects(llm, b, "complete")
    except NotLowered as why:
        b.note(b.leaf, False, str(why))
        return None
    with b.inside("llm"):
        seen.objects[b.leaf] = llm
        prompt = b.add(Op.RENDER, {"key:query": query.ref}, component=fusion, kind=TEXT)
        written = lower_answer(llm, prompt, b, effects)
    return b.add(Op.PARSE, {"text": written.ref}, name="lines", component=fusion, kind=VALUE, items="lines")


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


def shadow_fusion(fusion: Any, place: Place, shadow: Callable[[Any, Place], Any]) -> Any:
    """A copy of a fusion whose model and retrievers claim. shadow: makes that of a retriever."""
    made = copy.copy(fusion)
    made._retrievers = [shadow(part, place.part(str(i))) for i, part in enumerate(fusion._retrievers)]
    if not place.sync:
        made._retrievers = in_turn(made._retrievers, fusion._retrievers)
    if model_known(fusion._llm):
        made._llm = shadow_llm(fusion._llm, place.part("llm").leaf, place.claims, sync=place.sync)
    return made
