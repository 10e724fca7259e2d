"""Helpers for passes: reachability, replacing, inserting. All return new values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from fineflow.ir.graph import Graph, Note
from fineflow.ir.primitive import PURE, Effect, Effects, Op, Primitive, Ref
from fineflow.ir.spec import bodies

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
    Op.CALL: 0.0,  # unless it is declared to touch something, see ``cost``
}


# Operations whose value holds no object that was in their inputs: text, vectors, or documents fresh from a store.
_FRESH = frozenset({Op.DECODE, Op.PARTIAL_DECODE, Op.PARTIAL_PREFILL, Op.EMBED, Op.INGEST, Op.SEARCH, Op.TOOL})


def cost(p: Primitive) -> float:
    """The relative cost of an operation by itself: a function that reads or writes something is taken for a search."""
    touches = p.op is Op.CALL and p.effects.kind in (Effect.READ, Effect.WRITE)
    return WEIGHTS[Op.SEARCH] if touches else WEIGHTS.get(p.op, 0.0)


def weight(p: Primitive) -> float:
    """The relative cost of one primitive; of a MAP, that of its body (elements run side by side).

    Of a CONDITION it is that of the tests up to an arm, on average. A stage handles only a part of the documents, and
    what remains for the primitive that it was taken from is small.
    """
    if p.op is Op.MAP and p.body is not None:
        overlap: float = p.meta.get("overlap", 0.0)  # of maps in a row, through which each item goes by itself
        return critical_path(p.body)[0] - overlap
    if p.op is Op.CONDITION:
        return _arms_end(p, 0.0, {})
    if p.params.get("stage"):
        return cost(p) / 2
    return 0.0 if p.meta.get("staged") else cost(p)


def first_args(p: Primitive) -> Mapping[str, Ref]:
    """The data edges that a primitive waits for before it starts: of a CONDITION, what its first test reads."""
    if p.op is not Op.CONDITION:
        return p.args
    test: Graph = p.body["if 1"]
    return {name: ref for name, ref in p.args.items() if name in test.users or name == test.output.name}


def _arms_end(p: Primitive, start: float, there: Mapping[str, float]) -> float:
    """When a CONDITION ends, on average over its arms. there: when its arguments are known."""
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
    """Weight and names of the longest chain of primitives, over data and order edges.

    start: when the graph starts. there: which of its inputs are known only later, and when.
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


def ancestors(graph: Graph, *, order: bool) -> dict[str, frozenset[str]]:
    """For each primitive all that come before it along data edges (and order edges, with ``order``)."""
    found: dict[str, frozenset[str]] = {}
    for p in graph:
        near = [r.name for r in p.args.values()] + (list(p.after) if order else [])
        found[p.name] = frozenset(near).union(*(found[n] for n in near if n in found))
    return found


_STRENGTH = (Effect.OPAQUE, Effect.WRITE, Effect.EXTERNAL, Effect.READ, Effect.PURE)


def together(found: Iterable[Effects]) -> Effects:
    """The effects of several primitives as those of one: the strongest, and ``also`` those on other resources."""
    parts = [replace(part, also=()) for each in found for part in (each, *each.also)]
    parts.sort(key=lambda each: _STRENGTH.index(each.kind))
    if not parts:
        return PURE
    others: dict[str, Effects] = {}
    for part in parts:
        if part.resource and part.resource != parts[0].resource:
            others.setdefault(part.resource, part)
    return replace(parts[0], also=tuple(others.values()))


def ending(graph: Graph) -> frozenset[str]:
    """What has to be over before a graph inside a primitive is: its output, and what later steps may wait for."""
    marked = (p.name for p in graph if p.effects.kind is Effect.OPAQUE or p.effects.touched)
    return frozenset((graph.output.name, *marked)) - set(graph.inputs)


def takes_time(p: Primitive) -> bool:
    """Whether a value may come late because of this primitive: an engine works, or user code of unknown length."""
    inner = [q for _, body in bodies(p) for q in body]
    return cost(p) > 0 or p.effects.kind is Effect.OPAQUE or any(map(takes_time, inner))


def fresh(name: str, taken: Container[str]) -> str:
    """The name, with a number where it is taken."""
    number, found = 2, name
    while found in taken:
        found, number = f"{name}~{number}", number + 1
    return found


def common(texts: Sequence[str]) -> str:
    """The beginning that all texts have in common: that of the first and the last in the order of the alphabet."""
    first, last = min(texts), max(texts)
    differs = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:differs]


def replaced(graph: Graph, changes: Mapping[str, Iterable[Primitive]]) -> tuple[Primitive, ...]:
    """The primitives with some of them replaced by others, in place."""
    return tuple(q for p in graph for q in changes.get(p.name, (p,)))


def pointed(ref: Ref, instead: Mapping[str, Ref]) -> Ref:
    """The reference to what stands instead of what it names; a key that is read of the one is read of the other."""
    new = instead.get(ref.name)
    return ref if new is None else replace(ref, name=new.name, key=new.key if ref.key is None else ref.key)


def redirected(p: Primitive, instead: Mapping[str, Ref]) -> Primitive:
    """The primitive reading, waiting for, and having received others instead of those named."""

    def named(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(instead[name].name if name in instead else name for name in names))

    received = p.meta.get("received")
    return p.with_(
        args={name: pointed(ref, instead) for name, ref in p.args.items()},
        after=named(p.after),
        meta={**p.meta, "received": named(received)} if received else p.meta,
    )


def origins(graph: Graph) -> dict[str, frozenset[str]]:
    """For each primitive, whose objects its value may hold: its own and, where it passes them on, those of inputs.

    Two values without a common origin share no object, so that changing one in place cannot change the other.
    """
    found: dict[str, frozenset[str]] = {}
    for p in graph:
        held = {p.name}
        if p.op not in _FRESH:
            passed = [ref for name, ref in p.args.items() if p.op is not Op.RERANK or name == "documents"]
            held.update(*(found.get(ref.name, {ref.name}) for ref in passed))
        found[p.name] = frozenset(held)
    return found


def in_bodies(rewrite: Callable[[Graph], Graph], graph: Graph) -> Graph:
    """The graph with every body (of a MAP, of the arms of a CONDITION) rewritten; their notes become the graph's."""

    def rewritten(body: Graph) -> Graph:
        changed = rewrite(body)
        notes.extend(changed.notes[len(body.notes) :])
        return changed

    notes: list[Note] = []
    primitives = []
    for p in graph:
        if isinstance(p.body, Graph):
            p = p.with_(body=rewritten(p.body))
        elif isinstance(p.body, Mapping):
            p = p.with_(body={arm: rewritten(body) for arm, body in p.body.items()})
        primitives.append(p)
    return graph.with_primitives(primitives, notes) if any(p.body is not None for p in graph) else graph
