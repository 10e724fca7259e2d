"""Postprocessors that prompt an LLM about nodes: all prompts are known once the nodes are, and run concurrently.

Stock claims the answers one after the other, parses them, and stops where it would. In sync calls this requires that
LlamaIndex's own code parses the answers: user code between two prompts may be a guard.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fineflow.adapters.core.builder import DOCUMENTS, Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder, nodes_in, query_in
from fineflow.adapters.llamaindex.lowering.node_requests import ASKERS, Asker, Handed, can_ask
from fineflow.adapters.llamaindex.methods import instead, preceded
from fineflow.adapters.llamaindex.models.llms import lower_requests, model_effects, requested, shadow_llm
from fineflow.adapters.llamaindex.thread_affinity import known_nodes
from fineflow.ir import Op, Primitive
from fineflow.runtime import events
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.loop.workers import in_thread


def _lower_asking(row: Asker, processor: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    """Appends the nodes that stock feeds, one step for all answers about them, and stock's use of the answers.

    Raises NotLowered.
    """
    query, nodes = query_in(value), nodes_in(value)
    llm = processor.llm
    if row.requests is None:
        raise NotLowered("calls its model once, about all nodes")
    row.check(processor, b)
    effects = model_effects(llm, b, "predict")
    args = {"query": query.ref, "documents": nodes.ref}
    handed = b.fed(processor, args, "handed")
    more = {"how": "nodes", "kernel": partial(_node_answers, row), "several": True}
    made = lower_requests(processor, llm, {"prompt": handed.ref}, b, "answers", effects, **more)
    b.note(made.ref.name, True, "all requests about nodes run at once, where stock sends one or four at a time")
    args["answers"] = made.ref
    return b.add(Op.AGGREGATE, args, component=processor, kind=DOCUMENTS, how="answers")


def _node_answers(row: Asker, p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """Requests all answers about the nodes. Has no value of its own: stock claims and parses the answers."""
    return run.spawn(_ask_all(row, p, args["prompt"], run), p)


async def _ask_all(row: Asker, p: Primitive, handed: Handed, run: Execution) -> None:
    processor = p.component
    if row.requests is None or not known_nodes(handed.nodes):
        raise LeftToStock("the nodes are of a class of your own")
    requests = row.requests
    try:
        found = await in_thread(lambda: list(requests(processor, handed)))
    except Exception as error:
        raise LeftToStock("formatting a prompt failed; stock will raise the error") from error
    sync = run.call.sync or not row.by_async
    events.sized("", Op.MAP, len(found), p.name)
    for wanted in found:
        requested(p, processor.llm, wanted, run, sync=sync)


def _shadow_asking(row: Asker, processor: Any, site: Site) -> Any:
    """Returns a copy of a postprocessor whose model claims, and which feeds the graph the nodes that it gets."""
    made = copy.copy(processor)
    made.__dict__["llm"] = shadow_llm(processor.llm, site.part("llm"))
    if row.requests is not None:
        name = "_postprocess_nodes" if site.sync or not row.by_async else "_apostprocess_nodes"
        instead(made, name, partial(preceded, then=partial(_feed, site)))
    return made


def _feed(site: Site, nodes: Any, query_bundle: Any = None) -> None:
    if query_bundle is not None and nodes:
        site.feed(Handed(query_bundle.query_str, tuple(nodes)))


@dataclass(frozen=True, slots=True)
class _AskerRow(Row):
    """Row of a postprocessor whose LLM can be called ahead."""

    def matches(self, obj: Any) -> bool:
        return Row(self.base, self.methods, self.lower).matches(obj) and can_ask(obj)


def _row(row: Asker) -> Row:
    return _AskerRow(
        row.base,
        row.methods,
        partial(_lower_asking, row),
        partial(_shadow_asking, row),
        components=lambda each: (each, each.llm) if row.by_async else (each,),
    )


ROWS = tuple(map(_row, ASKERS))
