"""LangGraph as a ``Framework``: compiled graphs. The components in their nodes are LangChain's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph.pregel import Pregel

from fineflow.adapters.core.framework import Lowered
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.shadows import Shadows
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.framework import LangChain
from fineflow.adapters.langgraph.beside import one_by_one
from fineflow.adapters.langgraph.early_nodes import across
from fineflow.adapters.langgraph.inner_graphs import gains, turns_within
from fineflow.adapters.langgraph.lowering import lowered_steps
from fineflow.adapters.langgraph.proxy import OptimizedGraph
from fineflow.adapters.langgraph.steps import steps_of
from fineflow.adapters.langgraph.visits import GraphShadows, forecast_of, install
from fineflow.ir import Graph
from fineflow.options import Options
from fineflow.runtime.call.visits import Visit

ENTRIES = ("invoke", "ainvoke", "stream", "astream")


def _watched(graph: Any) -> list[tuple[Any, tuple[str, ...]]]:
    """Returns what plans depend on: objects, and the attributes of them that count."""
    return [(graph, ("nodes",)), *((node, ("bound", "writers")) for node in graph.nodes.values())]


class LangGraph(LangChain):
    """Compiled graphs, which are called in one way. Everything else is as LangChain's framework has it."""

    package = "langgraph"

    def optimized_class(self, obj: Any) -> Any:
        return OptimizedGraph if isinstance(obj, Pregel) else None

    def closed(self, obj: Any) -> bool:
        return not (gains(obj) or across(obj, None).nodes)

    def inside_of(self, part: Any, around: tuple[Graph, Lowered]) -> Sequence[tuple[bool, str]]:
        graph, (_, _, options, b) = around
        if not gains(part, options.trust_tools):
            return ()
        if not one_by_one(graph, b.objects):
            return [
                (False, f"tools of {part.get_name()} start when stock makes their calls: other steps may run beside it")
            ]
        install(across=False)
        turns = turns_within(part, options.trust_tools)
        said = [each for one in turns for each in one.said(stream_answers=options.stream_answers, called=True)]
        return said or [
            (True, f"component calls in nodes of {part.get_name()} start as soon as their inputs are known")
        ]

    def ways(self, obj: Any, input: Any) -> Sequence[bool]:
        return (True,)

    def lower(self, obj: Any, options: Options, way: bool) -> tuple[Graph, Lowered]:
        b = ChainBuilder(self.rows, options.assume_pure, options.trust == "interfaces")
        b.stream_answers, b.trust_tools = options.stream_answers, options.trust_tools
        for each, names in _watched(obj):
            b.met.add(each, names)
        b.across_nodes = across(obj, options.across_nodes)
        output = lowered_steps(obj, b)
        return Graph(tuple(b.primitives), output, notes=tuple(b.notes)), Lowered(obj, way, options, b)

    def decide(self, p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
        graph = lowered.obj
        ahead = isinstance(lowered.builder, ChainBuilder) and bool(lowered.builder.across_nodes.nodes)
        inside = ahead or gains(graph, lowered.options.trust_tools)
        if inside:
            install(across=ahead)
        return Plan(
            lowered.way,
            p_graph,
            e_graph,
            ENTRIES,
            frozenset(),  # nothing runs ahead of the graph as a whole
            {"": graph},
            Snapshot(_watched(graph)),
            touched=frozenset({""}) if inside else frozenset(),
            follows=frozenset(ENTRIES) if inside else frozenset(),
        )

    def shadows(self, plan: Plan, planned: Any, *, sync: bool, ahead: bool, made: Any = None) -> Shadows:
        return GraphShadows(
            plan,
            self.rows,
            sync=sync,
            ahead=False,
            nested=planned._self_part,
            component=planned._self_ahead,
            options=planned._self_options,
            arguments=self.arguments,
        )

    def inside(self, plan: Plan) -> Iterator[Any]:
        for step in steps_of(plan.objects[""]):
            if (found := step.found()) is not None:
                yield from found.components.values()

    def visits(self, plan: Plan) -> Mapping[str, Visit]:
        return {p.name: forecast_of(p.component) for p in plan.p_graph if p.meta.get("inside")}

    def bounded(self, plan: Plan) -> Plan:
        return plan


FRAMEWORK = LangGraph()
