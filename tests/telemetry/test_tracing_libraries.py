"""Traces of other libraries are the same with telemetry as without, on the provider that both share."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.runnables import Runnable
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from opentelemetry.sdk.trace import ReadableSpan
from telemetry_kit import QUESTION, STEPS, Kept, app, attributes

import fineflow
from fineflow.testing.langchain import FakeChat

IDS = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")  # of runs and messages


LIBRARIES = [LangChainInstrumentor, LangchainInstrumentor]


@pytest.fixture(scope="module", params=LIBRARIES, ids=["openinference", "openllmetry"])
def instrumented(request: pytest.FixtureRequest) -> Iterator[Kept]:
    """Instruments once: OpenLLMetry's 0.62.4 sees nothing any more when it is turned on a second time."""
    found = Kept()
    instrumentor = request.param()
    instrumentor.instrument(tracer_provider=found.tracer_provider, meter_provider=found.meter_provider)
    yield found
    instrumentor.uninstrument()


@pytest.fixture
def kept(instrumented: Kept) -> Iterator[Kept]:
    yield instrumented
    fineflow.telemetry.disable()


def drain(chain: Runnable[Any, Any], entry: str) -> None:
    async def read() -> None:
        async for _ in chain.astream(QUESTION):
            pass

    calls: dict[str, Callable[[], Any]] = {
        "invoke": lambda: chain.invoke(QUESTION),
        "stream": lambda: list(chain.stream(QUESTION)),
        "ainvoke": lambda: asyncio.run(chain.ainvoke(QUESTION)),
        "astream": lambda: asyncio.run(read()),
    }
    calls[entry]()


def traced(kept: Kept, chain: Runnable[Any, Any], entry: str, error: type[Exception] | None) -> list[ReadableSpan]:
    """Calls the chain in a span of the caller; returns all spans that are new."""
    before = {span.context.span_id for span in kept.spans}
    with kept.tracer.start_as_current_span("request"):
        if error is None:
            drain(chain, entry)
        else:
            with pytest.raises(error):
                drain(chain, entry)
    return [span for span in kept.spans if span.context.span_id not in before]


def tree(spans: list[ReadableSpan]) -> Counter[Any]:
    """Returns the spans that are not ours, each with its ancestors."""
    by_id = {span.context.span_id: span for span in spans}

    def path(span: ReadableSpan | None) -> tuple[str, ...]:
        return () if span is None else (*path(by_id.get(span.parent.span_id) if span.parent else None), span.name)

    found: Counter[Any] = Counter()
    for span in spans:
        assert span.instrumentation_scope is not None
        if span.instrumentation_scope.name != "fineflow":
            told = {name: IDS.sub("id", str(value)) for name, value in attributes(span).items()}
            key = span.name, path(span), span.kind, span.status.status_code, tuple(e.name for e in span.events)
            found[key, str(sorted(told.items()))] += 1
    return found


def ours(spans: list[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if span.instrumentation_scope and span.instrumentation_scope.name == "fineflow"]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("fails", [False, True])
def test_their_trees_are_the_same(kept: Kept, entry: str, fails: bool) -> None:
    last = FakeChat(answers=lambda _: ValueError("no")) if fails else None
    error = ValueError if fails else None
    chain = app(last=last)
    fast = fineflow.optimize(chain, strict=True)
    stock, without = traced(kept, chain, entry, error), traced(kept, fast, entry, error)
    fineflow.telemetry.enable(kept.tracer_provider, kept.meter_provider)
    on = traced(kept, fast, entry, error)
    assert len(tree(stock)) > 5
    assert tree(without) == tree(stock)
    assert tree(on) == tree(stock)
    assert not ours(without)
    mine = {span.context.span_id for span in ours(on)}
    assert len(mine) >= 1 + len(STEPS)
    for span in on:
        assert span.context.span_id in mine or span.parent is None or span.parent.span_id not in mine
