"""From a graph to the primitives that ``explain`` shows: one for each function, which stock runs."""

from __future__ import annotations

import inspect
from typing import Any

from fineflow.adapters.core.builder import Builder, Leaf
from fineflow.adapters.inner_calls.functions import note_calls
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.declared import place
from fineflow.adapters.langchain.user_functions import entered
from fineflow.adapters.langgraph.held_graphs import graphs_held
from fineflow.adapters.langgraph.inner_graphs import graphs_beside, turns_within
from fineflow.adapters.langgraph.steps import Step, steps_of
from fineflow.ir import Note, Ref
from fineflow.ir.meta import LATE_TOOLS

_WHILE = "while earlier nodes run (in calls that do not stream, or all with optimize(..., across_nodes=True))"


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
            b.note(output.name, True, f"its calls start when the state that they need is known, {_WHILE}")
    return output


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
