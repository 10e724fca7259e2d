"""From an object of LlamaIndex to a plan: its graphs, what of it was read, and whether running it ahead pays.

An object has up to three parts that are called by themselves: what retrieves, what writes a response from nodes
(``synthesize``), and both (``query``); a chat engine has ``chat`` and ``stream_chat``. Each has a plan of its own, for
sync and for async calls.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.query_engine import (
    CustomQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
)

from fineflow.adapters.core.builder import DOCUMENTS, TEXT, Builder, Leaf
from fineflow.adapters.llamaindex.ingestion.document_qa import (
    is_document_qa,
    lower_document_qa,
    shadow_document_qa,
)
from fineflow.adapters.llamaindex.ingestion.indexing import (
    ingesting_part,
    ingests,
    lower_ingestion,
    shadow_ingestion,
)
from fineflow.adapters.llamaindex.ingestion.text_vectors import BATCHES
from fineflow.adapters.llamaindex.lowering.chat_engines import chat_of, lower_chat, shadow_chat
from fineflow.adapters.llamaindex.lowering.containers import container_of, shadow_container
from fineflow.adapters.llamaindex.lowering.context import Place, Seen
from fineflow.adapters.llamaindex.lowering.parts import (
    CHAT,
    METHODS,
    QUERY,
    RETRIEVE,
    SYNTHESIZE,
    blocking,
    is_retriever_engine,
    parts_of,
)
from fineflow.adapters.llamaindex.lowering.postprocessors import queued
from fineflow.adapters.llamaindex.lowering.retrievers import (
    lower_retrieval,
    lower_retriever,
    shadow_retrieval,
    shadow_retriever,
    sooner_inside,
)
from fineflow.adapters.llamaindex.lowering.routers import SELECTS, lower_router
from fineflow.adapters.llamaindex.lowering.subquestions import ASKS, lower_sub_questions, shadow_tools
from fineflow.adapters.llamaindex.lowering.synthesizers import (
    ACCUMULATE,
    is_synthesizer,
    lower_synthesizer,
    shadow_synthesizer,
)
from fineflow.adapters.llamaindex.methods import off_loop
from fineflow.adapters.llamaindex.snapshot import Snapshot
from fineflow.adapters.llamaindex.stores.searches import resource_of
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.spec import bodies
from fineflow.options import Options
from fineflow.runtime.queues.component_calls import has_limit


class Way(NamedTuple):
    """How an object is called: a part of it (QUERY, ..., STREAM_CHAT), by its sync or its async method."""

    part: str
    sync: bool

    @property
    def entry(self) -> str:
        """The name of the method."""
        return self.part if self.sync else f"a{self.part}"


@dataclass(frozen=True)
class Plan:
    """How one part of an object runs, called by one of its methods (``way``).

    leaves: where stock may claim, or tells the graph what it has got to. models: those that parts share, in the order
    in which leaves count them.

    gain: whether the graph is expected to be sooner than stock. blocks: whether stock would block the event loop.
    parts: whether it is made of others, which run sooner by themselves. queued: whether models in it are asked through
    the queues of engines. bounded: whether a model in it asks a server that has a limit, or a component has one.
    """

    way: Way
    p_graph: Graph
    e_graph: Graph
    leaves: frozenset[str]
    snapshot: Snapshot
    models: Sequence[Any]
    gain: bool
    blocks: bool
    parts: bool
    queued: bool
    bounded: bool

    @property
    def used(self) -> bool:
        """Whether calls go by it, and not to the user's object."""
        return self.gain or self.blocks or self.parts or self.queued or self.bounded

    @property
    def entries(self) -> tuple[str, ...]:
        """The method that it is about."""
        return (self.way.entry,)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is done for these calls that the graphs do not show."""
        parts = "Stock calls its parts in its own order, and each of them runs sooner by itself."
        threads = (
            f"What {self.way.entry} of stock does on the event loop, and so holds up everybody, is done in threads."
        )
        queues = (
            "Nodes are scored by cross-encoders in engines, which take the calls of all queries one after the other."
        )
        turns = "Requests to servers that have a limit, and calls of components that have one, wait for their turn."
        shown = (
            *((parts, self.parts and not self.gain), (threads, self.blocks)),
            *((queues, self.queued), (turns, self.bounded)),
        )
        return tuple(text for text, holds in shown if holds)

    def ahead(self, *, eager: bool = False) -> tuple[str, ...]:
        """That method, unless its calls go to the user's object."""
        return self.entries if self.used or eager else ()


class Lowered(NamedTuple):
    """An object that was lowered for a way of calling it, and what was read of it."""

    obj: Any
    way: Way
    seen: Seen


def main_part(obj: Any) -> str:
    """The part that is the whole of an object."""
    if ingests(obj):
        return ingesting_part(obj)
    if isinstance(obj, BaseRetriever):
        return RETRIEVE
    if isinstance(obj, BaseChatEngine):
        return CHAT
    return SYNTHESIZE if is_synthesizer(obj) else QUERY


def lower(obj: Any, options: Options, way: Way) -> tuple[Graph, Lowered]:
    """The p-graph of a part of an object, and what was read of the object."""
    seen = Seen(Builder((), options.assume_pure, contents=resource_of), one_by_one=way.sync)
    return _lowered(obj, way.part, seen), Lowered(obj, way, seen)


def _lowered(obj: Any, part: str, seen: Seen) -> Graph:
    b = seen.b
    given = part == SYNTHESIZE and (is_synthesizer(obj) or is_retriever_engine(obj))
    output = _lower_part(obj, part, Leaf(Ref("input"), TEXT), seen)
    return Graph(tuple(b.primitives), output.ref, ("input", "nodes") if given else ("input",), tuple(b.notes))


def _lower_engine(engine: Any, query: Leaf, seen: Seen) -> Leaf:
    return _lower_part(engine, QUERY, query, seen)


def _lower_part(obj: Any, part: str, query: Leaf, seen: Seen) -> Leaf:
    b = seen.b
    if ingests(obj):
        return lower_ingestion(obj, seen)
    if is_document_qa(obj):
        return lower_document_qa(obj, query, seen, _lower_engine)
    if isinstance(obj, BaseRetriever):
        return lower_retriever(obj, query, seen)
    if is_synthesizer(obj):
        return lower_synthesizer(obj, Leaf(Ref("nodes"), DOCUMENTS), query, seen)
    seen.objects[b.leaf] = obj
    if (chat := chat_of(obj)) is not None:
        return lower_chat(obj, chat, query, seen, partial(_lower_part, part=QUERY, seen=seen))
    if is_retriever_engine(obj):
        nodes = Leaf(Ref("nodes"), DOCUMENTS) if part == SYNTHESIZE else lower_retrieval(obj, query, seen)
        if part == RETRIEVE:
            return nodes
        with b.inside("synthesizer"):
            return lower_synthesizer(obj._response_synthesizer, nodes, query, seen)
    if isinstance(obj, RouterQueryEngine) and container_of(obj) is not None:
        return lower_router(obj, query, seen, METHODS)
    if isinstance(obj, SubQuestionQueryEngine) and container_of(obj) is not None:
        ahead = lower_sub_questions(obj, query, seen, METHODS)
        if ahead is not None:
            return ahead
    own = (
        "its parts run sooner by themselves" if container_of(obj) else "is not recognised: runs through its own methods"
    )
    return seen.opaque(obj, {"query": query.ref}, own)


def decide(p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
    """Whether running ahead is expected to pay, and whether stock would block the event loop."""
    obj, way, seen = lowered
    objects = list(seen.objects.values())
    gain = any(_pays(p, seen.one_by_one) for p in _running(e_graph))
    stuck = not seen.one_by_one and blocking(obj, way.part)
    parts = any(container_of(each) is not None for each in (obj, getattr(obj, "_query_engine", None)))
    parts = parts or any(map(sooner_inside, objects))
    snapshot = Snapshot((*objects, *_models(objects)))
    asks = any(map(queued, parts_of(obj, way.part)))
    turns = any(map(has_limit, parts_of(obj, way.part)))
    return Plan(way, p_graph, e_graph, _leaves(e_graph), snapshot, tuple(seen.models), gain, stuck, parts, asks, turns)


def _pays(p: Primitive, sync: bool) -> bool:
    if p.op is Op.DECODE and p.params.get("how") == ACCUMULATE:
        return sync and not bool(p.component._use_async)  # async methods of stock ask for all at once
    if p.op is Op.DECODE and "how" in p.params:
        return True  # in a tree, parents do not wait for a whole level; texts that refine an answer are prefilled
    return p.op in (Op.PARTIAL_PREFILL, Op.SEARCH) or p.params.get("of") == BATCHES


def _running(graph: Graph) -> Iterator[Primitive]:
    for p in graph:
        if p.params.get("by") != "stock":
            yield p
            for _, body in bodies(p):
                yield from _running(body)


def _leaves(e_graph: Graph) -> frozenset[str]:
    running = list(_running(e_graph))
    read = {ref.name for p in running for ref in p.args.values()}.union(*(p.after for p in running))
    told = frozenset(p.meta["leaf"] for p in e_graph if p.op is Op.CALL and p.name in read)
    return told.union(p.meta["leaf"] for p in running)


def _models(objects: Iterable[Any]) -> Iterator[Any]:
    for obj in objects:
        for name in ("_llm", "llm", "_embed_model"):
            if (held := getattr(obj, "__dict__", {}).get(name)) is not None:
                yield held


def _own_async(obj: Any) -> str:
    """The async method in which an engine that is not recognised does its work."""
    if isinstance(obj, BaseChatEngine):
        return "achat"
    return "acustom_query" if isinstance(obj, CustomQueryEngine) else "_aquery"


def shadow(obj: Any, place: Place) -> Any:
    """The copy of an object that stock runs for one call."""
    if ingests(obj):
        return shadow_ingestion(obj, place)
    if is_document_qa(obj):
        return shadow_document_qa(obj, place, _lower_engine, shadow)
    if is_synthesizer(obj):
        return shadow_synthesizer(obj, place)
    if isinstance(obj, BaseRetriever):
        return shadow_retriever(obj, place)
    if (row := container_of(obj)) is not None:
        made = shadow_container(obj, row, place)
        if isinstance(obj, SubQuestionQueryEngine | RouterQueryEngine):
            shadow_tools(made, obj, SELECTS if isinstance(obj, RouterQueryEngine) else ASKS, place, shadow)
        return made
    if (chat := chat_of(obj)) is not None:
        return shadow_chat(obj, chat, place, shadow)
    if not is_retriever_engine(obj):
        return obj if place.sync else off_loop(obj, _own_async(obj))
    made = copy.copy(obj)
    shadow_retrieval(made, obj, place)
    made._response_synthesizer = shadow_synthesizer(obj._response_synthesizer, place.part("synthesizer"))
    return made
