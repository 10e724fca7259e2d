"""Connections and event loops of retrievers over pgvector."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from index_shapes import QUESTION, WORDS
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.retrievers import TransformRetriever
from pgvector_server import WRITTEN, Server, facts, fusion, merging, optimized, searching, server, threads_of  # noqa: F401
from sqlalchemy import NullPool, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from fineflow.adapters.llamaindex.stores.searches import connections
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeLLM


def found(each: Any) -> list[tuple[str, Any]]:
    return [(node.node_id, node.score) for node in each]


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
