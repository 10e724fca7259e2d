"""Retrievers: the rows of all of them, and the common part of their shadows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import wrapt
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import AutoMergingRetriever, RecursiveRetriever, RouterRetriever

from fineflow.adapters.core.builder import DOCUMENTS, Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.builder import IndexBuilder, asked_for
from fineflow.adapters.llamaindex.inner_calls import looking_through
from fineflow.adapters.llamaindex.lowering import containers, node_embeddings
from fineflow.adapters.llamaindex.lowering.containers import shadow_container
from fineflow.adapters.llamaindex.lowering.index_nodes import FROM_OBJECT, HANDLING, with_objects
from fineflow.adapters.llamaindex.lowering.postprocessors import lower_postprocessors, shadow_postprocessors
from fineflow.adapters.llamaindex.lowering.retrieval import choice_retrievers, direct_retrievers, fusion, vector_search
from fineflow.adapters.llamaindex.lowering.retrieval.direct_retrievers import MERGED
from fineflow.adapters.llamaindex.lowering.retrieval.query_vector_order import in_turn
from fineflow.adapters.llamaindex.methods import as_written
from fineflow.adapters.llamaindex.stores.searches import acounted, counted
from fineflow.adapters.llamaindex.thread_affinity import off_loop
from fineflow.runtime.queues.component_calls import has_limit


def lower_retrieval(engine: Any, query: Leaf, b: IndexBuilder) -> Leaf:
    """Appends the retriever of an engine and its postprocessors."""
    with b.inside("retriever"):
        nodes = b.lower(engine._retriever, asked_for(query))
    return b.whole(lower_postprocessors(engine._node_postprocessors, nodes, query, b))


def shadow_retrieval(made: Any, engine: Any, site: Site) -> None:
    """Puts the shadows of the retriever and the postprocessors into ``made``, the shadow of the engine."""
    made._retriever = site.of(engine._retriever, "retriever")
    made._node_postprocessors = shadow_postprocessors(engine._node_postprocessors, site)


def _shadow_merging(retriever: Any, site: Site) -> Any:
    made, merged = shadow_container(retriever, site), site.part(MERGED)
    if merged.any_ahead():  # searched ahead in this call
        made._vector_retriever = merged.of(retriever._vector_retriever)
    return made


def _shadow_router(retriever: Any, site: Site) -> Any:
    made = shadow_container(retriever, site)
    if not site.sync:
        made._retrievers = in_turn(made._retrievers, retriever._retrievers, site)
    return made


def _lower_other(retriever: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    return b.opaque(retriever, value, "is not recognised: runs through its own methods", kind=DOCUMENTS)


def _shadow_other(retriever: Any, site: Site) -> Any:
    looking_through(retriever, site)
    return retriever if site.sync else off_loop(retriever, "_aretrieve", site.options.trusting)


_SHADOWS: dict[type, Callable[[Any, Site], Any]] = {
    AutoMergingRetriever: _shadow_merging,
    RouterRetriever: _shadow_router,
}


def _shadow(own: Callable[[Any, Site], Any], whole: bool, retriever: Any, site: Site) -> Any:
    """Returns a copy of a retriever whose parts claim; in async calls none of them blocks the event loop.

    whole: True if stock calls it as one component, so that its own limit applies.
    """
    made = _with_objects(own(retriever, site), retriever, site)
    return _Counted(made, retriever, site.leaf) if whole and has_limit(retriever) else made


def _row(row: Row) -> Row:
    whole = not row.composite and row not in direct_retrievers.ROWS
    return replace(row, shadow=partial(_shadow, _SHADOWS.get(row.base, row.shadow), whole))


ROWS = tuple(
    _row(row)
    for row in (
        *fusion.ROWS,
        *vector_search.ROWS,
        *containers.RETRIEVERS,
        *node_embeddings.ROWS,
        *choice_retrievers.ROWS,
        *direct_retrievers.ROWS,
        Row(BaseRetriever, (), _lower_other, _shadow_other, components=lambda each: (each,)),
    )
)


def parts_run_ahead(obj: Any) -> bool:
    """Returns True if a retriever has parts that run ahead without being in its plan."""
    if any(row.matches(obj) for row in (*containers.RETRIEVERS, *node_embeddings.ROWS)):
        return True
    return isinstance(obj, BaseRetriever) and bool(getattr(obj, "object_map", None))


def follows_links(obj: Any) -> bool:
    """Returns True if a retriever calls the retrievers and engines that retrieved nodes refer to."""
    return isinstance(obj, RecursiveRetriever) or (
        isinstance(obj, BaseRetriever) and bool(getattr(obj, "object_map", None))
    )


class _Counted(wrapt.ObjectProxy[Any]):
    """Retriever each of whose calls takes a permit. known: the user's object, which may have a limit."""

    def __init__(self, retriever: Any, known: Any, leaf: str) -> None:
        super().__init__(retriever)
        self._self_known, self._self_leaf = known, leaf

    def retrieve(self, query: Any) -> Any:
        return counted(self._self_known, self._self_leaf, lambda: self.__wrapped__.retrieve(query))

    async def aretrieve(self, query: Any) -> Any:
        return await acounted(self._self_known, self._self_leaf, lambda: self.__wrapped__.aretrieve(query))


def _with_objects(made: Any, retriever: Any, site: Site) -> Any:
    """Makes the query engines and retrievers that retrieved nodes refer to run ahead by themselves."""
    if not getattr(retriever, "object_map", None) or not as_written(retriever, BaseRetriever, *HANDLING, *FROM_OBJECT):
        return made
    made = copy.copy(made)
    with_objects(made, retriever, site)
    return made
