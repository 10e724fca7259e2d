"""Last pass: who runs each primitive, and how deep it lies."""

from __future__ import annotations

from fineflow.ir import Effect, Graph, Op
from fineflow.ir.edit import WEIGHTS, in_bodies
from fineflow.ir.spec import longest_paths


def bind(graph: Graph) -> Graph:
    """Sets depths, and marks as ``by: stock`` what nothing that runs ahead needs.

    The graph runs ahead what stock can claim (decodes, searches, reranking) and what leads to it. The rest, such as
    the parsers at the ends, is stock's: it runs there anyway.
    """
    needed = _needed(graph)
    marked = (p if p.name in needed else p.with_(params={**p.params, "by": "stock"}) for p in graph)
    return _deep(graph.with_primitives(marked))


def _needed(graph: Graph) -> set[str]:
    needed: set[str] = set()
    for p in reversed(graph.primitives):
        if p.effects.kind is Effect.OPAQUE:
            continue  # stock runs it, on inputs that stock has made
        if WEIGHTS.get(p.op, 0) > 0 or p.op in (Op.MAP, Op.PARTIAL_PREFILL) or p.name in needed:
            needed.add(p.name)
            needed.update(ref.name for ref in p.args.values())
            needed.update(p.after)
    return needed


def _deep(graph: Graph) -> Graph:
    depths = longest_paths(graph)
    return in_bodies(_deep, graph.with_primitives(p.with_(depth=depths[p.name]) for p in graph))
