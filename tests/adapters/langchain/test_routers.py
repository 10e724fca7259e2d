"""``RouterRunnable``, and steps over generators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RouterRunnable, RunnableGenerator, RunnableLambda, RunnablePassthrough
from pipelines import ask, echo, same

import fineflow
from fineflow.ir import Effect
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

INPUT = {"question": "What is the capital of France?", "topic": "towns"}


def answers(text: str, seconds: float = 0.0, model: Any = None) -> Any:
    model = FakeChat(answers=echo, prefill=seconds) if model is None else model
    return PromptTemplate.from_template(text) | model | StrOutputParser()


def router(seconds: float = 0.0, *, models: Any = (None, None, None)) -> RouterRunnable[Any]:
    names = ("food", "towns", "people")
    return RouterRunnable({name: answers(f"{name}: {{q}}", seconds, m) for name, m in zip(names, models, strict=True)})


def pipeline(step: Any, seconds: float = 0.0) -> Any:
    """A search, a step that does not need it, and an answer from both."""
    store = FakeVectorStore.from_texts(["Paris", "Rome"], FakeEmbeddings(), latency=seconds)
    return (
        RunnablePassthrough.assign(context=itemgetter("question") | store.as_retriever())
        | RunnablePassthrough.assign(x=step)
        | ask("{x} {context}")
        | FakeChat(answers=echo, prefill=seconds)
        | StrOutputParser()
    )


def routed(step: Any) -> Any:
    return {"key": itemgetter("topic"), "input": itemgetter("question")} | step


def made_by_a_function(step: Any) -> Any:
    return RunnableLambda(lambda x: {"key": x["topic"], "input": x["question"]}) | step


def seconds_of(make: Any) -> tuple[float, float]:
    stock = virtual.run(make().ainvoke(INPUT))
    found = virtual.run(fineflow.optimize(make(), strict=True).ainvoke(INPUT))
    assert found.value == stock.value
    return stock.seconds, found.seconds


@pytest.mark.parametrize("route", [routed, made_by_a_function])
@pytest.mark.parametrize("topic", ["food", "towns", "people"])
def test_the_answer_is_that_of_stock(route: Any, topic: str) -> None:
    same(lambda: pipeline(route(router())), {**INPUT, "topic": topic})


@pytest.mark.parametrize("route", [routed, made_by_a_function])
def test_the_runnable_with_the_key_runs_ahead(route: Any) -> None:
    assert seconds_of(lambda: pipeline(route(router(1)), 1)) == (3, 2)


def test_only_the_runnable_with_the_key_is_called() -> None:
    models = [FakeChat(answers=echo) for _ in range(3)]
    fast = fineflow.optimize(pipeline(routed(router(models=models))), strict=True)
    fast.invoke(INPUT)
    fast.invoke({**INPUT, "topic": "people"})
    assert [model.meter.calls for model in models] == [0, 1, 1]


def test_a_key_of_no_runnable_fails_as_in_stock() -> None:
    same(lambda: pipeline(routed(router())), {**INPUT, "topic": "none"}, entries=("invoke", "ainvoke"))
    same(lambda: pipeline(routed(router())), {**INPUT, "topic": None}, entries=("invoke", "ainvoke"))


# --- functions that look a runnable up in a dict


def in_a_literal(one: Any, other: Any) -> Any:
    return lambda x: {"food": one, "towns": other}[x["topic"]]


def in_a_closure(one: Any, other: Any) -> Any:
    chains = {"food": one, "towns": other}
    return lambda x: chains[x["topic"].strip().lower()]


def in_a_global(one: Any, other: Any) -> Any:
    CHAINS.update(food=one, towns=other)

    def route(x: Any) -> Any:
        chosen = CHAINS[x["topic"]]
        return chosen

    return route


CHAINS: dict[str, Any] = {}
TABLES = [in_a_literal, in_a_closure, in_a_global]


@pytest.mark.parametrize("table", TABLES)
def test_the_runnable_in_the_table_runs_ahead(table: Any) -> None:
    def make(seconds: float = 0.0) -> Any:
        return pipeline(
            RunnableLambda(table(answers("1 {question}", seconds), answers("2 {question}", seconds))), seconds
        )

    same(make, INPUT)
    same(make, {**INPUT, "topic": "food"})
    assert seconds_of(lambda: make(1)) == (3, 2)
    same(make, {**INPUT, "topic": "none"}, entries=("invoke", "ainvoke"))


def test_a_table_that_changes_is_read_by_stock() -> None:
    chains = {"towns": answers("1 {question}"), "food": answers("2 {question}")}
    slow = pipeline(RunnableLambda(lambda x: chains[x["topic"]]))
    fast = fineflow.optimize(slow, strict=True)
    found = [fast.invoke(INPUT)]
    chains["towns"] = answers("3 {question}")
    found.append(fast.invoke(INPUT))
    chains["towns"] = RunnableLambda(lambda x: "plain")
    found.append(fast.invoke(INPUT))
    assert len(set(found)) == 3
    assert found[-1] == slow.invoke(INPUT)


@pytest.mark.parametrize(
    "function",
    [
        lambda one, other: lambda x: {"towns": one, "food": other},  # the table itself
        lambda one, other: lambda x: {"towns": one, "food": [other]}[x["topic"]],
        lambda one, other: lambda x: ({"towns": one} if x["topic"] else x)[x["topic"]],
        lambda one, other: lambda x: {"towns": one, "food": other}.pop(x["topic"]),
    ],
)
def test_other_uses_of_a_table_are_opaque(function: Any) -> None:
    step = RunnableLambda(function(answers("1 {question}"), answers("2 {question}")))
    graph = fineflow.explain(pipeline(step), input=INPUT).p_graph
    assert graph is not None
    assert [p.name for p in graph if p.effects.kind is Effect.OPAQUE] == ["x/RunnableLambda.call"]


# --- generators


def spoken(log: list[str]) -> RunnableGenerator[Any, Any]:
    def pieces(chunks: Iterator[Any]) -> Iterator[str]:
        for chunk in chunks:
            log.append(chunk)
            yield chunk.upper()

    async def apieces(chunks: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for chunk in chunks:
            log.append(chunk)
            yield chunk.upper()

    return RunnableGenerator(pieces, apieces)


def declared(log: list[str]) -> RunnableGenerator[Any, Any]:
    step = spoken(log)
    fineflow.effects(writes="spoken")(step._transform)
    fineflow.effects(writes="spoken")(step._atransform)
    return step


def before_a_search(make: Any, seconds: float = 0.0) -> tuple[Any, list[str]]:
    """A generator, a search that does not need it, and an answer from both."""
    log: list[str] = []
    store = FakeVectorStore.from_texts(["Paris", "Rome"], FakeEmbeddings(), latency=seconds)
    answer = answers("{question}", seconds) | make(log)
    chain = (
        RunnablePassthrough.assign(x=answer)
        | RunnablePassthrough.assign(context=itemgetter("question") | store.as_retriever())
        | ask("{x} {context}")
        | FakeChat(answers=echo, prefill=seconds)
        | StrOutputParser()
    )
    return chain, log


@pytest.mark.parametrize("make", [spoken, declared])
def test_generators_run_once_and_as_in_stock(make: Any) -> None:
    same(lambda: before_a_search(make), INPUT)


def test_a_declared_generator_holds_up_only_what_it_touches() -> None:
    assert seconds_of(lambda: before_a_search(spoken, 1)[0]) == (3, 3)
    assert seconds_of(lambda: before_a_search(declared, 1)[0]) == (3, 2)
