"""pgvector on a real PostgreSQL server: the same documents as through the stores themselves, sync and async."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("langchain_postgres")
pytest.importorskip("psycopg")

from langchain_classic.retrievers import MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_postgres import PGEngine, PGVector, PGVectorStore
from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.resources import limited
from fineflow.adapters.langchain.stores.facts import contents, known, own_function, unready, with_vector
from fineflow.backends.emulated import BatchProfile, EmulatedEmbedding
from fineflow.engines import limit
from fineflow.ir import Op
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, prompt_text
from postgres_server import postgres

TEXTS = [f"{thing} number {i} stands near the old harbour" for i in range(4) for thing in ("tower", "mill", "bridge")]
LINES = "towers near water\nwhere the mill stands\nbridges number 3"
QUESTION = "Where do towers stand?"
DIMENSIONS = 32

_names = (f"collection{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        server = postgres()
        found = server.__enter__()
    except LookupError as why:
        pytest.skip(str(why))
    with create_engine(found, poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE EXTENSION vector"))
    yield found
    server.__exit__(None, None, None)


def embeddings() -> EngineEmbeddings:
    return EngineEmbeddings(EmulatedEmbedding(BatchProfile(0.0, 0.0, 16), dimensions=DIMENSIONS))


def documents(collection: str) -> list[Document]:
    """An id is there once in all collections of a server."""
    return [
        Document(id=f"{collection} {i}", page_content=t, metadata={"n": i, "of": {"a": [i]}})
        for i, t in enumerate(TEXTS)
    ]


def answer(retriever: Any) -> Any:
    """Rewrites a question, searches with each line, and answers from what was found."""
    several = MultiQueryRetriever.from_llm(retriever, FakeChat(default=LINES), include_original=True)
    prompt = ChatPromptTemplate.from_template("{question}\n{found}")
    model = FakeChat(answers=lambda messages: f"[{prompt_text(messages)}]")
    return {"question": RunnablePassthrough(), "found": several} | prompt | model | StrOutputParser()


@pytest.fixture
def sync_store(url: str) -> Iterator[Callable[..., PGVector]]:
    engines = []

    def make(embeddings: Any, name: str = "", **given: Any) -> PGVector:
        engines.append(create_engine(url))
        store = PGVector(embeddings, connection=engines[-1], collection_name=name or next(_names), **given)
        if not name:
            store.add_documents(documents(store.collection_name))
        return store

    yield make
    for engine in engines:
        engine.dispose()


SETTINGS: dict[str, dict[str, Any]] = {
    "similarity": {"search_kwargs": {"k": 3}},
    "filter": {"search_kwargs": {"k": 3, "filter": {"n": {"$gt": 4}}}},
    "threshold": {"search_type": "similarity_score_threshold", "search_kwargs": {"score_threshold": 0.2, "k": 5}},
    "mmr": {"search_type": "mmr", "search_kwargs": {"k": 3, "fetch_k": 8}},
}


@pytest.mark.filterwarnings("ignore:Relevance scores must be between")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_sync_searches_give_the_same_answer(sync_store: Any, settings: dict[str, Any]) -> None:
    store = sync_store(embeddings())
    graph = fineflow.explain(answer(store.as_retriever(**settings))).e_graph
    assert graph is not None and any(p.op is Op.EMBED for p in graph)
    assert_same(lambda: answer(store.as_retriever(**settings)), QUESTION, entries=("invoke", "stream", "batch"))


def test_no_more_searches_than_connections_are_at_work(url: str, sync_store: Any) -> None:
    """Stock's sync searches need one connection, one after the other; a second one would wait in vain."""
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    try:
        store = PGVector(embeddings(), connection=engine, collection_name=sync_store(embeddings()).collection_name)
        chain = fineflow.optimize(answer(store.as_retriever()))
        assert [chain.invoke(QUESTION) for _ in range(5)] == [answer(store.as_retriever()).invoke(QUESTION)] * 5
        retriever = store.as_retriever()
        fineflow.explain(retriever)
        assert limited({"": retriever}) == frozenset()  # not one that calls have to keep which gain nothing else
        limit(store, at_once=2)
        assert limited({"": retriever}) == {""}
    finally:
        engine.dispose()


def test_a_sync_store_refuses_async_calls_as_it_does_in_stock(sync_store: Any) -> None:
    """The first refusal is another one than those that follow, as the store remembers the first call."""

    async def ask(optimized: bool) -> list[str]:
        store = sync_store(embeddings())
        assert unready(store, sync=False) and not unready(store, sync=True)
        chain: Any = RunnableLambda(lambda x: x) | store.as_retriever()
        chain = fineflow.optimize(chain, eager=True) if optimized else chain
        refusals = []
        for _ in range(3):
            with pytest.raises(AssertionError) as refused:
                await chain.ainvoke(QUESTION)
            refusals.append(str(refused.value))
        return refusals

    assert asyncio.run(ask(True)) == asyncio.run(ask(False))


@pytest.mark.parametrize("given", [{}, {"relevance_score_fn": lambda distance: 1 - distance / 2}])
def test_what_a_sync_store_is_known_by(sync_store: Any, given: dict[str, Any]) -> None:
    store = sync_store(embeddings(), **given)
    assert known(store) is not None and own_function(store.as_retriever()) == ""
    other = sync_store(embeddings(), store.collection_name)
    assert contents(other) == contents(store) != contents(sync_store(embeddings()))
    ready = with_vector(store.as_retriever(search_kwargs={"k": 1}), "tower", store.embeddings, [1.0] * DIMENSIONS)
    assert ready.vectorstore is not store and len(ready.invoke("tower")) == 1
    assert known(sync_store(FakeEmbeddings(dimensions=DIMENSIONS))) is not None


def test_a_sync_store_holds_what_stock_writes(sync_store: Any) -> None:
    found = []
    for optimized in (False, True):
        store = sync_store(embeddings())
        chain: Any = RunnableLambda(lambda x: x) | RunnableLambda(store.add_documents)
        graph = fineflow.explain(chain).p_graph
        assert graph is not None and {Op.EMBED, Op.INGEST} <= {p.op for p in graph}
        new = [Document(id=f"{store.collection_name} new {i}", page_content=f"lighthouse {i}") for i in range(3)]
        (fineflow.optimize(chain, eager=True) if optimized else chain).invoke(new)
        with store._make_sync_session() as session:
            rows = session.execute(text(_ROWS), {"name": store.collection_name}).all()
        found.append([tuple(row) for row in rows])
    assert found[0] == found[1] and len(found[0]) == len(TEXTS) + 3


_ROWS = """SELECT e.document, e.embedding::text FROM langchain_pg_embedding e
JOIN langchain_pg_collection c ON c.uuid = e.collection_id WHERE c.name = :name ORDER BY e.document"""


@asynccontextmanager
async def async_store(url: str, embeddings: Any, name: str, **given: Any) -> AsyncIterator[PGVector]:
    engine = create_async_engine(url)
    try:
        yield PGVector(embeddings, connection=engine, collection_name=name, **given)
    finally:
        await engine.dispose()


def test_async_searches_give_the_same_answer_on_the_callers_loop(url: str, sync_store: Any) -> None:
    """The store's engine belongs to one event loop, so the pipeline is made in it."""
    name = sync_store(embeddings()).collection_name

    async def ask(optimized: bool) -> list[Any]:
        async with async_store(url, embeddings(), name) as store:
            chain = answer(store.as_retriever())
            chain = fineflow.optimize(chain) if optimized else chain
            assert unready(store, sync=False)  # its first call creates its tables
            first = await chain.ainvoke(QUESTION)
            assert not unready(store, sync=False)
            chunks = [chunk async for chunk in chain.astream(QUESTION)]
            several = await chain.abatch([QUESTION, "Which bridges?"])
            return [first, "".join(chunks), several]

    assert asyncio.run(ask(True)) == asyncio.run(ask(False))


def test_what_an_async_store_holds_is_not_deleted_again(url: str, sync_store: Any) -> None:
    """``pre_delete_collection`` empties the collection in the first call: a copy would do so again."""
    name = sync_store(embeddings()).collection_name

    async def ask(optimized: bool) -> list[str]:
        async with async_store(url, embeddings(), name, pre_delete_collection=True) as store:
            write: Any = RunnableLambda(lambda x: x) | RunnableLambda(store.aadd_documents)
            search: Any = RunnableLambda(lambda x: x) | store.as_retriever(search_kwargs={"k": 9})
            if optimized:
                write, search = (fineflow.optimize(chain, eager=True) for chain in (write, search))
            found = []
            for i in range(3):
                await write.ainvoke([Document(id=f"{i}", page_content=f"tower {i}")])
                found += [doc.page_content for doc in await search.ainvoke("tower")]
            return found

    assert asyncio.run(ask(True)) == asyncio.run(ask(False))


@pytest.fixture
def tables(url: str) -> Iterator[Callable[..., PGVectorStore]]:
    engine = PGEngine.from_connection_string(url)

    def make(embeddings: Any, name: str = "", **given: Any) -> PGVectorStore:
        fresh = not name
        name = name or next(_names)
        if fresh:
            engine.init_vectorstore_table(name, DIMENSIONS, id_column="langchain_id")
        store = PGVectorStore.create_sync(engine, embeddings, name, **given)
        if fresh:
            store.add_texts(TEXTS, [{"n": i} for i in range(len(TEXTS))])
        return store

    yield make
    asyncio.run(engine.close())


@pytest.mark.filterwarnings("ignore:Relevance scores must be between")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_stores_of_tables_give_the_same_answer(tables: Any, settings: dict[str, Any]) -> None:
    store = tables(embeddings())
    assert known(store) is not None
    assert contents(store) == contents(tables(embeddings(), store.get_table_name())) != contents(tables(embeddings()))
    graph = fineflow.explain(answer(store.as_retriever(**settings))).e_graph
    assert graph is not None and any(p.op is Op.EMBED for p in graph)
    settings = {**settings, "search_kwargs": {**settings["search_kwargs"], "filter": None}}
    assert_same(
        lambda: answer(store.as_retriever(**settings)), QUESTION, entries=("invoke", "ainvoke", "astream", "batch")
    )


@pytest.mark.parametrize("latency", [0.0, 0.1], ids=["at once", "slow"])
@pytest.mark.parametrize("method", ["add_documents", "aadd_documents"])
def test_tables_hold_what_stock_writes(tables: Any, url: str, method: str, latency: float) -> None:
    """The store asks for vectors on an event loop of its own, before or after they are there."""
    found = []
    for optimized in (False, True):
        slow = EngineEmbeddings(EmulatedEmbedding(BatchProfile(latency, 0.0, 16), dimensions=DIMENSIONS))
        store = tables(slow)
        chain: Any = RunnableLambda(lambda x: x) | RunnableLambda(getattr(store, method))
        new = [Document(page_content=f"lighthouse {i}") for i in range(3)]
        chain = fineflow.optimize(chain, eager=True) if optimized else chain
        if method == "add_documents":
            chain.invoke(new)
        asyncio.run(chain.ainvoke(new))
        with create_engine(url, poolclass=NullPool).connect() as connection:
            rows = connection.execute(
                text(f'SELECT content, embedding::text FROM "{store.get_table_name()}" ORDER BY content')
            )
            found.append([tuple(row) for row in rows])
    assert found[0] == found[1] and len(found[0]) >= len(TEXTS) + 3


def test_a_hybrid_search_is_left_to_stock(tables: Any) -> None:
    store = tables(embeddings(), hybrid_search_config=HybridSearchConfig())
    assert "keeps the text of the first query" in own_function(store.as_retriever())
    graph = fineflow.explain(answer(store.as_retriever())).e_graph
    assert graph is not None and not any(p.op is Op.SEARCH for p in graph)
