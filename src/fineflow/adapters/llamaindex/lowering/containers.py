"""Query engines and retrievers that contain others: stock runs them on a copy whose parts run ahead by themselves.

Stock decides where and when a part is called; each of its calls runs ahead by itself, nested in the call around it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_index.core.indices.struct_store.sql_query import BaseSQLTableQueryEngine
from llama_index.core.indices.struct_store.sql_retriever import NLSQLRetriever
from llama_index.core.query_engine import (
    CitationQueryEngine,
    ComposableGraphQueryEngine,
    FLAREInstructQueryEngine,
    KnowledgeGraphQueryEngine,
    MultiStepQueryEngine,
    RetrieverRouterQueryEngine,
    RetryGuidelineQueryEngine,
    RetryQueryEngine,
    RetrySourceQueryEngine,
    RouterQueryEngine,
    SimpleMultiModalQueryEngine,
    SQLJoinQueryEngine,
    SubQuestionQueryEngine,
    ToolRetrieverRouterQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.retrievers import AutoMergingRetriever, RecursiveRetriever, RouterRetriever, TransformRetriever
from llama_index.core.tools import QueryEngineTool

from fineflow.adapters.core.own_state import keeps_state
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.builder import unlowered
from fineflow.adapters.llamaindex.lowering.index_nodes import recursing
from fineflow.adapters.llamaindex.lowering.nonblocking import AHEAD, replace
from fineflow.adapters.llamaindex.lowering.postprocessors import shadow_postprocessors
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import RETRIEVING
from fineflow.adapters.llamaindex.models.llms import in_turn, model_known, shadow_llm
from fineflow.adapters.llamaindex.thread_affinity import may_leave, move

ENGINE_METHODS = (
    *("query", "aquery", "_query", "_aquery", "retrieve", "aretrieve", "synthesize", "asynthesize"),
    *("_apply_node_postprocessors", "_async_apply_node_postprocessors"),
)
"""Methods that define a ``RetrieverQueryEngine``."""

SUMMARIZER = "summarizer"
_QUERYING = ("query", "aquery", "_query", "_aquery")
_UNLOWERED = unlowered("its parts run ahead by themselves")
_TRANSFORM = "_query_transform"


@dataclass(frozen=True, slots=True)
class Container(Row):
    """A class of containers, recognised by the methods that call its parts.

    holds: attributes with a part, a list or a dict of parts, or a tool with one. asks: attributes with an object that
    has a model (``_llm``). models: attributes with a model. sums_up: True if it has a synthesizer (``_summarizer``)
    whose inner methods it calls. inner: attributes with a container whose inner methods it calls.
    """

    holds: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    sums_up: bool = False
    inner: tuple[str, ...] = ()


_PART = ("_query_engine",)


def container_of(obj: Any) -> Container | None:
    """Returns the row of a container; None for other objects."""
    return next((row for row in (*ENGINES, *RETRIEVERS, SUB_QUESTIONS, ROUTER) if row.matches(obj)), None)


def _parts(holds: tuple[str, ...], obj: Any) -> Mapping[str, Any]:
    """Returns the parts of a container, named after their attributes."""
    found = dict[str, Any]()
    for name in holds:
        held, shown = getattr(obj, name), name.lstrip("_").replace("_", " ")
        if isinstance(held, dict):
            found |= {f"{shown}: {key}": part for key, part in held.items()}
        elif isinstance(held, list):
            found |= {f"{shown}: {i + 1}": part for i, part in enumerate(held)}
        else:
            found[shown] = held
    return found


def shadow_container(obj: Any, site: Site) -> Any:
    """Returns a copy of a container whose parts run ahead; in async calls it does not block the event loop."""
    row = container_of(obj)
    assert row is not None
    made = _copied(in_turn(obj, site))
    for name in (*row.asks, _TRANSFORM):
        if name in vars(obj):
            made.__dict__[name] = in_turn(vars(obj)[name], site.part(name))
    for name in row.holds:
        made.__dict__[name] = _nested(getattr(obj, name), site.nested)
    if row.sums_up:
        made._summarizer = site.of(obj._summarizer, SUMMARIZER)
    for name in row.inner:
        held = getattr(obj, name)
        if container_of(held) is not None:
            made.__dict__[name] = site.of(held, name)
    if row.base is ToolRetrieverRouterQueryEngine:
        made.__dict__[AHEAD] = site.nested
    if row.base is RecursiveRetriever:
        recursing(made, obj, site)
    if "_node_postprocessors" in vars(obj):
        made._node_postprocessors = shadow_postprocessors(obj._node_postprocessors, site)
    if site.sync:
        replace(made, sync=True)
        return made
    for name in row.asks:
        made.__dict__[name] = _asking(getattr(obj, name), site.part(name))
    for name in row.models:
        if model_known(llm := getattr(obj, name)):
            made.__dict__[name] = shadow_llm(llm, site.part(name))
    if may_leave(obj, site.options.trusting):
        _moved(made)
    return made


def _copied(obj: Any) -> Any:
    """Returns a shallow copy, without the deprecation warning that some classes repeat in ``copy.copy``."""
    made = object.__new__(type(obj))
    made.__dict__.update(vars(obj))
    return made


def _moved(made: Any) -> None:
    """Moves methods of a copy that would block the event loop into threads."""
    for name in ("_aquery", "_aretrieve"):
        move(made, name)
    replace(made, sync=False)


def _nested(part: Any, nested: Callable[[Any], Any]) -> Any:
    if isinstance(part, dict):
        return {name: nested(each) for name, each in part.items()}
    if type(part) is QueryEngineTool:
        made = copy.copy(part)
        made._query_engine = nested(part.query_engine)
        return made
    return [nested(each) for each in part] if isinstance(part, list) else nested(part)


def _asking(holder: Any, site: Site) -> Any:
    """Returns a copy of an object that calls a model, with a model that does not block the event loop."""
    llm = getattr(holder, "_llm", None)
    if llm is None or not model_known(llm) or keeps_state(type(holder)):
        return holder
    made = copy.copy(holder)
    made.__dict__["_llm"] = shadow_llm(llm, site.part("llm"))
    return made


def _row(
    base: type, methods: tuple[str, ...], holds: tuple[str, ...] = (), lower: Any = _UNLOWERED, **more: Any
) -> Container:
    return Container(
        base,
        methods,
        lower,
        shadow_container,
        parts=partial(_parts, holds),
        components=lambda obj: (obj,),
        composite=True,
        holds=holds,
        **more,
    )


ENGINES = (
    _row(ToolRetrieverRouterQueryEngine, _QUERYING, sums_up=True),
    _row(RetrieverRouterQueryEngine, _QUERYING, ("_retriever",)),
    _row(TransformQueryEngine, (*_QUERYING, "retrieve", "synthesize", "asynthesize"), _PART),
    _row(MultiStepQueryEngine, (*_QUERYING, "_query_multistep"), (*_PART, "_response_synthesizer")),
    _row(CitationQueryEngine, (*_QUERYING, "retrieve", "aretrieve"), ("_retriever", "_response_synthesizer")),
    _row(RetryQueryEngine, _QUERYING, _PART),
    _row(RetrySourceQueryEngine, _QUERYING, _PART),
    _row(RetryGuidelineQueryEngine, _QUERYING, _PART),
    _row(FLAREInstructQueryEngine, (*_QUERYING, "retrieve", "aretrieve"), _PART),
    _row(SQLJoinQueryEngine, (*_QUERYING, "_query_sql_other"), ("_sql_query_tool", "_other_query_tool")),
    _row(BaseSQLTableQueryEngine, _QUERYING, models=("_llm",), inner=("_sql_retriever",)),
    _row(ComposableGraphQueryEngine, (*_QUERYING, "_query_index"), ("_custom_query_engines",)),
    _row(KnowledgeGraphQueryEngine, (*_QUERYING, *RETRIEVING[2:]), ("_response_synthesizer",), models=("_llm",)),
    _row(
        SimpleMultiModalQueryEngine,
        (*_QUERYING, "retrieve", "aretrieve"),
        ("_retriever",),
        models=("_multi_modal_llm",),
    ),
)
RETRIEVERS = (
    _row(RouterRetriever, RETRIEVING, ("_retrievers",), asks=("_selector",)),
    _row(TransformRetriever, RETRIEVING, ("_retriever",)),
    _row(AutoMergingRetriever, RETRIEVING, ("_vector_retriever",)),
    _row(
        RecursiveRetriever,
        (*RETRIEVING, "_retrieve_rec", "_query_retrieved_nodes", "_get_object"),
        ("_retriever_dict", "_query_engine_dict"),
    ),
    _row(
        NLSQLRetriever,
        (*RETRIEVING, "retrieve_with_metadata", "aretrieve_with_metadata"),
        models=("_llm",),
    ),
)
SUB_QUESTIONS = _row(
    SubQuestionQueryEngine,
    (*_QUERYING, "_query_subq", "_aquery_subq", "_construct_node"),
    ("_query_engines", "_response_synthesizer"),
    asks=("_question_gen",),
)
"""Its lowering rule is in ``subquestions``."""
ROUTER = _row(RouterQueryEngine, _QUERYING, ("_query_engines",), asks=("_selector",), sums_up=True)
"""Its lowering rule is in ``routers``."""
