"""Last pass: marks the primitives that stock runs, and sets depths."""

from __future__ import annotations

from collections.abc import Mapping

from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.spec import bodies, longest_paths
from fineflow.ir.traverse import ending, in_bodies
from fineflow.ir.weights import cost


def bind(graph: Graph, *, answer: bool = False) -> Graph:
    """Sets depths, and ``by_stock`` on primitives that nothing running ahead needs.

    answer: True if something outside the graph needs its output.

    The graph runs ahead what stock can claim (decodes, searches, reranking) and the steps that lead to it. The rest,
    such as the final parsers, is left to stock, which runs it anyway.
    """
    return _deep(_marked(graph, answer=answer))


def _marked(graph: Graph, *, answer: bool) -> Graph:
    """Marks the primitives that stock runs, bodies included. answer: True if the graph's output is needed."""
    needed, values = _needed(graph, answer)
    return graph.with_primitives(
        _with_bodies(p, answer=p.name in values) if p.name in needed else p.with_(by_stock=True) for p in graph
    )


def _with_bodies(p: Primitive, *, answer: bool) -> Primitive:
    if isinstance(p.body, Mapping):  # the results of its tests are always needed
        arms = {at: _marked(body, answer=answer or at.startswith("if ")) for at, body in p.body.items()}
        return p.with_(body=arms)
    return p.with_(body=_marked(p.body, answer=answer)) if isinstance(p.body, Graph) else p


def _needed(graph: Graph, answer: bool) -> tuple[set[str], set[str]]:
    """Returns the primitives that must run ahead, and those whose value or end is awaited."""
    needed: set[str] = set()
    values = set(ending(graph)) if answer else set()
    for p in reversed(graph.primitives):
        if p.by_stock:
            continue  # stock runs it, on inputs of its own
        if p.name in values or _claimed(p):
            needed.add(p.name)
            values.update(ref.name for ref in p.args.values())
            values.update(p.after)
    return needed, values


def _claimed(p: Primitive) -> bool:
    """Returns True if stock can claim something in it, or it contains an early prefill."""
    inner = [q for _, body in bodies(p) for q in body]
    return cost(p) > 0 or p.op is Op.PARTIAL_PREFILL or any(map(_claimed, inner))


def _deep(graph: Graph) -> Graph:
    depths = longest_paths(graph)
    return in_bodies(_deep, graph.with_primitives(p.with_(depth=depths[p.name]) for p in graph))
