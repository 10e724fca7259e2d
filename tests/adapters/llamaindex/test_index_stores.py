"""LlamaIndex's vector stores: searches of several queries made as one find what each would have found alone."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib.util
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from hypothesis import given, settings
from hypothesis import strategies as st
from index_shapes import QUESTION, WORDS, answer
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters, SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode, VectorStoreQueryResult

import fineflow
from fineflow.adapters.core.batched_search import Outcome, alone
from fineflow.adapters.core.builder import Builder
from fineflow.adapters.core.resources import StoreEngine
from fineflow.adapters.llamaindex.stores.searches import StoreSearch, engine_of, resource_of
from fineflow.backends.emulated import word_vector
from fineflow.testing import virtual_threads
from fineflow.testing.gates import wait_until
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from fineflow.testing.stalls import held

COUNT, DIMENSIONS = 80, 32
_numbers = itertools.count()


def have(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def nodes(*, ties: bool = True) -> list[TextNode]:
    """Many of equal texts, or none: which of equal ones a collection finds depends on how it was built."""
    texts = [" ".join(WORDS[i % 11 :: 1 + i % 3]) + ("" if ties else f" number{i}") for i in range(COUNT)]
    return [
        TextNode(id_=f"id{i}", text=text, metadata={"n": i}, embedding=word_vector(text, DIMENSIONS))
        for i, text in enumerate(texts)
    ]


def simple() -> Any:
    return SimpleVectorStore()


def chroma() -> Any:
    import chromadb
    from chromadb.config import Settings
    from llama_index.vector_stores.chroma import ChromaVectorStore

    client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
    return ChromaVectorStore(chroma_collection=client.create_collection(f"index{next(_numbers)}"))


def faiss() -> Any:
    import faiss as library
    from llama_index.vector_stores.faiss import FaissVectorStore

    return FaissVectorStore(faiss_index=library.IndexFlatL2(DIMENSIONS))


no_chroma = pytest.mark.skipif(not have("llama_index.vector_stores.chroma"), reason="its package is not installed")
no_faiss = pytest.mark.skipif(not have("llama_index.vector_stores.faiss"), reason="its package is not installed")
TOGETHER = [pytest.param(simple, id="simple"), pytest.param(chroma, id="chroma", marks=no_chroma)]
ALL = [*TOGETHER, pytest.param(faiss, id="faiss", marks=no_faiss)]


def filled(make: Callable[[], Any]) -> Any:
    store = make()
    store.add(nodes())
    return store


shared = functools.cache(filled)


def index(store: Any, embedding: Any = None, manager: CallbackManager | None = None) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store)
    model = embedding or FakeEmbedding(dimensions=DIMENSIONS)
    return VectorStoreIndex(nodes(ties=False), storage_context=context, embed_model=model, callback_manager=manager)


def search(store: Any, text: str, **asked: Any) -> StoreSearch:
    query = VectorStoreQuery(query_embedding=word_vector(text, DIMENSIONS), query_str=text, **asked)
    return StoreSearch(store, query, {})


def run(searches: Sequence[StoreSearch]) -> list[Outcome]:
    engine = engine_of(searches[0].store)
    assert engine is not None
    return engine._together.run(searches)


def shown(outcome: Outcome) -> Any:
    """All of an answer, floats to the last bit."""
    if outcome.error is not None:
        return type(outcome.error), str(outcome.error)
    found: VectorStoreQueryResult = outcome.result()
    texts = None
    if found.nodes is not None:
        texts = [(n.node_id, n.get_content(metadata_mode=MetadataMode.ALL), n.to_dict()) for n in found.nodes]
    scores = None if found.similarities is None else [(type(each), float(each).hex()) for each in found.similarities]
    return found.ids, scores, texts


def above(n: int) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key="n", value=n, operator=FilterOperator.GT)])


SETTINGS: list[dict[str, Any]] = [
    {},
    {"filters": above(30)},
    {"filters": above(1000)},
    {"mode": VectorStoreQueryMode.MMR},
    {"filters": MetadataFilters(filters=[MetadataFilter(key="n", value=7)])},
]


@pytest.mark.parametrize("make", TOGETHER)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_together_they_find_what_each_finds_alone(make: Callable[[], Any], data: st.DataObject) -> None:
    drawn = data.draw(
        st.lists(
            st.tuples(st.sampled_from([*WORDS, QUESTION, "mill town"]), st.sampled_from(SETTINGS), st.integers(1, 90)),
            min_size=1,
            max_size=6,
        )
    )
    searches = [search(shared(make), text, similarity_top_k=k, **asked) for text, asked, k in drawn]
    assert [shown(each) for each in run(searches)] == [shown(alone(each)) for each in searches]


@no_chroma
def test_one_call_of_the_collection_for_all_of_equal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    store = shared(chroma)
    asked: list[int] = []
    own = type(store._collection).query

    def counted(self: Any, **given: Any) -> Any:
        vectors = given["query_embeddings"]
        asked.append(len(vectors) if isinstance(vectors[0], list) else 1)
        return own(self, **given)

    monkeypatch.setattr(type(store._collection), "query", counted)
    searches = [search(store, word, similarity_top_k=k) for word in WORDS for k in (2, 5)]
    found = run(searches)
    assert sorted(asked) == [len(WORDS), len(WORDS)]
    assert [shown(each) for each in found] == [shown(alone(each)) for each in searches]


@no_chroma
def test_a_batch_that_fails_is_asked_again_one_by_one() -> None:
    store = shared(chroma)
    bad = MetadataFilters(filters=[MetadataFilter(key="n", value="a", operator=FilterOperator.GT)])
    short = StoreSearch(store, VectorStoreQuery(query_embedding=[1.0, 2.0]), {})
    searches = [search(store, "mill"), short, *(search(store, word, filters=bad) for word in ("town", "river"))]
    found = run(searches)
    assert found[0].error is None and all(each.error is not None for each in found[1:])
    assert [shown(each) for each in found] == [shown(alone(each)) for each in searches]
    assert len({id(each.error) for each in found}) == 4  # each its own exception


def test_vectors_that_make_no_matrix_are_searched_one_by_one() -> None:
    store = filled(simple)
    store.data.embedding_dict["odd"] = [1] * DIMENSIONS  # ints: as stock would reckon with them
    searches = [search(store, word, similarity_top_k=90) for word in WORDS]
    assert [shown(each) for each in run(searches)] == [shown(alone(each)) for each in searches]
    store.data.embedding_dict["odd"] = [1.0]
    assert all(each.error is not None for each in run(searches))
    assert [shown(each) for each in run(searches)] == [shown(alone(each)) for each in searches]


@pytest.mark.parametrize("make", TOGETHER)
def test_two_ways_to_the_same_nodes_share_a_queue(make: Callable[[], Any]) -> None:
    store, other = filled(make), filled(make)
    assert engine_of(store) is engine_of(copy.copy(store)) is not None
    assert engine_of(store) is not engine_of(other)
    b = Builder((), contents=resource_of)
    assert b.resource(store) == b.resource(copy.copy(store)) != b.resource(other)


@no_faiss
def test_faiss_is_known_by_its_index_and_has_no_queue() -> None:
    store = filled(faiss)
    assert engine_of(store) is None
    assert resource_of(store) is store._faiss_index


@no_chroma
def test_langchain_and_llamaindex_over_one_collection_are_one_resource() -> None:
    lang = pytest.importorskip("langchain_chroma")
    from fineflow.adapters.langchain.resources import engine_of as engine_of_langchain
    from fineflow.adapters.langchain.resources import standing
    from fineflow.adapters.langchain.stores.batched_search import RetrieverSearch as LangChainSearch
    from fineflow.adapters.langchain.stores.facts import contents, with_vector
    from fineflow.engines import limit
    from fineflow.testing.langchain import FakeEmbeddings

    store = filled(chroma)
    client = __import__("chromadb").EphemeralClient(store._collection._client._system.settings)
    twin = lang.Chroma(store._collection.name, FakeEmbeddings(), client=client)
    assert contents(twin) == resource_of(store)
    assert engine_of(store) is engine_of_langchain(twin) is standing(twin)
    ready = with_vector(twin.as_retriever(), "mill", twin.embeddings, word_vector("mill", DIMENSIONS))
    mixed: list[Any] = [
        search(store, "mill", similarity_top_k=4),
        LangChainSearch(ready, "mill", None),
        search(store, "town"),
    ]
    found = run(mixed)
    assert shown(found[0]) == shown(alone(mixed[0])) and shown(found[2]) == shown(alone(mixed[2]))
    assert found[1].result() == alone(mixed[1]).result()
    assert [doc.id for doc in found[1].result()] == found[0].result().ids
    limit(twin, at_once=1)
    try:
        engine = engine_of(store)
        assert engine is not None and engine.permits is not None and engine.permits.at_once == 1
    finally:
        limit(twin, at_once=None)


def test_what_is_overridden_stays_where_it_is() -> None:
    class Mine(SimpleVectorStore):
        def query(self, query: Any, **kwargs: Any) -> Any:
            return super().query(query, **kwargs)

    assert engine_of(filled(Mine)) is None
    store = filled(simple)
    assert engine_of(store) is not None
    object.__setattr__(store, "query", store.query)
    assert engine_of(store) is None
    assert engine_of(SimpleVectorStore()) is None  # too small to be worth a turn


class Held:
    """The engine of a store, which waits at a gate before each batch, and notes the queries of it."""

    def __init__(self, store: Any) -> None:
        engine = engine_of(store)
        assert isinstance(engine, StoreEngine)
        self.engine: Any = engine
        self.batches: list[list[str]] = []
        self.begun, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.together: Any = engine._together
        self.engine._together = self

    def run(self, searches: Sequence[StoreSearch]) -> list[Outcome]:
        self.batches.append(sorted(str(each.query.query_str) for each in searches))
        self.begun.release()
        assert self.gate.acquire(timeout=30)
        return self.together.run(searches)


@pytest.mark.parametrize("make", TOGETHER)
def test_sync_and_async_calls_of_all_threads_and_loops_meet_in_one_batch(make: Callable[[], Any]) -> None:
    stock: Any = index(make()).as_retriever(similarity_top_k=3)
    expected = {word: [(each.node_id, each.score) for each in stock.retrieve(word)] for word in (*WORDS, "first")}
    held = Held(stock._vector_store)
    optimized = fineflow.optimize(stock, eager=True, strict=True)
    found: dict[str, Any] = {}

    def sync(word: str) -> None:
        found[word] = [(each.node_id, each.score) for each in optimized.retrieve(word)]

    def loop(words: Sequence[str]) -> None:
        async def one(word: str) -> None:
            found[word] = [(each.node_id, each.score) for each in await optimized.aretrieve(word)]

        async def main() -> None:
            await asyncio.gather(*map(one, words))

        asyncio.run(main())

    threads = [threading.Thread(target=sync, args=("first",))]
    threads[0].start()
    assert held.begun.acquire(timeout=30)
    threads += [threading.Thread(target=sync, args=(word,)) for word in WORDS[:5]]
    threads += [threading.Thread(target=loop, args=(part,)) for part in (WORDS[5:8], WORDS[8:])]
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: held.engine.queue.waiting == len(WORDS))
    held.gate.release(2)
    for thread in threads:
        thread.join(30)
    assert held.batches == [["first"], sorted(WORDS)]
    assert found == expected


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("mode", ["compact", "accumulate"])
def test_the_same_answer_in_a_query_engine(make: Callable[[], Any], mode: str) -> None:
    def engine(manager: CallbackManager) -> Any:
        model = FakeLLM(answers=answer, callback_manager=manager)
        embedding = FakeEmbedding(dimensions=DIMENSIONS, callback_manager=manager)
        return index(make(), embedding, manager).as_query_engine(llm=model, response_mode=mode, similarity_top_k=4)

    assert_same_index(engine, QUESTION)


@pytest.mark.parametrize("use_async", [True, False])
@pytest.mark.parametrize("make", ALL)
def test_the_same_answer_in_a_fusion(make: Callable[[], Any], use_async: bool) -> None:
    def fusion(manager: CallbackManager) -> Any:
        model = FakeLLM(default="river mill\nstone tower\nriver mill", callback_manager=manager)
        found = index(make(), FakeEmbedding(dimensions=DIMENSIONS, callback_manager=manager), manager).as_retriever()
        found.callback_manager = manager
        return QueryFusionRetriever([found], llm=model, callback_manager=manager, use_async=use_async)

    assert_same_index(fusion, QUESTION, ordered=not use_async)


@pytest.mark.parametrize("make", TOGETHER)
@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_a_search_of_many_vectors_does_not_block_the_event_loop(make: Callable[[], Any]) -> None:
    store = make()
    optimized = fineflow.optimize(index(store).as_retriever(), strict=True)
    engine = Held(store)

    def release() -> None:
        time.sleep(0.5)  # virtual
        engine.gate.release()

    async def search() -> None:
        threading.Thread(target=release).start()
        await optimized.aretrieve(QUESTION)

    found = held(search)
    assert found.seconds < 0.2, f"{found.by} held the event loop for {found.seconds:.3f} s"
    assert engine.batches == [[QUESTION]] * 2
