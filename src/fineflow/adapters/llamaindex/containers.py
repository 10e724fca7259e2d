"""Query engines and retrievers that are made of others: stock runs them on a copy whose parts run sooner by themselves.

A part is called where and when stock calls it; each call of it is one of its own, inside of the call around it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llama_index.core.query_engine import (
    CitationQueryEngine,
    MultiStepQueryEngine,
    RetryQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.retrievers import AutoMergingRetriever, RouterRetriever, TransformRetriever

from fineflow.adapters.llamaindex.lowering import Place
from fineflow.adapters.llamaindex.methods import blocks, method, same, unblocked
from fineflow.adapters.llamaindex.models import shadow_llm
from fineflow.adapters.llamaindex.retrieval import RETRIEVING, model_known
from fineflow.runtime.threads import in_thread

_QUERYING = ("query", "aquery", "_query", "_aquery")


@dataclass(frozen=True, slots=True)
class Container:
    """A class by the methods that call its parts. parts: attributes that hold one, a list or a dict of them. asks:
    attributes that hold something with a model of its own (``_llm``).
    """

    base: type
    methods: tuple[str, ...]
    parts: tuple[str, ...]
    asks: tuple[str, ...] = ()


CONTAINERS = (
    Container(
        SubQuestionQueryEngine,
        (*_QUERYING, "_query_subq", "_aquery_subq", "_construct_node"),
        ("_query_engines", "_response_synthesizer"),
        ("_question_gen",),
    ),
    Container(RouterQueryEngine, _QUERYING, ("_query_engines",), ("_selector",)),
    Container(TransformQueryEngine, (*_QUERYING, "retrieve", "synthesize", "asynthesize"), ("_query_engine",)),
    Container(MultiStepQueryEngine, (*_QUERYING, "_query_multistep"), ("_query_engine", "_response_synthesizer")),
    Container(CitationQueryEngine, (*_QUERYING, "retrieve", "aretrieve"), ("_retriever", "_response_synthesizer")),
    Container(RetryQueryEngine, _QUERYING, ()),
    Container(RouterRetriever, RETRIEVING, ("_retrievers",), ("_selector",)),
    Container(TransformRetriever, RETRIEVING, ("_retriever",)),
    Container(AutoMergingRetriever, RETRIEVING, ("_vector_retriever",)),
)


def container_of(obj: Any) -> Container | None:
    """How an object is recognised as one that is made of others, if it is."""
    for row in CONTAINERS:
        if isinstance(obj, row.base):
            known = vars(obj).keys().isdisjoint(row.methods) and same(type(obj), row.base, *row.methods)
            return row if known else None
    return None


def shadow_container(obj: Any, row: Container, place: Place) -> Any:
    """A copy of an object whose parts run sooner; in async calls it does not block the event loop."""
    made = copy.copy(obj)
    for name in row.parts:
        made.__dict__[name] = _sooner(getattr(obj, name), place.nested)
    if place.sync:
        return made
    for name in row.asks:
        made.__dict__[name] = _asking(getattr(obj, name), place.part(name))
    for name in ("_aquery", "_aretrieve"):
        found = method(type(obj), name)
        if found is not None and blocks(type(obj), name):
            made.__dict__[name] = found.around(made, _thread(made, found.function))
    if row.base is TransformQueryEngine:
        found = method(type(obj), "_aquery")
        assert found is not None
        made.__dict__["_aquery"] = found.around(made, _transformed)
    return made


def _sooner(part: Any, nested: Callable[[Any], Any]) -> Any:
    if isinstance(part, dict):
        return {name: nested(each) for name, each in part.items()}
    return [nested(each) for each in part] if isinstance(part, list) else nested(part)


def _asking(holder: Any, place: Place) -> Any:
    """A copy of what asks a model, with one that does not block the event loop."""
    llm = getattr(holder, "_llm", None)
    if llm is None or not model_known(llm):
        return holder
    made = copy.copy(holder)
    made.__dict__["_llm"] = shadow_llm(llm, place.part("llm").leaf, place.claims, sync=place.sync)
    return made


def _thread(obj: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    async def run(_: Any, *args: Any, **kwargs: Any) -> Any:
        return await unblocked(function, obj, *args, **kwargs)

    return run


async def _transformed(engine: Any, query_bundle: Any) -> Any:
    """``TransformQueryEngine._aquery``, whose transformation may ask a model by its sync methods."""
    transform, metadata = engine._query_transform, engine._transform_metadata
    query_bundle = await in_thread(lambda: transform.run(query_bundle, metadata=metadata))
    return await engine._query_engine.aquery(query_bundle)
