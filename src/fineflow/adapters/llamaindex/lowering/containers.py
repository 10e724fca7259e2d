"""Query engines and retrievers that are made of others: stock runs them on a copy whose parts run sooner by themselves.

A part is called where and when stock calls it; each call of it is one of its own, inside of the call around it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

from fineflow.adapters.llamaindex.lowering.context import Place
from fineflow.adapters.llamaindex.lowering.nonblocking import SOONER, replace
from fineflow.adapters.llamaindex.lowering.postprocessors import shadow_postprocessors
from fineflow.adapters.llamaindex.lowering.synthesizers import shadow_synthesizer
from fineflow.adapters.llamaindex.lowering.vector_search import RETRIEVING
from fineflow.adapters.llamaindex.methods import move, same
from fineflow.adapters.llamaindex.models.llms import in_turn, model_known, shadow_llm
from fineflow.adapters.llamaindex.thread_affinity import stays

SUMMARIZER = "summarizer"
_QUERYING = ("query", "aquery", "_query", "_aquery")
_TRANSFORM = "_query_transform"


@dataclass(frozen=True, slots=True)
class Container:
    """A class by the methods that call its parts. parts: attributes that hold one, a list or a dict of them, or a tool
    with one. asks: attributes that hold something with a model of its own (``_llm``). models: attributes that hold one.
    sums_up: whether it has a synthesizer (``_summarizer``) whose inner methods it calls. inner: attributes that hold a
    container whose inner methods it calls.
    """

    base: type
    methods: tuple[str, ...]
    parts: tuple[str, ...]
    asks: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    sums_up: bool = False
    inner: tuple[str, ...] = ()


_PART = ("_query_engine",)
CONTAINERS = (
    Container(
        SubQuestionQueryEngine,
        (*_QUERYING, "_query_subq", "_aquery_subq", "_construct_node"),
        ("_query_engines", "_response_synthesizer"),
        ("_question_gen",),
    ),
    Container(RouterQueryEngine, _QUERYING, ("_query_engines",), ("_selector",), sums_up=True),
    Container(ToolRetrieverRouterQueryEngine, _QUERYING, (), sums_up=True),
    Container(RetrieverRouterQueryEngine, _QUERYING, ("_retriever",)),
    Container(TransformQueryEngine, (*_QUERYING, "retrieve", "synthesize", "asynthesize"), _PART),
    Container(MultiStepQueryEngine, (*_QUERYING, "_query_multistep"), (*_PART, "_response_synthesizer")),
    Container(CitationQueryEngine, (*_QUERYING, "retrieve", "aretrieve"), ("_retriever", "_response_synthesizer")),
    Container(RetryQueryEngine, _QUERYING, _PART),
    Container(RetrySourceQueryEngine, _QUERYING, _PART),
    Container(RetryGuidelineQueryEngine, _QUERYING, _PART),
    Container(FLAREInstructQueryEngine, (*_QUERYING, "retrieve", "aretrieve"), _PART),
    Container(SQLJoinQueryEngine, (*_QUERYING, "_query_sql_other"), ("_sql_query_tool", "_other_query_tool")),
    Container(BaseSQLTableQueryEngine, _QUERYING, (), models=("_llm",), inner=("_sql_retriever",)),
    Container(ComposableGraphQueryEngine, (*_QUERYING, "_query_index"), ("_custom_query_engines",)),
    Container(KnowledgeGraphQueryEngine, (*_QUERYING, *RETRIEVING[2:]), ("_response_synthesizer",), models=("_llm",)),
    Container(
        SimpleMultiModalQueryEngine,
        (*_QUERYING, "retrieve", "aretrieve"),
        ("_retriever",),
        models=("_multi_modal_llm",),
    ),
    Container(RouterRetriever, RETRIEVING, ("_retrievers",), ("_selector",)),
    Container(TransformRetriever, RETRIEVING, ("_retriever",)),
    Container(AutoMergingRetriever, RETRIEVING, ("_vector_retriever",)),
    Container(
        RecursiveRetriever,
        (*RETRIEVING, "_retrieve_rec", "_query_retrieved_nodes", "_get_object"),
        ("_retriever_dict", "_query_engine_dict"),
    ),
    Container(NLSQLRetriever, (*RETRIEVING, "retrieve_with_metadata", "aretrieve_with_metadata"), (), models=("_llm",)),
)


def container_of(obj: Any) -> Container | None:
    """How an object is recognised as one that is made of others, if it is."""
    for row in CONTAINERS:
        if isinstance(obj, row.base):
            known = vars(obj).keys().isdisjoint(row.methods) and same(type(obj), row.base, *row.methods)
            return row if known else None
    return None


def parts_of(obj: Any) -> Mapping[str, Any]:
    """What a container calls, by the names of its attributes and what they hold; nothing for another object."""
    row, found = container_of(obj), dict[str, Any]()
    for name in row.parts if row is not None else ():
        held, shown = getattr(obj, name), name.lstrip("_").replace("_", " ")
        if isinstance(held, dict):
            found |= {f"{shown}: {key}": part for key, part in held.items()}
        elif isinstance(held, list):
            found |= {f"{shown}: {i + 1}": part for i, part in enumerate(held)}
        else:
            found[shown] = held
    return found


def shadow_container(obj: Any, row: Container, place: Place) -> Any:
    """A copy of an object whose parts run sooner; in async calls it does not block the event loop."""
    made = _copied(in_turn(obj, place))
    for name in (*row.asks, _TRANSFORM):
        if name in vars(obj):
            made.__dict__[name] = in_turn(vars(obj)[name], place.part(name))
    for name in row.parts:
        made.__dict__[name] = _sooner(getattr(obj, name), place.nested)
    if row.sums_up:
        made._summarizer = shadow_synthesizer(obj._summarizer, place.part(SUMMARIZER))
    for name in row.inner:
        held = getattr(obj, name)
        if (found := container_of(held)) is not None:
            made.__dict__[name] = shadow_container(held, found, place.part(name))
    if row.base is ToolRetrieverRouterQueryEngine:
        made.__dict__[SOONER] = place.nested
    if "_node_postprocessors" in vars(obj):
        made._node_postprocessors = shadow_postprocessors(obj._node_postprocessors, place)
    if place.sync:
        replace(made, sync=True)
        return made
    for name in row.asks:
        made.__dict__[name] = _asking(getattr(obj, name), place.part(name))
    for name in row.models:
        if model_known(llm := getattr(obj, name)):
            made.__dict__[name] = shadow_llm(llm, place.part(name).leaf, place.claims, sync=False)
    if not stays(obj):
        _moved(made)
    return made


def _copied(obj: Any) -> Any:
    """``copy.copy(obj)``, which would warn of a class that is deprecated once more."""
    made = object.__new__(type(obj))
    made.__dict__.update(vars(obj))
    return made


def _moved(made: Any) -> None:
    """Has a copy do in threads what would block the event loop."""
    for name in ("_aquery", "_aretrieve"):
        move(made, name)
    replace(made, sync=False)


def _sooner(part: Any, nested: Callable[[Any], Any]) -> Any:
    if isinstance(part, dict):
        return {name: nested(each) for name, each in part.items()}
    if type(part) is QueryEngineTool:
        made = copy.copy(part)
        made._query_engine = nested(part.query_engine)
        return made
    return [nested(each) for each in part] if isinstance(part, list) else nested(part)


def _asking(holder: Any, place: Place) -> Any:
    """A copy of what asks a model, with one that does not block the event loop."""
    llm = getattr(holder, "_llm", None)
    if llm is None or not model_known(llm):
        return holder
    made = copy.copy(holder)
    made.__dict__["_llm"] = shadow_llm(llm, place.part("llm").leaf, place.claims, sync=place.sync)
    return made
