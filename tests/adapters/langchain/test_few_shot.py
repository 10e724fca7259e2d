"""Prompts with examples: fixed ones are rendered ahead, selected ones searched ahead."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from langchain_core.example_selectors import (
    BaseExampleSelector,
    LengthBasedExampleSelector,
    MaxMarginalRelevanceExampleSelector,
    SemanticSimilarityExampleSelector,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    PromptTemplate,
)
from langchain_core.runnables import RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore
from pipelines import QUESTION, ask, echo, same
from test_ingest import WordEngine

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.ir import Effect, Op
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

EXAMPLES = [
    {"input": "What is the capital of Spain?", "output": "Madrid"},
    {"input": "What is two and two?", "output": "four"},
    {"input": "Is France large?", "output": "yes"},
]
ONE = PromptTemplate.from_template("Q: {input} A: {output}")
PAIR = ChatPromptTemplate.from_messages([("human", "{input}"), ("ai", "{output}")])


def examples_in(kind: Any = SemanticSimilarityExampleSelector, *, latency: float = 0.0, **given: Any) -> Any:
    store = FakeVectorStore(FakeEmbeddings(), latency=latency)
    store.add_texts([" ".join(each.values()) for each in EXAMPLES], metadatas=EXAMPLES)
    return kind(vectorstore=store, k=2, **{"input_keys": ["question"], **given})


def in_memory(embeddings: Any) -> Any:
    return SemanticSimilarityExampleSelector.from_examples(
        EXAMPLES, embeddings, InMemoryVectorStore, k=1, input_keys=["input"]
    ).model_copy(update={"input_keys": ["question"]})


def text_prompt(**given: Any) -> Any:
    return FewShotPromptTemplate(
        example_prompt=ONE, prefix="Answer as here.", suffix="Q: {question}", input_variables=["question"], **given
    )


def chat_prompt(**given: Any) -> Any:
    few = FewShotChatMessagePromptTemplate(example_prompt=PAIR, input_variables=["question"], **given)
    return ChatPromptTemplate.from_messages([("system", "Answer as here."), few, ("human", "{question}")])


def pipeline(prompt: Any, *, seconds: float = 0.0) -> Any:
    """An answer from examples, after a search that it does not need, and an answer from both."""
    store = FakeVectorStore.from_texts(["Paris", "Rome"], FakeEmbeddings(), latency=seconds)
    answered = prompt | FakeChat(answers=echo, prefill=seconds) | StrOutputParser()
    return (
        RunnablePassthrough.assign(context=itemgetter("question") | store.as_retriever())
        | RunnablePassthrough.assign(x=RunnablePick(["question"]) | answered)
        | ask("{x} {context}")
        | FakeChat(answers=echo, prefill=seconds)
        | StrOutputParser()
    )


PROMPTS: dict[str, Any] = {
    "fixed": lambda: text_prompt(examples=EXAMPLES),
    "fixed chat": lambda: chat_prompt(examples=EXAMPLES),
    "selected": lambda: text_prompt(example_selector=examples_in()),
    "selected chat": lambda: chat_prompt(example_selector=examples_in()),
    "in memory": lambda: chat_prompt(example_selector=in_memory(FakeEmbeddings())),
    "on an engine": lambda: chat_prompt(example_selector=in_memory(EngineEmbeddings(WordEngine()))),
    "some keys": lambda: text_prompt(example_selector=examples_in(example_keys=["input", "output"])),
    "most diverse": lambda: chat_prompt(
        example_selector=MaxMarginalRelevanceExampleSelector.from_examples(
            EXAMPLES, FakeEmbeddings(), InMemoryVectorStore, k=2
        )
    ),
    "by length": lambda: text_prompt(
        example_selector=LengthBasedExampleSelector(examples=EXAMPLES, example_prompt=ONE, max_length=18)
    ),
    "twice": lambda: ChatPromptTemplate.from_messages([*chat_prompt(example_selector=examples_in()).messages] * 2),
}
SEARCHING = ("selected", "selected chat", "in memory", "on an engine", "some keys", "most diverse", "twice")


@pytest.mark.parametrize("kind", PROMPTS)
def test_the_answer_is_that_of_stock(kind: str) -> None:
    same(lambda: pipeline(PROMPTS[kind]()))
    graph = fineflow.explain(pipeline(PROMPTS[kind]()), input=QUESTION).p_graph
    assert graph is not None
    assert not [p for p in graph if p.effects.kind is Effect.OPAQUE]
    searches = [p for p in graph if p.op is Op.SEARCH and "examples" in p.name]
    assert len(searches) == (2 if kind == "twice" else kind in SEARCHING)


@pytest.mark.parametrize("make", [text_prompt, chat_prompt])
def test_examples_are_searched_and_rendered_ahead(make: Any) -> None:
    def seconds_of(prompt: Any) -> tuple[float, float]:
        stock = virtual.run(pipeline(prompt, seconds=1).ainvoke(QUESTION))
        found = virtual.run(fineflow.optimize(pipeline(prompt, seconds=1), strict=True).ainvoke(QUESTION))
        assert found.value == stock.value
        return stock.seconds, found.seconds

    assert seconds_of(make(examples=EXAMPLES)) == (3, 2)
    assert seconds_of(make(example_selector=examples_in(latency=1))) == (4, 3)


def test_each_call_searches_once() -> None:
    selector = examples_in()
    store = selector.vectorstore
    fast = fineflow.optimize(pipeline(chat_prompt(example_selector=selector)), strict=True)
    before = store.meter.calls
    fast.invoke(QUESTION)
    assert store.meter.calls == before + 1


def test_changes_of_the_examples_are_seen() -> None:
    """In the store, in the selector, and of the selector."""
    prompt = chat_prompt(example_selector=examples_in())
    few = prompt.messages[1]
    slow = pipeline(prompt)
    fast = fineflow.optimize(slow, strict=True)

    def check() -> str:
        found = fast.invoke(QUESTION)
        assert found == slow.invoke(QUESTION)
        return str(found)

    found = [check()]
    few.example_selector.add_example({"input": "What is the capital of France?", "output": "Paris", **QUESTION})
    found.append(check())
    few.example_selector.k = 1
    found.append(check())
    few.example_selector = examples_in().model_copy(update={"k": 3})
    found.append(check())
    few.example_selector, few.examples = None, EXAMPLES[1:2]
    found.append(check())
    assert len(set(found)) == 5


def test_failures_are_those_of_stock() -> None:
    def broken() -> Any:
        selector = examples_in()
        selector.vectorstore.embedding = FakeEmbeddings(dimensions=3)  # vectors of another length
        return pipeline(text_prompt(example_selector=selector))

    same(broken, entries=("invoke", "ainvoke"))
    missing = lambda: pipeline(chat_prompt(example_selector=examples_in(input_keys=["nothing"])))  # noqa: E731
    same(missing, entries=("invoke", "ainvoke"))
    lacking = lambda: pipeline(text_prompt(examples=[{"input": "?"}]))  # noqa: E731
    same(lacking, entries=("invoke", "ainvoke"))


class Newest(BaseExampleSelector):
    def add_example(self, example: dict[str, str]) -> Any: ...

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        return EXAMPLES[-1:]


class Mine(SemanticSimilarityExampleSelector):
    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        return super().select_examples(input_variables)[::-1]


@pytest.mark.parametrize(
    "selector",
    [
        Newest(),
        examples_in(Mine),
        LengthBasedExampleSelector(examples=EXAMPLES, example_prompt=ONE, get_text_length=lambda text: print() or 1),
    ],
    ids=lambda selector: type(selector).__name__,
)
def test_selectors_with_code_of_the_users_own_are_stocks(selector: Any) -> None:
    for make in (text_prompt, chat_prompt):
        graph = fineflow.explain(make(example_selector=selector) | FakeChat() | StrOutputParser()).p_graph
        assert graph is not None
        assert [p.effects.kind for p in graph if p.op is Op.CALL] == [Effect.OPAQUE]
