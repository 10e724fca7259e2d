"""Retrievers and engines that index nodes refer to run side by side, with the answers and reports of stock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from benchmarks.public.llamaindex_apps import composable_objects, document_summaries, table_engines, two_levels
from benchmarks.public.llamaindex_kit import QUESTION, TABLES, Kit, nodes
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.keyword_table import KeywordTableIndex
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.retrievers import RecursiveRetriever
from llama_index.core.schema import IndexNode

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate, Meter
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


def links(kit: Kit, *keys: str) -> Any:
    found = [IndexNode(id_=f"link {i}", index_id=key, text=f"{key} of France {i}") for i, key in enumerate(keys)]
    return kit.retriever(found, len(found))


def recursive(kit: Kit, parts: dict[str, Any], *keys: str) -> RecursiveRetriever:
    """A retriever whose first search finds links to these keys; parts: engines and retrievers."""
    engines = {key: part for key, part in parts.items() if hasattr(part, "query")}
    others = {key: part for key, part in parts.items() if key not in engines}
    return RecursiveRetriever(
        "root",
        {"root": links(kit, *(keys or parts)), **others},
        query_engine_dict=engines,
        callback_manager=kit.manager,
    )


def test_a_reference_that_repeats_is_followed_once() -> None:
    meters: list[Meter] = []

    def make(manager: CallbackManager) -> Any:
        kit = Kit(0, manager)
        parts = {key: kit.engine(nodes(key)) for key in TABLES}
        meters.append(parts["cities"]._response_synthesizer._llm.meter)
        return recursive(kit, parts, "cities", "wealth", "cities", "rivers", "wealth")

    seen = assert_same_index(make, QUESTION)
    assert len(seen["retrieve"].nodes) == 3
    assert {meter.calls for meter in meters if meter.calls} == {1}


def test_an_unknown_reference_fails_where_stock_gets_to_it() -> None:
    def make(manager: CallbackManager) -> Any:
        kit = Kit(0, manager)
        parts = {key: kit.engine(nodes(key)) for key in TABLES}
        return recursive(kit, parts, "cities", "wealth", "nowhere", "rivers")

    assert assert_same_index(make, QUESTION)["retrieve"].error is not None


@pytest.mark.parametrize("failing", TABLES)
def test_a_failing_part_fails_as_in_stock(failing: str) -> None:
    def make(manager: CallbackManager) -> Any:
        kit = Kit(0, manager)
        parts = {key: kit.engine(nodes(key)) for key in TABLES}
        parts[failing]._response_synthesizer._llm.answers = lambda prompt: ConnectionError("no route")
        return kit.answering(recursive(kit, parts))

    for seen in assert_same_index(make, QUESTION, entries=("query", "aquery")).values():
        assert seen.error == ("ConnectionError", "no route")


def test_two_engines_of_one_object() -> None:
    """The same engine under two keys is asked twice, and each call has its own answer."""

    def make(manager: CallbackManager) -> Any:
        kit = Kit(0, manager)
        engine = kit.engine(nodes())
        return recursive(kit, {"a": engine, "b": engine, "c": kit.retriever(nodes("c"), 2)})

    assert_same_index(make, QUESTION)


def test_answers_that_stream_are_left_to_stock() -> None:
    def make(manager: CallbackManager) -> Any:
        kit = Kit(0, manager)
        return recursive(kit, {key: kit.engine(nodes(key), streaming=True) for key in TABLES})

    assert_same_index(make, QUESTION)


class OtherEmbedding(FakeEmbedding):
    """Another model: its vectors are not those of the others."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return super()._get_query_embedding(query)[::-1]

    def _get_text_embedding(self, text: str) -> list[float]:
        return super()._get_text_embedding(text)[::-1]


OtherEmbedding.__module__ = FakeEmbedding.__module__  # believed, as the fakes are


@pytest.mark.parametrize("other", TABLES)
def test_embedding_models_that_differ(other: str) -> None:
    """The first sync search stores its vector, and stock's later ones search by it, whatever their model is."""

    def make(manager: CallbackManager) -> Any:
        kit = Kit(0, manager)
        parts: dict[str, Any] = {key: kit.engine(nodes(key)) for key in TABLES}
        parts[other].retriever._embed_model = OtherEmbedding(callback_manager=manager)
        found = [IndexNode(id_=f"link {key}", index_id=key, text=f"capital of {key}") for key in TABLES]
        table = KeywordTableIndex(found, llm=MockLLM(), callback_manager=manager)
        root = table.as_retriever(retriever_mode="simple")
        root.callback_manager = manager
        made = recursive(kit, parts)
        made._retriever_dict["root"] = root
        return made

    seen = assert_same_index(make, QUESTION)
    assert len(seen["retrieve"].nodes) == 3 and seen["retrieve"].embedding is not None


class OwnEngine(CustomQueryEngine):
    """User code: nothing overtakes it."""

    log: Any
    said: str

    def custom_query(self, query_str: str) -> str:
        self.log.append(self.said)
        return self.said


def test_nothing_overtakes_user_code() -> None:
    log: list[str] = []

    def says(name: str) -> Any:
        def answer(prompt: str) -> str:
            log.append(name)
            return name

        return FakeLLM(answers=answer)

    kit = Kit(0)
    parts: dict[str, Any] = {
        "a": kit.engine(nodes("a"), llm=says("a")),
        "b": OwnEngine(log=log, said="own"),
        "c": kit.engine(nodes("c"), llm=says("c")),
        "d": kit.engine(nodes("d"), llm=says("d")),
    }
    made = recursive(kit, parts)
    order = [each.node.index_id for each in made._retriever_dict["root"].retrieve(QUESTION)]
    fineflow.optimize(made, strict=True, eager=True).retrieve(QUESTION)
    at = order.index("b")
    assert log[at] == "own"
    assert set(log[:at]) == set(order[:at]) and set(log[at + 1 :]) == set(order[at + 1 :])


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
@pytest.mark.parametrize("make", [document_summaries, two_levels, table_engines])
def test_reports(make: Any, entry: str) -> None:
    """Spans, events and legacy callbacks are stock's, in its order."""
    assert_same_index(lambda manager: make(Kit(0, manager)), QUESTION, entries=(entry,))


def test_outside_of_a_trace_with_other_calls_around() -> None:
    """One optimized object serves several callers at once."""
    made = fineflow.optimize(table_engines(Kit(0)), strict=True, eager=True)
    expected = str(table_engines(Kit(0)).query(QUESTION))

    async def calls() -> list[str]:
        return [str(each) for each in await asyncio.gather(*(made.aquery(QUESTION) for _ in range(8)))]

    assert asyncio.run(calls()) == [expected] * 8


def test_what_stock_never_calls_is_dropped() -> None:
    """A part fails while the others are still at work: the caller does not wait for these."""
    gate = Gate()
    kit = Kit(0)
    parts = {key: kit.engine(nodes(key), llm=FakeLLM(gate=gate)) for key in TABLES}
    made = recursive(kit, parts)
    first = made._retriever_dict["root"].retrieve(QUESTION)[0].node.index_id
    parts[first]._response_synthesizer._llm = FakeLLM(answers=lambda prompt: ConnectionError("no"))
    with pytest.raises(ConnectionError, match="no"):
        fineflow.optimize(made, strict=True, eager=True).retrieve(QUESTION)
    gate.open()


def test_verbose_parts_print_when_stock_calls_them(capsys: pytest.CaptureFixture[str]) -> None:
    def run(optimized: bool) -> str:
        kit = Kit(0)
        parts: dict[str, Any] = {key: kit.retriever(nodes(key), 2) for key in TABLES}
        inner = recursive(kit, {"x": kit.retriever(nodes("x"), 2)})
        inner._verbose = True
        made: Any = recursive(kit, {**parts, "inner": inner})
        made._verbose = True
        (fineflow.optimize(made, strict=True, eager=True) if optimized else made).retrieve(QUESTION)
        return capsys.readouterr().out

    stock = run(False)
    assert "Retrieved node with id" in stock
    assert run(True) == stock


@pytest.mark.parametrize("make", [document_summaries, table_engines, composable_objects])
def test_explain_says_so(make: Any) -> None:
    assert "index nodes refer to run side by side" in str(fineflow.explain(make(Kit(0))))


@needs_virtual_threads
def test_max_concurrency_bounds_components() -> None:
    meter = Meter()

    def engine(kit: Kit, key: str) -> Any:
        return kit.engine(nodes(key), llm=FakeLLM(meter=meter, latency=1), response_mode="accumulate")

    kit = Kit(0)
    made = recursive(kit, {key: engine(kit, key) for key in (*TABLES, "towns", "lakes")})
    fast = fineflow.optimize(made, strict=True, eager=True, max_concurrency=2)
    virtual_threads.run(lambda: fast.retrieve(QUESTION))
    assert meter.peak == 2
