"""An optimized object of LlamaIndex is the user's object: what the user changes counts, what is unknown is stock's."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, engine_of, index, scored
from llama_index.core import Settings
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import Accumulate, get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.tools import FunctionTool, QueryEngineTool
from llama_index.core.utilities.token_counting import TokenCounter

import fineflow
from fineflow.adapters.core.snapshot import MOST
from fineflow.adapters.llamaindex.planning import snapshot
from fineflow.adapters.llamaindex.thread_affinity import stays
from fineflow.llamaindex import EngineLLM, EngineReranker
from fineflow.testing.engines import GatedBatches, GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore


def made(mode: str = "accumulate", **settings: Any) -> Any:
    return index().as_query_engine(llm=FakeLLM(answers=answer), response_mode=mode, similarity_top_k=4, **settings)


def test_it_is_what_it_was() -> None:
    found = fineflow.optimize(made())
    assert isinstance(found, RetrieverQueryEngine)
    assert isinstance(found, BaseQueryEngine)
    assert fineflow.optimize(found).__wrapped__ is found.__wrapped__
    assert QueryEngineTool.from_defaults(found).query_engine is found
    assert repr(found).startswith("fineflow.optimize(<llama_index")
    assert copy.copy(found).query(QUESTION).response == found.query(QUESTION).response


def test_its_methods_are_called_as_stocks_and_tell_the_same_of_themselves() -> None:
    stock, found = made(), fineflow.optimize(made())
    for name in ("query", "aquery", "retrieve", "aretrieve", "synthesize", "asynthesize"):
        assert inspect.signature(getattr(found, name)) == inspect.signature(getattr(stock, name))
        assert inspect.iscoroutinefunction(getattr(found, name)) is name.startswith("a")
    tool = FunctionTool.from_defaults(found.query)
    assert tool.metadata.fn_schema_str == FunctionTool.from_defaults(stock.query).metadata.fn_schema_str
    assert found.query(str_or_query_bundle=QUESTION).response == stock.query(QUESTION).response
    with pytest.raises(TypeError, match="str_or_query_bundle"):
        found.query()


def test_what_is_not_of_llamaindex_is_returned_as_it_is() -> None:
    with pytest.warns(fineflow.FineflowWarning, match="it is left as it is"):
        assert fineflow.optimize(store := index().vector_store) is store


def test_prompts_that_are_updated_later_are_used() -> None:
    gate = Gate(opened=True)
    llm = FakeLLM(answers=answer, gate=gate)
    engine = index().as_query_engine(llm=llm, response_mode="accumulate", similarity_top_k=4)
    found = fineflow.optimize(engine, strict=True)
    before = found.query(QUESTION)
    found.update_prompts({"response_synthesizer:text_qa_template": PromptTemplate("{context_str}? {query_str}")})
    gate.close()
    seen = gate.arrivals
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(found.query, QUESTION)
        gate.wait_arrived(seen + 4)  # stock asks for the second when the first has been given
        gate.open()
        after = call.result(10)
    assert found._self_last.claimed >= 3
    assert found._self_last.unclaimed == 0
    assert str(after) == str(found.__wrapped__.query(QUESTION)) != str(before)


def test_parts_that_are_replaced_later_are_used() -> None:
    found = fineflow.optimize(made(), strict=True)
    found.query(QUESTION)
    found._node_postprocessors = [EngineReranker(engine=GatedBatches(), top_n=2)]
    found.__wrapped__._response_synthesizer._llm = FakeLLM(default="another")
    assert str(found.query(QUESTION)).count("another") == 2
    found._retriever.similarity_top_k = 1
    assert str(found.query(QUESTION)).count("another") == 1


def test_settings_of_llamaindex_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", FakeLLM(default="from the settings"))
    found = fineflow.optimize(get_response_synthesizer(response_mode="accumulate"), strict=True)
    assert "from the settings" in str(found.synthesize(QUESTION, scored()))


def test_methods_of_the_users_own_are_left_alone() -> None:
    class Own(Accumulate):
        def _format_response(self, outputs: list[Any], separator: str) -> str:
            return " | ".join(outputs)

    def make(manager: CallbackManager) -> Any:
        return Own(llm=FakeLLM(answers=answer, callback_manager=manager))

    assert_same_index(make, QUESTION, nodes=scored, entries=("synthesize", "asynthesize"))
    assert "is not recognised" in str(fineflow.explain(make(CallbackManager([])), graphs=True))


def test_a_method_put_on_an_object_is_called() -> None:
    engine = made()
    engine._response_synthesizer._llm.__dict__["chat"] = lambda messages: engine.other.chat(messages)
    engine.other = FakeLLM(default="by another one")
    assert "by another one" in str(fineflow.optimize(engine, strict=True, eager=True).query(QUESTION))


def test_models_of_the_users_own_are_not_run_ahead() -> None:
    calls = []

    class Counting(FakeLLM):
        def _answer(self, text: str) -> str:
            calls.append(text)
            return f"call {len(calls)}"

    stock = index().as_query_engine(llm=Counting(), response_mode="accumulate", similarity_top_k=4)
    expected = str(stock.query(QUESTION))
    calls.clear()
    assert str(fineflow.optimize(stock, strict=True, eager=True).query(QUESTION)) == expected
    assert len(calls) == 4


def test_a_subclass_of_a_component_on_an_engine_is_the_users_own() -> None:
    calls = []

    class Counting(EngineLLM):
        def _sampling(self, given: dict[str, Any]) -> Any:
            calls.append(given)
            return super()._sampling(given)

    engine = index().as_query_engine(llm=Counting(engine=GatedLLM("ok")), response_mode="accumulate")
    found = fineflow.optimize(engine, strict=True, eager=True)
    found.query(QUESTION)
    assert len(calls) == 2
    assert "is a class of your own" in str(fineflow.explain(found, graphs=True))


class Plain(CustomQueryEngine):
    """A query engine of the user's."""

    def custom_query(self, query_str: str) -> str:
        return f"said of {query_str}"


def test_an_engine_that_is_not_known_runs_as_stock() -> None:
    assert_same_index(lambda manager: Plain(callback_manager=manager), QUESTION, entries=("query",))


def test_postprocessors_are_stocks() -> None:
    def make(manager: CallbackManager) -> Any:
        processors = [SimilarityPostprocessor(similarity_cutoff=0.1), EngineReranker(engine=GatedBatches(), top_n=3)]
        return engine_of("accumulate", node_postprocessors=processors)(manager)

    seen = assert_same_index(make, QUESTION)
    assert len(seen["query"].nodes) == 3


def test_no_nodes_no_answers() -> None:
    found = fineflow.optimize(made(), strict=True, eager=True)
    assert str(found.synthesize(QUESTION, [])) == "Empty Response"


def test_arguments_of_a_synthesizer_reach_its_prompts() -> None:
    template = PromptTemplate("{tone}: {context_str} {query_str}")

    def make(manager: CallbackManager) -> Any:
        llm = FakeLLM(answers=answer, callback_manager=manager)
        return get_response_synthesizer(llm=llm, response_mode="accumulate", text_qa_template=template)

    stock = make(CallbackManager([])).synthesize(QUESTION, scored(), tone="kind", separator="//")
    found = fineflow.optimize(make(CallbackManager([])), strict=True)
    assert str(found.synthesize(QUESTION, scored(), tone="kind", separator="//")) == str(stock)
    assert not found._self_last.unclaimed


def test_the_plan_tells_what_is_done() -> None:
    engine = index(FakeEmbedding()).as_query_engine(llm=EngineLLM(engine=GatedLLM("ok")), response_mode="accumulate")
    plan = fineflow.explain(engine)
    names = [p.name for p in plan.e_graph or ()]
    assert names == [
        "retriever.embed",
        "retriever.search",
        "synthesizer.texts",
        "synthesizer.partial_prefill",
        "synthesizer.render",
        "synthesizer.prefill",
        "synthesizer.answers",
    ]
    assert plan.e_graph is not None
    assert plan.e_graph["synthesizer.answers"].params["how"] == "accumulate"
    assert fineflow.explain(fineflow.optimize(engine)) == plan


def test_a_pass_of_the_users_that_fails_is_told() -> None:
    def broken(graph: Any) -> Any:
        raise KeyError("nothing")

    found = fineflow.optimize(made(), passes=[broken], strict=True)
    with pytest.raises(fineflow.PlanningError, match="your own pass 'broken' raised KeyError"):
        found.query(QUESTION)


def test_it_can_be_pickled_as_what_it_stands_for_can() -> None:
    made = get_response_synthesizer(llm=EngineLLM(engine=GatedLLM("ok")), response_mode="accumulate")
    made._llm = made._llm.model_copy(update={"engine": None})
    loaded = pickle.loads(pickle.dumps(fineflow.optimize(made)))
    assert isinstance(loaded, Accumulate)
    assert type(loaded) is type(fineflow.optimize(made))


@pytest.mark.parametrize("where", ["the store", "the embedding model", "the model"])
def test_a_mock_put_on_a_class_after_the_first_call_is_called_as_by_stock(where: str) -> None:
    def failing(kind: type, *names: str) -> tuple[ExitStack, list[Any]]:
        found = ExitStack()
        made = [found.enter_context(mock.patch.object(kind, name, side_effect=OSError("mocked"))) for name in names]
        return found, made

    parts = [index().as_retriever(), index(count=4).as_retriever()]
    stock = QueryFusionRetriever(parts, llm=FakeLLM(default="river\ntower"), use_async=False)
    engine = RetrieverQueryEngine(stock, get_response_synthesizer(llm=FakeLLM(), response_mode="accumulate"))
    found = fineflow.optimize(engine, strict=True, eager=True)
    found.query(QUESTION)
    names: dict[str, Any] = {
        "the store": (FakeStore, "query"),
        "the embedding model": (FakeEmbedding, "_get_query_embedding"),
        "the model": (FakeLLM, "chat", "complete"),
    }
    seen = []
    for each in (engine, found):
        patched, mocks = failing(*names[where])
        with patched, pytest.raises(OSError, match="mocked"):
            each.query(QUESTION)
        seen.append([made.call_count for made in mocks])
    assert seen[0] == seen[1]


def test_tokens_are_counted_by_who_counts_them_for_the_user() -> None:
    class Counter(TokenCounter):
        def get_string_tokens(self, string: str) -> int:
            return 3 * super().get_string_tokens(string)

    seen = []
    for way in (lambda engine: engine, lambda engine: fineflow.optimize(engine, strict=True, eager=True)):
        engine = engine_of("tree_summarize")(CallbackManager([]))
        engine._response_synthesizer._prompt_helper._token_counter = Counter()
        seen.append(str(way(engine).query(QUESTION)))
    assert seen[0] == seen[1] != str(engine_of("tree_summarize")(CallbackManager([])).query(QUESTION))
    assert "tokens are counted by user code" in str(fineflow.explain(engine, graphs=True))


@pytest.mark.parametrize("early", [True, False])
def test_a_search_put_on_a_store_is_called(early: bool) -> None:
    store, calls = FakeStore(), []
    own = store.query

    def query(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return own(*args, **kwargs)

    parts = [index(store=store).as_retriever(), index(count=4).as_retriever()]
    stock = QueryFusionRetriever(parts, llm=FakeLLM(default="river\ntower"), use_async=False)
    found = fineflow.optimize(stock, strict=True, eager=True)
    if not early:
        found.retrieve(QUESTION)
    store.__dict__["query"] = query
    assert [node.node_id for node in found.retrieve(QUESTION)] == [node.node_id for node in stock.retrieve(QUESTION)]
    assert len(calls) == 2 * 3  # the question and two more, each by stock and by fineflow
    assert "query was set on the FakeStore" in str(fineflow.explain(stock, graphs=True))


def test_a_template_with_a_method_put_on_it_is_filled_in_by_stock_alone() -> None:
    engine, calls = made("tree_summarize"), []
    synthesizer = engine._response_synthesizer
    template = synthesizer._summary_template = copy.deepcopy(synthesizer._summary_template)  # not LlamaIndex's own
    own = template.partial_format
    template.__dict__["partial_format"] = lambda **kwargs: calls.append(kwargs) or own(**kwargs)
    engine.query(QUESTION)
    expected = len(calls)
    fineflow.optimize(engine, strict=True, eager=True).query(QUESTION)
    assert len(calls) == 2 * expected > 0


def test_data_on_an_object_is_not_walked_through_in_each_call() -> None:
    looked = []

    class Row:
        def __getattr__(self, name: str) -> Any:
            looked.append(name)
            raise AttributeError(name)

    class Table(CustomQueryEngine):
        rows: Any

        def custom_query(self, query_str: str) -> str:
            return f"{len(self.rows)} rows"

    engine = Table(rows=[Row()] * (3 * MOST))
    assert not stays(engine)
    assert not looked
    assert len(snapshot([engine])._parts) < 2 * MOST + 100
    assert str(asyncio.run(fineflow.optimize(engine, strict=True).aquery(QUESTION))) == f"{3 * MOST} rows"
