"""Metrics: which there are, once for all libraries, and what an ended call adds to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fineflow.telemetry.finished import FinishedCall

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = tuple(float(2**i) for i in range(11))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. kind: "counter", "gauge" or "histogram". unit: as OpenTelemetry writes it.

    name: in OpenTelemetry. exposed: in Prometheus, the same as in ``Statistics.prometheus()`` where that has it; a
    counter gets ``_total`` there. labels: names of its attributes, without the prefix ``fineflow.`` that they have in
    OpenTelemetry.
    """

    name: str
    exposed: str
    kind: str
    unit: str
    text: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()


RUNNING = Metric("fineflow.calls.running", "fineflow_calls_running", "gauge", "{call}", "Calls under way.", ())
CALLS = Metric(
    "fineflow.call.duration",
    "fineflow_call_seconds",
    "histogram",
    "s",
    "Seconds of calls. ahead: steps of it could run ahead.",
    ("entry", "ahead", "outcome"),
    _SECONDS,
)
SAVED = Metric(
    "fineflow.call.saved",
    "fineflow_call_saved_seconds",
    "histogram",
    "s",
    "Seconds that a call with steps ahead saved by overlap (an estimate).",
    ("entry",),
    _SECONDS,
)
CLAIMS = Metric(
    "fineflow.claims",
    "fineflow_claims",
    "counter",
    "{claim}",
    "Results of work ahead that were claimed or unclaimed; calls of components that found none (missed).",
    ("result",),
)
FAILURES = Metric(
    "fineflow.ahead.failures",
    "fineflow_ahead_failures",
    "counter",
    "{step}",
    "Steps that failed while they ran ahead (error), and those left to the framework's own code (left).",
    ("kind",),
)
WAITS = Metric(
    "fineflow.engine.wait",
    "fineflow_engine_wait_seconds",
    "histogram",
    "s",
    "Seconds that requests waited until an engine or a component began with them.",
    ("engine",),
    _SECONDS,
)
RUNS = Metric(
    "fineflow.engine.run",
    "fineflow_engine_run_seconds",
    "histogram",
    "s",
    "Seconds that batches, or requests to an LLM or a component, took.",
    ("engine",),
    _SECONDS,
)
BATCHES = Metric(
    "fineflow.engine.batch_size", "fineflow_engine_batch_size", "histogram", "{item}", "Items per batch.",
    ("engine",), _SIZES,
)  # fmt: skip
FAILED = Metric(
    "fineflow.engine.failed", "fineflow_engine_failed", "counter", "{batch}", "Batches or requests that raised.",
    ("engine",),
)  # fmt: skip
TOKENS = Metric(
    "fineflow.engine.tokens",
    "fineflow_engine_tokens",
    "counter",
    "{token}",
    "Tokens of requests in calls: input, those of them that were cached, and output.",
    ("engine", "type"),
)

METRICS = (RUNNING, CALLS, SAVED, CLAIMS, FAILURES, WAITS, RUNS, BATCHES, FAILED, TOKENS)


Added = tuple[Metric, float, tuple[str, ...]]
"""A metric, the value that is added to it, and the values of its labels."""


def of_work(engine: str, items: int, waits: Sequence[float], seconds: float, failed: bool) -> Iterator[Added]:
    """Yields what an ended batch of an engine adds (``statistics.Tally.batch``)."""
    yield BATCHES, items, (engine,)
    yield RUNS, seconds, (engine,)
    for wait in waits:
        yield WAITS, wait, (engine,)
    if failed:
        yield FAILED, 1, (engine,)


def of_call(call: FinishedCall) -> Iterator[Added]:
    """Yields what an ended call adds."""
    entry, ahead = call.call.entry, call.ahead
    yield CALLS, call.ended - call.call.began, (entry, "true" if ahead else "false", call.outcome)
    if ahead:
        yield SAVED, call.saved, (entry,)
        for result, count in call.claims.items():
            if count:
                yield CLAIMS, count, (result,)
    surprises = sum(len(each.summary.surprises) for each in call.call.graphs)
    errors = sum(bool(step.error) for step in call.everything())
    for kind, count in (("error", errors), ("left", max(surprises - errors, 0))):
        if count:
            yield FAILURES, count, (kind,)
    tokens: dict[tuple[str, str], int] = {}
    for interval in call.call.intervals:
        if (found := interval.tokens) is not None:
            for kind, count in (("input", found.prompt), ("cached", found.cached), ("output", found.decoded)):
                tokens[interval.lane, kind] = tokens.get((interval.lane, kind), 0) + count
    for labels, count in tokens.items():
        if count:
            yield TOKENS, count, labels
