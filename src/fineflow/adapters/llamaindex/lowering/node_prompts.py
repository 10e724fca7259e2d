"""Postprocessors that ask an LLM about the nodes: all their prompts are known when the nodes are, and asked at once.

Stock claims the answers one after the other, reads them and stops where it would. Only where reading an answer is
LlamaIndex's own code, in sync calls: code of the user's stands between two prompts, and may be a guard.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from fineflow.adapters.core.builder import DOCUMENTS, TEXT, Leaf
from fineflow.adapters.core.recognition import NotLowered
from fineflow.adapters.llamaindex.components.llm import EngineLLM
from fineflow.adapters.llamaindex.lowering.context import Place, Seen, part_of
from fineflow.adapters.llamaindex.lowering.node_requests import Asker, Handed, asker_of
from fineflow.adapters.llamaindex.lowering.nodes import known_nodes
from fineflow.adapters.llamaindex.methods import method
from fineflow.adapters.llamaindex.models.llms import Request, ask, lane, model_effects, shadow_llm
from fineflow.ir import Op, Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.loop.workers import in_thread

NODES = "nodes"
"""``how`` of a DECODE that is all answers about nodes."""


def lower_asking(processor: Any, row: Asker, nodes: Leaf, query: Leaf, seen: Seen) -> Leaf:
    """The nodes that stock hands over, one step for all answers about them, and what stock makes of these.

    Raises NotLowered.
    """
    b, llm = seen.b, processor.llm
    if row.requests is None:
        raise NotLowered("asks its model once, about all nodes")
    row.check(processor, seen)
    effects = model_effects(llm, b, "predict")
    args = {"query": query.ref, "documents": nodes.ref}
    handed = seen.fed(processor, args, "handed")
    ours = type(llm) is EngineLLM
    engine = lane(llm)
    made = b.add(
        Op.DECODE,
        {"prompt": handed.ref},
        name="answers",
        component=processor,
        engine=engine,
        effects=effects,
        kind=TEXT,
        how=NODES,
        foreign=not ours,
        pieces=False,
    )
    seen.at(part_of(b.leaf, "llm"))
    b.note(made.ref.name, True, "all answers about nodes are asked for at once, where stock asks one by one or by four")
    args["answers"] = made.ref
    return b.add(Op.AGGREGATE, args, component=processor, kind=DOCUMENTS, how="answers")


def node_answers(p: Primitive, handed: Handed, run: Execution) -> Any:
    """Asks for all answers about the nodes. Its value is nobody's: stock reads the answers."""
    return run.spawn(_ask_all(p, handed, run), p)


async def _ask_all(p: Primitive, handed: Handed, run: Execution) -> None:
    processor, row = p.component, asker_of(p.component)
    if row is None or row.requests is None or not known_nodes(handed.nodes):
        raise LeftToStock("the nodes are of a class of your own")
    requests = row.requests
    try:
        found = await in_thread(lambda: list(requests(processor, handed)))
    except Exception as error:
        raise LeftToStock("a prompt could not be made, which stock will tell") from error
    sync = run.call.sync or not row.by_async
    for wanted in found:
        _begin(p, wanted, run, sync)


def _begin(p: Primitive, wanted: Request, run: Execution, sync: bool) -> None:
    async def start(entry: Any) -> Any:
        entry.begun = True
        return await ask(p.component.llm, wanted, sync=sync)

    run.work(p, wanted.key, start)


def shadow_asking(processor: Any, row: Asker, place: Place) -> Any:
    """A copy of the postprocessor whose model claims, and which tells the graph what nodes it is given."""
    made = copy.copy(processor)
    made.__dict__["llm"] = shadow_llm(processor.llm, place.part("llm").leaf, place.claims, sync=place.sync)
    if row.requests is not None:
        name = "_postprocess_nodes" if place.sync or not row.by_async else "_apostprocess_nodes"
        found = method(type(processor), name)
        assert found is not None
        made.__dict__[name] = found.around(made, _telling(found.function, name.startswith("_a"), place))
    return made


def _telling(function: Callable[..., Any], is_async: bool, place: Place) -> Callable[..., Any]:
    """A postprocessor's method that tells the graph what it was given."""

    def tell(nodes: Any, query_bundle: Any) -> None:
        if query_bundle is not None and nodes:
            place.claims.feed(place.leaf, Handed(query_bundle.query_str, tuple(nodes)))

    def run(made: Any, nodes: Any, query_bundle: Any = None) -> Any:
        tell(nodes, query_bundle)
        return function(made, nodes, query_bundle)

    async def arun(made: Any, nodes: Any, query_bundle: Any = None) -> Any:
        tell(nodes, query_bundle)
        return await function(made, nodes, query_bundle)

    return arun if is_async else run
