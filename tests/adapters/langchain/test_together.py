"""Searches of several queries made as one find what each would have found alone: documents, order, scores, errors."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("langchain_chroma")

from chroma_client import CLIENT
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore, VectorStoreRetriever

import fineflow
from fineflow.adapters.core.batched_search import Outcome, alone
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.resources import engine_of, standing
from fineflow.adapters.langchain.stores.batched_search import RetrieverSearch
from fineflow.adapters.langchain.stores.facts import known, with_vector
from fineflow.ir import Op
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing.gates import wait_until
from fineflow.testing.langchain import FakeEmbeddings
from fineflow.testing.leaks import left, settled

pytestmark = pytest.mark.filterwarnings("ignore:Relevance scores must be")

WORDS = ("paris", "rome", "capital", "of", "france", "italy", "cheese")
TEXTS = [" ".join(WORDS[i % 7 :: 1 + i % 3]) for i in range(70)]  # many are equal: ties in every search
QUERIES = [*WORDS, "paris capital", "capital of italy", "capital of italy", ""]
_numbers = itertools.count()


class Words:
    """An embedding engine whose vectors depend on the text alone."""

    name = "words"
    ops = frozenset({Op.EMBED})
    max_batch = 64

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        words = FakeEmbeddings()
        return [words.vector(text) for _, text in items]

    async def aclose(self) -> None:
        pass


def chroma(embeddings: Any = None, name: str = "") -> Chroma:
    """A collection of 70 texts. ``name``: of one that is there already."""
    if name:
        return Chroma(name, embeddings or EngineEmbeddings(Words()), client=CLIENT)
    store = Chroma(f"together{next(_numbers)}", embeddings or EngineEmbeddings(Words()), client=CLIENT)
    store.add_texts(TEXTS, [{"n": i} for i, _ in enumerate(TEXTS)], ids=[f"id{i}" for i, _ in enumerate(TEXTS)])
    return store


def memory(embeddings: Any = None) -> InMemoryVectorStore:
    store = InMemoryVectorStore(embeddings or EngineEmbeddings(Words()))
    store.add_texts(TEXTS, [{"n": i} for i, _ in enumerate(TEXTS)], ids=[f"id{i}" for i, _ in enumerate(TEXTS)])
    return store


STORES: dict[str, Callable[..., VectorStore]] = {"chroma": chroma, "memory": memory}
shared = functools.cache(lambda name: STORES[name]())


def even(doc: Document) -> bool:
    return doc.metadata["n"] % 2 == 0


def search(retriever: VectorStoreRetriever, query: str) -> RetrieverSearch:
    """With the vector of the query ready."""
    embeddings = retriever.vectorstore.embeddings
    return RetrieverSearch(with_vector(retriever, query, embeddings, FakeEmbeddings().vector(query)), query, None)


def run(searches: Sequence[RetrieverSearch]) -> list[Outcome]:
    row = known(searches[0].retriever.vectorstore)
    assert row is not None and row.together is not None
    return row.together.run(searches)


def shown(outcome: Outcome) -> Any:
    error = outcome.error
    return outcome.found if error is None else (type(error), str(error), "together.py" in str(error.__traceback__))


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "chroma": [{}, {"filter": {"n": {"$gt": 30}}}, {"filter": {"n": 7}}, {"where_document": {"$contains": "rome"}}],
    "memory": [{}, {"filter": even}, {"filter": lambda doc: doc.metadata["n"] > 66}, {"filter": lambda doc: False}],
}
KINDS: list[dict[str, Any]] = [
    {},
    {"search_type": "mmr"},
    {"search_type": "similarity_score_threshold", "search_kwargs": {"score_threshold": 0.2}},
]


@settings(deadline=None)
@given(data=st.data(), store=st.sampled_from(list(STORES)))
def test_together_they_find_what_each_finds_alone(data: st.DataObject, store: str) -> None:
    """Any mixture of settings: what cannot be asked together is not."""
    searches = []
    for query in data.draw(st.lists(st.sampled_from(QUERIES), min_size=1, max_size=6)):
        setting, kind = data.draw(st.sampled_from(SETTINGS[store])), data.draw(st.sampled_from(KINDS))
        given_ = {**kind.get("search_kwargs", {}), **setting, "k": data.draw(st.sampled_from([1, 4, 69, 100]))}
        retriever = shared(store).as_retriever(**{**kind, "search_kwargs": given_})
        searches.append(search(retriever, query))
    found = run(searches)
    assert [shown(outcome) for outcome in found] == [shown(alone(each)) for each in searches]
    assert [doc.id for each in found for doc in each.found or ()] == [
        doc.id for each in searches for doc in alone(each).found or ()
    ]


@pytest.mark.parametrize("method", ["similarity_search_with_score", "similarity_search_with_relevance_scores"])
@pytest.mark.parametrize("name", STORES)
def test_scores_are_the_same_to_the_last_bit(name: str, method: str) -> None:
    class Scored(VectorStoreRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> Any:
            return getattr(self.vectorstore, method)(query, k=20)

    searches = [search(Scored(vectorstore=shared(name)), query) for query in QUERIES]
    assert [outcome.found for outcome in run(searches)] == [alone(each).found for each in searches]


@pytest.mark.parametrize("name", STORES)
def test_documents_are_new_ones_that_share_what_stocks_would(name: str) -> None:
    searches = [search(shared(name).as_retriever(), "paris")] * 2
    one, other = (outcome.result() for outcome in run(searches))
    one[0].metadata["n"] = "changed"
    one[0].page_content = "changed"
    assert other == alone(searches[0]).result()


def test_one_call_of_the_collection_for_all_of_equal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    store = chroma()
    asked: list[int] = []
    query = type(store._collection).query

    def counted(self: Any, **given: Any) -> Any:
        asked.append(len(given["query_embeddings"]))
        return query(self, **given)

    monkeypatch.setattr(type(store._collection), "query", counted)
    few, many = store.as_retriever(search_kwargs={"k": 2}), store.as_retriever(search_kwargs={"k": 5})
    run([search(each, word) for word in WORDS for each in (few, many)])
    assert sorted(asked) == [7, 7]
    asked.clear()
    run([search(few, "paris"), search(many, "paris")])  # nothing to make together
    assert sorted(asked) == [1, 1]


def test_a_search_that_fails_fails_alone_and_as_ever() -> None:
    store = chroma()
    wrong = search(store.as_retriever(), "paris")
    ready: Any = wrong.retriever.vectorstore
    ready._embedding_function._vectors["paris"] = [1.0, 2.0]  # of another length: no group has it
    bad = store.as_retriever(search_kwargs={"filter": {"$nothing": 1}})
    searches = [search(store.as_retriever(), "rome"), wrong, *(search(bad, word) for word in ("a", "b"))]
    found = run(searches)
    assert [type(each.error) for each in found] == [type(alone(each).error) for each in searches]
    assert found[0].error is None and all(each.error for each in found[1:])
    assert str(found[1].error) == str(alone(wrong).error)
    assert len({id(each.error) for each in found}) == 4  # each its own exception
    with pytest.raises(type(alone(searches[2]).error), match="where clause"):  # type: ignore[arg-type]
        found[2].result()


def test_vectors_that_make_no_matrix_are_searched_one_by_one() -> None:
    store = memory()
    store.store["odd"] = {"id": "odd", "vector": [1.0], "text": "odd", "metadata": {}}
    found = run([search(store.as_retriever(), "paris")] * 2)
    assert [type(each.error) for each in found] == [ValueError, ValueError]
    store.store["odd"]["vector"] = [1] * 32  # ints among them: as stock would reckon with them
    searches = [search(store.as_retriever(search_kwargs={"k": 71}), query) for query in QUERIES]
    assert [shown(each) for each in run(searches)] == [shown(alone(each)) for each in searches]


def test_two_databases_are_never_asked_as_one() -> None:
    one, other = chroma(), chroma()
    other.delete(["id0"])
    searches = [search(store.as_retriever(search_kwargs={"k": 70}), "paris") for store in (one, other) * 2]
    assert [len(each.result()) for each in run(searches)] == [70, 69, 70, 69]
    held, less = memory(), memory()
    less.delete(["id0"])
    searches = [search(store.as_retriever(search_kwargs={"k": 70}), "paris") for store in (held, less) * 2]
    assert [len(each.result()) for each in run(searches)] == [70, 69, 70, 69]


def test_two_ways_to_one_collection_share_a_queue() -> None:
    store = chroma()
    other = chroma(name=store._collection.name)
    assert engine_of(store) is engine_of(other) is not None
    assert engine_of(store) is not engine_of(chroma())
    copied = copy.copy(held := memory())
    assert engine_of(held) is engine_of(copied) is not None
    assert engine_of(InMemoryVectorStore(FakeEmbeddings())) is None  # too small to be worth a thread


def test_overridden_methods_stay_where_they_are() -> None:
    class Mine(InMemoryVectorStore):
        def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
            return super().similarity_search(query, k, **kwargs)

    store = memory()
    mine = Mine(store.embedding)
    mine.store = store.store
    assert engine_of(mine) is None
    store.similarity_search = mine.similarity_search  # type: ignore[method-assign]
    assert engine_of(store) is None


class Held:
    """A store's engine that waits at a gate before each batch, and notes the queries of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: VectorStore) -> None:
        engine: Any = standing(store)
        self.batches: list[list[str]] = []
        self.begun, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        together = engine._together
        engine._together = self
        self.together = together

    def run(self, searches: Sequence[RetrieverSearch]) -> list[Outcome]:
        self.batches.append([each.query for each in searches])
        self.begun.release()
        assert self.gate.acquire(timeout=30)
        outcomes: list[Outcome] = self.together.run(searches)
        return outcomes


def searching(store: VectorStore, **settings: Any) -> Runnable[Any, Any]:
    """A chain that searches ahead: beside a step that the search need not wait for."""
    return RunnableParallel(docs=store.as_retriever(**settings), same=RunnableLambda(lambda text: text))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[VectorStore]:
    before = left()
    yield STORES[request.param]()
    assert not settled(before=before)


def test_sync_and_async_calls_of_all_threads_and_loops_meet_in_one_batch(
    store: VectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, store)
    chain = searching(store)
    optimized = fineflow.optimize(chain, eager=True)
    expected = {query: chain.invoke(query) for query in (*WORDS, "first")}
    found: dict[str, Any] = {}

    def sync(query: str) -> None:
        found[query] = optimized.invoke(query)

    def loop(queries: Sequence[str]) -> None:
        async def all_of_them() -> None:
            answers = await asyncio.gather(*(optimized.ainvoke(query) for query in queries))
            found.update(zip(queries, answers, strict=True))

        asyncio.run(all_of_them())

    threads = [threading.Thread(target=sync, args=("first",))]
    threads[0].start()
    assert held.begun.acquire(timeout=30)
    threads += [threading.Thread(target=sync, args=(word,)) for word in WORDS[:3]]
    threads += [threading.Thread(target=loop, args=(part,)) for part in (WORDS[3:5], WORDS[5:])]
    for thread in threads[1:]:
        thread.start()
    queue = batch_queue_of(engine_of(store))  # type: ignore[arg-type]
    wait_until(lambda: queue.waiting == 7)
    name = type(store).__name__
    assert (fineflow.statistics().engines[name].queued, fineflow.statistics().engines[name].running) == (7, 1)
    before = fineflow.statistics().engines[name].batches
    held.gate.release(2)
    for thread in threads:
        thread.join(30)
    assert found == expected
    assert [sorted(batch) for batch in held.batches] == [["first"], sorted(WORDS)]
    assert fineflow.statistics().engines[name].batches == before + 2
    assert queue.waiting == 0


def test_a_cancelled_search_leaves_the_queue(store: VectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, store)
    optimized = fineflow.optimize(searching(store), eager=True)
    queue = batch_queue_of(engine_of(store))  # type: ignore[arg-type]

    async def main() -> None:
        first = asyncio.create_task(optimized.ainvoke("paris"))
        await asyncio.to_thread(held.begun.acquire, timeout=30)
        second = asyncio.create_task(optimized.ainvoke("rome"))
        while not queue.waiting:
            await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert queue.waiting == 0
        held.gate.release()
        await first

    asyncio.run(main())
    assert held.batches == [["paris"]]


def test_a_policy_that_raises_costs_the_queue_and_not_the_answer(store: VectorStore) -> None:
    def broken(waiting: Any, slots: int) -> Any:
        raise ValueError("broken")

    chain = searching(store)
    set_policy(standing(store), broken)
    assert fineflow.optimize(chain, eager=True).invoke("paris") == chain.invoke("paris")


@pytest.mark.parametrize("entry", ["sync", "async"])
@pytest.mark.parametrize("name", STORES)
def test_embeddings_of_others_are_asked_as_the_store_would(name: str, entry: str) -> None:
    """Once, by the same method; what they raise is raised, the same object."""

    class Noted(FakeEmbeddings):
        error: Exception | None = None

        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def embed_query(self, text: str) -> list[float]:
            self.calls.append("sync")
            if self.error:
                raise self.error
            return self.vector(text)

        async def aembed_query(self, text: str) -> list[float]:
            self.calls.append("async")
            if self.error:
                raise self.error
            return self.vector(text)

    embeddings = fineflow.external(Noted)()
    chain = searching(STORES[name](embeddings))
    optimized = fineflow.optimize(chain, eager=True)

    def call(runnable: Runnable[Any, Any]) -> Any:
        embeddings.calls.clear()
        try:
            found = runnable.invoke("paris") if entry == "sync" else asyncio.run(runnable.ainvoke("paris"))
        except Exception as error:
            found = error
        return found, list(embeddings.calls)

    assert call(optimized) == call(chain)
    embeddings.error = ValueError("no")
    assert call(optimized) == call(chain)
    assert call(optimized)[0] is embeddings.error
