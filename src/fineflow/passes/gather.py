"""Batches that engines on shared cores would do in parts: single texts wait for those that join them later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fineflow.errors import GraphError
from fineflow.ir import Graph, Note, Op, Primitive
from fineflow.ir.meta import CORES
from fineflow.ir.spec import everything
from fineflow.ir.traverse import ancestors
from fineflow.ir.weights import waits_elsewhere


def gathered(graph: Graph) -> Graph:
    """Lets a query be embedded together with those that a model writes, if both results are needed together.

    Only where model and embedding engine share the cores: the query's own vector would be there earlier, but take them
    from the model, and a batch of one costs nearly as much as one of a few.
    """
    if not any(p.op is Op.MAP and _engines(p) for p in graph):
        return graph
    behind, after = ancestors(graph, order=True), dict[str, str]()
    for joining in graph:
        if joining.op is Op.AGGREGATE:
            after |= _waiting(joining, graph, behind)
    if not after:
        return graph
    ordered = _in_order([p.with_(after=(*p.after, after[p.name])) if p.name in after else p for p in graph], graph)
    reason = "is embedded with the queries that a model writes: both need the same cores, and one batch takes less"
    return graph.with_primitives(ordered).noted(*(Note("stages", name, True, reason) for name in after))


def _engines(mapped: Primitive) -> set[str | None]:
    """Returns the embedding engines on the cores that the items of a MAP use."""
    return {q.engine for q in everything(mapped.body) if q.op is Op.EMBED and q.meta.get("device") == CORES}


def _waiting(joining: Primitive, graph: Graph, behind: Mapping[str, frozenset[str]]) -> Mapping[str, str]:
    """Returns the vectors that may wait, each with the primitive whose end it waits for."""
    parts = [graph.by_name[ref.name] for ref in joining.args.values() if ref.name in graph]
    united = {part.name for part in parts}
    found: dict[str, str] = {}
    for mapped in parts:
        items = mapped.args["items"].name if mapped.op is Op.MAP else ""
        if items not in graph:
            continue
        engines = _engines(mapped)
        for p in _vectors(parts, graph):
            alone = united.issuperset(graph.users.get(p.name, ()))
            later = behind[items] - behind[p.name]
            apart = any(waits_elsewhere(graph[name]) for name in later if name in graph)
            if p.engine in engines and alone and not apart and p.name not in behind[items]:
                found[p.name] = items
    return found


def _vectors(parts: list[Primitive], graph: Graph) -> Iterator[Primitive]:
    """Yields the vectors that single searches of a union read."""
    for part in parts:
        vector = part.args.get("vector") if part.op is Op.SEARCH else None
        if vector is not None and vector.name in graph and not graph[vector.name].by_stock:
            yield graph[vector.name]


def _in_order(primitives: list[Primitive], graph: Graph) -> list[Primitive]:
    """Returns primitives in an order in which each comes after all that it needs, otherwise as they were.

    Raises GraphError if there is none.
    """
    done, found, rest = set(graph.inputs), [], primitives
    while rest:
        later = []
        for p in rest:
            if all(name in done for name in (*(ref.name for ref in p.args.values()), *p.after)):
                done.add(p.name)
                found.append(p)
            else:
                later.append(p)
        if len(later) == len(rest):
            raise GraphError(f"stages: {later[0].name} waits for itself, or for what is not in the graph")
        rest = later
    return found
