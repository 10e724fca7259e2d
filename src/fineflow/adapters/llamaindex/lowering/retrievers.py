"""Retrievers, and what comes behind them in an engine: which primitives they are, and their shadows."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import wrapt
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import AutoMergingRetriever, RouterRetriever

from fineflow.adapters.core.builder import DOCUMENTS, Leaf
from fineflow.adapters.core.recognition import NotLowered
from fineflow.adapters.llamaindex.lowering.choice_retrievers import lower_selecting, selecting_of, shadow_selecting
from fineflow.adapters.llamaindex.lowering.containers import container_of, shadow_container
from fineflow.adapters.llamaindex.lowering.context import Place, Seen
from fineflow.adapters.llamaindex.lowering.direct_retrievers import MERGED, direct_of, shadow_direct
from fineflow.adapters.llamaindex.lowering.fusion import is_fusion, lower_fusion, shadow_fusion
from fineflow.adapters.llamaindex.lowering.node_embeddings import comparing_of, shadow_comparing
from fineflow.adapters.llamaindex.lowering.postprocessors import lower_postprocessor, shadow_postprocessors
from fineflow.adapters.llamaindex.lowering.query_vector_order import in_turn
from fineflow.adapters.llamaindex.lowering.vector_search import is_auto, is_search, lone_search, shadow_search
from fineflow.adapters.llamaindex.methods import as_written, method, off_loop
from fineflow.adapters.llamaindex.models.llms import model_known, shadow_llm
from fineflow.adapters.llamaindex.stores.searches import acounted, counted
from fineflow.adapters.llamaindex.thread_affinity import stays
from fineflow.runtime.queues.component_calls import has_limit

_OBJECTS = ("_retrieve_from_object", "_aretrieve_from_object")


def lower_retriever(retriever: Any, query: Leaf, seen: Seen) -> Leaf:
    """The primitives of a retriever; those of one search after another are stock's, which has nothing to wait for."""
    b = seen.b
    seen.objects[b.leaf] = retriever
    if is_fusion(retriever):
        return lower_fusion(retriever, query, seen)
    if is_search(retriever):
        return lone_search(retriever, query, seen)
    why = "is not recognised: runs through its own methods"
    if container_of(retriever) is not None:
        why = "its parts run sooner by themselves"
    elif comparing_of(retriever) is not None:
        why = "texts of nodes are embedded side by side, when stock gets to them"
    elif selecting_of(retriever) is not None:
        try:
            return lower_selecting(retriever, query, seen)
        except NotLowered as reason:
            why = str(reason)
    return seen.opaque(retriever, {"query": query.ref}, why, DOCUMENTS)


def sooner_inside(retriever: Any) -> bool:
    """Whether parts of a retriever run sooner that a plan does not show."""
    if container_of(retriever) is not None or comparing_of(retriever) is not None:
        return True
    return isinstance(retriever, BaseRetriever) and bool(getattr(retriever, "object_map", None))


def called_by(retriever: Any) -> Iterator[Any]:
    """What may be called when a retriever is: components, and what they hold."""
    if is_search(retriever):
        yield from (retriever._vector_store, retriever._embed_model)
    elif is_auto(retriever):
        yield from (retriever._llm, retriever._index.vector_store, retriever._index._embed_model)
    elif is_fusion(retriever):
        yield retriever._llm
        for part in retriever._retrievers:
            yield from called_by(part)
    else:
        yield retriever


def shadow_retriever(retriever: Any, place: Place) -> Any:
    """A copy of a retriever whose parts claim; in async calls none of them blocks the event loop."""
    made = _with_objects(_shadow(retriever, place), retriever, place)
    return _Counted(made, retriever, place.leaf) if called_whole(retriever) and has_limit(retriever) else made


def taken_apart(retriever: Any) -> bool:
    """Whether what a retriever is made of is called in its place."""
    known = (is_fusion(retriever), is_search(retriever), is_auto(retriever))
    rows = (container_of(retriever), comparing_of(retriever), selecting_of(retriever))
    return any(known) or any(row is not None for row in rows)


def called_whole(retriever: Any) -> bool:
    """Whether it is stock that calls a retriever, as it is."""
    return isinstance(retriever, BaseRetriever) and not taken_apart(retriever) and direct_of(retriever) is None


class _Counted(wrapt.ObjectProxy[Any]):
    """A retriever whose calls count as a whole, each in a place. known: the user's, which may have a limit."""

    def __init__(self, retriever: Any, known: Any, leaf: str) -> None:
        super().__init__(retriever)
        self._self_known, self._self_leaf = known, leaf

    def retrieve(self, query: Any) -> Any:
        return counted(self._self_known, self._self_leaf, lambda: self.__wrapped__.retrieve(query))

    async def aretrieve(self, query: Any) -> Any:
        return await acounted(self._self_known, self._self_leaf, lambda: self.__wrapped__.aretrieve(query))


def _shadow(retriever: Any, place: Place) -> Any:
    if is_fusion(retriever):
        return shadow_fusion(retriever, place, shadow_retriever)
    if is_search(retriever):
        return shadow_search(retriever, place)
    if is_auto(retriever):
        return _shadow_auto(retriever, place)
    if (row := container_of(retriever)) is not None:
        made = shadow_container(retriever, row, place)
        merged = place.part(MERGED)
        if row.base is AutoMergingRetriever and place.claims.any_at(merged.leaf):  # searched ahead in this call
            made._vector_retriever = shadow_retriever(retriever._vector_retriever, merged)
        if row.base is RouterRetriever and not place.sync:
            made._retrievers = in_turn(made._retrievers, retriever._retrievers)
        return made
    if (comparing := comparing_of(retriever)) is not None:
        return shadow_comparing(retriever, comparing, place)
    if selecting_of(retriever) is not None:
        return shadow_selecting(retriever, place)
    if direct_of(retriever) is not None:
        return shadow_direct(retriever, place)
    if isinstance(retriever, BaseRetriever) and not place.sync and not stays(retriever):
        return off_loop(retriever, "_aretrieve")
    return retriever


def _shadow_auto(retriever: Any, place: Place) -> Any:
    """A copy of a retriever that makes another one for each query; that one's parts do not block the event loop."""
    made = copy.copy(retriever)
    if model_known(retriever._llm):
        made._llm = shadow_llm(retriever._llm, place.part("llm").leaf, place.claims, sync=place.sync)
    found = method(type(retriever), "_build_retriever_from_spec")
    assert found is not None
    own = found.function

    def build(_: Any, *args: Any, **kwargs: Any) -> Any:
        built, bundle = own(made, *args, **kwargs)
        return shadow_retriever(built, place.part("built")), bundle

    made.__dict__["_build_retriever_from_spec"] = found.around(made, build)
    return made


def _with_objects(made: Any, retriever: Any, place: Place) -> Any:
    """Has the query engines and retrievers that found nodes stand for run sooner by themselves."""
    objects = list((getattr(retriever, "object_map", None) or {}).values())
    if not objects or not as_written(retriever, BaseRetriever, *_OBJECTS):
        return made
    made = copy.copy(made)
    for name in _OBJECTS:
        found = method(BaseRetriever, name)
        assert found is not None
        made.__dict__[name] = found.around(made, _sooner(made, found.function, objects, place))
    return made


def _sooner(made: Any, own: Any, objects: list[Any], place: Place) -> Any:
    def of(obj: Any) -> Any:
        return place.nested(obj) if any(obj is each for each in objects) else obj

    def retrieve(_: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        return own(made, of(obj), *args, **kwargs)

    async def aretrieve(_: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        return await own(made, of(obj), *args, **kwargs)

    return aretrieve if inspect.iscoroutinefunction(own) else retrieve


def lower_retrieval(engine: Any, query: Leaf, seen: Seen) -> Leaf:
    """The retriever of an engine, and its postprocessors."""
    with seen.b.inside("retriever"):
        nodes = lower_retriever(engine._retriever, query, seen)
    for i, processor in enumerate(engine._node_postprocessors):
        with seen.b.inside(f"postprocessor {i}"):
            nodes = lower_postprocessor(processor, nodes, query, seen)
    return nodes


def shadow_retrieval(made: Any, engine: Any, place: Place) -> None:
    """Puts them into ``made``, the shadow of the engine."""
    made._retriever = shadow_retriever(engine._retriever, place.part("retriever"))
    made._node_postprocessors = shadow_postprocessors(engine._node_postprocessors, place)
