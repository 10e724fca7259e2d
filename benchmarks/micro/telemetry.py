"""Telemetry: calls of optimized chains while it is off, with OpenTelemetry, unsampled, and with Prometheus.

Components without latency, so that all of a call is code. Spans go to the SDK's batch processor, whose exporter drops
them; metrics to a reader in memory.
"""

from __future__ import annotations

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
from benchmarks.micro.measure import Found, calls_of_fineflow, in_turns, repeated
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "What is the capital of France?"}
STEPS = (0, 16)
KINDS = ("opentelemetry", "unsampled", "prometheus")
CALLS = 5  # in a row per measurement
TURNS = 4  # measurements for each run


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


def measured(runs: int, calls: int = CALLS) -> Found:
    """Measures each kind against telemetry that is off, in turns."""
    found, switch = Found(), Switch()
    for steps in STEPS:
        fast = fineflow.optimize(chain(steps), strict=True, eager=bool(steps))
        for entry in ("invoke", "ainvoke"):
            call = repeated(getattr(fast, entry), QUESTION, calls)

            def turn(kind: str, call: Callable[[], float] = call) -> Callable[[], float]:
                def measure() -> float:
                    switch.to(kind)
                    return call()

                return measure

            for kind in KINDS:
                pair = in_turns(turn("off"), turn(kind), runs * TURNS)
                added = (pair.ratio - 1) * pair.stock
                shown = f"{pair.stock * 1e6:.0f} us, +{added * 1e6:.0f} us"
                found.add(f"{kind}, {steps} steps, {entry}", pair.ratio, "on / off", shown)
        for kind in KINDS:
            switch.to(kind)
            made = calls_of_fineflow(lambda fast=fast: fast.invoke(QUESTION))
            found.add(f"calls, {kind}, {steps} steps", made, "calls of fineflow")
    switch.to("off")
    return found
