"""Fixed relative costs of operations and critical paths by them, for decisions independent of measurements."""

from __future__ import annotations

from collections.abc import Mapping

from fineflow.ir.graph import Graph
from fineflow.ir.meta import CORES
from fineflow.ir.primitive import Effect, Op, Primitive
from fineflow.ir.spec import bodies
from fineflow.ir.traverse import first_args

# Relative costs of operations where no cost model knows better: a decode takes many steps of a large model, the
# others one pass through a small model or a look-up; data plumbing is free.
WEIGHTS: Mapping[Op, float] = {
    Op.DECODE: 10.0,
    Op.PARTIAL_DECODE: 10.0,
    Op.RERANK: 3.0,
    Op.TOOL: 3.0,
    Op.SEARCH: 2.0,
    Op.EMBED: 1.0,
    Op.INGEST: 1.0,
    Op.CALL: 0.0,  # unless it is declared to touch a resource, see ``cost``
}


def cost(p: Primitive) -> float:
    """Returns the relative cost of an operation by itself.

    A function that reads or writes, or whose result stock claims as it takes time, counts as a search.
    """
    touches = p.op is Op.CALL and (p.effects.kind in (Effect.READ, Effect.WRITE) or p.meta.get("claimed"))
    return WEIGHTS[Op.SEARCH] if touches else WEIGHTS.get(p.op, 0.0)


def weight(p: Primitive) -> float:
    """Returns the relative cost of a primitive; of a MAP, that of its body (items run concurrently).

    Of a CONDITION it is the cost of the tests up to an arm plus the arm, averaged over the arms. A stage handles only
    part of the documents, and little work remains for the primitive that it was split from.
    """
    if p.op is Op.MAP and p.body is not None:
        overlap: float = p.meta.get("overlap", 0.0)  # of fused maps, which each item passes independently
        return critical_path(p.body)[0] - overlap
    if p.op is Op.CONDITION:
        return _arms_end(p, 0.0, {})
    if p.params.get("stage"):
        return cost(p) / 2
    return 0.0 if p.meta.get("staged") else cost(p)


def takes_time(p: Primitive) -> bool:
    """Returns True if this primitive may delay its value: an engine works, or user code of unknown duration."""
    inner = [q for _, body in bodies(p) for q in body]
    return cost(p) > 0 or p.effects.kind is Effect.OPAQUE or any(map(takes_time, inner))


def elsewhere(p: Primitive) -> bool:
    """Returns True if any of this primitive's time may be spent on something other than this machine's processor."""
    if parts := bodies(p):
        return any(elsewhere(q) for _, body in parts for q in body)
    return takes_time(p) and p.meta.get("device") != CORES


def waits_elsewhere(p: Primitive) -> bool:
    """Returns True if this primitive, or one in its body, waits for a model or tool that has its own processor.

    Searches elsewhere do not count: they take less time than a further batch of an engine costs.
    """
    if parts := bodies(p):
        return any(waits_elsewhere(q) for _, body in parts for q in body)
    return elsewhere(p) and p.op not in (Op.SEARCH, Op.EMBED, Op.RERANK, Op.INGEST)


def _arms_end(p: Primitive, start: float, there: Mapping[str, float]) -> float:
    """Returns the mean end time of a CONDITION over its arms. there: times at which its arguments are known."""
    ends = []
    for label, body in bodies(p):
        end = critical_path(body, start, there)[0]
        if label.startswith("if "):
            start = end
        else:
            ends.append(end)
    return sum(ends) / len(ends)


def critical_path(
    graph: Graph, start: float = 0.0, there: Mapping[str, float] | None = None
) -> tuple[float, tuple[str, ...]]:
    """Returns weight and names of the longest chain of primitives, over data and order edges.

    start: when the graph starts. there: times of inputs that are known only later.
    """
    late = there or {}
    best: dict[str, tuple[float, str | None]] = {}
    for p in graph:
        before = [n for n in (*(r.name for r in first_args(p).values()), *p.after) if n in best]
        last = max(before, key=lambda n: best[n][0], default=None)
        begin = max(best[last][0] if last else start, *(late.get(r.name, start) for r in first_args(p).values()), start)
        if p.op is Op.CONDITION:
            times = {name: best[r.name][0] if r.name in best else late.get(r.name, start) for name, r in p.args.items()}
            end = _arms_end(p, begin, times)
        else:
            end = begin + weight(p)
        best[p.name] = (end, last)
    last = max(best, key=lambda n: best[n][0], default=None)
    total, chain = (best[last][0] if last else max(start, late.get(graph.output.name, start))), []
    while last is not None:
        chain.append(last)
        last = best[last][1]
    return total, tuple(reversed(chain))
