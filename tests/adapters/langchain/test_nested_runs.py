"""Components that start runs of their own inside a call, which only stock can place in the run tree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from pipelines import QUESTION, ask, echo, same, store

from fineflow import explain, external, optimize
from fineflow.testing.langchain import FakeChat, FakeReranker


@external
class Nesting(FakeChat):
    """A model that asks another runnable before it answers."""

    inner: Any = None

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with self.meter.work("nested"):
            return ChatResult(generations=[ChatGeneration(message=self.inner.invoke(messages))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with self.meter.work("nested"):
            return ChatResult(generations=[ChatGeneration(message=await self.inner.ainvoke(messages))])


def nesting() -> tuple[Any, Nesting, FakeChat]:
    inner = FakeChat(answers=echo)
    outer = Nesting(inner=RunnableLambda(lambda m: m) | inner)
    return (
        RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo))
        | RunnablePassthrough.assign(b=ask("nested {question}") | outer),
        outer,
        inner,
    )


def test_a_model_that_starts_runs_shows_them_where_stock_does() -> None:
    same(lambda: nesting()[0], entries=("invoke", "ainvoke", "batch", "abatch"))


def test_a_model_that_starts_runs_is_left_to_stock_from_then_on() -> None:
    chain, outer, inner = nesting()
    mine = optimize(chain, strict=True)
    assert mine.invoke(QUESTION) is not None
    first = outer.meter.calls
    assert inner.meter.calls == 1, "stopped before its own run began"
    for i in range(3):
        mine.invoke(QUESTION)
        asyncio.run(mine.ainvoke(QUESTION))
        assert (outer.meter.calls, inner.meter.calls) == (first + 2 * i + 2, 1 + 2 * i + 2)
    assert "started a run of its own" in str(explain(mine, graphs=True))


class NestingScores(FakeReranker):
    def score(self, query: str, texts: Any) -> list[float]:
        RunnableLambda(lambda x: x).invoke(query)
        return super().score(query, texts)


def test_a_reranker_that_starts_runs_shows_them_where_stock_does() -> None:
    def make() -> Any:
        base = MultiQueryRetriever.from_llm(store().as_retriever(), FakeChat(default="one\ntwo"), include_original=True)
        return RunnablePick("question") | ContextualCompressionRetriever(
            base_retriever=base, base_compressor=NestingScores()
        )

    same(make, entries=("invoke",))


@external
class NestingStream(FakeChat):
    """Starts a run in the middle of its answer."""

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for i, chunk in enumerate(super()._stream(messages, stop, run_manager, **kwargs)):
            if i == 1:
                RunnableLambda(lambda x: x).with_config(run_name="in the middle").invoke("x")
            yield chunk


def test_a_stream_that_starts_a_run_in_the_middle() -> None:
    same(lambda: ask("{question}") | NestingStream(answers=echo), entries=("stream", "invoke"))
