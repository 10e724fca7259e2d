"""Dependency tracker: the edges of a graph, computed once per graph and shared by all of its executions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fineflow.cost_model.forecast import remaining
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.primitive import FED
from fineflow.ir.traverse import ending, first_args

Need = str | tuple[str, str | None]
"""Input that a primitive waits for: a value, or a part released early: (name, field), or (name, None) for the items."""

_RENEWED = 64  # the forecast of a graph is renewed after this many executions, more often at first
_READ_AGAIN = (Op.CONDITION, Op.MAP)  # their bodies read the arguments later


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The edges of a graph as its executions use them.

    missing: number of needs of each primitive. followers: primitives that wait for a need. early: parts of a
    primitive's value that others read as soon as they are released. ready: primitives without needs. ending:
    primitives that must be over for the graph to be over. numbers: number of each primitive. count: number of
    primitives whose value the graph gets. fed: primitives that stock runs and whose value it feeds to the graph.
    by_stock: all primitives that stock runs. spent: values that only this primitive reads. conditional: primitives
    with the steps that each waits for only if what it reads of the graph's inputs is mutable.
    """

    missing: Mapping[str, int]
    followers: Mapping[Need, tuple[Primitive, ...]]
    early: Mapping[str, tuple[Need, ...]]
    ready: tuple[Primitive, ...]
    ending: frozenset[str]
    numbers: Mapping[str, int]
    count: int
    fed: frozenset[str]
    by_stock: frozenset[str]
    spent: Mapping[str, tuple[str, ...]]
    conditional: tuple[tuple[Primitive, tuple[str, ...]], ...]

    def freed(self, graph: Graph, constant: Callable[[Ref], bool]) -> frozenset[tuple[str, Need]]:
        """Returns the order edges that fall away, as pairs of a primitive and a step for which it does not wait.

        They lead to steps that could only change mutable values. constant: True for a value that is none.
        """
        return frozenset(
            (p.name, name)
            for p, names in self.conditional
            if all(constant(ref) for ref in p.args.values() if ref.name in graph.inputs)
            for name in names
        )

    def awaited(self, name: str) -> bool:
        """Returns True if a primitive waits for another one, or for a part of its value."""
        needs = self.followers.keys() if name not in self.followers else (name,)
        return any((each if isinstance(each, str) else each[0]) == name for each in needs)


def dependencies(graph: Graph) -> Dependencies:
    """Returns the dependencies of a graph, computed at the first call."""
    found = graph.__dict__.get("_dependencies")  # kept where the graph keeps its own cached properties
    if found is None:
        found = graph.__dict__["_dependencies"] = _computed(graph)
    return found


def _computed(graph: Graph) -> Dependencies:
    missing: dict[str, int] = {}
    followers: dict[Need, list[Primitive]] = {}
    early: dict[str, list[Need]] = {}
    by_stock = frozenset(p.name for p in graph if p.by_stock)
    for p in graph:
        needs: set[Need] = {need(ref) for ref in first_args(p).values()} | set(after(p, graph))
        if p.name in by_stock:
            needs = set()  # its value comes from stock, at any time
        missing[p.name] = len(needs.difference(graph.inputs))
        for each in needs:
            followers.setdefault(each, []).append(p)
        for ref in p.args.values():
            if ref.stream and need(ref) not in early.setdefault(ref.name, []):
                early[ref.name].append(need(ref))
    return Dependencies(
        missing,
        {each: tuple(ps) for each, ps in followers.items()},
        {name: tuple(needs) for name, needs in early.items()},
        tuple(p for p in graph if not missing[p.name]),
        ending(graph),
        {p.name: i for i, p in enumerate(graph)},
        sum(1 for p in graph if p.name not in by_stock or p.op in FED),
        frozenset(p.name for p in graph if p.name in by_stock and p.op in FED),
        by_stock,
        _spent(graph, by_stock),
        tuple((p, names) for p in graph if (names := _conditional(p)) and p.name not in by_stock),
    )


def _conditional(p: Primitive) -> tuple[str, ...]:
    names = p.meta.get("unless_constant", ())
    read = {ref.name for ref in p.args.values()}
    return tuple(name for name in names if name in p.after and name not in read)


def _spent(graph: Graph, by_stock: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
    readers: dict[str, list[Primitive]] = {}
    for p in graph:
        for name in {ref.name for ref in p.args.values()}:
            readers.setdefault(name, []).append(p)
    spent: dict[str, list[str]] = {}
    for name, reading in readers.items():
        reader = reading[0]
        plain = reader.op not in _READ_AGAIN and reader.name not in by_stock
        if len(reading) == 1 and plain and name != graph.output.name:
            spent.setdefault(reader.name, []).append(name)
    return {name: tuple(names) for name, names in spent.items()}


def remaining_seconds(graph: Graph) -> Mapping[str, tuple[float, float]]:
    """Returns ``forecast.remaining(graph)``, renewed now and then as costs are learned."""
    uses = graph.__dict__["_uses"] = graph.__dict__.get("_uses", 0) + 1
    if uses % _RENEWED == 0 or uses & (uses - 1) == 0 or "_remaining" not in graph.__dict__:
        graph.__dict__["_remaining"] = remaining(graph)
    found: Mapping[str, tuple[float, float]] = graph.__dict__["_remaining"]
    return found


def after(p: Primitive, graph: Graph) -> tuple[str, ...]:
    """Returns the order edges of ``p``, except those to its stages: it joins their work, failures included."""
    if p.meta.get("staged"):
        return tuple(name for name in p.after if not graph[name].params.get("stage"))
    return p.after


def need(ref: Ref) -> Need:
    """Returns the need of a data edge."""
    return (ref.name, ref.key) if ref.stream else ref.name
