"""Retries and fallbacks that functions make themselves: first attempts start together, the others are stock's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

PROMPT = ChatPromptTemplate.from_template("say {x}")


class Asked(FakeChat):
    """Fails where ``failing`` says so: so many times for each prompt."""

    failing: dict[str, int] = {}  # noqa: RUF012 (a field)
    asked: list[str] = []  # noqa: RUF012

    def answer(self, messages: Any, stop: Any = None) -> str:
        text = messages[-1].content
        self.asked.append(text)
        if self.asked.count(text) <= self.failing.get(text[-1], 0):
            raise ValueError(f"no answer to {text}")
        return f"{self.default} to {text}"


def of_model(model: Any, other: Any) -> Any:
    return PROMPT | model.with_retry(stop_after_attempt=2, wait_exponential_jitter=False) | StrOutputParser()


def of_chain(model: Any, other: Any) -> Any:
    return (PROMPT | model | StrOutputParser()).with_retry(stop_after_attempt=2, wait_exponential_jitter=False)


def model_or_model(model: Any, other: Any) -> Any:
    return PROMPT | model.with_fallbacks([other]) | StrOutputParser()


def chain_or_chain(model: Any, other: Any) -> Any:
    return (PROMPT | model | StrOutputParser()).with_fallbacks([PROMPT | other | StrOutputParser()])


KINDS = (of_model, of_chain, model_or_model, chain_or_chain)


def observed(make: Callable[..., Any], failing: dict[str, int], *, awaits: bool, optimized: bool) -> Any:
    model = Asked(prefill=1.0, failing=failing, default="answer", asked=[])
    other = Asked(prefill=1.0, default="another answer", asked=[])

    def asks(topics: list[str]) -> list[str]:
        chain = make(model, other)
        return [chain.invoke({"x": topic}) for topic in topics]

    async def aasks(topics: list[str]) -> list[str]:
        chain = make(model, other)
        return [await chain.ainvoke({"x": topic}) for topic in topics]

    app: Any = RunnableLambda(asks, afunc=aasks)
    app = fineflow.optimize(app) if optimized else app
    topics = ["a", "b", "c"]

    def call() -> Any:
        try:
            return asyncio.run(app.ainvoke(topics)) if awaits else app.invoke(topics)
        except ValueError as error:
            return f"{error}"

    ran = virtual_threads.run(call)
    return ran.value, Counter(model.asked), Counter(other.asked), ran.seconds


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_first_attempts_start_together(make: Any, awaits: bool) -> None:
    stock = observed(make, {}, awaits=awaits, optimized=False)
    mine = observed(make, {}, awaits=awaits, optimized=True)
    assert mine[:3] == stock[:3]
    assert stock[3] == pytest.approx(3.0, abs=0.1)
    assert mine[3] < 1.2


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("failing", [{"a": 1}, {"b": 1}, {"b": 1, "c": 1}, {"b": 2}, {"a": 9}], ids=str)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_what_fails_is_asked_again_as_in_stock(make: Any, failing: dict[str, int], awaits: bool) -> None:
    """Behind a failure that ends the function, what was started ahead may have been asked in vain."""
    stock = observed(make, failing, awaits=awaits, optimized=False)
    mine = observed(make, failing, awaits=awaits, optimized=True)
    assert mine[0] == stock[0]
    assert mine[2] == stock[2]
    if isinstance(stock[0], list):
        assert mine[1] == stock[1]
    else:
        assert stock[1] <= mine[1]
