"""Duplicate work: equal work in one graph is done once.

Two equal PURE primitives become one. Two equal searches stay two, because stock makes two calls and may change the
documents of one in place. If the store is known to return new documents from every search, one of them searches and
the other gets copies. Decodes are never shared: they may be sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.ir.editor import GraphEditor
from fineflow.ir.traverse import ancestors, in_bodies, pointed, redirected

_SHARED = frozenset({Op.EMBED, Op.PICK, Op.RECORD, Op.RENDER})


def duplicates(graph: Graph) -> Graph:
    """Keeps the first of equal PURE primitives for all readers, and marks equal searches (``same``)."""
    graph = in_bodies(duplicates, graph)
    edit, before = GraphEditor(graph, "duplicates"), _between(graph)
    instead: dict[str, Ref] = {}  # a removed primitive -> the one that stays
    first: dict[Any, Primitive] = {}
    for p in graph:
        if instead:
            p = edit.put(redirected(p, instead))
        kept = first.setdefault(key, p) if (key := _key(p, graph, before[p.name])) is not None else p
        if kept is p:
            continue
        if p.op is Op.SEARCH:
            edit.change(kept.name, meta={**kept.meta, "same": kept.name})
            edit.change(p.name, params={**p.params, "same": kept.name}, meta={**p.meta, "same": kept.name})
            edit.done(p.name, f"takes copies of what {kept.name} finds")
        else:
            edit.remove(p.name)
            instead[p.name] = Ref(kept.name)
            if p.op is Op.EMBED:  # the others are data plumbing
                edit.done(p.name, f"reuses the result of {kept.name} for the same text")
    return replace(edit.graph(), output=pointed(graph.output, instead))


def _between(graph: Graph) -> Mapping[str, frozenset[str]]:
    """Returns for each primitive the opaque steps and writes that have ended before it starts."""
    telling = {p.name for p in graph if p.effects.kind is Effect.OPAQUE or p.effects.writes}
    return {name: found & telling for name, found in ancestors(graph, order=True).items()}


def _key(p: Primitive, graph: Graph, before: frozenset[str]) -> Any:
    """Returns a key that is equal for primitives that do the same work; None if the work must not be shared."""
    args = tuple(p.args.items())
    if p.by_stock or any(ref.stream for _, ref in args):
        return None
    if p.op is Op.SEARCH and p.effects.kind is Effect.READ and not p.effects.also:
        same_if = p.meta.get("same_if")
        return None if same_if is None else (p.op, args, p.effects.resource, same_if, before)
    if p.op not in _SHARED or p.effects.kind is not Effect.PURE:
        return None
    if p.op is Op.RENDER and not all(graph[name].effects.kind is Effect.PURE for name in graph.users.get(p.name, ())):
        return None  # a model outside our engines gets its own prompt, as in stock: it may change the messages
    return p.op, args, repr(sorted(p.params.items())), id(p.component), before
