"""LangGraph as a ``Framework``: compiled graphs. The components in their nodes are LangChain's."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph.pregel import Pregel

from fineflow.adapters.core.builder import Builder, Leaf
from fineflow.adapters.core.framework import Lowered
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.shadows import Shadows
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.adapters.inner_calls.functions import note_calls
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.framework import LangChain
from fineflow.adapters.langchain.lowering.declared import place
from fineflow.adapters.langchain.run_recorder import lessons
from fineflow.adapters.langchain.user_functions import components_of, entered
from fineflow.adapters.langgraph.beside import one_by_one
from fineflow.adapters.langgraph.early_nodes import across
from fineflow.adapters.langgraph.held_graphs import graphs_held
from fineflow.adapters.langgraph.inner_graphs import gains, graphs_beside, turns_within
from fineflow.adapters.langgraph.proxy import OptimizedGraph
from fineflow.adapters.langgraph.steps import Step, steps_of
from fineflow.adapters.langgraph.visits import GraphShadows, forecast_of, install
from fineflow.ir import Graph, Note, Ref
from fineflow.ir.meta import LATE_TOOLS
from fineflow.options import Options
from fineflow.runtime.call.visits import Visit

ENTRIES = ("invoke", "ainvoke", "stream", "astream")
_WHILE = "while earlier nodes run (in calls that do not stream, or all with optimize(..., across_nodes=True))"


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
            Snapshot(_watched(graph), counters=(lessons,)),
            touched=frozenset({""}) if inside else frozenset(),
            follows=frozenset(ENTRIES) if inside else frozenset(),
        )

    def shadows(self, plan: Plan, planned: Any, *, sync: bool, ahead: bool, made: Any = None) -> Shadows:
        return super().shadows(plan, planned, sync=sync, ahead=False, made=GraphShadows)

    def inside(self, plan: Plan) -> Iterator[Any]:
        for step in steps_of(plan.objects[""]):
            if (found := step.found()) is not None:
                yield from found.components.values()

    def visits(self, plan: Plan) -> Mapping[str, Visit]:
        return {p.name: forecast_of(p.component) for p in plan.p_graph if p.meta.get("inside")}

    def bounded(self, plan: Plan) -> Plan:
        return plan


def lowered_steps(graph: Any, b: ChainBuilder) -> Ref:
    """Appends a primitive for each step of a graph; returns the last one."""
    output, turns = Ref("input"), {id(each.step): each for each in turns_within(graph, b.trust_tools)}
    ahead = {id(b.across_nodes.nodes[name].step) for name in b.across_nodes.free} if b.across_nodes else set[int]()
    beside = graphs_beside(graph)
    for step in steps_of(graph):
        with b.step(), b.inside("", step.name):
            output = _lowered(step, b)
        said = [(turns[id(step.obj)], "")] if id(step.obj) in turns else []
        for inner in graphs_held(step.obj):
            if (why := beside.get(id(inner))) is not None:
                text = f"tools of {inner.name}, which it calls, start when stock makes their calls: {why}"
                b.notes.append(Note(LATE_TOOLS, output.name, False, text))
                continue
            found = [each for each in turns_within(inner, b.trust_tools) if id(each.step) not in turns]
            said += [(each, f"in {inner.name}, which it calls, ") for each in found]
        for each, where in said:
            for runs_ahead, text in each.said(stream_answers=b.stream_answers, called=bool(where)):
                b.notes.append(Note("lower" if runs_ahead else LATE_TOOLS, output.name, runs_ahead, f"{where}{text}"))
        if id(step.obj) in ahead:
            _note_early(step, output.name, b)
    return output


def _note_early(step: Step, name: str, b: ChainBuilder) -> None:
    """Notes that the calls of a step do not wait for earlier nodes, or why they do."""
    found = components_of(step.functions)
    why = {part: b.refused(obj) for part, obj in found.components.items()} if found is not None else {}
    if why and all(why.values()):
        for part, reason in why.items():
            b.note(name, False, f"calls of `{part}` in it start where stock makes them: {reason}")
    else:
        b.note(name, True, f"its calls start when the state that they need is known, {_WHILE}")


def _lowered(step: Step, b: ChainBuilder) -> Ref:
    functions, found = step.functions, step.found()
    where = place(inspect.unwrap(functions[0]) if entered(functions[0]) else functions[0]) if functions else ""
    reason = "runs when stock's loop enters it" if functions else f"is a {type(step.obj).__name__} of a package"
    made = Builder.opaque(b, step.obj, Leaf(Ref("input")), reason, where=where)
    if found is not None:
        note_calls(b, [found], b.refused)
    elif functions:
        b.note(made.ref.name, False, "makes no two component calls, and none that gains by itself")
    return made.ref


FRAMEWORK = LangGraph()
