"""OpenTelemetry: spans and metrics of ended calls.

A call's spans are made at its end, with the times that were measured: its own as a child of the span that was current
when it began, and one for each step below it. None is ever made current, so they are in nobody's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from fineflow.runtime.recording import RecordedCall
from fineflow.telemetry import attributes
from fineflow.telemetry.finished import MOST, FinishedCall, FinishedStep
from fineflow.telemetry.metrics import METRICS, RUNNING, Metric, of_call, of_work

SCOPE = "fineflow"
"""Name of the instrumentation scope of all spans and metrics."""

# Not public, but what OpenTelemetry's own instrumentations ask; the plain key is that of older releases.
_SUPPRESSED = (getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", ""), "suppress_instrumentation")


class OpenTelemetry:
    """Makes spans and metrics of ended calls."""

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        import fineflow

        self._tracer = trace.get_tracer(SCOPE, fineflow.__version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, fineflow.__version__, meter_provider)
        self._instruments: dict[Metric, Any] = {metric: _instrument(meter, metric) for metric in METRICS}

    def began(self, call: RecordedCall) -> context.Context:
        """Returns the caller's context."""
        self._instruments[RUNNING].add(1)
        return context.get_current()

    def finished(self, call: FinishedCall, given: context.Context | None) -> None:
        """Makes the spans and the metrics of a call. given: its caller's context."""
        if given is None:  # it began with a fault
            return
        self.dropped(call, given)
        for metric, value, labels in of_call(call):
            self._add(metric, value, labels)
        if not any(key and context.get_value(key, given) for key in _SUPPRESSED):
            _Spans(self._tracer, call).make(given)

    def dropped(self, call: FinishedCall, given: context.Context | None) -> None:
        """Counts a call as over."""
        if given is not None:
            self._instruments[RUNNING].add(-1)

    def worked(self, engine: str, items: int, waits: Sequence[float], seconds: float, failed: bool) -> None:
        """Adds an ended batch to the metrics."""
        for metric, value, labels in of_work(engine, items, waits, seconds, failed):
            self._add(metric, value, labels)

    def _add(self, metric: Metric, value: float, labels: Sequence[str]) -> None:
        names = (name if "." in name else f"fineflow.{name}" for name in metric.labels)
        named = {name: label for name, label in zip(names, labels, strict=True) if label or "gen_ai" not in name}
        instrument = self._instruments[metric]
        if metric.kind == "histogram":
            instrument.record(value, named)
        else:
            instrument.add(value, named)


def _instrument(meter: metrics.Meter, metric: Metric) -> Any:
    about = {"name": metric.name, "unit": metric.unit, "description": metric.text}
    if metric.kind == "counter":
        return meter.create_counter(**about)
    if metric.kind == "gauge":
        return meter.create_up_down_counter(**about)
    return meter.create_histogram(**about, explicit_bucket_boundaries_advisory=metric.buckets)


class _Spans:
    """The spans of one call."""

    def __init__(self, tracer: trace.Tracer, call: FinishedCall) -> None:
        self._tracer = tracer
        self._call = call
        self._left = MOST

    def make(self, caller: context.Context) -> None:
        call = self._call
        name, found = attributes.of_call(call)
        hidden = max(sum(1 for _ in call.everything()) - MOST, 0)
        if hidden:
            found["fineflow.steps_left_out"] = hidden
        with_parent = self._start(name, found, call.call.began, SpanKind.INTERNAL, caller)
        if with_parent.is_recording():  # the sampler wants it
            inside = trace.set_span_in_context(with_parent, caller)
            for part in call.parts:
                span = self._start(*attributes.of_part(part), part.trace.began, SpanKind.INTERNAL, inside)
                self._steps(part.steps, trace.set_span_in_context(span, caller))
                span.end(call.nanoseconds(part.trace.ended))
            self._steps(call.steps, inside)
        if attributes.ERROR in found:
            with_parent.set_status(Status(StatusCode.ERROR))
        with_parent.end(call.nanoseconds(call.ended))

    def _steps(self, steps: Sequence[FinishedStep], parent: context.Context) -> None:
        for step in steps:
            if not self._left:
                return
            self._left -= 1
            kind = SpanKind.CLIENT if attributes.remote(step) else SpanKind.INTERNAL
            span = self._start(*attributes.of_step(step), step.start, kind, parent)
            if step.error:
                span.set_status(Status(StatusCode.ERROR))
            if step.steps:
                self._steps(step.steps, trace.set_span_in_context(span, parent))
            span.end(self._call.nanoseconds(step.end))

    def _start(
        self, name: str, found: attributes.Attributes, began: float, kind: SpanKind, parent: context.Context
    ) -> Span:
        start = self._call.nanoseconds(began)
        return self._tracer.start_span(name, parent, kind, found, start_time=start, record_exception=False)
