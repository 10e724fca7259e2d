"""Query engines: ``RetrieverQueryEngine``, and all those that contain others."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine

from fineflow.adapters.core.builder import Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.builder import (
    QUERY,
    RETRIEVE,
    SYNTHESIZE,
    IndexBuilder,
    asked_for,
    nodes_in,
    query_in,
    unlowered,
)
from fineflow.adapters.llamaindex.inner_calls import looking_through
from fineflow.adapters.llamaindex.lowering import containers, routers, subquestions
from fineflow.adapters.llamaindex.lowering.containers import ENGINE_METHODS
from fineflow.adapters.llamaindex.lowering.retrieval.retrievers import lower_retrieval, shadow_retrieval
from fineflow.adapters.llamaindex.thread_affinity import off_loop


def _lower_engine(engine: Any, value: Symbol, b: IndexBuilder) -> Symbol:
    part = QUERY if b.path else b.way.part  # an engine inside of another object is queried as a whole
    query = query_in(value)
    nodes = nodes_in(value) if part == SYNTHESIZE else lower_retrieval(engine, query, b)
    if part == RETRIEVE:
        return nodes
    with b.inside("synthesizer"):
        return b.lower(engine._response_synthesizer, asked_for(query, nodes))


def _shadow_engine(engine: Any, site: Site) -> Any:
    made = copy.copy(engine)
    shadow_retrieval(made, engine, site)
    made._response_synthesizer = site.of(engine._response_synthesizer, "synthesizer")
    return made


def engine_components(engine: Any, part: str = QUERY) -> Iterator[Any]:
    """Yields the components that a call of a part of a ``RetrieverQueryEngine`` uses."""
    if part != SYNTHESIZE:
        yield from (engine._retriever, *engine._node_postprocessors)
    if part != RETRIEVE:
        yield engine._response_synthesizer


def _shadow_other(engine: Any, site: Site) -> Any:
    """Returns an engine that is not recognised; in async calls it does not block the event loop."""
    looking_through(engine, site)
    if site.sync:
        return engine
    return off_loop(engine, _CUSTOM if isinstance(engine, CustomQueryEngine) else _OWN_ASYNC, site.options.trusting)


_OWN_ASYNC, _CUSTOM = "_aquery", "acustom_query"

RETRIEVER_ENGINE = Row(
    RetrieverQueryEngine, ENGINE_METHODS, _lower_engine, _shadow_engine, components=engine_components
)
ROWS: tuple[Row, ...] = (
    RETRIEVER_ENGINE,
    *subquestions.ROWS,
    *routers.ROWS,
    *containers.ENGINES,
    Row(BaseQueryEngine, (), unlowered(), _shadow_other, components=lambda engine: (engine,)),
)
