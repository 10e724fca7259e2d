"""Graphs inside a primitive: parts of an object, lowered separately, and their reads of the outer graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fineflow.adapters.core.builder import MESSAGE, OUTER, UNKNOWN, VALUE, Builder, Leaf, Record, Symbol
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.spec import everything
from fineflow.ir.traverse import combined, fresh, origins


@dataclass(frozen=True, slots=True)
class PartGraph:
    """One part of an object, lowered by its own builder; references to the outer graph are marked with ``OUTER``.

    outcome: its symbolic value. output: the same as one reference.
    """

    builder: Builder
    outcome: Symbol
    output: Ref

    def refs(self) -> Iterator[Ref]:
        """Yields all references, in program order."""
        for p in self.builder.primitives:
            yield from p.args.values()
        yield self.output

    @property
    def graph(self) -> Graph:
        return Graph(tuple(self.builder.primitives), self.output)

    @property
    def left_to_stock(self) -> str:
        """Reason of the first step in it, bodies included, that stock has to run; "" if there is none."""
        return next((_told(p) for p in everything(self.graph) if p.by_stock), "")


def _told(p: Primitive) -> str:
    reason, where = p.effects.reason or p.name, p.meta.get("where")
    return f"`{p.name.rpartition('/')[2].partition('.')[0]}` at {where} {reason}" if where else reason


def part(obj: Any, step: str, value: Symbol, b: Builder, **changes: Any) -> PartGraph:
    """Lowers ``obj``, which is the part ``step`` of the current object, applied to a value from ``outside``.

    changes: fields of the builder that differ inside.
    """
    inner = b.body(**changes)
    with inner.inside(step, ""):
        outcome = inner.lower(obj, value)
        output = inner.whole(outcome)
    b.notes += inner.notes
    return PartGraph(inner, outcome, output.ref)


def outside(value: Symbol) -> Symbol:
    """Returns a value of the outer graph as seen by a part."""
    if isinstance(value, Leaf):
        return replace(value, ref=replace(value.ref, name=OUTER + value.ref.name))
    rest = outside(value.rest) if value.rest is not None else None
    return Record(
        {key: outside(field) for key, field in value.fields.items()}, rest if isinstance(rest, Leaf) else None
    )


@dataclass(frozen=True, slots=True)
class Closed:
    """Bodies without references to the outside. args: their reads of the outer graph, by input name.

    received: outer values that an opaque step in a body was given and could change.
    """

    bodies: Mapping[str, Graph]
    args: Mapping[str, Ref]
    received: tuple[str, ...]


def close(parts: Mapping[str, PartGraph], value: Symbol, b: Builder) -> Closed:
    """Closure conversion: each distinct outer reference becomes an argument and an input of every body.

    value: the value that the parts were applied to; an input that is one of its keys is named after it.
    """
    taken = {p.name for each in parts.values() for p in each.builder.primitives}
    free = dict.fromkeys(ref for each in parts.values() for ref in each.refs() if ref.name.startswith(OUTER))
    args = {ref: replace(ref, name=ref.name.removeprefix(OUTER)) for ref in free}  # with their names in the outer graph
    keys = {v.ref: k for k, v in value.fields.items() if isinstance(v, Leaf)} if isinstance(value, Record) else {}
    inputs: dict[Ref, str] = {}
    for ref, arg in args.items():
        inputs[ref] = fresh(keys.get(arg) or arg.key or _short(arg.name), {*taken, *inputs.values()})
    held = origins(Graph(tuple(b.primitives), Ref("")))
    alias = _Aliases(inputs, {ref: held.get(arg.name, frozenset({arg.name})) for ref, arg in args.items()})
    received: dict[str, None] = {}
    graphs = {}
    for label, each in parts.items():
        own = origins(each.graph)
        primitives = []
        for p in each.builder.primitives:
            if p.meta.get("received"):
                given = {n for name in p.meta["received"] for n in own.get(name, {name})}
                outer = sorted(n for n in given if n.startswith(OUTER))
                received.update(dict.fromkeys(n.removeprefix(OUTER) for n in outer))
                p = p.with_(meta={**p.meta, "received": (*sorted(given.difference(outer)), *alias.of(outer))})
            primitives.append(p.with_(args={name: _inner(ref, inputs) for name, ref in p.args.items()}))
        graphs[label] = Graph(tuple(primitives), _inner(each.output, inputs), tuple(inputs.values()))
    return Closed(graphs, {name: args[ref] for ref, name in inputs.items()}, tuple(received))


def condition(parts: Mapping[str, PartGraph], value: Symbol, b: Builder, *, name: str, component: Any) -> Symbol:
    """Appends a CONDITION over tests and arms by label; its symbolic value is what the values of all arms share.

    value: the value that the tests and arms were applied to.
    """
    closed = close(parts, value, b)
    outcomes = [made.outcome for label, made in parts.items() if not label.startswith("if ")]
    made = b.add(
        Op.CONDITION,
        closed.args,
        name=name,
        component=component,
        effects=combined(p.effects for body in closed.bodies.values() for p in body),
        body=closed.bodies,
        arms=len(outcomes),
        received=closed.received,
    )
    return joined(made.ref.name, outcomes)


def _inner(ref: Ref, inputs: Mapping[Ref, str]) -> Ref:
    return Ref(inputs[ref]) if ref in inputs else ref


def _short(name: str) -> str:
    """Returns a short display name: ``kind`` for ``kind/parser.parse``."""
    return name.rpartition(".")[0].rpartition("/")[0].rpartition("/")[2] or name


@dataclass(frozen=True, slots=True)
class _Aliases:
    """Inputs of the bodies that may hold objects of given outer values."""

    inputs: Mapping[Ref, str]
    held: Mapping[Ref, frozenset[str]]

    def of(self, names: Iterable[str]) -> list[str]:
        objects = frozenset[str]().union(*(held for ref, held in self.held.items() if ref.name in set(names)))
        return [name for ref, name in self.inputs.items() if not objects.isdisjoint(self.held[ref])]


def joined(name: str, outcomes: Iterable[Symbol]) -> Symbol:
    """Returns the symbolic value of a primitive that has one of several values: their common part."""
    values = list(outcomes)
    whole = Leaf(Ref(name), _kind(values))
    if not all(isinstance(value, Record) for value in values):
        return whole
    records = [value for value in values if isinstance(value, Record)]
    common = [key for key in records[0].fields if all(key in record.fields for record in records)]
    fields = {key: Leaf(Ref(name, key), _kind([record.fields[key] for record in records])) for key in common}
    closed = all(record.rest is None and [*record.fields] == common for record in records)
    return Record(fields, rest=None if closed else whole)


def _kind(values: Iterable[Symbol]) -> str:
    kinds = {kind_of(value) for value in values}
    if MESSAGE in kinds:
        return MESSAGE
    return kinds.pop() if len(kinds) == 1 else UNKNOWN


def kind_of(value: Symbol) -> str:
    """Returns the kind of a value as a whole: a record that contains a message counts as one."""
    if isinstance(value, Leaf):
        return value.kind
    parts = [*value.fields.values(), *([value.rest] if value.rest is not None else [])]
    return MESSAGE if any(kind_of(part) == MESSAGE for part in parts) else VALUE


def item_kind(value: Leaf) -> str:
    """Returns the kind of the items of a list."""
    return MESSAGE if value.kind == MESSAGE else UNKNOWN
