"""A model that refuses with 429: fewer of its requests run ahead afterwards, and stock waits for none of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.runtime.queues.rate_limits import calls_of
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "?"}


class RateLimitError(Exception):
    """As the clients of providers name theirs."""


def model(refusing: list[bool]) -> FakeChat:
    def answers(messages: list[BaseMessage]) -> Any:
        return RateLimitError("slow down") if refusing else "yes"

    return FakeChat(answers=answers, prefill=0.5, step=0.5)  # it refuses after half a second


def steps(chat: FakeChat, *, retries: int = 0) -> Runnable[Any, Any]:
    chain: Runnable[Any, Any] = RunnablePassthrough()
    for key in "abcd":
        step = ChatPromptTemplate.from_template(key + " {question}") | chat | StrOutputParser()
        chain = chain | RunnablePassthrough.assign(**{key: step.with_retry(stop_after_attempt=2) if retries else step})
    return chain


async def timed(mine: Any) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await mine.ainvoke(QUESTION)
    return loop.time() - start


def test_what_is_refused_ahead_is_stocks_own_call_and_half_as_many_run_ahead() -> None:
    refusing = [True]

    def answers(messages: list[BaseMessage]) -> Any:
        if refusing and messages[-1].text.startswith("c"):
            refusing.clear()
            return RateLimitError("slow down")
        return "yes"

    chat = FakeChat(answers=answers, prefill=0.5, step=0.5)
    mine = fineflow.optimize(steps(chat), strict=True)

    async def main() -> list[float]:
        return [await timed(mine) for _ in range(2)]

    assert virtual.run(main()).value == [2.0, 2.0]  # c again, after the others; then two at a time
    assert calls_of(chat).running == 0
    assert calls_of(chat).allowed == 2


def test_half_as_many_run_ahead_until_calls_have_succeeded() -> None:
    refusing: list[bool] = []
    chat = model(refusing)
    mine = fineflow.optimize(steps(chat), strict=True)

    async def main() -> list[float]:
        took = [await timed(mine)]
        refusing.append(True)
        with pytest.raises(RateLimitError):
            await mine.ainvoke(QUESTION)
        refusing.clear()
        took += [await timed(mine) for _ in range(2)]
        for _ in range(15):
            await asyncio.sleep(60)
            await mine.ainvoke(QUESTION)
        return [*took, await timed(mine)]

    assert virtual.run(main()).value == [1.0, 2.0, 2.0, 1.0]


class Embedder(Embeddings):
    """Vectors from a server, as a class of an application that has declared it."""

    def __init__(self) -> None:
        self.refusing = False

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise NotImplementedError

    def embed_query(self, text: str) -> list[float]:
        raise NotImplementedError

    async def aembed_query(self, text: str) -> list[float]:
        await asyncio.sleep(1.0)
        if self.refusing:
            raise RateLimitError("slow down")
        return [1.0]


def test_calls_inside_a_function_are_held_back_too() -> None:
    embedder = Embedder()

    async def each(question: Any) -> list[list[float]]:
        return [await embedder.aembed_query(text) for text in ("a", "b", "c", "d")]

    mine = fineflow.optimize(RunnableLambda(each), strict=True, trust="interfaces")

    async def main() -> list[float]:
        took = [await timed(mine)]
        embedder.refusing = True
        with pytest.raises(RateLimitError):
            await mine.ainvoke(QUESTION)
        embedder.refusing = False
        return [*took, await timed(mine)]

    assert virtual.run(main()).value == [1.0, 2.0]
    assert calls_of(embedder).allowed == 2


def test_a_refusal_of_a_call_that_stock_made_counts_too() -> None:
    refusing = [True]
    chat = model(refusing)
    mine = fineflow.optimize(steps(chat, retries=1), strict=True)

    async def main() -> None:
        with pytest.raises(RateLimitError):
            await mine.ainvoke(QUESTION)

    virtual.run(main())
    assert calls_of(chat).allowed == 0
