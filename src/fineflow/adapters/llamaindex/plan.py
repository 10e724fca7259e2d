"""From an object of LlamaIndex to a plan: its graphs, what of it was read, and whether running it ahead pays.

An object has up to three parts that are called by themselves: what retrieves, what writes a response from nodes
(``synthesize``), and both (``query``). Each has a plan of its own, for sync and for async calls.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever, VectorIndexRetriever

from fineflow.adapters.base import DOCUMENTS, TEXT, Builder, Leaf
from fineflow.adapters.llamaindex.containers import container_of, shadow_container
from fineflow.adapters.llamaindex.lowering import Place, Seen
from fineflow.adapters.llamaindex.methods import blocks
from fineflow.adapters.llamaindex.models import ASKING, shadow_llm
from fineflow.adapters.llamaindex.retrieval import (
    as_written,
    lower_postprocessor,
    lower_retriever,
    off_loop,
    shadow_postprocessor,
    shadow_retriever,
)
from fineflow.adapters.llamaindex.subquestions import ASKING as ASKED
from fineflow.adapters.llamaindex.subquestions import TOOL, lower_sub_questions
from fineflow.adapters.llamaindex.synthesis import (
    ACCUMULATE,
    is_synthesizer,
    kind_of,
    lower_synthesizer,
    shadow_synthesizer,
)
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.spec import bodies
from fineflow.options import Options

QUERY, RETRIEVE, SYNTHESIZE = "query", "retrieve", "synthesize"
_ENGINE = (
    *("query", "aquery", "_query", "_aquery", "retrieve", "aretrieve", "synthesize", "asynthesize"),
    *("_apply_node_postprocessors", "_async_apply_node_postprocessors"),
)


@dataclass(frozen=True)
class Plan:
    """How one part of an object runs.

    leaves: where stock may claim, or tells the graph what it has got to. models: those that parts share, in the order
    in which leaves count them.

    gain: whether the graph is expected to be sooner than stock. blocks: whether stock would block the event loop.
    parts: whether it is made of others, which run sooner by themselves.
    """

    p_graph: Graph
    e_graph: Graph
    leaves: frozenset[str]
    snapshot: Snapshot
    models: Sequence[Any]
    gain: bool
    blocks: bool
    parts: bool

    @property
    def used(self) -> bool:
        """Whether calls go by it, and not to the user's object."""
        return self.gain or self.blocks or self.parts


Planner = Callable[[Any, str, bool, Options], Plan]
"""Makes the plan of a part (QUERY, RETRIEVE, SYNTHESIZE) of an object, for sync calls or for async ones."""


class Snapshot:
    """What the attributes of objects were when they were planned, by identity; of lists and dicts also their parts."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self._dicts = [vars(obj) for obj in objects if hasattr(obj, "__dict__")]
        self._values = [tuple(_flat(known)) for known in self._dicts]

    def holds(self) -> bool:
        """Whether all of it is still the same."""
        try:
            now = [tuple(_flat(known)) for known in self._dicts]
        except RuntimeError:  # another thread is changing one of the dicts
            return False
        return all(len(old) == len(new) and all(map(is_, old, new)) for old, new in zip(self._values, now, strict=True))


def _flat(attributes: Mapping[str, Any]) -> Iterator[Any]:
    for value in attributes.values():
        yield value
        if type(value) is list:
            yield from value
        elif type(value) is dict:
            yield from value.values()


def main_part(obj: Any) -> str:
    """The part that is the whole of an object."""
    if isinstance(obj, BaseRetriever):
        return RETRIEVE
    return SYNTHESIZE if is_synthesizer(obj) else QUERY


def lowered(obj: Any, part: str, sync: bool, options: Options) -> tuple[Graph, Seen]:
    """The p-graph of a part of an object, and what was read of the object."""
    b = Builder((), options.assume_pure)
    seen = Seen(b, one_by_one=sync)
    query = Leaf(Ref("input"), TEXT)
    inputs: tuple[str, ...] = ("input",)
    if isinstance(obj, BaseRetriever):
        output = lower_retriever(obj, query, seen)
    elif is_synthesizer(obj):
        inputs = ("input", "nodes")
        output = lower_synthesizer(obj, Leaf(Ref("nodes"), DOCUMENTS), query, seen)
    elif not as_written(obj, RetrieverQueryEngine, *_ENGINE):
        if isinstance(obj, SubQuestionQueryEngine) and container_of(obj) is not None:
            seen.objects[""] = obj
            ahead = lower_sub_questions(obj, query, seen, _ENGINE)
            if ahead is not None:
                return Graph(tuple(b.primitives), ahead.ref, inputs, tuple(b.notes)), seen
        why = (
            "its parts run sooner by themselves"
            if container_of(obj)
            else "is not recognised: runs through its own methods"
        )
        output = seen.opaque(obj, {"query": query.ref}, why)
    else:
        seen.objects[""] = obj
        nodes = Leaf(Ref("nodes"), DOCUMENTS)
        if part == SYNTHESIZE:
            inputs = ("input", "nodes")
        else:
            nodes = _lower_retrieval(obj, query, seen)
        output = nodes
        if part != RETRIEVE:
            with b.inside("synthesizer"):
                output = lower_synthesizer(obj._response_synthesizer, nodes, query, seen)
    return Graph(tuple(b.primitives), output.ref, inputs, tuple(b.notes)), seen


def _lower_retrieval(engine: Any, query: Leaf, seen: Seen) -> Leaf:
    with seen.b.inside("retriever"):
        nodes = lower_retriever(engine._retriever, query, seen)
    for i, processor in enumerate(engine._node_postprocessors):
        with seen.b.inside(f"postprocessor {i}"):
            nodes = lower_postprocessor(processor, nodes, query, seen)
    return nodes


def decide(p_graph: Graph, e_graph: Graph, seen: Seen, obj: Any, part: str) -> Plan:
    """Whether running ahead is expected to pay, and whether stock would block the event loop."""
    objects = list(seen.objects.values())
    gain = any(_pays(p, seen.one_by_one) for p in _running(e_graph))
    stuck = not seen.one_by_one and any(map(_blocking, _parts(obj, part)))
    parts = container_of(obj) is not None
    snapshot = Snapshot((*objects, *_models(objects)))
    return Plan(p_graph, e_graph, _leaves(e_graph), snapshot, tuple(seen.models), gain, stuck, parts)


def _pays(p: Primitive, sync: bool) -> bool:
    if p.op is Op.DECODE and p.params.get("how") == ACCUMULATE:
        return sync and not bool(p.component._use_async)  # async methods of stock ask for all at once
    if p.op is Op.DECODE and "how" in p.params:
        return True  # in a tree, parents do not wait for a whole level; texts that refine an answer are prefilled
    return p.op in (Op.PARTIAL_PREFILL, Op.SEARCH)


def _running(graph: Graph) -> Iterator[Primitive]:
    for p in graph:
        if p.params.get("by") != "stock":
            yield p
            for _, body in bodies(p):
                yield from _running(body)


def _leaves(e_graph: Graph) -> frozenset[str]:
    running = list(_running(e_graph))
    read = {ref.name for p in running for ref in p.args.values()}
    told = frozenset(p.meta["leaf"] for p in e_graph if p.op is Op.CALL and p.name in read)
    return told.union(p.meta["leaf"] for p in running)


def _models(objects: Iterable[Any]) -> Iterator[Any]:
    for obj in objects:
        for name in ("_llm", "_embed_model"):
            if (held := getattr(obj, "__dict__", {}).get(name)) is not None:
                yield held


def _parts(obj: Any, part: str) -> Iterator[Any]:
    """What may be called in a call of this part: components, and what they hold."""
    if as_written(obj, RetrieverQueryEngine, *_ENGINE):
        if part != SYNTHESIZE:
            yield from _parts(obj._retriever, part)
            yield from obj._node_postprocessors
        if part != RETRIEVE:
            yield from _parts(obj._response_synthesizer, part)
    elif as_written(obj, VectorIndexRetriever, "_aretrieve"):
        yield from (obj._vector_store, obj._embed_model)
    elif as_written(obj, QueryFusionRetriever, "_aretrieve"):
        yield obj._llm
        for retriever in obj._retrievers:
            yield from _parts(retriever, part)
    elif kind_of(obj) is not None:
        yield obj._llm
    else:
        yield obj


_ASYNC = (
    "_aquery",
    "_aretrieve",
    "_aget_query_embedding",
    "aquery",
    "_apostprocess_nodes",
    *(n for n in ASKING if n[0] == "a"),
)


def _blocking(component: Any) -> bool:
    return any(blocks(type(component), name) for name in _ASYNC)


def shadow(obj: Any, place: Place) -> Any:
    """The copy of an object that stock runs for one call."""
    if is_synthesizer(obj):
        return shadow_synthesizer(obj, place)
    if (row := container_of(obj)) is not None:
        made = shadow_container(obj, row, place)
        if isinstance(obj, SubQuestionQueryEngine):
            _with_tools(made, obj, place)
        return made
    if isinstance(obj, BaseRetriever):
        return shadow_retriever(obj, place)
    if not as_written(obj, RetrieverQueryEngine, *_ENGINE):
        return obj if place.sync else off_loop(obj, "_aquery")
    made = copy.copy(obj)
    made._retriever = shadow_retriever(obj._retriever, place.part("retriever"))
    made._response_synthesizer = shadow_synthesizer(obj._response_synthesizer, place.part("synthesizer"))
    made._node_postprocessors = [shadow_postprocessor(each, place) for each in obj._node_postprocessors]
    return made


def _with_tools(made: Any, obj: Any, place: Place) -> None:
    """Has the tools of a shadow claim what was answered ahead, where the graph answers for them."""
    for name, engine in obj._query_engines.items():
        tool = place.part(f"{TOOL}{name}")
        if place.claims.any_at(tool.part("synthesizer").leaf):
            made._query_engines[name] = shadow(engine, tool)
    if place.claims.any_at(ASKED):
        made._question_gen = copy.copy(obj._question_gen)
        asked = place.part(ASKED).part("llm").leaf
        made._question_gen._llm = shadow_llm(obj._question_gen._llm, asked, place.claims, sync=place.sync)
