"""Configurable fields and alternatives: what the config of a call selects runs ahead."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    ConfigurableField,
    ConfigurableFieldSingleOption,
    RunnableLambda,
    RunnablePassthrough,
)
from pipelines import QUESTION, ask, echo, same

import fineflow
from fineflow.ir import Effect
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

LLM, ANSWER, KWARGS = ConfigurableField(id="llm"), ConfigurableField(id="answer"), ConfigurableField(id="search_kwargs")


def store(latency: float = 0.0) -> FakeVectorStore:
    return FakeVectorStore.from_texts(["Paris", "Rome", "Lyon"], FakeEmbeddings(), latency=latency)


def pipeline(model: Any, *, seconds: float = 0.0, prompt: Any = None) -> Any:
    """A search, an answer that does not need it, and an answer from both."""
    return (
        RunnablePassthrough.assign(context=itemgetter("question") | store(seconds).as_retriever())
        | RunnablePassthrough.assign(
            x=(ask("one {question}") if prompt is None else prompt) | model | StrOutputParser()
        )
        | ask("{x} {context}")
        | FakeChat(answers=echo, prefill=seconds)
        | StrOutputParser()
    )


def chat(answer: str, seconds: float = 0.0) -> FakeChat:
    return FakeChat(default=answer, prefill=seconds)


def alternatives(seconds: float = 0.0, **given: Any) -> Any:
    return chat("first", seconds).configurable_alternatives(
        LLM, default_key="first", second=chat("second", seconds), **given
    )


def fields(seconds: float = 0.0) -> Any:
    return chat("first", seconds).configurable_fields(default=ANSWER)


def options(seconds: float = 0.0) -> Any:
    answer = ConfigurableFieldSingleOption(id="answer", options={"a": "first", "b": "second"}, default="a")
    return chat("", seconds).configurable_fields(default=answer)


def nested(seconds: float = 0.0) -> Any:
    return (
        chat("first", seconds)
        .configurable_fields(default=ANSWER)
        .configurable_alternatives(LLM, default_key="first", second=fields(seconds), prefix_keys=True)
    )


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "default": (alternatives, {}),
    "alternative": (alternatives, {"llm": "second"}),
    "default field": (fields, {}),
    "field": (fields, {"answer": "third"}),
    "default option": (options, {}),
    "option": (options, {"answer": "b"}),
    "field of the default": (nested, {"llm==first/answer": "third"}),
    "field of an alternative": (nested, {"llm": "second", "llm==second/answer": "third"}),
    "others": (alternatives, {"session_id": "7", "llm": "second"}),
    "bound": (lambda seconds=0.0: alternatives(seconds).with_config(configurable={"llm": "second"}), {}),
    "bound and set": (
        lambda seconds=0.0: alternatives(seconds).with_config(configurable={"llm": "second"}),
        {"llm": "first"},
    ),
}


def seconds_of(make: Any, config: Any) -> tuple[float, float]:
    stock = virtual.run(make().ainvoke(QUESTION, config))
    found = virtual.run(fineflow.optimize(make(), strict=True).ainvoke(QUESTION, config))
    assert found.value == stock.value
    return stock.seconds, found.seconds


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_stock(case: str) -> None:
    model, configurable = CASES[case]
    same(lambda: pipeline(model()), config={"configurable": configurable})


@pytest.mark.parametrize("case", CASES)
def test_what_the_config_selects_runs_ahead(case: str) -> None:
    model, configurable = CASES[case]
    config = {"configurable": configurable}
    assert seconds_of(lambda: pipeline(model(1), seconds=1), config) == (3, 2)
    bound = lambda: pipeline(model(1), seconds=1).with_config(config)  # noqa: E731
    assert seconds_of(bound, None) == (3, 2)


def test_prompts_and_retrievers_too() -> None:
    prompt = ask("one {question}").configurable_alternatives(ConfigurableField(id="prompt"), other=ask("2 {question}"))
    config = {"configurable": {"prompt": "other"}}
    assert seconds_of(lambda: pipeline(chat("x", 1), seconds=1, prompt=prompt), config) == (3, 2)

    def searching(seconds: float = 0.0) -> Any:
        found = store(seconds).as_retriever().configurable_fields(search_kwargs=KWARGS)
        answered = RunnablePassthrough.assign(x=ask("{question}") | chat("x", seconds) | StrOutputParser())
        return answered | RunnablePassthrough.assign(context=itemgetter("question") | found) | ask("{x} {context}")

    assert seconds_of(lambda: searching(1), {"configurable": {"search_kwargs": {"k": 1}}}) == (2, 1)
    same(searching, config={"configurable": {"search_kwargs": {"k": 2}}})


def test_only_what_is_selected_is_called() -> None:
    first, second = chat("first"), chat("second")
    model = first.configurable_alternatives(LLM, default_key="first", second=second)
    fast = fineflow.optimize(pipeline(model), strict=True)
    for which in ("first", "second", "second"):
        assert which in fast.invoke(QUESTION, {"configurable": {"llm": which}})
        assert which in asyncio.run(fast.ainvoke(QUESTION, {"configurable": {"llm": which}}))
    assert (first.meter.calls, second.meter.calls) == (2, 4)


def test_a_field_that_is_set_later_is_seen() -> None:
    model = FakeChat(default="first").configurable_fields(default=ANSWER)
    slow = pipeline(model)
    fast = fineflow.optimize(slow, strict=True)
    config: Any = {"configurable": {"answer": "third"}}
    assert fast.invoke(QUESTION, config) == slow.invoke(QUESTION, config)
    model.default.answers = {"one": "other"}  # goes before the default answer
    meter = model.default.meter
    before = meter.calls
    assert "other" in fast.invoke(QUESTION, config)
    assert "other" in fast.invoke(QUESTION)
    assert meter.calls == before + 2


def test_the_config_around_a_call_counts() -> None:
    fast = fineflow.optimize(pipeline(alternatives()), strict=True)
    outer = RunnableLambda(lambda x: fast.invoke(x))
    assert "second" in outer.invoke(QUESTION, {"configurable": {"llm": "second"}})
    assert "first" in outer.invoke(QUESTION)


def test_values_that_no_step_reads_make_no_further_plan() -> None:
    fast = fineflow.optimize(pipeline(alternatives()), strict=True)
    for i in range(5):
        fast.invoke(QUESTION, {"configurable": {"session_id": str(i), "llm": "second"}})
    assert len(fast._self_plans) == 2


def test_many_configurations_are_not_kept_forever() -> None:
    fast = fineflow.optimize(pipeline(fields()), strict=True)
    for i in range(70):
        assert f"answer {i} " in fast.invoke(QUESTION, {"configurable": {"answer": f"answer {i} "}})
    assert len(fast._self_plans) <= 66


def test_refused_values_fail_as_in_stock() -> None:
    same(lambda: pipeline(alternatives()), config={"configurable": {"llm": "third"}}, entries=("invoke", "ainvoke"))
    same(lambda: pipeline(fields()), config={"configurable": {"answer": 3}}, entries=("invoke", "ainvoke"))
    same(lambda: pipeline(options()), config={"configurable": {"answer": "z"}}, entries=("invoke", "ainvoke"))


class Own(FakeChat):
    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)


def test_what_is_made_by_code_of_the_users_own_is_left_to_stock() -> None:
    made: list[str] = []
    by_function = chat("first").configurable_alternatives(
        LLM, default_key="first", second=lambda: made.append("x") or chat("second")
    )
    fast = fineflow.optimize(pipeline(by_function), strict=True)
    assert "second" in fast.invoke(QUESTION, {"configurable": {"llm": "second"}})
    assert made == ["x"]
    graph = fineflow.explain(pipeline(Own(default="x").configurable_fields(default=ANSWER)), input=QUESTION).p_graph
    assert graph is not None
    assert [p.name for p in graph if p.effects.kind is Effect.OPAQUE] == ["x/RunnableConfigurableFields.call"]


def test_threads_with_more_configurations_than_are_kept() -> None:
    fast = fineflow.optimize(pipeline(fields()), strict=True)

    def found(number: int) -> bool:
        wanted = [f"answer {number} {i} " for i in range(20)]
        return all(text in fast.invoke(QUESTION, {"configurable": {"answer": text}}) for text in wanted)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(found, range(8)))
