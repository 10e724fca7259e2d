"""What the selector of a router chooses is searched and answered side by side in sync calls, with stock's answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, index
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import CustomQueryEngine, RouterQueryEngine
from llama_index.core.schema import QueryBundle
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector
from llama_index.core.tools import QueryEngineTool

import fineflow
from fineflow.llamaindex import EngineLLM
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import BlockingLLM, FakeEmbedding, FakeLLM, FakeStore

pytestmark = pytest.mark.sweep


def choices(*numbers: Any) -> str:
    return json.dumps([{"choice": number, "reason": f"number {number}"} for number in numbers])


WRITTEN = {
    "two": choices(1, 3),
    "in another order": choices(3, 1, 2),
    "one": choices(2),
    "one twice": choices(2, 2),
    "from the end": choices(0, 2),
    "one that is not there": choices(1, 7),
    "fenced": f"```json\n{choices(1, 2)}\n```",
    "not in a list": json.dumps({"choice": 1, "reason": "it"}),
    "text as number": choices("1", "2"),
    "nothing": "I do not know",
    "none": "[]",
}
WRITERS: dict[str, Callable[[str], Any]] = {
    "remote": lambda text: FakeLLM(default=text),
    "completion": lambda text: FakeLLM(default=text, is_chat=False),
    "blocking": lambda text: BlockingLLM(default=text),
    "engine": lambda text: EngineLLM(engine=GatedLLM(text), max_tokens=400),
}
BOTH = ("query", "aquery")


@pytest.fixture(autouse=True)
def default_llm() -> Iterator[None]:
    """Routers report to LlamaIndex's own callback manager."""
    yield
    Settings._callback_manager = None


def router_of(
    written: str = "two", *, mode: str = "compact", writer: str = "remote", single: bool = False, shared: bool = True
) -> Callable[[CallbackManager], Any]:
    def make(manager: CallbackManager) -> Any:
        Settings.callback_manager = manager
        tools, embedding = [], FakeEmbedding(callback_manager=manager)
        for i, count in enumerate((8, 5, 3)):
            each = embedding if shared else FakeEmbedding(callback_manager=manager, dimensions=32)
            made = index(each, callback_manager=manager, count=count)
            llm = FakeLLM(answers=answer, context_window=900, num_output=60, callback_manager=manager)
            part = made.as_query_engine(llm=llm, response_mode=mode, similarity_top_k=4)
            part.callback_manager = part._retriever.callback_manager = manager
            tools.append(QueryEngineTool.from_defaults(part, name=f"tool {i}", description=f"about {i}"))
        asking = WRITERS[writer](WRITTEN[written])
        asking.callback_manager = manager
        kind: Any = LLMSingleSelector if single else LLMMultiSelector
        return RouterQueryEngine(kind.from_defaults(llm=asking), tools, llm=FakeLLM(answers=answer))

    return make


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("written", WRITTEN)
def test_whatever_the_selector_says(written: str, single: bool) -> None:
    assert_same_index(router_of(written, single=single), QUESTION, entries=BOTH)


@pytest.mark.parametrize("mode", ["compact", "tree_summarize", "accumulate"])
@pytest.mark.parametrize("writer", WRITERS)
def test_every_kind_of_model(writer: str, mode: str) -> None:
    assert_same_index(router_of(writer=writer, mode=mode), QUESTION, entries=BOTH)


def test_an_empty_query_is_embedded_by_nobody() -> None:
    found = fineflow.optimize(router_of()(CallbackManager([])), strict=True, eager=True)
    with pytest.raises(TypeError):  # of the store, which gets no vector
        found.query("")
    assert all(part._retriever._embed_model.meter.calls == 0 for part in found._query_engines)


def test_engines_of_several_embedding_models_are_called_by_stock() -> None:
    """Stock searches by the vector of the first that is called, which is not known before."""
    make = router_of(shared=False)
    assert_same_index(make, QUESTION, entries=BOTH)
    assert "vectors of different models" in str(fineflow.explain(make(CallbackManager([])), graphs=True))


def test_nothing_overtakes_an_engine_that_may_be_user_code() -> None:
    class Own(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            return f"said of {query_str}"

    def make(manager: CallbackManager) -> Any:
        made = router_of()(manager)
        made._query_engines[1] = Own(callback_manager=manager)
        return made

    assert_same_index(make, QUESTION, entries=BOTH)
    assert "is not fully recognised" in str(fineflow.explain(make(CallbackManager([])), graphs=True))


def test_a_selector_with_a_method_of_the_users_is_asked_by_stock() -> None:
    class Own(LLMMultiSelector):
        def _select(self, choices: Any, query: Any) -> Any:
            found = super()._select(choices, query)
            found.selections.reverse()
            return found

    def make(manager: CallbackManager) -> Any:
        made = router_of()(manager)
        made._selector.__class__ = Own
        return made

    assert_same_index(make, QUESTION, entries=("query",))
    assert "Own is not recognised" in str(fineflow.explain(make(CallbackManager([])), graphs=True))


def test_a_query_with_vectors_of_its_own_is_stocks() -> None:
    made = router_of(mode="accumulate")(CallbackManager([]))
    query = QueryBundle(QUESTION, custom_embedding_strs=["a tower", "a mill"])
    stock = made.query(query)
    again = QueryBundle(QUESTION, custom_embedding_strs=["a tower", "a mill"])
    assert str(fineflow.optimize(made, strict=True).query(again)) == str(stock)
    assert again.embedding == query.embedding != FakeEmbedding().get_query_embedding(QUESTION)


def test_engines_and_selectors_that_are_replaced_later_are_used() -> None:
    found = fineflow.optimize(router_of(mode="accumulate")(CallbackManager([])), strict=True)
    found.query(QUESTION)
    found._query_engines[0] = index(FakeEmbedding()).as_query_engine(llm=FakeLLM(default="of the new one"))
    found._selector._llm = FakeLLM(default=WRITTEN["one"])
    assert str(found.query(QUESTION)) == str(found.__wrapped__.query(QUESTION))
    found._selector._llm = FakeLLM(default=choices(1))
    assert str(found.query(QUESTION)) == "of the new one"


def test_sync_calls_run_all_that_is_chosen_at_once_and_nothing_else() -> None:
    asked, gate, answers = Gate(), Gate(), []
    made = router_of()(CallbackManager([]))
    stores = [FakeStore(), FakeStore(), FakeStore()]
    embedding = FakeEmbedding()
    for i, store in enumerate(stores):
        llm = FakeLLM(answers=answer, gate=gate)
        answers.append(llm)
        made._query_engines[i] = index(embedding, store, count=5).as_query_engine(llm=llm)
    made._selector._llm = FakeLLM(default=WRITTEN["two"], gate=asked)
    found = fineflow.optimize(made, strict=True)
    call = threading.Thread(target=found.query, args=(QUESTION,))
    call.start()
    asked.wait_arrived(1)
    asked.open()
    gate.wait_arrived(2)  # stock calls the second engine when the first has answered
    gate.open()
    call.join(10)
    assert not call.is_alive()
    assert [store.meter.calls for store in stores] == [1, 0, 1]
    assert [llm.meter.calls for llm in answers] == [1, 0, 1]
    assert embedding.meter.calls == 1
    assert found._self_last.unclaimed == 0
    assert found._self_last.claimed >= 2  # the second search and its answer


def test_a_failure_of_one_that_was_chosen_is_stocks() -> None:
    def make(manager: CallbackManager) -> Any:
        made = router_of("in another order")(manager)
        broken = FakeLLM(answers=lambda _: ConnectionError("no answer"), callback_manager=manager)
        made._query_engines[2]._response_synthesizer._llm = broken
        made._query_engines[2]._response_synthesizer._program_factory = made._query_engines[
            2
        ]._response_synthesizer._default_program_factory
        return made

    seen = assert_same_index(make, QUESTION, entries=("query",))
    assert seen["query"].error == ("ConnectionError", "no answer")
