"""Telemetry that keeps what it was given, and apps to call: classify, search, answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

import fineflow
from fineflow.runtime import recording, statistics
from fineflow.telemetry import finished
from fineflow.testing.langchain import FakeChat
from fineflow.testing.retrieval import FakeVectorStore

QUESTION = {"question": "who?"}
CLASSIFY, SEARCH, ANSWER = "category/llm.decode", "context/retriever.search", "llm.decode"
STEPS = {CLASSIFY, SEARCH, ANSWER}


class Kept:
    """Providers whose spans and metrics stay in memory."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracer_provider = TracerProvider(sampler=sampler)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self._reader])
        self.tracer = self.tracer_provider.get_tracer("app")

    @property
    def spans(self) -> list[ReadableSpan]:
        """All ended spans, in the order of their start."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def calls(self) -> list[ReadableSpan]:
        """Spans of the calls themselves."""
        return [span for span in self.spans if "fineflow.outcome" in attributes(span)]

    def below(self, parent: ReadableSpan) -> list[ReadableSpan]:
        """Children of a span."""
        return [span for span in self.spans if span.parent and span.parent.span_id == parent.context.span_id]

    def steps(self, call: ReadableSpan) -> dict[str, ReadableSpan]:
        """Spans of requests and searches below a span, by the name of the step; functions are left out."""
        steps = {str(attributes(span)["fineflow.step"]): span for span in self.below(call)}
        return {name: span for name, span in steps.items() if attributes(span)["fineflow.op"] != "call"}

    def metrics(self) -> dict[str, list[Any]]:
        """Data points by name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


@contextmanager
def telemetry(sampler: Sampler | None = None, *, functions_from: float = math.inf) -> Iterator[Kept]:
    """Turns telemetry on for the block, and checks that nothing of it is left.

    functions_from: seconds from which a function has a span. By default none has, because any of them may take long on
    a busy machine.
    """
    kept = Kept(sampler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finished, "_LEAST", functions_from)
        fineflow.telemetry.enable(kept.tracer_provider, kept.meter_provider)
        try:
            yield kept
        finally:
            fineflow.telemetry.disable()
    assert not recording.recorders
    assert not recording._under_way
    assert not statistics.observers


def app(latency: float = 0.02, model: Any = None, last: Any = None) -> Runnable[Any, Any]:
    """Stock does one after the other; the search need not wait for the classification."""
    model = model or FakeChat(prefill=latency)
    classify = ChatPromptTemplate.from_template("classify {question}") | model | StrOutputParser()
    search = RunnableLambda(lambda given: given["question"]) | FakeVectorStore(latency=latency).as_retriever()
    answer = ChatPromptTemplate.from_template("{category} {context} {question}") | (last or model)
    return (
        RunnablePassthrough.assign(category=classify)
        | RunnablePassthrough.assign(context=search)
        | answer
        | StrOutputParser()
    )
