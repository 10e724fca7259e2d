"""Seconds of waiting that a call saved, computed from its trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from fineflow.cost_model.costs import costs
from fineflow.cost_model.forecast import predict
from fineflow.cost_model.observed import Observed
from fineflow.ir import Graph, Op
from fineflow.ir.spec import bodies, everything
from fineflow.runtime.call.own_time import own_seconds
from fineflow.runtime.call.trace import Trace

_FAMILY = {Op.PARTIAL_PREFILL: Op.PREFILL, Op.PARTIAL_DECODE: Op.DECODE}


def saved_seconds(p_graph: Graph, trace: Trace) -> float:
    """Returns about how much longer the call would have taken as written. Nothing is measured for this.

    The critical path of the graph as written, one step after the other where stock waits, less that of the graph that
    ran, both with the seconds that steps took in this call; and the time that component calls inside user functions had
    run before stock made them. It assumes that a step takes as long alone as beside others, which a busy local model
    does not: it is quicker alone.
    """
    known = Observed(_seconds(p_graph, trace), _items(p_graph, trace))
    as_written = predict(p_graph, known, serial=not trace.entry.startswith("a")).seconds
    as_run = predict(trace.graph, known, written=p_graph).seconds
    return max(as_written - as_run, 0.0) + trace.inside


def saved_by(plans: Iterable[tuple[Graph, Graph]], trace: Trace) -> float | None:
    """Returns the same for the plan that a call followed; None if it is not among the plans, or not known.

    plans: the graph before and after the passes of each. No graph runs ahead of a LangGraph graph, but component calls
    and tools do.
    """
    if not trace.runs:
        return trace.inside
    return next((saved_seconds(written, trace) for written, run in plans if run is trace.graph), None)


def _seconds(p_graph: Graph, trace: Trace) -> dict[str, float]:
    """Returns the seconds of each primitive as written. Passes split some: their parts are at the same place."""
    took: defaultdict[str, list[float]] = defaultdict(list)
    where: dict[str, tuple[str, Op]] = {}
    for graph, stamps in trace.runs:
        for p in graph:
            if p.name in stamps and stamps[p.name].ended is not None and not bodies(p):
                took[p.name].append(own_seconds(p, stamps, trace.runs))
                where[p.name] = p.leaf, _FAMILY.get(p.op, p.op)
    written = {p.name: (p.leaf, p.op) for p in everything(p_graph)}
    found = {name: fmean(seconds) for name, seconds in took.items()}
    for name, at in where.items():
        whole = next((each for each, place in written.items() if place == at), None) if name not in written else None
        if whole is not None:
            found[whole] = found.get(whole, 0.0) + fmean(took[name])
    return found


def _items(p_graph: Graph, trace: Trace) -> Mapping[str, float]:
    """Returns the number of items of each map, as often as its body ran, and of requests of steps that make several."""
    names = {p.name for p in everything(p_graph) if p.op is Op.MAP}
    found = {p.name: costs.size(None, Op.MAP, p.name) for p in everything(p_graph) if p.meta.get("several")}
    for graph in {id(graph): graph for graph, _ in trace.runs}.values():
        for p in graph:
            if p.name in names:
                around = max(len(trace.of(graph)), 1)
                found[p.name] = max((len(trace.of(body)) for _, body in bodies(p)), default=0) / around
    return found
