"""Seconds that a call saved by overlap: what its own steps would have taken in stock's order, less what they took.

An estimate. It puts the seconds that were measured in this call on the critical path of the object as written, and on
that of the graph that ran. Only claimed work counts, and nothing where batches and caches made a step itself quicker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fineflow.cost_model.costs import costs
from fineflow.cost_model.forecast import predict
from fineflow.cost_model.observed import Observed
from fineflow.ir import Graph, Op
from fineflow.ir.spec import everything
from fineflow.runtime.call.trace import CLAIMED, Step, Trace, steps
from fineflow.runtime.recording import Ended, RecordedCall

_SAME = {Op.PARTIAL_DECODE: Op.DECODE, Op.PARTIAL_PREFILL: Op.PREFILL}


def saved(call: RecordedCall) -> float:
    """Returns the seconds, at least 0. Of a batch: those of the input that saved most."""
    ran = [each for each in call.graphs if each.summary.trace is not None and each.summary.trace.runs]
    if call.entry.endswith("batch"):
        return max(map(_of_graph, ran), default=0.0)
    # The outermost call ends last; those inside it that ran ahead would have come one after the other.
    return _of_graph(ran[-1]) + _overlap(ran[:-1]) if ran else 0.0


def _of_graph(ended: Ended) -> float:
    trace = ended.summary.trace
    assert trace is not None
    found = list(steps(trace))
    each, items = _seconds(ended.written, trace.graph, found), _items(trace, found)
    claimed = sum(step.ran * step.times * items.get(step.name, 1.0) for step in found if CLAIMED in step.taken)
    if not claimed:
        return 0.0
    as_written = predict(ended.written, Observed(each, items), serial=ended.sync).seconds
    as_run = predict(trace.graph, Observed(each, items), written=ended.written).seconds
    return min(max(as_written - as_run, 0.0), claimed)


def _seconds(written: Graph, run: Graph, found: Sequence[Step]) -> dict[str, float]:
    """Returns the seconds of the primitives of both graphs; what a pass has split is added up in the one as written."""
    each = {step.primitive.name: step.ran for step in found if step.primitive.body is None}
    total: dict[tuple[str, Op], float] = defaultdict(float)
    for p in everything(run):
        total[p.leaf, _SAME.get(p.op, p.op)] += each.get(p.name, 0.0)
    same: dict[tuple[str, Op], int] = defaultdict(int)
    for p in everything(written):
        same[p.leaf, _SAME.get(p.op, p.op)] += 1
    for p in everything(written):
        key = p.leaf, _SAME.get(p.op, p.op)
        if p.body is None and p.name not in each and total[key]:
            each[p.name] = total[key] / same[key]
    return each


def _items(trace: Trace, found: Sequence[Step]) -> dict[str, float]:
    """Returns the number of items of each map, and the usual number of requests of steps that make several."""
    sizes: dict[str, float] = {}
    for step in found:
        if step.primitive.op is Op.MAP:
            sizes[step.primitive.name] = len(trace.of(step.primitive.body)) / step.times
        elif step.primitive.meta.get("several"):
            sizes[step.primitive.name] = costs.size(None, Op.MAP, step.primitive.name)
    return sizes


def _overlap(calls: Sequence[Ended]) -> float:
    """Returns the seconds in which several calls ran at the same time, counted for each call beyond the first."""
    total, until = 0.0, float("-inf")
    spans = sorted(_spans(calls))
    for start, end in spans:
        total += min(end, until) - start if start < until else 0.0
        until = max(until, end)
    return total


def _spans(calls: Sequence[Ended]) -> Iterator[tuple[float, float]]:
    for each in calls:
        trace = each.summary.trace
        if trace is not None and each.summary.claimed:
            yield trace.began, trace.ended
