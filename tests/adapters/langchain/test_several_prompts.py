"""Classic chains that ask a model about each document: in sync calls, too, the requests run together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_classic.chains import LLMChain, MapRerankDocumentsChain, RetrievalQA
from langchain_classic.chains.summarize import load_summarize_chain
from langchain_classic.output_parsers.regex import RegexParser
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.engines import limit
from fineflow.testing import virtual_threads
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, FakeVectorStore

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")
needs_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")

TEXTS = ["one", "two", "three", "four", "five"]
DOCUMENTS = {"input_documents": [Document(text) for text in TEXTS]}


class Counting(FakeChat):
    """Its tokens are counted without a tokenizer."""

    def get_num_tokens(self, text: str) -> int:
        return len(text)


def says(messages: Any) -> str:
    return f"sum {sum(map(ord, messages[-1].text)) % 97}"


def summary(seconds: float = 0, **given: Any) -> Any:
    return load_summarize_chain(Counting(answers=says, prefill=seconds, **given), chain_type="map_reduce")


def rerank(seconds: float = 0) -> Any:
    parser = RegexParser(regex=r"(.*?) (.*)", output_keys=["answer", "score"])
    prompt = PromptTemplate(template="{context} {question}", input_variables=["context"], output_parser=parser)
    chain = LLMChain(llm=Counting(answers=says, prefill=seconds), prompt=prompt)
    return MapRerankDocumentsChain(
        llm_chain=chain, document_variable_name="context", rank_key="score", answer_key="answer"
    )


def answering(seconds: float = 0) -> Any:
    store = FakeVectorStore.from_texts(TEXTS, FakeVectorStore().embedding, latency=seconds / 4)
    model = Counting(answers=says, prefill=seconds)
    return RetrievalQA.from_chain_type(model, chain_type="map_reduce", retriever=store.as_retriever())


def applied(seconds: float = 0) -> Any:
    chain = LLMChain(llm=Counting(answers=says, prefill=seconds), prompt=PromptTemplate.from_template("say {text}"))

    def ask(texts: list[str]) -> list[Any]:
        return chain.apply([{"text": text} for text in texts])

    return RunnableLambda(ask)


def inside(seconds: float = 0) -> Any:
    chain = summary(seconds)
    return RunnableLambda(lambda inputs: chain.invoke(inputs)["output_text"])


CHAINS = {
    "map-reduce": (summary, DOCUMENTS, 6, 2),
    "map-rerank": (rerank, {**DOCUMENTS, "question": "which?"}, 5, 1),
    "RetrievalQA": (answering, {"query": "two"}, 5.25, 2.25),
    "LLMChain.apply": (applied, TEXTS, 5, 1),
    "inside a function": (inside, DOCUMENTS, 6, 2),
}


@pytest.mark.parametrize("name", CHAINS)
def test_is_stock(name: str) -> None:
    make, value, *_ = CHAINS[name]
    assert_same(lambda: make(0.002), value, strict=True)


@needs_threads
@pytest.mark.parametrize("name", CHAINS)
def test_takes_its_critical_path(name: str) -> None:
    make, value, stock, path = CHAINS[name]
    expected = virtual_threads.run(lambda: make(1).invoke(value))
    found = virtual_threads.run(lambda: fineflow.optimize(make(1), strict=True).invoke(value))
    assert found.value == expected.value
    assert (expected.seconds, found.seconds) == (stock, path)


@pytest.mark.parametrize("bound", [{"config": {"max_concurrency": 2}}, {"option": 2}, {"limit": 2}])
def test_bounds_hold(bound: dict[str, Any]) -> None:
    model = Counting(answers=says, prefill=0.01)
    if "limit" in bound:
        limit(model, at_once=bound["limit"])
    chain = load_summarize_chain(model, chain_type="map_reduce")
    fast = fineflow.optimize(chain, strict=True, max_concurrency=bound.get("option"))
    assert fast.invoke(DOCUMENTS, bound.get("config")) == chain.invoke(DOCUMENTS)
    assert model.meter.peak <= 2
    assert model.meter.calls == 12


@pytest.mark.parametrize("failing", ["one", "three", "five"])
def test_a_request_that_fails(failing: str) -> None:
    def make() -> Any:
        answers = {failing: ValueError("no")}
        return load_summarize_chain(Counting(answers=answers, prefill=0.002), chain_type="map_reduce")

    assert_same(make, DOCUMENTS, entries=("invoke", "ainvoke", "stream", "astream"), strict=True)


@needs_threads
def test_what_stock_does_not_reach_is_stopped() -> None:
    """The first fails at once, while the others wait: only as many as run at a time have been sent."""
    model = Counting(answers={"one": ValueError("no")}, prefill=1)
    fast = fineflow.optimize(load_summarize_chain(model, chain_type="map_reduce"), strict=True, max_concurrency=2)
    with pytest.raises(ValueError, match=r"^no$"):
        virtual_threads.run(lambda: fast.invoke(DOCUMENTS))
    assert model.meter.calls <= 4


@pytest.fixture
def cached() -> Iterator[None]:
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("cached")
def test_with_a_cache_stock_asks_alone() -> None:
    model = Counting(answers=says)
    chain = load_summarize_chain(model, chain_type="map_reduce")
    same = {"input_documents": [Document("one")] * 4}
    fineflow.optimize(chain, strict=True).invoke(same)
    assert model.meter.calls == 2  # one for all four documents, and the summary of the summaries


def test_models_outside_of_optimized_calls_are_left_alone() -> None:
    fineflow.optimize(summary(), strict=True).invoke(DOCUMENTS)
    model = Counting(answers=says, prefill=0.001)
    load_summarize_chain(model, chain_type="map_reduce").invoke(DOCUMENTS)
    assert model.meter.peak == 1


def test_a_model_of_the_users_own_is_left_alone() -> None:
    class Own(Counting):
        def _generate(self, *args: Any, **named: Any) -> Any:
            return super()._generate(*args, **named)

    Own.__module__ = "app"
    model = Own(answers=says, prefill=0.001)
    fineflow.optimize(load_summarize_chain(model, chain_type="map_reduce"), strict=True).invoke(DOCUMENTS)
    assert model.meter.peak == 1
