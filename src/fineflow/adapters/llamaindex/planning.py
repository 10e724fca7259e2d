"""Planning of LlamaIndex objects: graphs, the snapshot of the attributes read, and whether running ahead pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine

from fineflow.adapters.core.builder import DOCUMENTS, TEXT, Leaf
from fineflow.adapters.core.framework import Lowered
from fineflow.adapters.core.plan import Plan, running
from fineflow.adapters.core.recognition import Row, components_of, find
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.adapters.core.trust import OwnClass
from fineflow.adapters.inner_calls.functions import note_calls
from fineflow.adapters.llamaindex.builder import CHAT, QUERY, RETRIEVE, SYNTHESIZE, IndexBuilder, Way, asked_for
from fineflow.adapters.llamaindex.ingestion import document_qa, indexing
from fineflow.adapters.llamaindex.ingestion.indexing import ingesting_part, ingests
from fineflow.adapters.llamaindex.ingestion.text_vectors import BATCHES
from fineflow.adapters.llamaindex.lowering import chat_engines, engines, postprocessors, synthesizers
from fineflow.adapters.llamaindex.lowering.containers import container_of
from fineflow.adapters.llamaindex.lowering.engines import RETRIEVER_ENGINE, engine_components
from fineflow.adapters.llamaindex.lowering.postprocessors import queued
from fineflow.adapters.llamaindex.lowering.retrieval import retrievers
from fineflow.adapters.llamaindex.lowering.retrieval.retrievers import follows_links, parts_run_ahead
from fineflow.adapters.llamaindex.lowering.synthesizers import ACCUMULATE, is_synthesizer
from fineflow.adapters.llamaindex.models.llms import ASKING
from fineflow.adapters.llamaindex.reading import refused_by
from fineflow.adapters.llamaindex.stores.searches import resource_of
from fineflow.adapters.llamaindex.thread_affinity import blocks, may_leave, undeclared_code
from fineflow.adapters.llamaindex.user_functions import calls_components, calls_in, functions_of
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.options import Options
from fineflow.runtime import servers
from fineflow.runtime.queues.component_calls import has_limit, limit_changes

ROWS: tuple[Row, ...] = (
    *indexing.ROWS,
    *document_qa.ROWS,
    *retrievers.ROWS,
    *synthesizers.ROWS,
    *engines.ROWS,
    *chat_engines.ROWS,
    *postprocessors.ROWS,
)

_ASYNC = (
    *("_aquery", "acustom_query", "_aretrieve", "_aget_query_embedding", "aquery", "_apostprocess_nodes"),
    *("aget_response", *(name for name in ASKING if name[0] == "a"), *chat_engines.REMEMBERING),
)
_INGESTING = ("acall", "_aparse_nodes", "_aget_text_embedding", "_aget_text_embeddings", "async_add")
"""Async methods of components that an async call uses."""

_REMARKS = {
    "parts": "Stock calls its parts in its own order, and each of them runs ahead by itself.",
    "links": "Retrievers and query engines that index nodes refer to run side by side.",
    "threads": "Work with which stock's {entry} would block the event loop is done in threads.",
    "queues": "Cross-encoders score nodes in engines, one call at a time over all queries.",
    "limits": "Requests to servers that have a limit, and calls of components that have one, wait for their turn.",
}


def main_part(obj: Any) -> str:
    """Returns the part that stands for the whole object."""
    if ingests(obj):
        return ingesting_part(obj)
    if isinstance(obj, BaseRetriever):
        return RETRIEVE
    if isinstance(obj, BaseChatEngine):
        return CHAT
    return SYNTHESIZE if is_synthesizer(obj) else QUERY


def lower(obj: Any, options: Options, way: Way) -> tuple[Graph, Lowered]:
    """Returns the p-graph of a part of an object, and the lowering that it came from."""
    b = IndexBuilder(
        ROWS, options.assume_pure, options.trust == "interfaces", contents=resource_of, way=way, by_sync=way.sync
    )
    given = way.part == SYNTHESIZE and (is_synthesizer(obj) or RETRIEVER_ENGINE.matches(obj))
    value = asked_for(Leaf(Ref("input"), TEXT), Leaf(Ref("nodes"), DOCUMENTS) if given else None)
    output = b.whole(b.lower(obj, value))
    for number, p in enumerate(b.primitives):
        inside = [calls_in(func) for func in functions_of(p.component).values()]
        if any(found.several for found in inside):
            for found in inside:
                found.components.pop("self", None)
            note_calls(b, inside, refused_by(options), number)
    if not way.sync:
        _note_blocking(obj, way, b, options.trusting)
    inputs = ("input", "nodes") if given else ("input",)
    return Graph(tuple(b.primitives), output.ref, inputs, tuple(b.notes)), Lowered(obj, way, options, b)


def decide(p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
    """Returns the plan: whether running ahead is expected to pay, and other reasons for calls to follow the plan."""
    obj, way, objects = lowered.obj, lowered.way, list(lowered.builder.objects.values())
    gain = any(_pays(p, way.sync) for p in running(e_graph) if not p.by_stock)
    used = list(_components(obj, way.part))
    parts = any(container_of(each) is not None for each in (obj, getattr(obj, "_query_engine", None)))
    follows = {
        "parts": parts or any(map(parts_run_ahead, objects)),
        "links": any(map(follows_links, objects)),
        "threads": not way.sync and _blocking(obj, used, lowered.options.trusting),
        "queues": any(map(queued, used)),
        "inside": any(map(calls_components, used)),
        "limits": any(map(has_limit, used)),
    }
    rows = [find(ROWS, each) for each in objects]
    return Plan(
        way,
        p_graph,
        e_graph,
        (way.entry,),
        frozenset({way.entry} if gain else ()),
        lowered.builder.objects,
        snapshot((*objects, *_models(objects))),
        leaves=_leaves(e_graph),
        follows=frozenset({way.entry} if any(follows.values()) else ()),
        remarks=_remarks(follows, gain, way.entry),
        shared=tuple(lowered.builder.shared),
        per_call=any(row is not None and row.per_call for row in rows),
    )


def following(plan: Plan) -> Plan:
    """Returns the plan of an object that stock runs, in whose calls something runs ahead."""
    return replace(plan, follows=frozenset(plan.entries))


def with_parts(plan: Plan) -> Plan:
    """Returns the plan of an object without a gain of its own, whose parts run ahead by themselves."""
    return replace(following(plan), remarks=(_REMARKS["parts"],))


def snapshot(objects: Iterable[Any]) -> Snapshot:
    """Returns a snapshot of these objects: a plan is stale once any attribute, a server or a limit changes."""
    return Snapshot([(obj, None) for obj in objects], (), (servers.changes, limit_changes))


def _remarks(follows: Mapping[str, bool], gain: bool, entry: str) -> tuple[str, ...]:
    shown = [name for name, holds in follows.items() if holds and name in _REMARKS and not (name == "parts" and gain)]
    return tuple(_REMARKS[name].format(entry=entry) for name in shown)


def _components(obj: Any, part: str) -> Iterator[Any]:
    """Yields the components that a call of this part may use, and what they hold."""
    if not RETRIEVER_ENGINE.matches(obj):
        yield from components_of(ROWS, obj)
        return
    for each in engine_components(obj, part):
        yield from components_of(ROWS, each)


def _note_blocking(obj: Any, way: Way, b: IndexBuilder, trusting: bool) -> None:
    """Notes the user's own classes because of which work stays on the event loop."""
    blocking = [] if trusting else [each for each in _components(obj, way.part) if _blocks(each, _ASYNC)]
    for kind in dict.fromkeys(code for each in blocking for code in undeclared_code(each) if isinstance(code, type)):
        b.note("", False, f"its work blocks the event loop, as in stock: {OwnClass(kind)}")


def _blocking(obj: Any, used: Iterable[Any], trusting: bool) -> bool:
    """Returns True if an async call would block the event loop with work that may leave it."""
    names = (*_ASYNC, *_INGESTING) if ingests(obj) else _ASYNC
    return any(_blocks(each, names) and may_leave(each, trusting) for each in used)


def _blocks(component: Any, names: Iterable[str]) -> bool:
    return any(blocks(type(component), name) for name in names)


def _pays(p: Primitive, sync: bool) -> bool:
    if p.op is Op.DECODE and p.params.get("how") == ACCUMULATE:
        return sync and not bool(p.component._use_async)  # stock's async methods run all requests concurrently
    if p.op is Op.DECODE and "how" in p.params:
        return True  # in a tree, parents do not wait for a whole level; texts that refine an answer are prefilled
    return p.op in (Op.PARTIAL_PREFILL, Op.SEARCH) or p.params.get("of") == BATCHES


def _leaves(e_graph: Graph) -> frozenset[str]:
    ours = [p for p in running(e_graph) if not p.by_stock]
    read = {ref.name for p in ours for ref in p.args.values()}.union(*(p.after for p in ours))
    fed = frozenset(p.leaf for p in e_graph if p.op is Op.CALL and p.name in read)
    return fed.union(p.leaf for p in ours)


def _models(objects: Iterable[Any]) -> Iterator[Any]:
    for obj in objects:
        for name in ("_llm", "llm", "_embed_model"):
            if (held := getattr(obj, "__dict__", {}).get(name)) is not None:
                yield held
