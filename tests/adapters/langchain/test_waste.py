"""Requests that are sent in vain, in virtual time: they are counted, explained, and bounded by ``optimize(waste=)``."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import Any

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.langchain import FineflowCallbackHandler
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.langchain import FakeVectorStore

NAMES = count()
LOOP = ["a", "b", "bad", "c", "d", "e"]  # the third request fails
GOOD = ["a", "b", "c", "d", "e", "f"]


@fineflow.external
class Model(BaseChatModel):
    """Answers after half a second, or fails after one if the question says so."""

    model_name: str
    asked: list[str]

    @property
    def _llm_type(self) -> str:
        return "model"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.asked.append(messages[-1].text)
        await asyncio.sleep(0.5 if "bad" not in messages[-1].text else 1.0)
        if "bad" in messages[-1].text:
            raise ValueError("bad")
        usage: Any = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("yes", usage_metadata=usage))])


def model() -> Model:
    return Model(model_name=f"waste {next(NAMES)}", asked=[])


def loop(asks: Any) -> Runnable[Any, Any]:
    async def each(items: list[str]) -> list[str]:
        return [(await asks.ainvoke(x)).content for x in items]

    return RunnableLambda(each)


def steps(asks: Any) -> Runnable[Any, Any]:
    ask = {x: ChatPromptTemplate.from_template(f"{x} {{x}}") | asks | StrOutputParser() for x in "abc"}
    first = RunnablePassthrough.assign(a=ask["a"])
    return first | RunnablePassthrough.assign(b=ask["b"]) | RunnablePassthrough.assign(c=ask["c"])


def ran(app: Any, *given: Any) -> tuple[list[Any], float]:
    """Returns what calls return, or the names of their errors, one after the other; and their seconds."""

    async def all_of_them() -> tuple[list[Any], float]:
        began, found = asyncio.get_running_loop().time(), []
        for value in given:
            try:
                found.append(await app.ainvoke(value))
            except ValueError as error:
                found.append(type(error).__name__)
        return found, asyncio.get_running_loop().time() - began

    return virtual.run(all_of_them()).value


def test_requests_in_vain_are_counted_and_explained() -> None:
    asks = model()
    name = asks.model_name
    handler = FineflowCallbackHandler()
    fineflow.prices({name: {"input": 1e6}})
    app = fineflow.optimize(loop(asks), strict=True)
    assert ran(app, LOOP)[0] == ["ValueError"]
    assert asks.asked == LOOP  # the last three at a time at which stock had not got to them
    assert fineflow.statistics().in_vain[name] == handler.report().in_vain[name] == fineflow.Usage(3, 30, output=3)
    line = f"in vain: {name}: 3 requests, tokens: 30 input, 0 read from the cache, 0 written to it, 3 output; cost: 30"
    assert line in str(fineflow.statistics())
    fineflow.prices({})
    said = " ".join(str(fineflow.explain(app, last_run=True)).split())
    assert f"in the last run, 3 requests to {name} in vain: the call ended with ValueError" in said
    handler.clear()
    assert name not in handler.report().in_vain


@pytest.mark.parametrize("shape", [loop, steps])
def test_nothing_is_in_vain_when_nothing_fails_and_nothing_ends_early(shape: Any) -> None:
    asks = model()
    app = fineflow.optimize(shape(asks), strict=True)
    given: Any = GOOD if shape is loop else {"x": 1}
    assert ran(app, given)[0] == ran(shape(model()), given)[0]
    assert asks.model_name not in fineflow.statistics().in_vain


def test_a_call_that_is_left_before_its_end() -> None:
    asks = model()
    app = fineflow.optimize(steps(asks), strict=True)

    async def left() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(app.ainvoke({"x": 1}), 0.25)

    virtual.run(left())
    assert fineflow.statistics().in_vain[asks.model_name] == fineflow.Usage(2)  # ended before they told their tokens


@pytest.mark.parametrize(("shape", "given"), [(loop, LOOP), (loop, GOOD), (steps, {"x": "bad"}), (steps, {"x": 1})])
def test_none_may_be_in_vain(shape: Any, given: Any) -> None:
    stocks, mine = model(), model()
    stock = ran(shape(stocks), given, given)
    assert ran(fineflow.optimize(shape(mine), strict=True, eager=True, waste=0), given, given) == stock
    assert mine.asked == stocks.asked


@pytest.mark.parametrize("shape", [loop, steps])
@pytest.mark.parametrize("share", [0.1, 0.34, 0.5])
def test_a_share_bounds_them_at_every_moment(shape: Any, share: float) -> None:
    bad, good = (LOOP, GOOD) if shape is loop else ({"x": "bad"}, {"x": 1})
    stocks, mine = model(), model()
    stock, app = shape(stocks), fineflow.optimize(shape(mine), strict=True, waste=share)
    for given in [good, bad, bad, good, bad, *[good] * 6, bad, bad, good]:
        assert ran(app, given)[0] == ran(stock, given)[0]
        extra = len(mine.asked) - len(stocks.asked)
        vain = fineflow.statistics().in_vain.get(mine.model_name, fineflow.Usage())
        assert extra == vain.requests <= share * len(mine.asked)
    assert not Counter(stocks.asked) - Counter(mine.asked)


def test_a_share_costs_time_until_there_are_enough_requests() -> None:
    app = fineflow.optimize(loop(model()), strict=True, waste=0.2)
    seconds = [ran(app, GOOD)[1] for _ in range(6)]
    assert seconds == [2.5, 1.5, 1.0, 1.0, 0.5, 0.5]  # three in stock; in the first call the last two run together


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
def test_what_a_thread_takes_of_what_ran_ahead_leaves_room_for_more() -> None:
    store = FakeVectorStore.from_texts(["a", "b"], FakeVectorStore().embedding, latency=1.0)

    def searches(items: list[str]) -> list[str]:
        return [store.similarity_search(x, k=1)[0].page_content for x in items]

    app = fineflow.optimize(RunnableLambda(searches), strict=True, waste=0.2)
    seconds = [virtual_threads.run(lambda: app.invoke(GOOD)).seconds for _ in range(8)]
    assert (seconds[0], seconds[-1]) == (6.0, 1.0)


def test_batches_go_from_step_to_step_as_in_stock() -> None:
    stocks, mine = model(), model()

    async def both(app: Any) -> None:
        with pytest.raises(ValueError, match="bad"):
            await app.abatch([{"x": "bad"}, {"x": 2}, {"x": 3}])

    virtual.run(both(steps(stocks)))
    virtual.run(both(fineflow.optimize(steps(mine), strict=True, waste=0.5)))
    assert Counter(mine.asked) == Counter(stocks.asked)


@pytest.mark.parametrize("waste", [-0.1, 1.5, True, "0", float("nan")])
def test_wrong_shares(waste: Any) -> None:
    with pytest.raises(ValueError, match="waste is a share of requests from 0 to 1"):
        fineflow.optimize(RunnableLambda(len), waste=waste)
