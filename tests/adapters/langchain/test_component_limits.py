"""``limit``: how many calls of a store, retriever, tool or function are at work at once, over all calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, MergerRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
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
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.resources import find
from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM, limit, set_policy
from fineflow.runtime import events
from fineflow.runtime.queues.permits import Permit
from fineflow.runtime.statistics import statistics
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeReranker, FakeVectorStore

pytestmark = pytest.mark.sweep


def opaque_retriever() -> Limited:
    work = Work()

    class Mine(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return [Document(page_content=work(query))]

    mine = Mine()
    return Limited(mine, mine, work)


def reranker() -> Limited:
    found = FakeReranker(top_n=2, overhead=SECONDS)
    store = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings())
    return Limited(
        found,
        ContextualCompressionRetriever(base_compressor=found, base_retriever=store.as_retriever()),
        found.meter,
    )


def tool(declared: bool) -> Limited:
    work = Work()

    def look(text: str) -> str:
        """Looks."""
        return work(text)

    func = fineflow.effects(reads="shelf")(look) if declared else look
    made = StructuredTool.from_function(func, name="declared" if declared else "undeclared")
    return Limited(made, RunnableLambda(lambda text: {"text": text}) | made, work)


def function(declared: bool) -> Limited:
    work = Work()

    def look(text: str) -> str:
        return work(text)

    if declared:
        fineflow.effects(reads="shelf")(look)
    return Limited(look, RunnableLambda(look), work)


def model() -> Limited:
    found = FakeChat(default="yes", prefill=SECONDS)
    return Limited(found, found | StrOutputParser(), found.meter)


KINDS: dict[str, Callable[[], Limited]] = {
    "store": store,
    "model": model,
    "opaque retriever": opaque_retriever,
    "reranker": reranker,
    "declared tool": lambda: tool(True),
    "tool": lambda: tool(False),
    "declared function": lambda: function(True),
    "function": lambda: function(False),
}


@in_virtual_time
@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_more_than_the_limit_are_at_work_and_the_answers_are_the_same(kind: str, entry: str) -> None:
    limited = KINDS[kind]()
    questions = [f"alpha {i}" for i in range(CALLS)]
    expected = virtual_threads.run(lambda: [run(limited.chain, entry, question) for question in questions]).value
    limit(limited.obj, at_once=2)
    optimized = fineflow.optimize(limited.chain)
    calls = [lambda q=q: run(optimized, entry, q) for q in questions]  # type: ignore[misc]
    found = virtual_threads.run(lambda: concurrently(calls)).value
    if entry in ("invoke", "ainvoke"):
        assert found == expected
    assert limited.most == 2 or kind == "reranker"
    assert (places_of(limited.obj).running, places_of(limited.obj).waiting) == (0, 0)


@in_virtual_time
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_counts_once_with_a_limit_and_without(kind: str) -> None:
    """Also where stock makes it itself."""
    limited = KINDS[kind]()
    optimized = fineflow.optimize(limited.chain, eager=True)
    name = {
        "store": "FakeVectorStore",
        "model": "FakeChat",
        "opaque retriever": "Mine",
        "reranker": "FakeReranker",
    }.get(kind)
    name = name or {"declared tool": "declared", "tool": "undeclared"}.get(kind, "look")

    def batches() -> int:
        found = statistics().engines.get(name)
        assert found is None or (found.queued, found.running) == (0, 0)
        return 0 if found is None else found.batches

    for at_once in (None, 1):
        if kind in ("function", "tool", "opaque retriever", "model") and at_once is None:
            continue  # nothing of such a chain runs ahead: it is left to stock as a whole
        before = batches()
        limit(limited.obj, at_once=at_once)
        virtual_threads.run(lambda: optimized.invoke({"q": "alpha"}))
        assert batches() - before == 3 or (kind == "reranker" and batches() - before > 0)


def test_the_policy_decides_who_is_next() -> None:
    gate = Gate(opened=True)
    found = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings(), gate=gate)
    seen: list[str] = []
    nearest = found._nearest
    model = FakeChat(default="yes")
    text = RunnableLambda(lambda docs: str(docs))
    deep = RunnableLambda(lambda given: given["deep"]) | found.as_retriever() | text | model
    shallow = RunnableLambda(lambda given: given["shallow"]) | found.as_retriever()
    optimized: Any = fineflow.optimize(RunnablePassthrough.assign(a=shallow, b=deep))
    query = found.embedding.embed_query

    def noted(vector: Any, k: int) -> Any:
        seen.append("deep" if vector == query("deep") else "shallow")
        return nearest(vector, k)

    found._nearest = noted  # type: ignore[method-assign]
    limit(found, at_once=1)
    for policy, order in (("by_depth", ["deep", "shallow"]), ("fifo", ["shallow", "deep"])):
        set_policy(found, policy)
        permits, seen[:] = places_of(found), []
        hold = Permit(permits)
        hold.acquire_sync()
        thread = threading.Thread(target=optimized.invoke, args=({"deep": "deep", "shallow": "shallow"},))
        thread.start()
        wait_until(lambda: places_of(found).waiting == 2)
        hold.release()
        thread.join(30)
        assert seen == order, policy


@in_virtual_time
def test_time_in_the_queue_is_shown() -> None:
    limited = store()
    limit(limited.obj, at_once=1)
    permits = places_of(limited.obj)
    optimized: Any = fineflow.optimize(limited.chain)

    def wait() -> None:
        hold = Permit(permits)
        hold.acquire_sync()
        thread = threading.Thread(target=optimized.invoke, args=({"q": "alpha"},))
        thread.start()
        time.sleep(5)
        figures = statistics().engines["FakeVectorStore"]
        assert (figures.queued, figures.running) == (permits.waiting, 1) == (3, 1)
        hold.release()
        thread.join(30)

    with events.record() as seen:
        virtual_threads.run(wait)
    waits = [each.start - each.queued for each in seen if each.lane == "FakeVectorStore"]
    assert len(waits) == 3
    assert max(waits) >= 5
    assert "waited" in str(fineflow.explain(optimized, last_run=True)).lower()


def test_a_write_whose_vectors_are_made_ahead_has_a_place() -> None:
    found = InMemoryVectorStore(EngineEmbeddings(EmulatedEmbedding(BatchProfile(call=0.0, item=0.0, max_batch=4))))
    seen: list[int] = []

    class Noted(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            seen.append(places_of(found).running)
            super().__setitem__(key, value)

    found.store = Noted()
    limit(found, at_once=1)
    docs = RunnableLambda(lambda given: [Document(page_content=given["q"], id=given["q"])])
    chain = RunnablePassthrough.assign(ids=docs | RunnableLambda(found.add_documents))
    optimized = fineflow.optimize(chain)
    concurrently([lambda i=i: optimized.invoke({"q": f"alpha {i}"}) for i in range(CALLS)])  # type: ignore[misc]
    assert seen == [1] * CALLS


@in_virtual_time
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_writes_of_a_store_are_calls_of_it(entry: str) -> None:
    work = Work()

    found = InMemoryVectorStore(FakeEmbeddings())
    embed = found.embedding.embed_documents
    found.embedding.embed_documents = lambda texts: [work(texts), embed(texts)][1]  # type: ignore[method-assign,misc]
    found.embedding.aembed_documents = lambda texts: asyncio.to_thread(found.embedding.embed_documents, texts)  # type: ignore[method-assign]
    write: Any = RunnableLambda(found.add_documents, afunc=found.aadd_documents)
    docs = RunnableLambda(lambda given: [Document(page_content=given["q"], id=given["q"])])
    chain = RunnablePassthrough.assign(ids=docs | write) | RunnablePassthrough.assign(
        found=RunnablePick("q") | found.as_retriever()
    )
    limit(found, at_once=1)
    optimized = fineflow.optimize(chain)
    calls = [lambda i=i: run(optimized, entry, f"alpha {i}") for i in range(CALLS)]  # type: ignore[misc]
    virtual_threads.run(lambda: concurrently(calls))
    assert work.calls == CALLS and work.most == 1
    assert sorted(found.store) == [f"alpha {i}" for i in range(CALLS)]


def test_what_is_limited_is_forgotten_with_its_object() -> None:
    limited = tool(False)
    limit(limited.obj, at_once=1)
    component = find(limited.obj)
    assert component is not None
    key = id(limited.obj)
    del limited
    import gc

    from fineflow.adapters.core import resources

    gc.collect()
    assert key not in resources._of


class Engine:
    name = "engine"
    ops: frozenset[Any] = frozenset()
    max_batch = 1

    async def execute(self, op: Any, items: Any) -> list[Any]:
        return []

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(
    ("obj", "at_once", "error", "match"),
    [
        (len, 0, ValueError, "at least 1, got 0"),
        (len, 1.5, TypeError, "whole number or None, got 1.5"),
        (len, True, TypeError, "whole number"),
        ("store", 1, TypeError, "expected a vector store, .* got str"),
        (ChatEngine(engine=EmulatedLLM(str.upper)), 1, TypeError, "got ChatEngine"),
        (FakeChat, 1, TypeError, "got the class FakeChat"),
        (FakeChat().invoke, 1, TypeError, "for a method, its object"),
        (Engine(), 1, TypeError, "has a queue of its own: set max_batch"),
        (MergerRetriever(retrievers=[]), 1, TypeError, "planned as its parts; limit those instead"),
    ],
)
def test_what_cannot_be_limited_is_said(obj: Any, at_once: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        limit(obj, at_once=at_once)


def test_a_policy_for_what_has_no_queue_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a vector store"):
        set_policy("store", "fifo")
    with pytest.raises(ValueError, match="by_depth"):
        set_policy(len, "deepest")
    nothing: Any = 3
    with pytest.raises(TypeError, match=r"expected a policy function or one of by_start, .*; got 3"):
        set_policy(len, nothing)
