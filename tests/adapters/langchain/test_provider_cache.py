"""A provider that bills its prompt cache, in virtual time: calls cost no more than in stock, and take less time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.prompt_cache import (
    EIGHT,
    LONG,
    Cache,
    agent,
    asking,
    contextual_retrieval,
    evaluation,
    extraction,
    fusion,
    judges,
    map_reduce,
    rubric,
)
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.testing import virtual


@fineflow.external
class Billing(BaseChatModel):
    """A model whose provider bills its cache; a response begins half a second after its request.

    tells: the tokens are in the answers.
    """

    model_name: str = "billing"
    tells: bool = True
    provider: Any = None

    @property
    def _llm_type(self) -> str:
        return "billing"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        text = "".join(f"{each.type}{each.text}" for each in messages)
        read, written = self.provider.ask(text, len(text), asyncio.get_running_loop().time(), 0.5)
        await asyncio.sleep(1.0)
        usage: Any = {"input_tokens": len(text) // 4, "output_tokens": 1, "total_tokens": len(text) // 4 + 1}
        usage["input_token_details"] = {"cache_read": read, "cache_creation": written}
        answer = AIMessage(content="yes", usage_metadata=usage if self.tells else None)
        return ChatResult(generations=[ChatGeneration(message=answer)])


# Seconds in stock, together, and with the first one ahead of the others.
WORKLOADS = {
    contextual_retrieval: (8, 1, 2),
    map_reduce: (9, 2, 3),
    rubric: (8, 1, 2),
    agent: (8, 8, 8),
    fusion: (5, 2, 2),
    extraction: (5, 1, 2),
    judges: (1, 1, 1),  # stock itself asks them together
    evaluation: (16, 1, 2),
}


def billing(name: str, **fields: Any) -> Billing:
    return Billing(provider=Cache(), model_name=name, **fields)


def costs(make: Callable[[Any], Any], cache: str | None) -> tuple[float, float]:
    """Returns the tokens billed, in units of the input price, and the seconds of a call.

    cache: "stock" for a call that is not optimized.
    """
    model = billing(f"{make.__name__} {cache}")
    app = make(model)
    mine = app if cache == "stock" else fineflow.optimize(app, strict=True, cache=cache)

    async def main() -> float:
        await mine.ainvoke(EIGHT)
        return asyncio.get_running_loop().time()

    seconds = virtual.run(main()).value
    return round(model.provider.bill), seconds


@pytest.mark.parametrize("make", WORKLOADS, ids=lambda make: make.__name__)
def test_the_bill_is_stocks(make: Callable[[Any], Any]) -> None:
    stock, together, warm, default = (costs(make, cache) for cache in ("stock", "ignore", "warm", None))
    assert warm == default
    assert warm[0] == stock[0] <= together[0]
    assert (stock[1], together[1], warm[1]) == WORKLOADS[make]


def seconds_of(app: Any, *, calls: int, before: Callable[[int], Any] = lambda number: None) -> list[float]:
    """Returns the seconds of calls one after the other. before: called with the number of each."""

    async def main() -> list[float]:
        now, took = asyncio.get_running_loop().time, []
        for number in range(calls):
            before(number)
            begin = now()
            await app.ainvoke(EIGHT)
            took.append(now() - begin)
        return took

    return virtual.run(main()).value


def test_what_is_in_the_cache_is_not_waited_for() -> None:
    model = billing("in the cache")
    app = fineflow.optimize(contextual_retrieval(model), strict=True)

    def drop(number: int) -> None:
        if number == 3:
            model.provider.drop()  # before its time: the responses tell

    assert seconds_of(app, calls=6, before=drop) == [2.0, 1.0, 1.0, 1.0, 2.0, 1.0]


def test_a_provider_that_tells_of_no_cache_is_waited_for_once() -> None:
    model = billing("tells nothing", tells=False)
    app = fineflow.optimize(contextual_retrieval(model), strict=True)
    assert seconds_of(app, calls=3) == [2.0, 1.0, 1.0]
    app = fineflow.optimize(contextual_retrieval(model), strict=True, cache="warm")
    assert seconds_of(app, calls=2) == [2.0, 2.0]  # nobody knows how long it keeps what is written


def test_templates_of_blocks_with_a_breakpoint_are_prompts() -> None:
    block = {"type": "text", "text": LONG + "{x}", "cache_control": {"type": "ephemeral"}}

    def chain(model: Billing) -> Any:
        ask = ChatPromptTemplate.from_messages([("system", [block]), ("human", "{x}")]) | model | StrOutputParser()
        first = RunnablePassthrough.assign(a=ask)
        return first | RunnablePassthrough.assign(b=ask) | RunnablePassthrough.assign(c=ask)

    def ran(app: Any) -> tuple[Any, float]:
        async def main() -> tuple[Any, float]:
            return await app.ainvoke({"x": "{y} 1"}), asyncio.get_running_loop().time()

        return virtual.run(main()).value

    stock, mine = billing("stock blocks"), billing("blocks")
    assert ran(chain(stock)) == ({"x": "{y} 1", "a": "yes", "b": "yes", "c": "yes"}, 3.0)
    assert ran(fineflow.optimize(chain(mine), strict=True)) == ({"x": "{y} 1", "a": "yes", "b": "yes", "c": "yes"}, 2.0)
    assert mine.provider.bill == stock.provider.bill


def test_breakpoints_in_requests_ask_for_a_cache() -> None:
    model = billing("breakpoints", tells=False)

    def app(**breakpoint: Any) -> Any:
        block = {"type": "text", "text": LONG, **breakpoint}
        ask = ChatPromptTemplate.from_messages([SystemMessage([block]), ("human", "{x}")]) | model | StrOutputParser()

        async def each(items: list[int]) -> list[str]:
            return [await ask.ainvoke({"x": x}) for x in items]

        return fineflow.optimize(RunnableLambda(each), strict=True)

    assert seconds_of(app(), calls=2) == [2.0, 1.0]
    assert seconds_of(app(cache_control={"type": "ephemeral"}), calls=2) == [2.0, 2.0]


def test_if_the_first_one_fails_another_one_goes_first() -> None:
    class Failing(Billing):
        async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
            if messages[-1].text == "0":
                await asyncio.sleep(1.0)
                raise ValueError("no")
            return await super()._agenerate(messages)

    model = fineflow.external(Failing)(provider=Cache(), model_name="failing")
    ask = asking(model, LONG)

    async def each(items: list[int]) -> list[str]:
        rows = []
        for x in items:
            try:
                rows.append(await ask.ainvoke({"x": x}))
            except ValueError:
                rows.append("failed")
        return rows

    seconds_of(fineflow.optimize(RunnableLambda(each), strict=True), calls=1)
    stock = billing("stock failing")
    seconds_of(contextual_retrieval(stock), calls=1)
    assert model.provider.written == stock.provider.written > 0
