"""Order in which stock runs what the graph could run side by side: in its sync methods, and what it runs itself."""

from __future__ import annotations

from collections.abc import Mapping

from fineflow.ir import Graph, Op, Primitive


def order(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Returns the order edges that only stock's sync methods have: primitive -> those that end before it starts.

    What an AGGREGATE combines (the searches of an ensemble) comes from a loop, in the order of its arguments. Async
    methods start all of it together. ``batched`` in its metadata: the sync methods do so, too.
    """
    found: dict[str, tuple[str, ...]] = {}
    for p in graph:
        if p.op is Op.AGGREGATE and len(p.args) > 1 and not p.meta.get("batched"):
            _one_by_one(graph, p, found)
    return found


def stock_order(written: Graph) -> dict[str, tuple[str, ...]]:
    """Returns what has ended before stock reaches a step: primitive of the p-graph -> all that comes before it.

    Holds for the steps that stock runs itself, also while the graph runs ahead.
    """
    found: dict[str, tuple[str, ...]] = {}
    for p in written:
        direct = dict.fromkeys(name for name in (*(ref.name for ref in p.args.values()), *p.after) if name in found)
        found[p.name] = tuple(dict.fromkeys(name for each in direct for name in (*found[each], each)))
    return found


def _one_by_one(graph: Graph, joining: Primitive, found: dict[str, tuple[str, ...]]) -> None:
    earlier: dict[str, None] = {}
    last = ""
    for ref in joining.args.values():
        branch = {name: None for name in _before(graph, ref.name) if name not in earlier}
        if last:
            found.update({name: (*found.get(name, ()), last) for name in branch})
        if branch:
            earlier |= branch
            last = ref.name


def _before(graph: Graph, name: str) -> Mapping[str, None]:
    """Returns a primitive and all that it needs, by data or order."""
    found: dict[str, None] = {}
    todo = [name]
    while todo:
        name = todo.pop()
        if name in graph and name not in found:
            found[name] = None
            p = graph[name]
            todo += [*(ref.name for ref in p.args.values()), *p.after]
    return found
