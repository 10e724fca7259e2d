"""Pass 1, dependency pruning (Ayo, section 4.3): drops the order edges that effects do not require."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import product

from fineflow.ir import Effect, Graph, Note, Op, Primitive
from fineflow.ir.traverse import ancestors, first_args, in_bodies, origins
from fineflow.ir.weights import weight

_COULD_CHANGE = "it was given a value that it could change"
_READY = (Effect.READ, Effect.WRITE, Effect.EXTERNAL, Effect.OPAQUE)


def prune(graph: Graph) -> Graph:
    """Keeps an order edge only where the effects of the two primitives do not commute.

    The data and order edges of the p-graph define program order. Opaque steps keep all their edges: stock runs them.
    """
    graph = in_bodies(prune, graph)
    before = ancestors(graph, order=True)
    held = origins(graph)
    # Only these can conflict with later primitives, and there are few of them.
    awaited = [q for q in graph if q.effects.kind is Effect.OPAQUE or q.effects.touched]
    # A user function that reads a resource may return the live object, such as the list that a history is kept in.
    reading = {q.name: {name for name, _ in q.effects.touched} for q in awaited if q.op is Op.CALL}
    waits: dict[str, frozenset[str]] = {}  # in the new graph: primitives that end before this one starts
    primitives, notes = [], []
    for p in graph:
        first = [ref.name for ref in first_args(p).values()]
        implied = frozenset(first).union(*(waits.get(name, ()) for name in first))
        if not p.by_stock:
            read = frozenset[str]().union(*(held.get(ref.name, {ref.name}) for ref in p.args.values()))
            earlier = [q for q in awaited if q.name in before[p.name] - implied]
            borrowed = {name for q in read & reading.keys() for name in reading[q]}
            reasons = {q.name: why for q in earlier if (why := _conflict(q, p, read, held) or _borrowed(q, borrowed))}
            p = p.with_(after=_nearest(tuple(reasons), waits))
            free = tuple(
                q.name for q in earlier if q.name in p.after and _other_keys(q, p, reasons[q.name], held, graph)
            )
            if free:
                p = p.with_(meta={**p.meta, "unless_constant": free})
            notes += [_kept(p, graph[name], reasons[name]) for name in p.after]
        waits[p.name] = implied.union(p.after, *(waits[name] for name in p.after))
        primitives.append(p)
    pruned = graph.with_primitives(primitives)
    return pruned.noted(*notes, *_freed(graph, before, waits))


def _conflict(earlier: Primitive, later: Primitive, read: Set[str], held: dict[str, frozenset[str]]) -> str:
    """Returns why two primitives must keep their order, or "". ``read``: origins of the objects the later one reads."""
    first, second = earlier.effects, later.effects
    if first.kind is Effect.OPAQUE:
        if second.kind in _READY:
            return "it may be a guard, or change what is read"
        if any(not read.isdisjoint(held.get(name, {name})) for name in earlier.meta.get("received", ())):
            return _COULD_CHANGE
    for (name, written), (other, writes) in product(first.touched, second.touched):
        if name == other and (written or writes):
            return f"both touch {name} and one of them writes"
    return ""


def _other_keys(earlier: Primitive, later: Primitive, why: str, held: dict[str, frozenset[str]], graph: Graph) -> bool:
    """Returns True if two steps only share a dict that is an input, of which both get values under keys.

    Then the earlier one has no reference to the dict: it may change a value in it, if that is mutable, and no other.
    """
    if why != _COULD_CHANGE:
        return False
    given = frozenset(earlier.meta.get("received", ())).union(
        *(held.get(name, {name}) for name in earlier.meta.get("received", ()))
    )
    if not given <= set(graph.inputs) or any(ref.key is None for ref in earlier.args.values() if ref.name in given):
        return False
    shared = [ref for ref in later.args.values() if not given.isdisjoint(held.get(ref.name, {ref.name}))]
    return all(ref.name in given and ref.key is not None for ref in shared)


def _borrowed(earlier: Primitive, resources: Set[str]) -> str:
    """Returns why an earlier write conflicts with values read from one of these resources, or ""."""
    written = next((name for name, writes in earlier.effects.touched if writes and name in resources), None)
    return "" if written is None else f"it writes {written}, from which this was read"


def _nearest(names: Sequence[str], before: dict[str, frozenset[str]]) -> tuple[str, ...]:
    """Drops names that another one of them already waits for."""
    return tuple(n for n in names if not any(n in before[m] for m in names if m != n))


def _kept(p: Primitive, earlier: Primitive, why: str) -> Note:
    """Notes why an order edge stays; for user code with its location and what the analysis found."""
    reason = f"kept in order after {earlier.name}: {why}"
    if earlier.meta.get("where"):
        reason = f"kept in order: `{earlier.meta['called']}` at {earlier.meta['where']} {earlier.effects.reason}; {why}"
    return Note("prune", p.name, False, reason)


def _freed(graph: Graph, old: dict[str, frozenset[str]], new: dict[str, frozenset[str]]) -> list[Note]:
    """Notes what slow primitives no longer wait for; not repeated for their dependents."""
    freed = {p.name: old[p.name] - new[p.name] for p in graph}
    slow = [p for p in graph if weight(p)]
    known = frozenset(p.name for p in slow)
    notes = []
    for p in slow:
        if not p.by_stock:
            freed_by_others = frozenset[str]().union(*(freed[name] for name in new[p.name] & known))
            own = freed[p.name] - freed_by_others
            names = _nearest([q.name for q in slow if q.name in own], old)
            if names:
                text = f"does not wait for {_list(names)}, whose result it does not use"
                notes.append(Note("prune", p.name, True, text))
    return notes


def _list(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
