"""What span handlers set in context variables is there for components that run ahead, as it is in stock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import answer, index
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.dispatcher import active_instrument_tags, instrument_tags
from llama_index_instrumentation.span import BaseSpan, active_span_id

from fineflow import optimize
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

TRACE: ContextVar[str] = ContextVar("trace", default="none")


class Tracer(BaseSpanHandler[BaseSpan]):
    """Has a trace of its own for each outermost span, which is the current one from its start."""

    def new_span(self, id_: str, bound_args: Any, parent_span_id: str | None = None, **kwargs: Any) -> BaseSpan:
        if parent_span_id is None:
            TRACE.set(f"trace of {bound_args.arguments['str_or_query_bundle']}")
        return BaseSpan(id_=id_, parent_id=parent_span_id)

    def prepare_to_exit_span(self, id_: str, *args: Any, **kwargs: Any) -> BaseSpan | None:
        return self.open_spans.get(id_)

    def prepare_to_drop_span(self, id_: str, *args: Any, **kwargs: Any) -> BaseSpan | None:
        return self.open_spans.get(id_)


@pytest.fixture(autouse=True)
def tracing() -> Iterator[None]:
    root, tracer = get_dispatcher(), Tracer()
    root.add_span_handler(tracer)
    yield
    root.span_handlers = [each for each in root.span_handlers if each is not tracer]


def noting(log: list[Any], gate: Gate) -> tuple[FakeLLM, FakeEmbedding]:
    """A model and an embedding that note which trace and tags are current, and whether a span is open."""

    def note(text: str) -> None:
        log.append((text, TRACE.get(), active_instrument_tags.get(), active_span_id.get() is not None))

    def said(prompt: str) -> str:
        note(prompt)
        return "first query\nsecond query" if "search queries" in prompt else answer(prompt)

    def takes(text: str) -> float:
        note(text)
        return 0.0

    return FakeLLM(answers=said, context_window=900, num_output=60, gate=gate), FakeEmbedding(latency=takes)


def accumulating(log: list[Any], gate: Gate) -> Any:
    llm, embedding = noting(log, gate)
    return index(embedding).as_query_engine(llm=llm, response_mode="accumulate", similarity_top_k=4)


def fusing(log: list[Any], gate: Gate) -> Any:
    llm, embedding = noting(log, Gate(opened=True))
    made = index(embedding)
    embedding.gate = gate
    parts = [made.as_retriever(similarity_top_k=k) for k in (1, 2)]
    return QueryFusionRetriever(parts, llm=llm, num_queries=3, use_async=False)


def call(obj: Any, question: str) -> None:
    (obj.query if hasattr(obj, "query") else obj.retrieve)(question)


def acall(obj: Any, question: str) -> None:
    async def run() -> None:
        await (obj.aquery if hasattr(obj, "aquery") else obj.aretrieve)(question)

    asyncio.run(run())


def tagged(entry: Callable[[Any, str], None], obj: Any) -> None:
    with instrument_tags({"user": "u1"}):
        entry(obj, "where is the bridge")


@pytest.mark.parametrize(("make", "entry"), [(accumulating, call), (fusing, call), (fusing, acall)])
def test_components_ahead_are_in_the_trace_of_the_call(
    make: Callable[[list[Any], Gate], Any], entry: Callable[[Any, str], None]
) -> None:
    expected: list[Any] = []
    found: list[Any] = []
    gate = Gate()
    stock, fast = make(expected, Gate(opened=True)), optimize(make(found, gate), strict=True, eager=True)
    for log in (expected, found):
        log.clear()
    Context().run(tagged, entry, stock)  # the tracer leaves its variable set
    with ThreadPoolExecutor(1) as thread:
        calling = thread.submit(Context().run, tagged, entry, fast)
        gate.wait_arrived(2)  # in the sync methods of stock one component is at work at a time
        gate.open()
        calling.result()
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert {seen[1:2] for seen in found} == {("trace of where is the bridge",)}
