"""Calls that wait for a limited store: who is next, nesting, cancellation, figures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from index_shapes import QUESTION, index
from limited_stores import STORES, Plain, called, held, model, nothing_left, over, places_of, shown, wait_waiting  # noqa: F401
from llama_index.core.retrievers import (
    QueryFusionRetriever,
)
from llama_index.core.schema import NodeWithScore
from test_index_stores import chroma, no_chroma

import fineflow
from fineflow.adapters.core.resources import StoreEngine
from fineflow.adapters.llamaindex.resources import standing
from fineflow.engines import limit, set_policy
from fineflow.runtime.queues.permits import Permit
from fineflow.runtime.queues.policy import Take, Waiting
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.llamaindex.fakes import FakeStore


def last_first(waiting: Sequence[Waiting], free: int) -> list[Take]:
    found = sorted(waiting, key=lambda each: -each.number)
    return [Take(each.number, 1) for each in found[:free]]


@pytest.mark.parametrize("policy", ["fifo", last_first])
def test_the_policy_decides_who_is_next(policy: Any) -> None:
    store = FakeStore()
    made = index(store=store)
    limit(store, at_once=1)
    set_policy(made.as_retriever(), policy)
    optimized = fineflow.optimize(made.as_retriever())
    words, calls = ["bridge", "river", "mill"], []
    with held(store) as permits:
        for i, word in enumerate(words):
            calls.append(called(optimized, "retrieve", word))
            wait_waiting(permits, i + 1)
    for call in calls:
        call.result(30)
    assert store.meter.labels == (words if policy == "fifo" else words[::-1])


@pytest.mark.parametrize("make", STORES[1:])
def test_the_policy_of_a_known_store_is_that_of_its_queue(make: Callable[[], Any]) -> None:
    store = make()
    set_policy(store, last_first)
    limit(store, at_once=1)
    found = standing(store)
    assert isinstance(found, StoreEngine)
    batches: list[list[str]] = []
    together: Any = found._together
    begun, gate = threading.Semaphore(0), threading.Semaphore(0)

    class Noted:
        def run(self, searches: Any) -> Any:
            batches.append([each.query.query_str for each in searches])
            begun.release()
            assert gate.acquire(timeout=30)
            return together.run(searches)

    found._together, found.max_batch = Noted(), 1  # type: ignore[assignment]
    optimized = fineflow.optimize(over(store).as_retriever(), eager=True, strict=True)
    calls = [called(optimized, "retrieve", "first")]
    assert begun.acquire(timeout=30)
    for i, word in enumerate(["bridge", "river", "mill"]):
        calls.append(called(optimized, "retrieve", word))
        wait_until(lambda i=i: found.queue.waiting == i + 1)  # type: ignore[misc]
    gate.release(4)
    for call in calls:
        call.result(30)
    assert batches == [["first"], ["mill"], ["river"], ["bridge"]]


@no_chroma
def test_a_collection_has_one_limit_and_one_policy_for_both_frameworks() -> None:
    lang = pytest.importorskip("langchain_chroma")
    from langchain_core.runnables import RunnablePassthrough, RunnablePick

    from fineflow.adapters.langchain.resources import standing as standing_in_langchain
    from fineflow.testing.langchain import FakeEmbeddings

    store = chroma()
    made = over(store)
    client = __import__("chromadb").EphemeralClient(store._collection._client._system.settings)
    twin = lang.Chroma(store._collection.name, FakeEmbeddings(dimensions=32), client=client)
    limit(store, at_once=1)
    set_policy(store, "by_path")
    assert standing_in_langchain(twin) is standing(store) is standing(made)
    docs = RunnablePick("q") | twin.as_retriever()
    chain: Any = fineflow.optimize(RunnablePassthrough.assign(a=docs), strict=True)
    retriever: Any = fineflow.optimize(made.as_retriever(), strict=True)
    with held(store) as permits:
        calls = [called(chain, "invoke", {"q": QUESTION})]
        wait_until(lambda: permits.waiting == 1)
        calls += [called(retriever, "retrieve", QUESTION)]
        wait_until(lambda: standing(store).queue.waiting == 1)  # type: ignore[attr-defined]
        assert not any(call.done() for call in calls)
    assert len(calls[0].result(30)["a"]) == 4 and len(calls[1].result(30)) == 2


def nested(store: Any, depth: int) -> Any:
    """A retriever that searches a store, and asks another such one; the innermost only searches."""
    found: Any = index(store=store).as_retriever()
    if depth:
        inner = nested(store, depth - 1)

        def find(text: str) -> list[NodeWithScore]:
            return [*inner.retrieve(text)]

        plain = Plain(find)
        limit(plain, at_once=1)
        found = QueryFusionRetriever([found, plain], llm=model("river"), num_queries=2, use_async=False)
    return fineflow.optimize(found, trust="interfaces")


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_nested_calls_cannot_wait_for_each_other(entry: str) -> None:
    store = FakeStore()
    made = nested(store, 3)
    limit(store, at_once=1)
    calls = [called(made, entry, f"bridge {i}") for i in range(4)]
    assert all(call.result(60) for call in calls)
    assert store.meter.peak == 1
    assert (places_of(store).running, places_of(store).waiting) == (0, 0)


@pytest.mark.parametrize("make", STORES)
def test_a_sync_call_on_the_thread_of_a_loop_that_a_holder_needs(make: Callable[[], Any]) -> None:
    """Whoever holds the place is on the loop that the call holds up."""
    store = make()
    limit(store, at_once=1)
    retriever = over(store).as_retriever()
    optimized, expected = fineflow.optimize(retriever, eager=True), shown(retriever.retrieve(QUESTION))

    class Loop:
        async def amain(self) -> Any:
            taken, ended = asyncio.Event(), asyncio.Event()

            async def holds() -> None:
                hold = Permit(places_of(store))
                await hold.acquire()
                taken.set()
                await ended.wait()
                hold.release()

            holder = asyncio.create_task(holds())
            await taken.wait()
            found = optimized.retrieve(QUESTION)
            ended.set()
            await holder
            return found

    assert shown(called(Loop(), "amain").result(30)) == expected
    assert places_of(store).running == 0


def test_a_cancelled_call_leaves_the_places_to_others() -> None:
    gate = Gate()
    store = FakeStore(gate=gate)
    limit(store, at_once=1)
    optimized = fineflow.optimize(index(store=store).as_retriever())

    async def main() -> Any:
        tasks = [asyncio.create_task(optimized.aretrieve(QUESTION)) for _ in range(3)]
        await gate.arrived()
        while places_of(store).waiting < 2:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (places_of(store).running, places_of(store).waiting) == (0, 0)
        gate.open()
        return await optimized.aretrieve(QUESTION)

    assert asyncio.run(main())


def test_who_waits_and_who_works_is_in_the_figures() -> None:
    class Counted(FakeStore):
        pass

    store = Counted()
    limit(store, at_once=1)
    optimized = fineflow.optimize(index(store=store).as_retriever())
    with held(store) as permits:
        answered = called(optimized, "retrieve", QUESTION)
        wait_waiting(permits, 1)
        figures = fineflow.statistics().engines["Counted"]
        assert (figures.queued, figures.running) == (1, 1)
    answered.result(30)
    figures = fineflow.statistics().engines["Counted"]
    assert (figures.queued, figures.running, figures.batches) == (0, 0, 1)
