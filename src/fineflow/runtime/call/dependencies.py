"""What of a graph is the same for every execution of it: who waits for what, and for how long it will take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fineflow.cost_model.forecast import remaining
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.primitive import FED
from fineflow.ir.traverse import ending, first_args

Slot = str | tuple[str, str | None]
"""What a primitive waits for: the value of another one, or what that releases early (a field; the items: None)."""

_FORESEEN = 64  # executions of a graph after which what it will take is predicted anew; the first few sooner
_READ_AGAIN = (Op.CONDITION, Op.MAP)  # whose bodies read the arguments later


@dataclass(frozen=True, slots=True)
class Wiring:
    """The edges of a graph as its executions use them.

    missing: how many slots a primitive waits for. followers: who waits for a slot. early: what of a primitive's value
    others read as soon as it is released. ready: those that wait for nothing. ending: what has to be over for the graph
    to be. places: number of each primitive; count: how many of them the graph gets a value of. fed: those that stock
    runs and feeds. by_stock: all that it runs. spent: values that nobody but this primitive reads.
    """

    missing: Mapping[str, int]
    followers: Mapping[Slot, tuple[Primitive, ...]]
    early: Mapping[str, tuple[Slot, ...]]
    ready: tuple[Primitive, ...]
    ending: frozenset[str]
    places: Mapping[str, int]
    count: int
    fed: frozenset[str]
    by_stock: frozenset[str]
    spent: Mapping[str, tuple[str, ...]]


def wiring(graph: Graph) -> Wiring:
    """The wiring of a graph, made once."""
    found = graph.__dict__.get("_wiring")  # kept where the graph keeps its own cached properties
    if found is None:
        found = graph.__dict__["_wiring"] = _wiring(graph)
    return found


def _wiring(graph: Graph) -> Wiring:
    missing: dict[str, int] = {}
    followers: dict[Slot, list[Primitive]] = {}
    early: dict[str, list[Slot]] = {}
    by_stock = frozenset(p.name for p in graph if p.by_stock)
    for p in graph:
        needs: set[Slot] = {slot(ref) for ref in first_args(p).values()} | set(after(p, graph))
        if p.name in by_stock:
            needs = set()  # it is fed when stock has run it, whatever the graph knows by then
        missing[p.name] = len(needs.difference(graph.inputs))
        for each in needs:
            followers.setdefault(each, []).append(p)
        for ref in p.args.values():
            if ref.stream and slot(ref) not in early.setdefault(ref.name, []):
                early[ref.name].append(slot(ref))
    return Wiring(
        missing,
        {each: tuple(ps) for each, ps in followers.items()},
        {name: tuple(slots) for name, slots in early.items()},
        tuple(p for p in graph if not missing[p.name]),
        ending(graph),
        {p.name: i for i, p in enumerate(graph)},
        sum(1 for p in graph if p.name not in by_stock or p.op in FED),
        frozenset(p.name for p in graph if p.name in by_stock and p.op in FED),
        by_stock,
        _spent(graph, by_stock),
    )


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


def foreseen(graph: Graph) -> Mapping[str, tuple[float, float]]:
    """Predicted seconds to the end of the graph (``forecast.remaining``), anew as often as costs may have changed."""
    uses = graph.__dict__["_uses"] = graph.__dict__.get("_uses", 0) + 1
    if uses % _FORESEEN == 0 or uses & (uses - 1) == 0 or "_ahead" not in graph.__dict__:
        graph.__dict__["_ahead"] = remaining(graph)
    found: Mapping[str, tuple[float, float]] = graph.__dict__["_ahead"]
    return found


def after(p: Primitive, graph: Graph) -> tuple[str, ...]:
    """What it is ordered behind. Not its stages: it picks up what they are still at, and what they failed with."""
    if p.meta.get("staged"):
        return tuple(name for name in p.after if not graph[name].params.get("stage"))
    return p.after


def slot(ref: Ref) -> Slot:
    """What a data edge waits for."""
    return (ref.name, ref.key) if ref.stream else ref.name
