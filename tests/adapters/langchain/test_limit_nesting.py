"""Limited components in nested calls: nothing waits for itself, permits are released."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from langchain_core.tools import StructuredTool
from langchain_core.vectorstores import InMemoryVectorStore
from limited_components import (  # noqa: F401
    CALLS,
    SECONDS,
    TEXTS,
    Limited,
    Work,
    concurrently,
    in_virtual_time,
    nothing_left,
    places_of,
    run,
    store,
)

import fineflow
from fineflow.adapters.langchain.stores.batched_search import RetrieverSearch
from fineflow.engines import limit
from fineflow.runtime.queues.permits import Permit
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeEmbeddings, FakeVectorStore


def nested(found: FakeVectorStore, depth: int) -> Any:
    """A chain that searches, and calls another such chain from inside of a function; the innermost only searches."""
    docs = RunnablePick("q") | found.as_retriever()
    chain: Any = RunnablePassthrough.assign(a=docs, b=docs)
    if depth:
        inner = nested(found, depth - 1)

        class Asks(BaseRetriever):
            def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
                return list(inner.invoke({"q": query})["a"])

            async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
                return list((await inner.ainvoke({"q": query}))["a"])

        asks = Asks()
        limit(asks, at_once=1)
        chain = chain | RunnablePassthrough.assign(c=RunnablePick("q") | asks, d=docs)
    return fineflow.optimize(chain)


@in_virtual_time
@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
def test_nested_calls_cannot_wait_for_each_other(entry: str) -> None:
    """One place in all: whoever holds it may need the store, and retrievers that call chains, three levels deep."""
    found = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings(), latency=SECONDS)
    limit(found, at_once=1)
    chain = nested(found, 3)
    calls = [lambda i=i: run(chain, entry, f"alpha {i}") for i in range(4)]  # type: ignore[misc]
    virtual_threads.run(lambda: concurrently(calls))
    assert found.meter.peak == 1
    assert (places_of(found).running, places_of(found).waiting) == (0, 0)


def test_a_tool_that_calls_a_chain_with_the_same_tool() -> None:
    depth = 0

    def look(text: str) -> str:
        """Looks."""
        nonlocal depth
        depth += 1
        return text if depth >= 4 else optimized.invoke({"q": text})["one"]

    made = StructuredTool.from_function(look)
    limited = Limited(made, RunnableLambda(lambda text: {"text": text}) | made, None)
    limit(made, at_once=1)
    optimized: Any = fineflow.optimize(limited.chain, eager=True)
    assert concurrently([lambda: optimized.invoke({"q": "alpha"})["one"]]) == ["alpha"]
    assert places_of(made).running == 0


def test_a_sync_call_on_the_thread_of_a_loop_that_a_holder_needs() -> None:
    gate = Gate()
    found = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings(), gate=gate)
    limit(found, at_once=1)
    docs = RunnablePick("q") | found.as_retriever()
    optimized: Any = fineflow.optimize(RunnablePassthrough.assign(a=docs, b=docs))

    async def main() -> Any:
        first = asyncio.create_task(optimized.ainvoke({"q": "alpha"}))
        while not gate.arrivals:
            await asyncio.sleep(0)
        gate.let(2)  # for the two searches of the sync call, which the holder cannot make room for
        second = optimized.invoke({"q": "beta"})
        gate.open()
        return await first, second

    found_ = concurrently([lambda: asyncio.run(main())])[0]
    assert [each["q"] for each in found_] == ["alpha", "beta"]
    assert places_of(found).running == 0


def test_nor_does_it_wait_in_the_queue_of_a_store_for_a_holder_on_that_loop() -> None:
    found = InMemoryVectorStore(FakeEmbeddings())
    found.add_texts([f"text {i}" for i in range(80)])
    limit(found, at_once=1)
    docs = RunnablePick("q") | found.as_retriever()
    chain: Any = RunnablePassthrough.assign(a=docs, b=docs)
    optimized, expected = fineflow.optimize(chain), chain.invoke({"q": "text 3"})

    async def main() -> Any:
        taken, ended = asyncio.Event(), asyncio.Event()

        async def holds() -> None:
            hold = Permit(places_of(found))
            await hold.acquire()
            taken.set()
            await ended.wait()
            hold.release()

        holder = asyncio.create_task(holds())
        await taken.wait()
        answer = optimized.invoke({"q": "text 3"})
        ended.set()
        await holder
        return answer

    assert concurrently([lambda: asyncio.run(main())]) == [expected]
    assert places_of(found).running == 0


def test_a_cancelled_call_leaves_the_places_to_others() -> None:
    gate = Gate()
    found = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings(), gate=gate)
    limit(found, at_once=1)
    docs = RunnablePick("q") | found.as_retriever()
    optimized: Any = fineflow.optimize(RunnablePassthrough.assign(a=docs, b=docs))

    async def main() -> None:
        tasks = [asyncio.create_task(optimized.ainvoke({"q": "alpha"})) for _ in range(3)]
        while places_of(found).waiting < 5:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (places_of(found).running, places_of(found).waiting) == (0, 0)
        gate.open()
        await optimized.ainvoke({"q": "alpha"})

    asyncio.run(main())


@in_virtual_time
def test_searches_that_are_made_together_hold_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    found = InMemoryVectorStore(FakeEmbeddings())
    found.add_texts([f"text {i}" for i in range(80)])
    made = RetrieverSearch.made

    def counted(self: RetrieverSearch, *args: Any) -> Any:
        work(self.query)
        return made(self, *args)

    monkeypatch.setattr(RetrieverSearch, "made", counted)
    limit(found.as_retriever(), at_once=1)
    assert places_of(found).at_once == 1  # a retriever stands for its store
    docs = RunnablePick("q") | found.as_retriever()
    chain: Any = RunnablePassthrough.assign(a=docs, b=docs)
    optimized: Any = fineflow.optimize(chain)
    questions = [f"text {i}" for i in range(CALLS)]
    calls = [lambda q=q: optimized.invoke({"q": q}) for q in questions]  # type: ignore[misc]
    answers = virtual_threads.run(lambda: concurrently(calls)).value
    assert work.most == 1 and work.calls >= CALLS
    assert answers == [chain.invoke({"q": question}) for question in questions]
    assert places_of(found).running == 0
