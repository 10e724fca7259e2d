"""``max_concurrency``: one bound for what the graph has at work and for what stock does itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.adapters.core import claiming
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.runtime.call.claims import Claims
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedBatches
from fineflow.testing.gates import Meter
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore

QUESTION = {"q": "alpha beta"}
TEXTS = [f"alpha {i}" for i in range(6)]
SECONDS = 1.0  # virtual: what a component takes, in which all that may begin has begun

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do"),
]


def ask(meter: Meter, text: str) -> Runnable[Any, Any]:
    model = FakeChat(default="yes it is", prefill=SECONDS, meter=meter)
    return ChatPromptTemplate.from_template(text) | model | StrOutputParser()


def models(meter: Meter) -> Runnable[Any, Any]:
    """Four at once, and four more that stock would begin later."""
    first = RunnablePassthrough.assign(**{f"a{i}": ask(meter, f"{i} {{q}}") for i in range(4)})
    return first | RunnablePassthrough.assign(**{f"b{i}": ask(meter, f"later {i} {{q}}") for i in range(4)})


def searches(meter: Meter) -> Runnable[Any, Any]:
    """Vectors, searches, and scores of documents."""
    engine = GatedBatches(max_batch=2)
    known = InMemoryVectorStore(EngineEmbeddings(engine))
    known.add_documents([Document(page_content=text, id=text) for text in TEXTS])
    store = FakeVectorStore.from_texts(TEXTS, FakeVectorStore().embedding, latency=SECONDS)
    store.meter = engine.meter = meter
    compressor = FakeReranker(top_n=1, overhead=SECONDS, meter=meter)
    ranked = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=store.as_retriever())
    parts = {"a": known.as_retriever(), "b": ranked, "c": store.as_retriever(), "d": ranked}
    return RunnablePassthrough.assign(**{name: RunnablePick("q") | part for name, part in parts.items()}) | models(
        meter
    )


SHAPES: dict[str, Callable[[Meter], Runnable[Any, Any]]] = {"models": models, "searches": searches}


def run(runnable: Any, entry: str, config: Any) -> Any:
    async def stream() -> list[Any]:
        return [chunk async for chunk in runnable.astream(QUESTION, config)]

    def call() -> Any:
        if entry == "astream":
            return asyncio.run(stream())
        if entry == "stream":
            return list(runnable.stream(QUESTION, config))
        if entry == "ainvoke":
            return asyncio.run(runnable.ainvoke(QUESTION, config))
        return runnable.invoke(QUESTION, config)

    return virtual_threads.run(call).value


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_more_components_are_at_work(shape: str, limit: int, entry: str) -> None:
    meter, config = Meter(), {"max_concurrency": limit}
    chain = fineflow.optimize(SHAPES[shape](meter), strict=True, eager=True)
    found = run(chain, entry, config)
    expected = run(SHAPES[shape](Meter()), "invoke", None)
    if "stream" in entry:  # between two pieces nobody is at work on it, but the meter counts a stream until its end
        assert {key for chunk in found for key in chunk} == expected.keys()
    else:
        assert found == expected
        assert meter.peak == limit


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_stock_does_itself_counts(shape: str, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the graph does is found by stock: both call components, at the same time."""
    monkeypatch.setattr(Claims, "claim", _missing(Claims.claim))
    meter = Meter()
    chain = fineflow.optimize(SHAPES[shape](meter), strict=True, eager=True)
    found = run(chain, entry, {"max_concurrency": 2})
    assert meter.peak == 2
    assert meter.calls > len(found)
    assert found == run(SHAPES[shape](Meter()), "invoke", None)


def _missing(claim: Any) -> Any:
    return lambda self, leaf, key, usable: claim(self, leaf, key, claiming.never)


def test_stock_alone_bounds_threads_and_not_coroutines() -> None:
    """What the bound is compared with: of the async entry points, stock bounds ``abatch`` alone."""
    for entry, most in (("invoke", 2), ("ainvoke", 4)):
        meter = Meter()
        run(models(meter), entry, {"max_concurrency": 2})
        assert meter.peak == most
