"""Last pass: who runs each primitive, and how deep it lies."""

from __future__ import annotations

from fineflow.ir import Effect, Graph, Op, Primitive
from fineflow.ir.edit import WEIGHTS
from fineflow.ir.spec import longest_paths


def bind(graph: Graph) -> Graph:
    """Sets depths, and marks as ``by: stock`` what nothing that runs ahead needs.

    The graph runs ahead what stock can claim (decodes, searches, reranking) and what leads to it. The rest, such as
    the parsers at the ends, is stock's: it runs there anyway.
    """
    needed = _needed(graph)
    bound = []
    depths = longest_paths(graph)
    for p in graph:
        params = p.params if p.name in needed else {**p.params, "by": "stock"}
        bound.append(p.with_(params=params, depth=depths[p.name], body=_inner(p, depths[p.name])))
    return graph.with_primitives(bound)


def _needed(graph: Graph) -> set[str]:
    needed: set[str] = set()
    for p in reversed(graph.primitives):
        claimable = WEIGHTS.get(p.op, 0) > 0 or p.op in (Op.MAP, Op.PARTIAL_PREFILL)
        if (claimable and p.effects.kind is not Effect.OPAQUE) or p.name in needed:
            needed.add(p.name)
            needed.update(ref.name for ref in p.args.values())
            needed.update(p.after)
    return needed


def _inner(p: Primitive, depth: int) -> Graph | None:
    if p.body is None:
        return None
    depths = longest_paths(p.body)
    return Graph(
        tuple(q.with_(depth=depths[q.name]) for q in p.body.primitives), p.body.output, p.body.inputs, p.body.notes
    )
