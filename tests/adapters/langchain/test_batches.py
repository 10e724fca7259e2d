"""Batches: steps that stock keeps apart for all inputs stay apart where somebody could tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from pipelines import ask, echo, store

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, FakeVectorStore

INPUTS = [{"question": f"{number} is the capital"} for number in range(3)]


def uneven() -> Any:
    """Takes so much longer for some inputs that the others would be through before."""
    seconds = {"0": 3.0, "1": 0.0, "2": 1.0}
    slow = {number: FakeChat(answers=echo, prefill=wait) for number, wait in seconds.items()}

    def asked(x: Any) -> Any:
        return slow[x["question"][0]].invoke(x["question"]).content

    return RunnablePassthrough.assign(c=asked)


def ahead(chain: Any) -> Any:
    """Something to gain, so that calls of it run ahead."""
    gaining = RunnablePassthrough.assign(docs=RunnablePick("question") | store().as_retriever())
    return gaining | RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo)) | chain


def counted() -> Any:
    calls: list[Any] = []

    def total(x: Any) -> int:
        return len(calls)

    return RunnablePassthrough.assign(_=calls.append) | RunnableLambda(total)


def filled() -> Any:
    """What is written for one input, without saying so, is found for all of them."""
    found = FakeVectorStore()

    def add(x: Any) -> None:
        found.add_documents([Document(page_content=x["question"])])

    return RunnablePassthrough.assign(_=add) | RunnablePick("question") | found.as_retriever() | RunnableLambda(len)


SHAPES: dict[str, Callable[[], Any]] = {
    "two steps": lambda: ahead(uneven() | counted()),
    "a configured sequence": lambda: ahead((uneven() | counted()).with_config(tags=["t"])),
    "a write and a search": lambda: ahead(uneven() | filled()),
}


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_order_of_steps_for_all_inputs_is_that_of_stock(shape: str) -> None:
    entries = ("batch", "abatch")
    virtual_threads.run(
        lambda: assert_same(SHAPES[shape], INPUTS[0], batch=INPUTS, entries=entries, strict=True, handler=None)
    )


SEEN: list[Any] = []


def step(x: Any) -> Any:
    SEEN.append(x)
    return x


@pytest.mark.parametrize(
    ("chain", "own"),
    [
        (ahead(RunnableLambda(str)), True),
        (ahead(RunnableLambda(step)), False),
        (ahead(RunnableLambda(step) | step), False),
        (ahead(RunnableLambda(step) | step).with_config(tags=["t"]), False),
        (RunnableParallel(a=ahead(RunnableLambda(step) | step)), True),
    ],
    ids=["nothing unknown", "behind a search", "two", "configured", "in a branch, for each input"],
)
def test_where_a_batch_is_a_call_for_each_input(chain: Any, own: bool) -> None:
    stock = fineflow.explain(chain).stock
    assert ("batch" not in stock) is own
    assert ("invoke" in stock) is False


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


GIVEN: dict[str, Callable[[], Any]] = {
    "keys of a dict": {"who": 1, "where": 2}.keys,
    "values of a dict": {1: "who", 2: "where"}.values,
    "set": lambda: {"who", "where"},
    "set of one": lambda: {"who"},
    "tuple": lambda: ("who", "where"),
    "empty": dict,
    "generator": lambda: (each for each in ("who", "where")),
    "number": lambda: 5,
}


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_what_stock_takes_as_inputs_is_taken_and_what_it_refuses_is_refused(
    given: Callable[[], Any], timeout: float | None
) -> None:
    model = FakeChat() | StrOutputParser()
    both = RunnablePassthrough.assign(a=ask("{q}") | model) | RunnablePassthrough.assign(b=ask("{q}") | model)
    stock = RunnableLambda(lambda q: {"q": q}) | both
    fast = fineflow.optimize(stock, timeout=timeout)
    assert outcome(lambda: fast.batch(given())) == outcome(lambda: stock.batch(given()))
    assert outcome(lambda: asyncio.run(fast.abatch(given()))) == outcome(lambda: asyncio.run(stock.abatch(given())))


@pytest.mark.parametrize("config", ["x", [1], 5, ["x"]])
def test_a_config_that_is_none_is_refused_as_stock_refuses_it(config: Any) -> None:
    stock = RunnablePassthrough.assign(a=ask("a: {q}"), b=ask("b: {q}")) | RunnablePick("a")
    fast = fineflow.optimize(stock, eager=True)
    for call in (lambda obj: obj.invoke({"q": "?"}, config), lambda obj: asyncio.run(obj.ainvoke({"q": "?"}, config))):
        assert outcome(lambda call=call: call(fast)) == outcome(lambda call=call: call(stock))
