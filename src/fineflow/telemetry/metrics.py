"""Metrics: which there are, once for all libraries, and what an ended call adds to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fineflow.runtime.events import Tokens
from fineflow.telemetry.attributes import MODEL, OPERATION, PROVIDER, of_step
from fineflow.telemetry.finished import FinishedCall

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = tuple(float(2**i) for i in range(11))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. kind: "counter", "gauge" or "histogram". unit: as OpenTelemetry writes it.

    name: in OpenTelemetry. exposed: in Prometheus, the same as in ``Statistics.prometheus()`` where that has it; a
    counter gets ``_total`` there. labels: names of its attributes, without the prefix ``fineflow.`` that they have in
    OpenTelemetry if they are no names of its conventions (``gen_ai.…``).
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
    "Tokens of requests in calls: input, those of them that were cached or written to a cache, output, reasoning.",
    ("engine", "type"),
)
USAGE = Metric(
    "gen_ai.client.token.usage",
    "gen_ai_client_token_usage",
    "histogram",
    "{token}",
    "Tokens of a request to a model: of its prompt (input), and of its answer (output).",
    (OPERATION, PROVIDER, MODEL, "gen_ai.token.type"),
    tuple(4.0**i for i in range(14)),
)
IN_VAIN = Metric(
    "fineflow.requests.in_vain",
    "fineflow_requests_in_vain",
    "counter",
    "{request}",
    "Requests that were sent ahead, and whose results the framework did not take.",
    ("model",),
)

METRICS = (RUNNING, CALLS, SAVED, CLAIMS, FAILURES, WAITS, RUNS, BATCHES, FAILED, TOKENS, USAGE, IN_VAIN)


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
            for kind, count in zip(_KINDS, _counts(found), strict=True):
                tokens[interval.lane, kind] = tokens.get((interval.lane, kind), 0) + count
    for labels, count in tokens.items():
        if count:
            yield TOKENS, count, labels
    for step in call.everything():
        about = of_step(step)[1]
        named = tuple(str(about.get(name, "")) for name in (OPERATION, PROVIDER, MODEL))
        for each in (work.tokens for work in step.work if work.tokens is not None and named[-1]):
            yield USAGE, each.prompt, (*named, "input")
            yield USAGE, each.decoded, (*named, "output")
    for graph in call.call.graphs:
        for model, number in graph.summary.in_vain.items():
            yield IN_VAIN, number, (model,)


_KINDS = ("input", "cached", "written", "output", "reasoning")


def _counts(tokens: Tokens) -> tuple[int, ...]:
    return tokens.prompt, tokens.cached, tokens.written, tokens.decoded, tokens.reasoning
