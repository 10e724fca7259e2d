"""Reachability, renaming and bodies of graphs. All functions return new values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace

from fineflow.ir.graph import Graph, Note
from fineflow.ir.primitive import PURE, Effect, Effects, Op, Primitive, Ref


def first_args(p: Primitive) -> Mapping[str, Ref]:
    """Returns the data edges that a primitive waits for before it starts; for a CONDITION, those of its first test."""
    if p.op is not Op.CONDITION:
        return p.args
    test: Graph = p.body["if 1"]
    return {name: ref for name, ref in p.args.items() if name in test.users or name == test.output.name}


def ancestors(graph: Graph, *, order: bool) -> dict[str, frozenset[str]]:
    """Returns for each primitive all that precede it along data edges (and order edges, with ``order``)."""
    found: dict[str, frozenset[str]] = {}
    for p in graph:
        near = [r.name for r in p.args.values()] + (list(p.after) if order else [])
        found[p.name] = frozenset(near).union(*(found[n] for n in near if n in found))
    return found


# Operations whose value contains no object from their inputs: text, vectors, or documents fresh from a store.
_FRESH = frozenset({Op.DECODE, Op.PARTIAL_DECODE, Op.PARTIAL_PREFILL, Op.EMBED, Op.INGEST, Op.SEARCH, Op.TOOL})


def origins(graph: Graph) -> dict[str, frozenset[str]]:
    """Returns for each primitive the primitives and inputs whose objects its value may contain, itself included.

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


def ending(graph: Graph) -> frozenset[str]:
    """Returns the primitives that must finish before a body does: its output, and those later steps may wait for."""
    marked = (p.name for p in graph if p.effects.kind is Effect.OPAQUE or p.effects.touched)
    return frozenset((graph.output.name, *marked)) - set(graph.inputs)


def in_bodies(rewrite: Callable[[Graph], Graph], graph: Graph) -> Graph:
    """Rewrites every body (of a MAP, of the arms of a CONDITION); notes of the bodies become notes of the graph."""

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


def fresh(name: str, taken: Container[str]) -> str:
    """Returns the name, numbered if it is taken."""
    number, found = 2, name
    while found in taken:
        found, number = f"{name}~{number}", number + 1
    return found


def pointed(ref: Ref, instead: Mapping[str, Ref]) -> Ref:
    """Redirects a reference to its replacement, if it has one; keeps the key that it reads, if any."""
    new = instead.get(ref.name)
    return ref if new is None else replace(ref, name=new.name, key=new.key if ref.key is None else ref.key)


def redirected(p: Primitive, instead: Mapping[str, Ref]) -> Primitive:
    """Redirects what a primitive reads, waits for and has received, by the replacements."""

    def named(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(instead[name].name if name in instead else name for name in names))

    meta = {**p.meta, **{key: named(p.meta[key]) for key in ("received", "unless_constant") if p.meta.get(key)}}
    return p.with_(
        args={name: pointed(ref, instead) for name, ref in p.args.items()},
        after=named(p.after),
        meta=meta,
    )


def added_to_body(source: Primitive, p: Primitive, others: Mapping[str, Ref], *own: str) -> Primitive:
    """Returns a MAP whose body ends with ``p``, which its output does not wait for; ``p`` gets a name of its own there.

    others: further arguments of ``p``, values of the graph around the MAP. own: inputs of the body that it reads.
    """
    body: Graph = source.body
    inner, outer = dict(p.args), dict(source.args)
    for name, ref in others.items():
        # One name per value: another primitive in this body may read a different value by the same name.
        given = fresh(name, {n for n, there in outer.items() if there != ref} | {"item"})
        inner[name], outer[given] = Ref(given), ref
    added = p.with_(name=fresh(p.name, {q.name for q in body}), args=inner)
    inputs = tuple(dict.fromkeys((*body.inputs, *own, *(n for n in outer if n != "items"))))
    return source.with_(args=outer, body=Graph((*body.primitives, added), body.output, inputs, body.notes))


_STRENGTH = (Effect.OPAQUE, Effect.WRITE, Effect.EXTERNAL, Effect.READ, Effect.UNORDERED, Effect.PURE)


def combined(found: Iterable[Effects]) -> Effects:
    """Merges effects of several primitives: the strongest, and in ``also`` those on other resources."""
    parts = [replace(part, also=()) for each in found for part in (each, *each.also)]
    parts.sort(key=lambda each: _STRENGTH.index(each.kind))
    if not parts:
        return PURE
    others: dict[str, Effects] = {}
    for part in parts:
        if part.resource and part.resource != parts[0].resource:
            others.setdefault(part.resource, part)
    return replace(parts[0], also=tuple(others.values()))
