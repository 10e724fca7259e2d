"""Every call has its identity at the engines, also one that has nothing to gain and runs as stock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.engines import EmulatedLLM
from fineflow.ir import Op
from fineflow.langchain import ChatEngine
from fineflow.runtime.queues.policy import Take, Waiting
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing import virtual
from one_engine import EXPECTED, URGENT, OneAtATime, order


def ask(engine: OneAtATime) -> Runnable[Any, Any]:
    model = ChatEngine(engine=engine, max_tokens=1)
    return ChatPromptTemplate.from_template("Request {number}.") | model | StrOutputParser()


def stepwise(engine: OneAtATime) -> Runnable[Any, Any]:
    return ask(engine)


def opaque(engine: OneAtATime) -> Runnable[Any, Any]:
    inner, seen = ask(engine), []

    def noted(asked: dict[str, Any]) -> Any:
        seen.append(asked)  # an effect: stock runs it
        return inner.invoke(asked)

    async def anoted(asked: dict[str, Any]) -> Any:
        seen.append(asked)
        return await inner.ainvoke(asked)

    return RunnableLambda(noted, anoted)


def looping(engine: OneAtATime) -> Runnable[Any, Any]:
    inner, seen = ask(engine), []

    def each(asked: dict[str, Any]) -> list[str]:
        found = []
        for number in [asked["number"]]:
            seen.append(number)
            found.append(inner.invoke({"number": number}))
        return found

    return RunnableLambda(each)


def gaining(engine: OneAtATime) -> Runnable[Any, Any]:
    other = ChatPromptTemplate.from_template("Beside {number}.") | ChatEngine(engine=EmulatedLLM(lambda _: "no"))
    return RunnablePassthrough.assign(beside=other) | RunnablePassthrough.assign(answer=ask(engine))


def config(number: int) -> Any:
    return {"metadata": {"fineflow_priority": 5 if number == URGENT else 0}}


CHAINS: list[Callable[[OneAtATime], Runnable[Any, Any]]] = [stepwise, opaque, looping, gaining]


@pytest.mark.parametrize("build", CHAINS)
@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
def test_the_urgent_one_of_twelve_comes_first(build: Callable[[OneAtATime], Runnable[Any, Any]], entry: str) -> None:
    engine = OneAtATime()
    chain = fineflow.optimize(build(engine), strict=True)

    async def one(number: int) -> None:
        if entry == "ainvoke":
            await chain.ainvoke({"number": number}, config(number))
        else:
            async for _ in chain.astream({"number": number}, config(number)):
                pass

    def call(number: int) -> None:
        if entry == "invoke":
            chain.invoke({"number": number}, config(number))
        elif entry == "stream":
            list(chain.stream({"number": number}, config(number)))
        else:
            asyncio.run(one(number))

    assert order(engine, call) == EXPECTED


def test_requests_of_a_stock_call_belong_to_one_query_that_began_with_the_call() -> None:
    found: list[Waiting] = []

    def spy(waiting: Any, slots: int) -> list[Take]:
        found.extend(each for each in waiting if each.op is Op.DECODE)
        return [Take(waiting[0].number, 1)]

    engine = EmulatedLLM(lambda prompt: "yes", can_prefill=False)
    set_policy(engine, spy)
    model = ChatEngine(engine=engine, max_tokens=1) | StrOutputParser()
    prompt = ChatPromptTemplate.from_template("{text}")
    chain = fineflow.optimize(prompt | model | (lambda text: f"again {text}") | model, strict=True)

    async def calls() -> None:
        for number in range(2):
            await asyncio.sleep(10.0)
            await chain.ainvoke({"text": f"call {number}"}, {"metadata": {"fineflow_tenant": "north"}})

    virtual.run(calls())
    assert [each.tenant for each in found] == ["north"] * 4
    assert found[0].query == found[1].query != found[2].query == found[3].query
    assert found[0].started == found[1].started < found[2].started == found[3].started
    assert all(each.depth for each in found)
