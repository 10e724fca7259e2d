"""Optimized chains that a function of an optimized object calls: their calls are parts of the outer one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from test_composing import QUESTION, gaining

import fineflow
from fineflow.langchain import FineflowCallbackHandler
from fineflow.testing import virtual_threads
from fineflow.testing.differential import differences, observe
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
TEXTS = ["a", "b", "c"]


def grader(llm: Any) -> Any:
    return ChatPromptTemplate.from_template("Grade {text}") | llm | StrOutputParser()


def grading(chain: Any, how: str) -> Any:
    """Returns a function that grades texts, one by one or as a batch, and streams the last one."""

    def each(texts: list[str]) -> list[str]:
        return [chain.invoke({"text": text}) for text in texts]

    async def aeach(texts: list[str]) -> list[str]:
        return [await chain.ainvoke({"text": text}) for text in texts]

    def batch(texts: list[str]) -> list[str]:
        first: list[str] = chain.batch([{"text": text} for text in texts[:2]])
        return [*first, *(chain.invoke({"text": text}) for text in texts[2:])]

    def stream(texts: list[str]) -> list[str]:
        first = [chain.invoke({"text": text}) for text in texts]
        return [*first, "".join(chain.stream({"text": texts[0]}))]

    made: dict[str, Any] = {"each": each, "aeach": aeach, "batch": batch, "stream": stream}
    return RunnableLambda(made[how])


def call(runnable: Any) -> Any:
    entry = "ainvoke" if "afunc" in runnable.__dict__ and "func" not in runnable.__dict__ else "invoke"
    return runnable.invoke(TEXTS) if entry == "invoke" else asyncio.run(runnable.ainvoke(TEXTS))


@pytest.mark.parametrize(
    ("how", "stock", "mine"), [("each", 3.0, 1.0), ("aeach", 3.0, 1.0), ("batch", 2.0, 1.0), ("stream", 4.0, 1.0)]
)
def test_they_gain_as_plain_chains_do(how: str, stock: float, mine: float) -> None:
    seconds, asked = [], []
    for inner, outer in ((False, False), (False, True), (True, True)):
        llm = FakeChat(prefill=1.0)
        function = grading(fineflow.optimize(grader(llm)) if inner else grader(llm), how)
        runs = fineflow.optimize(function, strict=True) if outer else function
        ran = virtual_threads.run(lambda runs=runs: call(runs))
        assert ran.value == ["ok"] * len(ran.value)
        seconds.append(ran.seconds)
        asked.append(sorted(llm.meter.labels))
    assert seconds[0] == stock
    assert seconds[2] == seconds[1] <= mine + (how == "stream")
    assert asked[2] == asked[1] == asked[0]


@pytest.mark.parametrize("how", ["each", "batch", "stream"])
def test_the_run_tree_is_that_of_stock(how: str) -> None:
    def built(optimized: bool) -> Any:
        chain = grader(FakeChat())
        made = grading(fineflow.optimize(chain, eager=True) if optimized else chain, how)
        return fineflow.optimize(made, strict=True, eager=True) if optimized else made

    stock, mine = (observe(built(optimized), "invoke", list(TEXTS)) for optimized in (False, True))
    assert not differences(stock, mine)


def test_one_that_gains_by_itself_still_does() -> None:
    def through(chain: Any) -> Any:
        return RunnableLambda(lambda x: chain.invoke(x))

    stock = virtual_threads.run(lambda: through(gaining()).invoke(QUESTION))
    alone = virtual_threads.run(lambda: fineflow.optimize(gaining()).invoke(QUESTION))
    for inner in (fineflow.optimize(gaining()), fineflow.optimize(gaining(), timeout=60.0)):
        ran = virtual_threads.run(lambda inner=inner: fineflow.optimize(through(inner), strict=True).invoke(QUESTION))
        assert ran.value == alone.value == stock.value
        assert ran.seconds == alone.seconds < stock.seconds


def test_options_of_their_own_stay_theirs() -> None:
    """A deadline is of the inner call: it is not looked through, and holds."""
    slow = fineflow.optimize(grader(FakeChat(prefill=1.0)), timeout=0.05)
    outer = fineflow.optimize(grading(slow, "each"))
    with pytest.raises(TimeoutError):
        outer.invoke(TEXTS)


@pytest.mark.parametrize("optimized", [False, True])
def test_a_single_batch_of_a_chain_that_gains_is_prepared(optimized: bool) -> None:
    chain = fineflow.optimize(gaining(), strict=True) if optimized else gaining()
    outer = RunnableLambda(lambda x: chain.batch([x, x]))
    assert fineflow.optimize(outer, strict=True).invoke(QUESTION) == gaining().batch([QUESTION] * 2)


def test_a_handler_that_watches_changes_nothing() -> None:
    """In a function of an app as it is, predictions are made; the optimized chain that it calls stays one."""
    inner = fineflow.optimize(gaining())
    app = RunnableLambda(lambda x: [inner.invoke(x), inner.invoke(x)])
    config: Any = {"callbacks": [FineflowCallbackHandler()]}
    ran = [virtual_threads.run(lambda given=given: app.invoke(QUESTION, given)) for given in (None, config, config)]
    assert ran[0].value == ran[1].value == ran[2].value
    assert ran[0].seconds == ran[1].seconds == ran[2].seconds
