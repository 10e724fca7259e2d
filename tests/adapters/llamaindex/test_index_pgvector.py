"""PGVectorStore on a real PostgreSQL server: the same answers, on the connections and event loops that stock uses."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest
from index_shapes import QUESTION, answer
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters
from llama_index.vector_stores.postgres import PGVectorStore
from pgvector_server import WRITTEN, Server, _names, facts, fusion, merging, optimized, searching, server, threads_of  # noqa: F401

import fineflow
from fineflow.adapters.core.builder import Builder
from fineflow.adapters.llamaindex.stores.searches import engine_of, resource_of
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeLLM

pytestmark = pytest.mark.sweep

pytest.importorskip("llama_index.core")


pytest.importorskip("llama_index.vector_stores.postgres")

MODES = ("default", "hybrid", "sparse", "mmr")


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
