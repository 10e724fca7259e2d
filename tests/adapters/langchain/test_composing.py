"""What is made of an optimized runnable is optimized, too: measured in virtual seconds, and the same as stock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.load import dumpd, dumps
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnableParallel, RunnableSequence
from pipelines import ENTRIES, ask, echo, same

import fineflow
from fineflow.testing.differential import differences, observe
from fineflow.testing.langchain import FakeChat, FakeVectorStore
from fineflow.testing.virtual import run

QUESTION = {"question": "What is the capital of France?"}


def pick(x: Any) -> Any:
    return x["question"] if isinstance(x, dict) and "question" in x else x


def gaining(latency: float = 0.3) -> Any:
    """Returns a chain with two searches before its prompt, the second of which stock starts late."""
    words = ["Paris is the capital of France", "Lyon is a town"]

    def retriever() -> Any:
        return FakeVectorStore.from_texts(words, FakeVectorStore().embedding, latency=latency).as_retriever()

    first = RunnableLambda(pick) | retriever()
    answer = ask("{question} {context}") | FakeChat(answers=echo, prefill=latency) | StrOutputParser()
    step = RunnableParallel(question=RunnableLambda(pick), context=first)
    again = RunnableParallel(question=lambda x: x["question"], context=(lambda x: x["question"]) | retriever())
    return step | again | answer


COMPOSED: dict[str, Callable[[Any], Any]] = {
    "with_config": lambda it: it.with_config(tags=["a"]),
    "with_config twice": lambda it: it.with_config(tags=["a"]).with_config(run_name="named"),
    "with_retry": lambda it: it.with_retry(stop_after_attempt=2),
    "with_fallbacks": lambda it: it.with_fallbacks([RunnableLambda(lambda x: "fallback")]),
    "with_types": lambda it: it.with_types(input_type=dict, output_type=str),
    "with_listeners": lambda it: it.with_listeners(on_end=lambda run: None),
    "bind": lambda it: it.bind(),
    "pipe": lambda it: it.pipe(str.upper),
    "or": lambda it: it | str.upper,
    "ror": lambda it: pick | it,
    "runnable before": lambda it: RunnableLambda(pick) | it,
    "sequence before": lambda it: RunnableLambda(pick) | RunnableLambda(str) | it,
    "piped into": lambda it: RunnableLambda(pick).pipe(it),
    "parallel": lambda it: RunnableParallel(a=it, b=RunnableLambda(pick)),
    "dict": lambda it: {"a": it} | RunnableLambda(lambda x: x["a"]),
    "assign": lambda it: RunnableParallel(a=it).assign(b=lambda x: x["a"]),
    "assigned": lambda it: (it | (lambda x: {"a": x})).assign(b=lambda x: x["a"]).pick("b"),
}


@pytest.mark.parametrize("how", COMPOSED)
def test_it_is_as_fast(how: str) -> None:
    make = COMPOSED[how]
    optimized = make(fineflow.optimize(gaining(), strict=True))
    stock_value, stock = run(make(gaining()).ainvoke(QUESTION))
    value, took = run(optimized.ainvoke(QUESTION))
    assert value == stock_value
    assert stock - took >= 0.29, (stock, took)


@pytest.mark.parametrize("how", COMPOSED)
def test_it_is_the_same(how: str) -> None:
    make = COMPOSED[how]
    for entry in ENTRIES:
        given: Any = [QUESTION] if "batch" in entry else QUESTION
        seen = [observe(make(each), entry, given) for each in (gaining(0), fineflow.optimize(gaining(0), strict=True))]
        assert not differences(*seen), entry


def test_map() -> None:
    stock, optimized = gaining(0).map(), fineflow.optimize(gaining(0), strict=True).map()
    assert optimized.invoke([QUESTION, QUESTION]) == stock.invoke([QUESTION, QUESTION])


def test_configurable() -> None:
    field = ConfigurableField("limit")

    def make(chain: Any) -> Any:
        return chain.configurable_alternatives(field, other=RunnableLambda(lambda x: "other"))

    stock, optimized = make(gaining(0)), make(fineflow.optimize(gaining(0), strict=True))
    for config in ({}, {"configurable": {"limit": "other"}}):
        assert optimized.invoke(QUESTION, config) == stock.invoke(QUESTION, config)


def test_a_tool_calls_the_optimized_chain() -> None:
    chain = gaining()
    optimized = fineflow.optimize(chain, strict=True)
    tools = [each.as_tool(name="ask", description="asks", arg_types={"question": str}) for each in (chain, optimized)]
    (stock, slow), (value, fast) = (run(tool.ainvoke(QUESTION)) for tool in tools)
    assert value == stock
    assert slow - fast >= 0.29


@pytest.mark.parametrize("dump", [dumps, dumpd])
def test_serialized_as_the_users_object(dump: Callable[[Any], Any]) -> None:
    chain = ChatPromptTemplate.from_template("{question}") | StrOutputParser()
    optimized = fineflow.optimize(chain)
    assert dump(optimized) == dump(chain)
    assert dump(RunnableParallel(a=optimized)) == dump(RunnableParallel(a=chain))
    assert dump({"chain": optimized}) == dump({"chain": chain})


def test_parts_of_other_objects_are_not_touched() -> None:
    chain = RunnableLambda(pick) | gaining()
    assert type(chain) is RunnableSequence


class Flaky:
    """Fails in its first calls."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def __call__(self, messages: Any) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError(f"call {self.calls}")
        return f"answer {self.calls}"


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_retries(failures: int) -> None:
    for eager in (False, True):
        for entry in ("invoke", "ainvoke", "batch", "abatch", "stream", "astream"):
            seen = []
            for optimize in (False, True):
                flaky = Flaky(failures)
                steps = {"q": RunnableLambda(pick)} | ask("{q}") | FakeChat(answers=flaky) | StrOutputParser()
                chain = steps.with_retry(stop_after_attempt=3, wait_exponential_jitter=False) | str.upper
                each = fineflow.optimize(chain, strict=True, eager=eager) if optimize else chain
                given: Any = [QUESTION] if "batch" in entry else QUESTION
                seen.append((observe(each, entry, given), flaky.calls))
            assert not differences(seen[0][0], seen[1][0]), entry
            assert seen[0][1] == seen[1][1], entry


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_fallbacks(failures: int) -> None:
    def make() -> Any:
        flaky = Flaky(failures)
        steps = {"q": RunnableLambda(pick)} | ask("{q}") | FakeChat(answers=flaky) | StrOutputParser()
        return steps.with_fallbacks([steps, RunnableLambda(lambda x: "last")]) | str.upper

    same(make, QUESTION)
