"""Streams as stock makes them: what a call raises at once, the third version, and sums of chunks in linear time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, ai
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableGenerator,
    RunnableLambda,
    RunnableSerializable,
)

import fineflow
from fineflow.adapters.langchain.chunks import added
from fineflow.engines import limit
from fineflow.testing import recording
from fineflow.testing.langchain import FakeChat, FakeRetriever

QUESTION = "what"


def of_a_tool_call(characters: int, piece: int) -> list[AIMessageChunk]:
    """The chunks of a message with one tool call, whose arguments have so many characters."""
    args = json.dumps({"text": "x" * (characters - len('{"text": ""}'))})
    texts = [args[i : i + piece] for i in range(0, len(args), piece)]
    named = [("write", "call_1"), *[(None, None)] * len(texts)]
    calls = [tool_call_chunk(name=n, args=text, id=i, index=0) for text, (n, i) in zip(texts, named, strict=False)]
    return [AIMessageChunk(content="", tool_call_chunks=[call]) for call in calls]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that was parsed as the arguments of a tool call."""
    found: list[int] = []
    own = ai.parse_partial_json

    def counting(text: str, **named: Any) -> Any:
        found.append(len(text))
        return own(text, **named)

    monkeypatch.setattr(ai, "parse_partial_json", counting)
    return found


def test_a_long_tool_call_is_added_up_in_linear_time(parsed: list[int]) -> None:
    chunks = of_a_tool_call(200_000, 10)
    parsed.clear()
    whole = added(chunks)
    assert [len(call["args"]["text"]) for call in whole.tool_calls] == [200_000 - len('{"text": ""}')]
    assert sum(parsed) <= 2 * 200_000


class Writer(BaseChatModel):
    """A model that writes the chunks of a tool call, and does not say how they make its answer."""

    chunks: list[Any]

    @property
    def _llm_type(self) -> str:
        return "writer"

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for chunk in self.chunks:
            yield ChatGenerationChunk(message=chunk.model_copy())

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        for chunk in self.chunks:
            yield ChatGenerationChunk(message=chunk.model_copy())

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        raise NotImplementedError


def generated(chunks: list[Any]) -> Runnable[Any, Any]:
    def each(_: Iterator[Any]) -> Iterator[Any]:
        yield from chunks

    async def aeach(_: AsyncIterator[Any]) -> AsyncIterator[Any]:
        for chunk in chunks:
            yield chunk

    return RunnableGenerator(each, aeach)


def modelled(chunks: list[Any]) -> Runnable[Any, Any]:
    return Writer(chunks=chunks)


def called(message: Any) -> str:
    return str(message.tool_calls[0]["args"]["text"][:3])


Made = Callable[[list[Any]], Runnable[Any, Any]]
MADE = pytest.mark.parametrize("made", [generated, modelled])
ENTRIES = pytest.mark.parametrize("entry", ["stream", "astream"])


def ran(runnable: Any, entry: str) -> Any:
    async def awaited() -> list[Any]:
        return [each async for each in runnable.astream(QUESTION)]

    return list(runnable.stream(QUESTION)) if entry == "stream" else asyncio.run(awaited())


@MADE
@ENTRIES
def test_the_graph_adds_nothing_to_what_stock_parses_but_once(made: Made, entry: str, parsed: list[int]) -> None:
    """langchain-core 1.7.2 itself is quadratic."""
    length, searched, sums = 20_000, [], []
    for optimize in (lambda chain: chain, lambda chain: fineflow.optimize(chain, trust="interfaces", eager=True)):
        retriever = FakeRetriever(documents=[Document("x")])
        chain = optimize(made(of_a_tool_call(length, 100)) | RunnableLambda(called) | retriever)
        parsed.clear()
        ran(chain, entry)
        sums.append(sum(parsed))
        searched.append(retriever.meter.labels)
    assert searched == [["xxx"], ["xxx"]]
    assert chain._self_last.claimed >= 1
    assert sums[1] - sums[0] <= 4 * length


@ENTRIES
def test_chunks_that_cannot_be_added_fail_where_stock_adds_them(entry: str) -> None:
    usage: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_token_details": {"unknown": 0.5}}
    chunks = [AIMessageChunk(content="x", usage_metadata=usage) for _ in range(2)]
    trees, retriever = [], FakeRetriever(documents=[Document("x")])
    for optimize in (lambda chain: chain, lambda chain: fineflow.optimize(chain, strict=True, eager=True)):
        handler = recording.RecordingHandler()
        chain = optimize(generated(chunks) | RunnableLambda(lambda message: str(message.content)) | retriever)
        with pytest.raises(ValueError, match="Unknown value types"):
            ran(chain.with_config(callbacks=[handler]), entry)
        trees.append(repr(recording.run_tree(handler)))
    assert trees[1] == trees[0]
    assert not retriever.meter.calls


# What a call raises.

OPTIONS = pytest.mark.parametrize("options", [{}, {"eager": True}, {"timeout": 60}], ids=str)


@OPTIONS
def test_a_stream_that_stock_refuses_is_refused_at_the_call(options: Any) -> None:
    async def aeach(_: AsyncIterator[Any]) -> AsyncIterator[int]:
        yield 1

    def each(_: Iterator[Any]) -> Iterator[int]:
        yield 1

    for only, method in ((aeach, "stream"), (each, "astream")):
        runnable: Any = RunnableGenerator(only)
        with pytest.raises(NotImplementedError):
            getattr(runnable, method)(QUESTION)
        with pytest.raises(NotImplementedError):
            getattr(fineflow.optimize(runnable, **options), method)(QUESTION)


# The third version, which stock has for models and graphs.


@OPTIONS
@pytest.mark.parametrize("given", [{"version": "v3"}, {}], ids=["at the call", "bound"])
@pytest.mark.parametrize("limited", [False, True])
async def test_the_third_version_of_a_model_is_awaited(given: Any, options: Any, limited: bool) -> None:
    model = FakeChat(answers={}, default="one two")
    if limited:
        limit(model, at_once=1)
    bound: Any = model.bind(**{"version": "v3"} if not given else {"stop": ["x"]})
    found = []
    for runs in (bound, fineflow.optimize(bound, **options)):
        stream = await runs.astream_events(QUESTION, **given)
        found.append((await stream.text, [each["event"] async for each in stream]))
        assert [each["event"] for each in runs.stream_events(QUESTION, **given)] == found[-1][1]
    assert found[1] == found[0]
    assert found[0][0] == "one two"


@OPTIONS
async def test_the_third_version_of_a_chain_is_refused_when_it_is_awaited(options: Any) -> None:
    chain = FakeChat(answers={}) | RunnableLambda(lambda message: message.content)
    for runs in (chain, chain.with_retry(), chain.map(), RunnableLambda(len)):
        coroutine: Any = fineflow.optimize(runs, **options).astream_events(QUESTION, version="v3")
        with pytest.raises(NotImplementedError):
            await coroutine


class Nowhere(RunnableSerializable[str, int]):
    """Its method belongs to no module, as one that was made by ``exec`` or a mocking library."""

    more: int = 0

    def invoke(self, input: str, config: Any = None, **kwargs: Any) -> int:
        return len(input) + self.more


Nowhere.invoke.__module__ = None  # type: ignore[assignment]


def test_a_method_of_no_module_is_the_users() -> None:
    runnable = Nowhere().configurable_fields(more=ConfigurableField(id="more"))
    fast = fineflow.optimize(runnable | RunnableLambda(runnable.invoke), strict=True)
    assert fineflow.optimize(runnable, strict=True).invoke("abc", {"configurable": {"more": 2}}) == 5
    with pytest.raises(TypeError):
        fast.invoke("abc")
