"""Helpers for passes: reachability, replacing, inserting. All return new values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fineflow.ir.graph import Graph
from fineflow.ir.primitive import Op, Primitive

# What the operations cost relative to each other, as long as no cost model knows better: a decode takes many steps
# of a large model, the others one pass through a small one or a look-up; data plumbing is free.
WEIGHTS: Mapping[Op, float] = {
    Op.DECODE: 10.0,
    Op.PARTIAL_DECODE: 10.0,
    Op.RERANK: 3.0,
    Op.TOOL: 3.0,
    Op.SEARCH: 2.0,
    Op.EMBED: 1.0,
    Op.INGEST: 1.0,
    Op.CALL: 0.0,
}


def weight(p: Primitive) -> float:
    """The relative cost of one primitive; of a MAP, that of its body (elements run side by side)."""
    if p.op is Op.MAP and p.body is not None:
        return critical_path(p.body)[0]
    return WEIGHTS.get(p.op, 0.0)


def critical_path(graph: Graph) -> tuple[float, tuple[str, ...]]:
    """Weight and names of the longest chain of primitives, over data and order edges."""
    best: dict[str, tuple[float, str | None]] = {}
    for p in graph:
        before = [n for n in (*(r.name for r in p.args.values()), *p.after) if n in best]
        last = max(before, key=lambda n: best[n][0], default=None)
        best[p.name] = ((best[last][0] if last else 0.0) + weight(p), last)
    end = max(best, key=lambda n: best[n][0], default=None)
    total, chain = (best[end][0] if end else 0.0), []
    while end is not None:
        chain.append(end)
        end = best[end][1]
    return total, tuple(reversed(chain))


def ancestors(graph: Graph, *, order: bool) -> dict[str, frozenset[str]]:
    """For each primitive all that come before it along data edges (and order edges, with ``order``)."""
    found: dict[str, frozenset[str]] = {}
    for p in graph:
        near = [r.name for r in p.args.values()] + (list(p.after) if order else [])
        found[p.name] = frozenset(near).union(*(found[n] for n in near if n in found))
    return found


def replaced(graph: Graph, changes: Mapping[str, Iterable[Primitive]]) -> tuple[Primitive, ...]:
    """The primitives with some of them replaced by others, in place."""
    return tuple(q for p in graph for q in changes.get(p.name, (p,)))
