"""Pass 1, dependency pruning (Ayo, section 4.3): drop the order edges that effects do not require."""

from __future__ import annotations

from fineflow.ir import Effect, Graph, Note, Primitive
from fineflow.ir.edit import ancestors, weight

_READY = (Effect.READ, Effect.WRITE, Effect.EXTERNAL)


def prune(graph: Graph) -> Graph:
    """Keeps an order edge only where the effects of the two primitives do not commute.

    Program order is what the p-graph's data and order edges say. Opaque steps keep all their edges: stock runs them.
    """
    before = ancestors(graph, order=True)
    data = ancestors(graph, order=False)
    primitives, notes = [], []
    for p in graph:
        if p.params.get("by") == "stock" or not before[p.name]:
            primitives.append(p)
            continue
        kept = [q for name in before[p.name] if name in graph and (q := graph[name]) and _conflict(q, p)]
        names = _nearest([q.name for q in graph if q in kept and q.name not in data[p.name]], before)
        primitives.append(p.with_(after=names))
        notes += _kept(p, names, graph)
    pruned = graph.with_primitives(primitives)
    return pruned.noted(*notes, *_dropped(graph, pruned))


def _conflict(earlier: Primitive, later: Primitive) -> str:
    """Why two primitives must keep their order; "" if they need not."""
    first, second = earlier.effects, later.effects
    if first.kind is Effect.OPAQUE:
        if second.kind in _READY:
            return "it may be a guard, or change what is read" if first.reason else "opaque"
        received = earlier.meta.get("received", ())
        if any(ref.name in received for ref in later.args.values()):
            return "it was given a value that it could change"
    same = first.resource and first.resource == second.resource
    if same and Effect.WRITE in (first.kind, second.kind):
        return f"both touch {first.resource} and one of them writes"
    return ""


def _nearest(names: list[str], before: dict[str, frozenset[str]]) -> tuple[str, ...]:
    """Without those that another one of them already waits for."""
    return tuple(n for n in names if not any(n in before[m] for m in names if m != n))


def _kept(p: Primitive, names: tuple[str, ...], graph: Graph) -> list[Note]:
    notes = []
    for name in names:
        q = graph[name]
        where = f" at {q.meta['where']}" if q.meta.get("where") else ""
        why = f" ({q.effects.reason})" if q.effects.reason else ""
        notes.append(Note("prune", p.name, False, f"kept in order after {name}{where}{why}: {_conflict(q, p)}"))
    return notes


def _dropped(before: Graph, after: Graph) -> list[Note]:
    """What each primitive that takes time has stopped to wait for."""
    old, new = ancestors(before, order=True), ancestors(after, order=True)
    notes = []
    for p in after:
        if not weight(p) or p.params.get("by") == "stock":
            continue
        freed = [q.name for q in after if q.name in old[p.name] - new[p.name] and weight(q)]
        nearest = _nearest(freed, old)
        if nearest:
            text = f"no longer waits for {_list(nearest)}: reads nothing of it, and its effect ({p.effects}) allows it"
            notes.append(Note("prune", p.name, True, text))
    return notes


def _list(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
