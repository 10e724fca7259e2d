"""Seconds that a call saved by overlap: what its own steps would have taken in stock's order, less what they took.

An estimate. It puts the seconds that were measured in this call on the critical path of the object as written, and on
that of the graph that ran. Only claimed work counts, and nothing where batches and caches made a step itself quicker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Protocol

from fineflow.cost_model.costs import costs
from fineflow.cost_model.forecast import predict
from fineflow.cost_model.observed import Observed
from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.spec import everything

_SAME = {Op.PARTIAL_DECODE: Op.DECODE, Op.PARTIAL_PREFILL: Op.PREFILL}


class Timed(Protocol):
    """One run of a primitive, as ``finished.Step`` has it."""

    @property
    def primitive(self) -> Primitive | None: ...
    @property
    def ran(self) -> float: ...
    @property
    def result(self) -> str: ...
    @property
    def steps(self) -> Sequence[Timed]: ...


def saved(written: Graph, run: Graph, steps: Sequence[Timed], *, sync: bool) -> float:
    """Returns the seconds that one graph saved, at least 0. sync: stock would have been called by a sync method."""
    each: defaultdict[str, list[float]] = defaultdict(list)
    items: dict[str, float] = {}
    claimed = 0.0
    for p, step in _everything(steps):
        if p.op is Op.MAP:
            items[p.name] = max(Counter(inner.name for inner, _ in _everything(step.steps)).values(), default=1)
        elif p.meta.get("several"):
            items[p.name] = costs.size(None, Op.MAP, p.name)
        if p.body is None:
            each[p.name].append(step.ran)
            claimed += step.ran * items.get(p.name, 1.0) * (step.result == "claimed")
    if not claimed:
        return 0.0
    known = Observed(_as_written(written, run, {name: fmean(found) for name, found in each.items()}), items)
    before, now = predict(written, known, serial=sync).seconds, predict(run, known, written=written).seconds
    return min(max(before - now, 0.0), claimed)


def _everything(steps: Sequence[Timed]) -> Iterator[tuple[Primitive, Timed]]:
    for step in steps:
        if step.primitive is not None:
            yield step.primitive, step
        yield from _everything(step.steps)


def _as_written(written: Graph, run: Graph, each: dict[str, float]) -> dict[str, float]:
    """Adds the seconds of primitives that only the graph as written has: of those into which passes have split them."""
    total: dict[tuple[str, Op], float] = defaultdict(float)
    for p in everything(run):
        if p.name in each:
            total[_work(p)] += each[p.name]
    left = [p for p in everything(written) if p.name not in each and p.body is None and _work(p) in total]
    same = Counter(map(_work, left))
    return each | {p.name: total[_work(p)] / same[_work(p)] for p in left}


def _work(p: Primitive) -> tuple[str, Op]:
    return p.leaf, _SAME.get(p.op, p.op)


def overlap(spans: Sequence[tuple[float, float]]) -> float:
    """Returns the seconds in which several calls ran at the same time, counted for each call beyond the first."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += min(end, until) - start if start < until else 0.0
        until = max(until, end)
    return total
