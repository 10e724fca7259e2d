"""``limit`` and ``set_policy`` for stores of LlamaIndex, retrievers and indexes: how many calls are at work at once."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, index, nodes
from llama_index.core import Document, DocumentSummaryIndex, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
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
from test_index_stores import chroma, no_chroma, simple
from test_index_stores import index as index_over

import fineflow
from fineflow.adapters.core.resources import StoreEngine
from fineflow.adapters.llamaindex.resources import standing
from fineflow.engines import limit, set_policy
from fineflow.runtime.queues.component_calls import ComponentPermits, component_of
from fineflow.runtime.queues.permits import Permit
from fineflow.runtime.queues.policy import Take, Waiting
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.leaks import left, settled
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    before = left()
    yield
    assert not settled(before=before)


def places_of(obj: Any) -> ComponentPermits:
    places = standing(obj).permits
    assert places is not None
    return places


def wait_waiting(places: ComponentPermits, count: int) -> None:
    wait_until(lambda: places.waiting == count, 30)


@contextmanager
def held(obj: Any) -> Iterator[ComponentPermits]:
    """All places of a component with one are taken meanwhile."""
    places = places_of(obj)
    hold = Permit(places)
    hold.acquire_sync()
    try:
        yield places
    finally:
        hold.release()


def entered(obj: Any, entry: str, *args: Any) -> Any:
    found = getattr(obj, entry)
    return asyncio.run(found(*args)) if entry.startswith("a") else found(*args)


def called(obj: Any, entry: str, *args: Any) -> Future[Any]:
    """What the method returns, called in a thread; async methods on a loop of its own."""
    found: Future[Any] = Future()

    def call() -> None:
        try:
            found.set_result(entered(obj, entry, *args))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return found


def shown(found: Any) -> Any:
    """What two calls returned, to be compared."""
    if isinstance(found, list):
        return [(each.node_id, each.score) for each in found]
    return str(found), shown(found.source_nodes)


class Mine(VectorIndexRetriever):
    """A retriever of the user's, which stock calls as it is."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return super()._retrieve(query_bundle)[:2]


class Plain(BaseRetriever):
    """A retriever that searches somewhere else."""

    def __init__(self, find: Callable[[str], list[NodeWithScore]]) -> None:
        self.find = find
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.find(query_bundle.query_str)


def model(default: str = "yes") -> FakeLLM:
    return FakeLLM(answers=answer) if default == "yes" else FakeLLM(default=default)


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
STORES = [
    pytest.param(FakeStore, id="alone"),
    pytest.param(simple, id="together"),
    pytest.param(chroma, id="chroma", marks=no_chroma),
]


def over(store: Any) -> VectorStoreIndex:
    return index(store=store) if isinstance(store, FakeStore) else index_over(store)


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
    with held(store) as places:
        answered = called(optimized, entry, QUESTION)
        wait_until(lambda: places.waiting > 0, 30)
        assert not answered.done() and places.running == 1
        assert not isinstance(store, FakeStore) or store.meter.calls == before
    found = answered.result(30)
    assert expected is None or shown(found) == expected
    assert (places.running, places.waiting) == (0, 0)
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
    with held(store) as places:
        written = called(optimized, entry, *args)
        wait_waiting(places, 1)
        assert size(store) == before
    written.result(30)
    assert size(store) == before + 1
    assert (places.running, places.waiting) == (0, 0)


def size(store: Any) -> int:
    return len(store.data.embedding_dict) if isinstance(store, SimpleVectorStore) else int(store._collection.count())


def test_an_index_that_is_built_waits_for_a_place() -> None:
    store = FakeStore()
    limit(store, at_once=1)
    context = StorageContext.from_defaults(vector_store=store)
    build: Any = fineflow.optimize(VectorStoreIndex, strict=True)

    def make(documents: Any) -> Any:
        return build.from_documents(documents, storage_context=context, embed_model=FakeEmbedding())

    with held(store) as places, ThreadPoolExecutor(1) as pool:
        built = pool.submit(make, [Document(text="a bridge")])
        wait_waiting(places, 1)
        assert size(store) == 0
        places.resize(2)  # or the pool would wait for it
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
    places = places_of(store)
    for done in range(0, 6, 2):
        gate.wait_arrived(done + 2)
        wait_waiting(places, 4 - done)
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
    with held(plain) as places:
        answered = called(fineflow.optimize(made, strict=True), entry, QUESTION)
        wait_waiting(places, 3)
        assert not answered.done()
    assert shown(answered.result(30)) == expected
    assert (places.running, places.waiting) == (0, 0)


def test_a_limit_may_be_set_and_lifted_later() -> None:
    store = FakeStore()
    optimized = fineflow.optimize(index(store=store).as_retriever())
    optimized.retrieve(QUESTION)
    assert "wait for their turn" not in str(fineflow.explain(optimized))
    limit(store, at_once=1)
    assert "wait for their turn" in str(fineflow.explain(optimized))
    with held(store) as places:
        answered = called(optimized, "retrieve", QUESTION)
        wait_waiting(places, 1)
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
    with held(store) as places:
        for i, word in enumerate(words):
            calls.append(called(optimized, "retrieve", word))
            wait_waiting(places, i + 1)
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
    chain: Any = fineflow.optimize(RunnablePassthrough.assign(a=docs, b=docs), strict=True)
    retriever: Any = fineflow.optimize(made.as_retriever(), strict=True)
    with held(store) as places:
        calls = [called(chain, "invoke", {"q": QUESTION})]
        wait_until(lambda: places.waiting == 1)
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
    return fineflow.optimize(found)


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
    with held(store) as places:
        answered = called(optimized, "retrieve", QUESTION)
        wait_waiting(places, 1)
        figures = fineflow.statistics().engines["Counted"]
        assert (figures.queued, figures.running) == (1, 1)
    answered.result(30)
    figures = fineflow.statistics().engines["Counted"]
    assert (figures.queued, figures.running, figures.batches) == (0, 0, 1)


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
    assert component_of(made.vector_store) is not None and key in resources._of
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
