"""Cost of telemetry: calls of optimized chains while it is off, with OpenTelemetry, unsampled, and with Prometheus.

Components without latency, so that all of a call is code. Spans go to the SDK's batch processor, whose exporter drops
them; metrics to a reader in memory.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from prometheus_client import CollectorRegistry

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "What is the capital of France?"}
STEPS = (0, 4, 16)
KINDS = ("off", "opentelemetry", "unsampled", "prometheus")


class Dropping(SpanExporter):
    """Takes spans and drops them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def provider(sampler: Sampler) -> TracerProvider:
    made = TracerProvider(sampler=sampler)
    made.add_span_processor(BatchSpanProcessor(Dropping(), max_queue_size=100_000))
    return made


class Switch:
    """Turns telemetry on and off between measurements."""

    def __init__(self) -> None:
        self._meter = MeterProvider([InMemoryMetricReader()])
        self._tracers = {"opentelemetry": provider(ALWAYS_ON), "unsampled": provider(ALWAYS_OFF)}
        self._registry = CollectorRegistry()

    def to(self, kind: str) -> None:
        fineflow.telemetry.disable()
        if kind == "prometheus":
            fineflow.telemetry.enable_prometheus(self._registry)
        elif kind != "off":
            fineflow.telemetry.enable(self._tracers[kind], self._meter)


def chain(steps: int) -> Runnable[Any, Any]:
    """Asks for ``steps - 1`` aspects side by side, then for the answer; with 0 steps nothing runs ahead."""
    model = FakeChat(default="Paris")
    last = ChatPromptTemplate.from_template("Answer briefly: {question}") | model | StrOutputParser()
    if not steps:
        return last
    aspects = {
        f"a{number}": ChatPromptTemplate.from_template(f"Aspect {number} of {{question}}") | model | StrOutputParser()
        for number in range(steps - 1)
    }
    return RunnablePassthrough.assign(**aspects) | last


async def measured(call: Callable[[Any], Any], entry: str, calls: int) -> float:
    """Returns the seconds per call."""
    start = time.perf_counter()
    for _ in range(calls):
        found = call(QUESTION)
        if entry == "ainvoke":
            await found
    return (time.perf_counter() - start) / calls


async def compare(fast: Any, entry: str, runs: int, calls: int, switch: Switch) -> dict[str, list[float]]:
    """Returns the seconds per call of each kind and run, in turns, so that other load affects all."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for run in range(runs + 1):  # the first one warms up
        for kind in KINDS if run % 2 else reversed(KINDS):
            switch.to(kind)
            seconds = await measured(getattr(fast, entry), entry, calls)
            if run:
                found[kind].append(seconds)
    switch.to("off")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=30)
    parser.add_argument("--calls", type=positive, default=20, help="calls in a row per measurement (20)")
    given = parser.parse_args(argv)
    switch = Switch()
    rows, figures = [("steps, entry point", *KINDS, "added per step")], {}
    for steps in STEPS:
        fast = fineflow.optimize(chain(steps), strict=True, eager=bool(steps))
        for entry in ("invoke", "ainvoke"):
            found = asyncio.run(compare(fast, entry, given.runs, given.calls, switch))
            middle = {kind: statistics.median(seconds) for kind, seconds in found.items()}
            # Turns are adjacent, so differences within a run are more reliable than those of the medians.
            added = {
                kind: statistics.median(b - a for a, b in zip(found["off"], seconds, strict=True))
                for kind, seconds in found.items()
            }
            shown = [f"{middle['off'] * 1e6:.0f} us", *(f"+{added[kind] * 1e6:.0f} us" for kind in KINDS[1:])]
            each = f"{added['opentelemetry'] / steps * 1e6:.0f} us" if steps else ""
            rows.append((f"{steps}, {entry}", *shown, each))
            figures[f"{steps} {entry}"] = {"off_s": middle["off"], **{f"{k}_added_s": added[k] for k in KINDS[1:]}}
    print(f"Calls without latency, telemetry off and on in turns. {hardware()}")
    print(f"Medians of {given.runs} runs of {given.calls} calls.\n")
    print(table(rows), end="\n\n")
    return finish({"telemetry": figures}, {}, given.json)


if __name__ == "__main__":
    sys.exit(main())
