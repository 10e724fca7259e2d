"""``limit`` and ``set_policy`` for stores of LlamaIndex, retrievers and indexes: how many calls are at work at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from index_shapes import QUESTION, answer, index, nodes
from limited_stores import (  # noqa: F401
    STORES,
    Plain,
    called,
    entered,
    held,
    model,
    nothing_left,
    over,
    places_of,
    shown,
    wait_waiting,
)
from llama_index.core import Document, DocumentSummaryIndex, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine, RouterQueryEngine
from llama_index.core.retrievers import (
    QueryFusionRetriever,
    TransformRetriever,
    VectorIndexAutoRetriever,
    VectorIndexRetriever,
)
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreInfo
from test_index_stores import chroma
from test_index_stores import index as index_over

import fineflow
from fineflow.adapters.llamaindex.resources import standing
from fineflow.engines import limit, set_policy
from fineflow.runtime.queues.component_calls import limited_component
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore

pytestmark = pytest.mark.sweep

pytest.importorskip("llama_index.core")


class Mine(VectorIndexRetriever):
    """A retriever of the user's, which stock calls as it is."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return super()._retrieve(query_bundle)[:2]


def fusion(made: VectorStoreIndex) -> Any:
    parts = [made.as_retriever(similarity_top_k=k) for k in (2, 3)]
    return QueryFusionRetriever(parts, llm=model("river\nmill"), num_queries=3, use_async=False)


def router(made: VectorStoreIndex) -> Any:
    tool = QueryEngineTool.from_defaults(made.as_query_engine(llm=model()), name="north", description="the north")
    chooses = FakeLLM(default='[{"choice": 1, "reason": "it is"}]')
    return RouterQueryEngine(LLMSingleSelector.from_defaults(chooses), [tool], llm=model())


def summaries(store: Any) -> Any:
    context = StorageContext.from_defaults(vector_store=store)
    documents = [Document(text=f"the {word}", id_=word) for word in ("bridge", "mill")]
    found = DocumentSummaryIndex.from_documents(
        documents, llm=model(), embed_model=FakeEmbedding(), storage_context=context, show_progress=False
    )
    return found.as_retriever(retriever_mode="embedding", similarity_top_k=1)


def transformed(made: VectorStoreIndex) -> Any:
    from llama_index.core.indices.query.query_transform import HyDEQueryTransform

    return TransformRetriever(made.as_retriever(), HyDEQueryTransform(llm=model()))


def auto(made: VectorStoreIndex) -> Any:
    info = VectorStoreInfo(content_info="facts", metadata_info=[])
    llm = model('{"query": "the bridge", "filters": []}')
    return VectorIndexAutoRetriever(made, vector_store_info=info, llm=llm)


def chat(made: VectorStoreIndex) -> Any:
    # Not the default, a database: aiosqlite leaves the answers of its threads to an event loop that has been closed.
    memory = ChatMemoryBuffer.from_defaults(token_limit=500)
    return ContextChatEngine.from_defaults(made.as_retriever(), llm=model(), memory=memory)


READERS: dict[str, tuple[Callable[[Any], Any], str, int]] = {  # the least number of searches
    "retriever": (lambda made: made.as_retriever(), "retrieve", 1),
    "retriever, mmr": (lambda made: made.as_retriever(vector_store_query_mode="mmr"), "retrieve", 1),
    "engine": (lambda made: made.as_query_engine(llm=model()), "query", 1),
    "engine that accumulates": (
        lambda made: made.as_query_engine(llm=model(), response_mode="accumulate"),
        "query",
        1,
    ),
    "retrieval of an engine": (lambda made: made.as_query_engine(llm=model()), "retrieve", 1),
    "fusion": (fusion, "retrieve", 6),
    "router": (router, "query", 1),
    "transformed": (transformed, "retrieve", 1),
    "auto": (auto, "retrieve", 1),
    "chat": (chat, "chat", 1),
    "retriever of the user's": (lambda made: Mine(made, similarity_top_k=4), "retrieve", 1),
    "in an engine": (
        lambda made: RetrieverQueryEngine.from_args(Mine(made, similarity_top_k=4), llm=model()),
        "query",
        1,
    ),
    "summaries": (summaries, "retrieve", 1),
}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("what", READERS)
def test_searches_wait_for_a_place(what: str, make: Callable[[], Any], sync: bool) -> None:
    store = make()
    reader, name, least = READERS[what]
    obj = reader(store if what == "summaries" else over(store))
    entry = name if sync else f"a{name}"
    expected = None if what == "chat" else shown(entered(obj, entry, QUESTION))
    before = store.meter.calls if isinstance(store, FakeStore) else 0
    optimized = fineflow.optimize(obj, strict=True)
    limit(store, at_once=1)
    with held(store) as permits:
        answered = called(optimized, entry, QUESTION)
        wait_until(lambda: permits.waiting > 0, 30)
        assert not answered.done() and permits.running == 1
        assert not isinstance(store, FakeStore) or store.meter.calls == before
    found = answered.result(30)
    assert expected is None or shown(found) == expected
    assert (permits.running, permits.waiting) == (0, 0)
    if isinstance(store, FakeStore):
        assert store.meter.calls - before >= least


def inserted(made: VectorStoreIndex) -> Any:
    return made, "insert_nodes", [TextNode(text="a new bridge", id_="new")]


def updated(made: VectorStoreIndex) -> Any:
    return made, "update_ref_doc", Document(text="another bridge", id_="document")


def piped(made: VectorStoreIndex) -> Any:
    steps = [made._embed_model]
    pipeline = IngestionPipeline(transformations=steps, vector_store=made.vector_store, disable_cache=True)
    return pipeline, "run", False, None, [TextNode(text="a new bridge", id_="new")]


WRITERS: dict[str, Callable[[VectorStoreIndex], Any]] = {"insert": inserted, "update": updated, "pipeline": piped}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("what", WRITERS)
def test_writes_wait_for_a_place(what: str, sync: bool) -> None:
    if what == "pipeline":
        pytest.importorskip("llama_index.vector_stores.chroma")  # a store that keeps texts
        store: Any = chroma()
    else:
        store = FakeStore()
    obj, name, *args = WRITERS[what](over(store))
    before = size(store)
    optimized = fineflow.optimize(obj, strict=True)
    limit(store, at_once=1)
    entry = name if sync else f"a{name}"
    with held(store) as permits:
        written = called(optimized, entry, *args)
        wait_waiting(permits, 1)
        assert size(store) == before
    written.result(30)
    assert size(store) == before + 1
    assert (permits.running, permits.waiting) == (0, 0)


def size(store: Any) -> int:
    return len(store.data.embedding_dict) if isinstance(store, SimpleVectorStore) else int(store._collection.count())


def test_an_index_that_is_built_waits_for_a_place() -> None:
    store = FakeStore()
    limit(store, at_once=1)
    context = StorageContext.from_defaults(vector_store=store)
    build: Any = fineflow.optimize(VectorStoreIndex, strict=True)

    def make(documents: Any) -> Any:
        return build.from_documents(documents, storage_context=context, embed_model=FakeEmbedding())

    with held(store) as permits, ThreadPoolExecutor(1) as pool:
        built = pool.submit(make, [Document(text="a bridge")])
        wait_waiting(permits, 1)
        assert size(store) == 0
        permits.resize(2)  # or the pool would wait for it
        assert built.result(30)._vector_store is store
    assert size(store) == 1


@pytest.mark.parametrize("sync", [True, False])
def test_no_more_than_the_limit_are_at_work(sync: bool) -> None:
    gate = Gate()
    store = FakeStore(gate=gate)
    made = index(store=store)
    limit(made, at_once=2)
    optimized = fineflow.optimize(made.as_retriever())
    calls = [called(optimized, "retrieve" if sync else "aretrieve", QUESTION) for _ in range(6)]
    permits = places_of(store)
    for done in range(0, 6, 2):
        gate.wait_arrived(done + 2)
        wait_waiting(permits, 4 - done)
        assert store.meter.in_flight == 2 and gate.arrivals == done + 2
        gate.let(2)
    assert len({str(shown(call.result(30))) for call in calls}) == 1
    assert store.meter.peak == 2


@pytest.mark.parametrize("sync", [True, False])
def test_another_retriever_has_a_limit_of_its_own(sync: bool) -> None:
    gate = Gate()
    made = nodes(1)[0]

    def find(text: str) -> list[NodeWithScore]:
        gate.wait_sync()
        return [NodeWithScore(node=made, score=1.0)]

    plain = Plain(find)
    limit(plain, at_once=1)
    engine = fineflow.optimize(RetrieverQueryEngine.from_args(plain, llm=model()), strict=True)
    calls = [called(engine, "query" if sync else "aquery", QUESTION) for _ in range(2)]
    calls += [called(fineflow.optimize(plain), "retrieve" if sync else "aretrieve", QUESTION)]
    for done in range(3):
        gate.wait_arrived(done + 1)
        wait_waiting(places_of(plain), 2 - done)
        assert gate.arrivals == done + 1
        gate.let()
    assert all(call.result(30) for call in calls)


@pytest.mark.parametrize("sync", [True, False])
def test_a_retriever_that_searches_ahead_in_a_fusion_has_a_place(sync: bool) -> None:
    plain = SummaryIndex(nodes(3)).as_retriever()
    made: Any = QueryFusionRetriever([plain], llm=model("river\nmill"), num_queries=3, use_async=False)
    entry = "retrieve" if sync else "aretrieve"
    expected = shown(entered(made, entry, QUESTION))
    limit(plain, at_once=1)
    with held(plain) as permits:
        answered = called(fineflow.optimize(made, strict=True), entry, QUESTION)
        wait_waiting(permits, 3)
        assert not answered.done()
    assert shown(answered.result(30)) == expected
    assert (permits.running, permits.waiting) == (0, 0)


def test_a_limit_may_be_set_and_lifted_later() -> None:
    store = FakeStore()
    optimized = fineflow.optimize(index(store=store).as_retriever())
    optimized.retrieve(QUESTION)
    assert "wait for their turn" not in str(fineflow.explain(optimized))
    limit(store, at_once=1)
    assert "wait for their turn" in str(fineflow.explain(optimized))
    with held(store) as permits:
        answered = called(optimized, "retrieve", QUESTION)
        wait_waiting(permits, 1)
        limit(store, at_once=None)
        assert answered.result(30)
    assert optimized.retrieve(QUESTION) and standing(store).permits is None
    assert "wait for their turn" not in str(fineflow.explain(optimized))


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("mode", ["compact", "accumulate"])
def test_the_same_answer_with_a_limit(make: Callable[[], Any], mode: str) -> None:
    def engine(manager: CallbackManager) -> Any:
        store = make()
        limit(store, at_once=1)
        embedding = FakeEmbedding(callback_manager=manager)
        made: Any = over(store) if isinstance(store, FakeStore) else index_over(store, embedding, manager)
        made._callback_manager = manager
        made._embed_model = embedding
        llm = FakeLLM(answers=answer, callback_manager=manager)
        return made.as_query_engine(llm=llm, response_mode=mode, similarity_top_k=4)

    assert_same_index(engine, QUESTION)


def test_the_same_answer_of_a_retriever_that_is_called_whole() -> None:
    def engine(manager: CallbackManager) -> Any:
        made = index(FakeEmbedding(callback_manager=manager), callback_manager=manager)
        retriever = Mine(made, callback_manager=manager)
        limit(retriever, at_once=1)
        return RetrieverQueryEngine.from_args(retriever, llm=FakeLLM(answers=answer, callback_manager=manager))

    assert_same_index(engine, QUESTION)


@pytest.mark.parametrize(
    "way",
    [
        lambda made: made.vector_store,
        lambda made: made,
        lambda made: fineflow.optimize(made),
        lambda made: made.as_retriever(),
        lambda made: fineflow.optimize(made.as_retriever()),
        lambda made: Mine(made),
    ],
)
def test_ways_to_a_store(way: Callable[[Any], Any]) -> None:
    made = index()
    limit(way(made), at_once=3)
    assert places_of(made.vector_store).at_once == 3


def test_what_is_limited_is_forgotten_with_its_object() -> None:
    from fineflow.adapters.core import resources

    made = index()
    limit(made, at_once=1)
    key = id(made.vector_store)
    assert limited_component(made.vector_store) is not None and key in resources._of
    del made
    gc.collect()
    assert key not in resources._of


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: VectorStoreIndex, "got the class VectorStoreIndex"),
        (lambda: model(), "got FakeLLM; requests to a server are limited by fineflow.engine"),
        (lambda: FakeEmbedding(), "got FakeEmbedding"),
        (lambda: index().as_query_engine(llm=model()), r"\(of an engine its retriever\), got RetrieverQueryEngine"),
        (lambda: SummaryIndex(nodes(2)), "got SummaryIndex"),
        (lambda: fusion(index()), "QueryFusionRetriever is taken apart into what it is made of: limit that"),
        (lambda: transformed(index()), "TransformRetriever is taken apart"),
        (lambda: SummaryIndex(nodes(2)).as_retriever(retriever_mode="llm", llm=model()), "is taken apart"),
    ],
)
def test_what_cannot_be_limited_is_said(make: Callable[[], Any], match: str) -> None:
    for refuses in (lambda obj: limit(obj, at_once=1), lambda obj: set_policy(obj, "fifo")):
        with pytest.raises(TypeError, match=match):
            refuses(make())
