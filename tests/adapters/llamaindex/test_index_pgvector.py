"""PGVectorStore on a real PostgreSQL server: the same answers, on the connections and event loops that stock uses."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("llama_index.vector_stores.postgres")

from index_shapes import QUESTION, WORDS, answer
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import AutoMergingRetriever, QueryFusionRetriever, TransformRetriever
from llama_index.core.schema import Document, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters
from llama_index.vector_stores.postgres import PGVectorStore
from pydantic import PrivateAttr
from sqlalchemy import NullPool, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

import fineflow
from fineflow.adapters.core.builder import Builder
from fineflow.adapters.llamaindex.stores.searches import connections, engine_of, resource_of
from fineflow.backends.emulated import word_vector
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from fineflow.testing.llamaindex.ingestion_differential import Bench, TextEmbedding, assert_same_ingestion
from postgres_server import postgres

DIMENSIONS = 32
WRITTEN = "river mill\nstone tower\nold school garden"
MODES = ("default", "hybrid", "sparse", "mmr")
NO_POOL = {"poolclass": NullPool}

_names = (f"table{i}" for i in itertools.count())


@dataclass
class Server:
    """url: for SQLAlchemy, without the driver."""

    url: str

    def store(self, table: str, kind: type[Any] = PGVectorStore, used: bool = True, **settings: Any) -> Any:
        """A store over a table, by connections that are opened for each search. used: whether it was asked before."""
        given = {
            "connection_string": f"postgresql+psycopg2{self.url}",
            "async_connection_string": f"postgresql+asyncpg{self.url}",
            "create_engine_kwargs": NO_POOL,
            "hybrid_search": True,
            "embed_dim": DIMENSIONS,
        }
        made = kind(table_name=table, **{**given, **settings})
        if used:
            made.get_nodes(node_ids=["fact 0"])
        return made

    def rows(self, table: str) -> list[Any]:
        """All that is in a table, vectors as text."""
        engine = create_engine(f"postgresql+psycopg2{self.url}", poolclass=NullPool)
        with engine.connect() as connection:
            asked = text(f"SELECT node_id, text, metadata_, embedding FROM data_{table} ORDER BY id")
            return [tuple(row) for row in connection.execute(asked)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        context = postgres()
        url = context.__enter__()
    except LookupError as why:
        pytest.skip(str(why))
    try:
        yield Server(url.removeprefix("postgresql+psycopg"))
    finally:
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def facts(server: Server) -> str:
    """A table that is only read."""
    server.store("facts", used=False).add(nodes())
    return "facts"


def nodes(count: int = 40) -> list[TextNode]:
    texts = [" ".join(WORDS[i % 11 :: 1 + i % 3]) + f" number{i}" for i in range(count)]
    return [
        TextNode(id_=f"fact {i}", text=each, metadata={"n": i}, embedding=word_vector(each, DIMENSIONS))
        for i, each in enumerate(texts)
    ]


def searching(store: Any, manager: CallbackManager | None = None, mode: str = "default", **settings: Any) -> Any:
    manager = manager or CallbackManager([])
    model = FakeEmbedding(dimensions=DIMENSIONS, callback_manager=manager)
    index = VectorStoreIndex.from_vector_store(store, embed_model=model, callback_manager=manager)
    made = index.as_retriever(vector_store_query_mode=mode, similarity_top_k=4, **settings)
    made.callback_manager = manager
    return made


def merging(store: Any, manager: CallbackManager | None = None) -> Any:
    """Searches by sync methods, in async calls, too."""
    documents = SimpleDocumentStore()
    documents.add_documents(nodes())
    storage = StorageContext.from_defaults(docstore=documents)
    return AutoMergingRetriever(searching(store, manager), storage, callback_manager=manager or CallbackManager([]))


def fusion(*parts: Any, manager: CallbackManager | None = None, written: str = WRITTEN, **settings: Any) -> Any:
    manager = manager or CallbackManager([])
    model = FakeLLM(default=written, callback_manager=manager)
    count = 1 + len(written.splitlines())
    asked = {"num_queries": count, "similarity_top_k": 6, "use_async": False, **settings}
    return QueryFusionRetriever(list(parts), llm=model, callback_manager=manager, **asked)


def optimized(obj: Any) -> Any:
    return fineflow.optimize(obj, strict=True, eager=True)


def found(each: Any) -> list[tuple[str, Any]]:
    return [(node.node_id, node.score) for node in each]


# Answers


@pytest.mark.parametrize("mode", MODES)
def test_a_retriever_finds_the_same(server: Server, facts: str, mode: str) -> None:
    seen = assert_same_index(lambda manager: searching(server.store(facts), manager, mode), QUESTION)
    assert all(each.error is None and len(each.nodes) >= 4 for each in seen.values())


@pytest.mark.parametrize("mode", ["default", "hybrid"])
def test_with_filters(server: Server, facts: str, mode: str) -> None:
    above = MetadataFilter(key="n", value=20, operator=FilterOperator.GT)
    some = MetadataFilter(key="n", value=[22, 23, 25, 31], operator=FilterOperator.IN)
    chosen = MetadataFilters(filters=[above, some])
    part = lambda manager: searching(server.store(facts), manager, mode, filters=chosen)  # noqa: E731
    seen = assert_same_index(lambda manager: fusion(part(manager), manager=manager), QUESTION)
    assert {node[0] for node in map(_identity, seen["retrieve"].nodes)} <= {f"fact {n}" for n in (22, 23, 25, 31)}


def _identity(node: Any) -> tuple[str, ...]:
    return tuple(word for word in json.dumps(node, default=str).split('"') if word.startswith("fact "))[:1]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("mode", ["compact", "accumulate"])
def test_a_query_engine_answers_the_same(server: Server, facts: str, mode: str, streaming: bool) -> None:
    if streaming and mode == "accumulate":
        mode = "refine"  # stock's accumulate does not stream

    def make(manager: CallbackManager) -> Any:
        model = FakeLLM(answers=answer, callback_manager=manager)
        parts = fusion(searching(server.store(facts), manager), manager=manager)
        said = get_response_synthesizer(model, response_mode=mode, streaming=streaming, callback_manager=manager)
        return RetrieverQueryEngine(parts, said, callback_manager=manager)

    seen = assert_same_index(make, QUESTION)
    assert all(seen[entry].text for entry in ("query", "aquery"))
    assert bool(seen["aquery"].tokens) == streaming


@pytest.mark.parametrize("use_async", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_fusion_finds_the_same_to_the_last_bit(server: Server, facts: str, mode: str, use_async: bool) -> None:
    """With ``use_async`` stock's sync methods search by the async one, whose ranks are others in the last bits."""

    def make(manager: CallbackManager) -> Any:
        part = searching(server.store(facts), manager, mode)
        return fusion(part, manager=manager, use_async=use_async, mode="simple")

    seen = assert_same_index(make, QUESTION, ordered=not use_async)
    assert all(each.error is None and each.nodes for each in seen.values())


@pytest.mark.parametrize("use_async", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_beside_one_that_searches_by_sync_methods(server: Server, facts: str, use_async: bool, swapped: bool) -> None:
    def make(manager: CallbackManager) -> Any:
        parts = [merging(server.store(facts), manager), searching(server.store(facts), manager)]
        return fusion(*(reversed(parts) if swapped else parts), manager=manager, use_async=use_async)

    assert_same_index(make, QUESTION, ordered=not use_async)


@pytest.mark.parametrize("use_async", [True, False])
def test_sub_questions_are_answered_the_same(server: Server, facts: str, use_async: bool) -> None:
    written = json.dumps([{"sub_question": line, "tool_name": "facts"} for line in WRITTEN.splitlines()])

    def make(manager: CallbackManager) -> Any:
        model = FakeLLM(answers=answer, callback_manager=manager)
        said = get_response_synthesizer(model, callback_manager=manager)
        part = RetrieverQueryEngine(searching(server.store(facts), manager), said, callback_manager=manager)
        tool = QueryEngineTool.from_defaults(part, name="facts", description="all there is")
        asks = LLMQuestionGenerator.from_defaults(llm=FakeLLM(default=written, callback_manager=manager))
        return SubQuestionQueryEngine(asks, said, [tool], manager, verbose=False, use_async=use_async)

    assert_same_index(make, QUESTION, ordered=not use_async)


# What runs ahead, and what does not


def threads_of(store: Any) -> list[str]:
    """The threads in which a store asks its database by sync methods, as they come."""
    seen: list[str] = []

    def asks(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "SELECT" in statement:
            seen.append(threading.current_thread().name)

    event.listen(store._engine, "before_cursor_execute", asks)
    return seen


def test_sync_searches_run_ahead_in_threads(server: Server, facts: str) -> None:
    store = server.store(facts)
    seen = threads_of(store)
    made = optimized(fusion(searching(store)))
    assert made.retrieve(QUESTION)
    assert len(seen) == 4 and threading.current_thread().name not in seen


def test_a_function_of_ones_own_in_each_search_is_called_by_stock_alone(server: Server, facts: str) -> None:
    called: list[str] = []

    def customize(statement: Any, table: Any, **kwargs: Any) -> Any:
        called.append(threading.current_thread().name)
        return statement.where(table.node_id != "fact 3")

    def make(manager: CallbackManager | None = None) -> Any:
        return fusion(searching(server.store(facts, customize_query_fn=customize), manager), manager=manager)

    assert_same_index(make, QUESTION)
    called.clear()
    optimized(make()).retrieve(QUESTION)
    assert called == [threading.current_thread().name] * 4
    fineflow.pure(customize)
    called.clear()
    optimized(make()).retrieve(QUESTION)
    assert len(called) == 4 and threading.current_thread().name not in called


def test_two_stores_over_one_table_are_one_resource(server: Server, facts: str) -> None:
    store, twin, other = server.store(facts), server.store(facts, used=False), server.store(next(_names))
    b = Builder((), contents=resource_of)
    assert b.resource(store) == b.resource(twin) != b.resource(other)
    assert engine_of(store) is None  # each search is made by itself


# First use


@pytest.mark.parametrize("use_async", [True, False])
@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_the_tables_are_made_once_by_the_first_search(
    server: Server, entry: str, use_async: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []
    own = PGVectorStore._connect

    def connect(store: Any) -> Any:
        made.append(store.table_name)
        return own(store)

    monkeypatch.setattr(PGVectorStore, "_connect", connect)
    settings = {"hnsw_ef_construction": 20, "hnsw_m": 4, "hnsw_ef_search": 10}

    def make(manager: CallbackManager) -> Any:
        kept = {"hnsw_kwargs": dict(settings), "initialization_fail_on_error": True}
        store = server.store(next(_names), used=False, **kept)
        return fusion(merging(store, manager), searching(store, manager), manager=manager, use_async=use_async)

    with caplog.at_level(logging.WARNING, "llama_index.vector_stores.postgres.base"):
        assert_same_index(make, QUESTION, entries=[entry], ordered=not use_async)
    assert len(made) == len(set(made)) == 2  # stock's, and that of the optimized one
    assert not caplog.records


async def test_making_the_tables_does_not_block_the_event_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr(PGVectorStore, "_create_extension", lambda store: gate.wait_sync())
    store = server.store(next(_names), used=False)
    asked = asyncio.create_task(optimized(searching(store)).aretrieve(QUESTION))
    await gate.arrived()  # which a loop that is blocked never tells
    gate.open()
    assert await asked == [] and store._is_initialized


# Connections and event loops


def checked_out(engine: Any) -> Callable[[], int]:
    """The most connections of a pool that were in use at once."""
    now, most, lock = 0, 0, threading.Lock()

    def count(step: int) -> None:
        nonlocal now, most
        with lock:
            now += step
            most = max(most, now)

    event.listen(engine, "checkout", lambda *_: count(1))
    event.listen(engine, "checkin", lambda *_: count(-1))
    return lambda: most


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_more_connections_than_the_pool_has(server: Server, facts: str, size: int) -> None:
    """With ``pool_timeout=0`` a search that finds none free fails. One is left to parts that stock calls itself."""
    pool = {"pool_size": size, "max_overflow": 0, "pool_timeout": 0}
    store = server.store(facts, create_engine_kwargs=pool)
    most, threads = checked_out(store._engine), threads_of(store)
    by_itself = TransformRetriever(searching(store), HyDEQueryTransform(FakeLLM(default="a town with a market")))
    for parts in ([searching(store)], [searching(store), by_itself]):
        retriever = fusion(*parts, written="\n".join(WORDS), similarity_top_k=20)
        expected = found(retriever.retrieve(QUESTION))
        for _ in range(5):
            assert found(optimized(retriever).retrieve(QUESTION)) == expected
        assert len(parts) == 2 or most() <= max(1, size - 1)
    assert (set(threads) == {threading.current_thread().name}) == (size == 1)
    store._engine.dispose()


def test_stores_over_one_engine_share_its_connections(server: Server, facts: str) -> None:
    url, pool = server.url, {"pool_size": 3, "max_overflow": 0, "pool_timeout": 0}
    engine = create_engine(f"postgresql+psycopg2{url}", **pool)
    asynchronous = create_async_engine(f"postgresql+asyncpg{url}", poolclass=NullPool)
    stores = [server.store(facts, engine=engine, async_engine=asynchronous) for _ in range(3)]
    assert len({id(connections(store)) for store in stores}) == 1
    most = checked_out(engine)
    retriever = fusion(*map(searching, stores), written="\n".join(WORDS), similarity_top_k=20)
    expected = found(retriever.retrieve(QUESTION))
    assert found(optimized(retriever).retrieve(QUESTION)) == expected
    assert most() <= 2
    engine.dispose()


def test_without_a_limit_of_the_pool_there_is_none(server: Server, facts: str) -> None:
    assert connections(server.store(facts)) is None
    endless = server.store(facts, create_engine_kwargs={"max_overflow": -1})
    assert connections(endless) is None
    endless._engine.dispose()


def test_async_calls_in_one_event_loop_after_another(server: Server, facts: str) -> None:
    """As stock can where connections are not kept."""
    retriever = fusion(searching(server.store(facts)), use_async=True)
    fast, expected = optimized(retriever), found(asyncio.run(retriever.aretrieve(QUESTION)))
    for _ in range(3):
        assert found(asyncio.run(fast.aretrieve(QUESTION))) == expected
        assert found(fast.retrieve(QUESTION)) == expected


def test_async_calls_in_two_event_loops_at_once(server: Server, facts: str) -> None:
    retriever = fusion(searching(server.store(facts)), use_async=True)
    fast, expected = optimized(retriever), found(retriever.retrieve(QUESTION))
    results: list[Any] = []

    def call() -> None:
        async def main() -> list[Any]:
            return await asyncio.gather(*(fast.aretrieve(QUESTION) for _ in range(3)))

        results.extend(map(found, asyncio.run(main())))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [expected] * 9


def test_the_callers_loop_keeps_its_connections(server: Server, facts: str) -> None:
    """Connections of a pool belong to the loop that opened them; stock's sync methods take the thread's own loop."""
    store = server.store(facts, create_engine_kwargs={})
    results: list[Any] = []

    def call() -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        retriever = fusion(merging(store), searching(store), use_async=True)
        for run in (retriever, optimized(retriever)):
            for _ in range(3):
                results.append(found(run.retrieve(QUESTION)))
                results.append(found(loop.run_until_complete(run.aretrieve(QUESTION))))
        loop.run_until_complete(store.close())
        loop.close()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    assert len(results) == 12 and all(each == results[0] for each in results)


def test_sync_searches_of_async_calls_in_one_event_loop_after_another(server: Server, facts: str) -> None:
    """As stock can with connections that are kept: those of the sync methods belong to no event loop."""
    store = server.store(facts, create_engine_kwargs={})
    retriever = fusion(merging(store))
    fast, expected = optimized(retriever), found(retriever.retrieve(QUESTION))
    for run in (retriever, fast):
        for _ in range(3):
            assert found(asyncio.run(run.aretrieve(QUESTION))) == expected
    store._engine.dispose()


def test_what_stock_asks_by_sync_methods_is_asked_by_them(server: Server, facts: str) -> None:
    """So in async calls, too: here connections by the async methods cannot be had at all."""
    nowhere = "postgresql+asyncpg://nobody@/postgres?host=/nowhere"
    retriever = fusion(merging(server.store(facts, async_connection_string=nowhere)))
    expected = found(retriever.retrieve(QUESTION))
    for _ in range(2):
        assert found(asyncio.run(retriever.aretrieve(QUESTION))) == expected
        assert found(asyncio.run(optimized(retriever).aretrieve(QUESTION))) == expected


def test_a_failure_of_the_sync_method_is_not_told_where_stock_asks_by_the_async_one(server: Server, facts: str) -> None:
    def make(manager: CallbackManager | None = None) -> Any:
        nowhere = "postgresql+psycopg2://nobody@/postgres?host=/nowhere"
        store = server.store(facts, used=False, connection_string=nowhere, perform_setup=False)
        store._initialize()
        return fusion(searching(store, manager), manager=manager, use_async=True)

    seen = assert_same_index(make, QUESTION, ordered=False)
    assert seen["retrieve"].nodes and seen["aretrieve"].nodes


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_failures_of_searches_are_stocks(server: Server, facts: str, entry: str) -> None:
    """In async calls of one search: of several that fail at once, one or another is told of by stock."""

    def make(manager: CallbackManager) -> Any:
        store = server.store(facts)
        store.text_search_config = "no such language"
        written = "" if entry == "aretrieve" else WRITTEN
        return fusion(searching(store, manager, "hybrid"), manager=manager, written=written)

    seen = assert_same_index(make, QUESTION, entries=[entry])
    assert all(each.error is not None and "no such language" in each.error[1] for each in seen.values())


# Ingestion


@fineflow.external
class Recording(PGVectorStore):
    """Notes each call that writes."""

    _calls: list[Any] = PrivateAttr(default_factory=list)

    @property
    def calls(self) -> list[Any]:
        return self._calls

    @property
    def data(self) -> Any:
        return self

    def to_dict(self) -> dict[str, Any]:
        """What is in the table."""
        url = self.connection_string.removeprefix("postgresql+psycopg2")
        return {"rows": Server(url).rows(self.table_name)}

    def add(self, nodes: Any, **kwargs: Any) -> Any:
        self._calls.append(("add", [(node.node_id, node.get_content(), node.embedding) for node in nodes]))
        return super().add(nodes, **kwargs)

    async def async_add(self, nodes: Any, **kwargs: Any) -> Any:
        self._calls.append(("add", [(node.node_id, node.get_content(), node.embedding) for node in nodes]))
        return await super().async_add(nodes, **kwargs)

    def delete(self, ref_doc_id: str, **kwargs: Any) -> None:
        self._calls.append(("delete", ref_doc_id))
        super().delete(ref_doc_id, **kwargs)


def bench(server: Server, manager: CallbackManager, **settings: Any) -> Bench:
    model = TextEmbedding(callback_manager=manager, dimensions=DIMENSIONS, embed_batch_size=4)
    store = server.store(next(_names), Recording, used=False)
    storage = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(
        [], storage_context=storage, embed_model=model, callback_manager=manager, insert_batch_size=4, **settings
    )
    return Bench(index, model, store)


def plain(count: int = 18) -> list[TextNode]:
    return [TextNode(id_=each.node_id, text=each.text, metadata=each.metadata) for each in nodes(count)]


def test_nodes_are_inserted_the_same(server: Server) -> None:
    seen = assert_same_ingestion(lambda manager: bench(server, manager), lambda index: index.insert_nodes(plain()))
    assert len(seen.kept["store"]["rows"]) == 18


def test_nodes_are_inserted_the_same_in_async_calls(server: Server) -> None:
    async def insert(index: Any) -> None:
        await index.ainsert_nodes(plain())

    seen = assert_same_ingestion(lambda manager: bench(server, manager), insert)
    assert len(seen.kept["store"]["rows"]) == 18


def test_a_pipeline_takes_in_the_same(server: Server) -> None:
    documents = [Document(doc_id=f"d{i}", text=". ".join(WORDS * 3)) for i in range(5)]

    def make(manager: CallbackManager) -> Bench:
        made = bench(server, manager)
        splitter = SentenceSplitter(chunk_size=32, chunk_overlap=0, id_func=_numbered)
        steps = [splitter, made.model]
        pipeline = IngestionPipeline(transformations=steps, vector_store=made.store, disable_cache=True)
        return Bench(pipeline, made.model, made.store)

    seen = assert_same_ingestion(make, lambda pipeline: pipeline.run(documents=documents))
    assert len(seen.kept["store"]["rows"]) > 5


def _numbered(i: int, document: Any) -> str:
    return f"{document.node_id}-{i}"


@pytest.mark.parametrize("how", ["from_documents", "insert_nodes"])
def test_the_table_of_an_index_holds_the_same(server: Server, how: str) -> None:
    def table(run: Callable[[Any], Any]) -> Any:
        store = server.store(next(_names), used=False)
        storage = StorageContext.from_defaults(vector_store=store)
        model = TextEmbedding(dimensions=DIMENSIONS, embed_batch_size=4)
        if how == "from_documents":
            documents = [Document(doc_id=f"d{i}", text=each.text) for i, each in enumerate(nodes(12))]
            splitter = SentenceSplitter(id_func=_numbered)
            kind = run(VectorStoreIndex)
            kind.from_documents(
                documents, storage_context=storage, embed_model=model, transformations=[splitter], insert_batch_size=4
            )
        else:
            index = VectorStoreIndex([], storage_context=storage, embed_model=model, insert_batch_size=4)
            run(index).insert_nodes(plain())
        return server.rows(store.table_name)

    kept = table(optimized)
    assert kept == table(lambda obj: obj) and len(kept) >= 12
