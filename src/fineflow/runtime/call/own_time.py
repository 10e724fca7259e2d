"""Own time of a primitive in one run: without waiting for what it reads piece by piece, or takes from the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.spec import bodies

if TYPE_CHECKING:
    from fineflow.runtime.call.trace import Stamp

Runs = Sequence[tuple[Graph, Mapping[str, "Stamp"]]]
"""The graphs that ran, each with its stamps."""


def own_seconds(p: Primitive, stamps: Mapping[str, Stamp], runs: Runs = ()) -> float:
    """Returns the seconds in which a primitive, or something in its bodies, worked.

    A parser of a stream works on the rest once the stream has ended. A write that stock makes begins when the vectors
    that it takes are there. What stock only hands over, or reads piece by piece, has no time of its own.

    runs: of the call, for primitives with bodies.
    """
    stamp = stamps[p.name]
    if bodies(p):
        return _covered(_inner(p, stamp, runs))
    waits = p.by_stock or (p.op is Op.PARSE and any(ref.stream for ref in p.args.values()))
    if not waits or stamp.ended is None:
        return stamp.ran
    if p.by_stock and stamp.begun is None:
        return 0.0
    there = [end for ref in p.args.values() if ref.name in stamps and (end := stamps[ref.name].ended) is not None]
    return max(stamp.ended - max([stamp.ready if stamp.begun is None else stamp.begun, *there]), 0.0)


def _inner(p: Primitive, outer: Stamp, runs: Runs) -> Iterator[tuple[float, float]]:
    """Yields when the primitives in the bodies of ``p`` worked."""
    end = float("inf") if outer.ended is None else outer.ended
    for _, body in bodies(p):
        for stamps in (stamps for graph, stamps in runs if graph is body):
            for inner in body:
                stamp = stamps.get(inner.name)
                if stamp is None or stamp.ended is None or not outer.ready <= stamp.ready <= end:
                    continue
                if bodies(inner):
                    yield from _inner(inner, stamp, runs)
                else:
                    yield stamp.ended - own_seconds(inner, stamps), stamp.ended


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the seconds that are in at least one of the spans."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
