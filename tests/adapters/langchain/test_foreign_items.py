"""Items of models of other packages: consumed while they are written wherever stock makes the same request."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any, cast

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import NumberedListOutputParser, StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pipelines import QUESTION, ask, echo, same
from pydantic import Field

import fineflow
from fineflow.adapters.langchain.models.aggregating import aggregating
from fineflow.testing import virtual
from fineflow.testing.gates import Meter
from fineflow.testing.langchain import FakeChat

LINES = ["1. one\n", "2. two\n", "3. three\n", "\nThat ", "is all"]


@fineflow.external
class ChatOllama(BaseChatModel):
    """The methods of langchain-ollama 1.1.0 that make answers, over a stream that takes 1 s for each line."""

    lines: list[str] = Field(default_factory=lambda: list(LINES))
    seconds: float = 0.0
    meter: Any = Field(default_factory=Meter)

    @property
    def _llm_type(self) -> str:
        return "chat-ollama"

    def _chunks(self) -> list[ChatGenerationChunk]:
        made = [ChatGenerationChunk(message=AIMessageChunk(content=line)) for line in self.lines]
        usage: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
        end = AIMessageChunk(content="", usage_metadata=usage)
        return [*made, ChatGenerationChunk(message=end, generation_info={"model_name": "m", "done": True})]

    def _iterate_over_stream(self, messages: Any, stop: Any = None, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        with self.meter.work("stream"):
            if not self.lines:
                raise ValueError("refused")
            yield from self._chunks()

    async def _aiterate_over_stream(
        self, messages: Any, stop: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        with self.meter.work("stream"):
            if not self.lines:
                raise ValueError("refused")
            for chunk in self._chunks():
                yield chunk
                await asyncio.sleep(self.seconds)

    # As in the package.

    def _chat_stream_with_aggregation(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        verbose: bool = False,
        **kwargs: Any,
    ) -> ChatGenerationChunk:
        final_chunk: Any = None
        for chunk in self._iterate_over_stream(messages, stop, **kwargs):
            if final_chunk is None:
                final_chunk = chunk
            else:
                final_chunk += chunk
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk, verbose=verbose)
        if final_chunk is None:
            raise ValueError("No data received from Ollama stream.")
        return cast("ChatGenerationChunk", final_chunk)

    async def _achat_stream_with_aggregation(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        verbose: bool = False,
        **kwargs: Any,
    ) -> ChatGenerationChunk:
        final_chunk: Any = None
        async for chunk in self._aiterate_over_stream(messages, stop, **kwargs):
            if final_chunk is None:
                final_chunk = chunk
            else:
                final_chunk += chunk
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk, verbose=verbose)
        if final_chunk is None:
            raise ValueError("No data received from Ollama stream.")
        return cast("ChatGenerationChunk", final_chunk)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        final_chunk = self._chat_stream_with_aggregation(messages, stop, run_manager, verbose=self.verbose, **kwargs)
        generation_info = final_chunk.generation_info
        chat_generation = ChatGeneration(
            message=AIMessage(
                content=final_chunk.text,
                usage_metadata=cast("AIMessageChunk", final_chunk.message).usage_metadata,
                tool_calls=cast("AIMessageChunk", final_chunk.message).tool_calls,
                additional_kwargs=final_chunk.message.additional_kwargs,
            ),
            generation_info=generation_info,
        )
        return ChatResult(generations=[chat_generation])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        final_chunk = await self._achat_stream_with_aggregation(
            messages, stop, run_manager, verbose=self.verbose, **kwargs
        )
        generation_info = final_chunk.generation_info
        chat_generation = ChatGeneration(
            message=AIMessage(
                content=final_chunk.text,
                usage_metadata=cast("AIMessageChunk", final_chunk.message).usage_metadata,
                tool_calls=cast("AIMessageChunk", final_chunk.message).tool_calls,
                additional_kwargs=final_chunk.message.additional_kwargs,
            ),
            generation_info=generation_info,
        )
        return ChatResult(generations=[chat_generation])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in self._iterate_over_stream(messages, stop, **kwargs):
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, verbose=self.verbose)
            yield chunk

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for chunk in self._aiterate_over_stream(messages, stop, **kwargs):
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, verbose=self.verbose)
            yield chunk


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("langchain_ollama.chat_models")
    module.ChatOllama = ChatOllama
    monkeypatch.setitem(sys.modules, module.__name__, module)


def pipeline(model: Any, seconds: float = 0.0) -> Any:
    """An answer for each item of a list."""
    answer = ask("about {item}") | FakeChat(answers=echo, prefill=seconds) | StrOutputParser()
    return ask("{question}") | model | NumberedListOutputParser() | ({"item": lambda item: item} | answer).map()


def gains(model: Any) -> str:
    return str(fineflow.explain(pipeline(model), input=QUESTION))


def seconds_of(make: Any) -> tuple[float, float]:
    stock = virtual.run(make().ainvoke(QUESTION))
    found = virtual.run(fineflow.optimize(make(), strict=True).ainvoke(QUESTION))
    assert found.value == stock.value
    return stock.seconds, found.seconds


# --- an answer that the package makes of the stream


def test_answers_tokens_and_runs_are_those_of_stock() -> None:
    same(lambda: pipeline(ChatOllama()))
    same(lambda: ask("{question}") | ChatOllama() | (lambda m: m) | ask("{x}") | ChatOllama())
    fast = fineflow.optimize(pipeline(ChatOllama(lines=[])), strict=True)
    with pytest.raises(ValueError, match="refused"):
        fast.invoke(QUESTION)
    with pytest.raises(ValueError, match="refused"):
        asyncio.run(fast.ainvoke(QUESTION))


def test_items_are_consumed_while_the_model_writes_in_every_call() -> None:
    """The items are complete after 0, 1 and 2 s, the model ends after 6 s, and an answer takes 4 s."""
    assert seconds_of(lambda: pipeline(ChatOllama(seconds=1), 4)) == (10, 6)
    assert "in calls that stream" not in gains(ChatOllama())


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
def test_one_request_is_made(entry: str) -> None:
    model = ChatOllama()
    fast = fineflow.optimize(pipeline(model), strict=True)
    found = getattr(fast, entry)(QUESTION)
    if entry == "ainvoke":
        asyncio.run(found)
    elif entry == "stream":
        list(found)
    elif entry == "astream":

        async def read() -> None:
            async for _ in found:
                pass

        asyncio.run(read())
    assert model.meter.calls == 1


class Overriding(ChatOllama):
    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return super()._generate(messages, stop, run_manager, **kwargs)


def _rewritten(self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
    return cast("ChatResult", self._client.chat(messages))


def test_only_the_methods_that_were_read_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert aggregating(ChatOllama()) is not None
    assert aggregating(Overriding()) is None
    replaced = ChatOllama()
    replaced.__dict__["_stream"] = lambda *args, **kwargs: iter(())
    assert aggregating(replaced) is None
    monkeypatch.setattr(ChatOllama, "_generate", _rewritten)  # by a later version of the package, say
    assert aggregating(ChatOllama()) is None


# --- models that LangChain streams in all calls


@fineflow.external
class Remote(FakeChat):
    """A model whose whole answers another request makes."""

    streaming: bool = False

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with self.meter.work("whole"):
            return ChatResult(generations=[ChatGeneration(message=AIMessage(content="".join(LINES)))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with self.meter.work("whole"):
            return ChatResult(generations=[ChatGeneration(message=AIMessage(content="".join(LINES)))])

    def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        yield from super()._stream(messages, *args, **kwargs)

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        async for chunk in super()._astream(messages, *args, **kwargs):
            yield chunk


def remote(**given: Any) -> Remote:
    return Remote(default="1. a\n2. b\n3. c\nThat is all of it", **given)


def test_a_model_that_stock_streams_in_all_calls() -> None:
    """Eleven tokens of 1 s each, of which the sixth ends the last item; an answer takes 3 s."""
    same(lambda: pipeline(remote(streaming=True)))
    assert seconds_of(lambda: pipeline(remote(streaming=True, step=1.0), 3)) == (14, 11)
    assert "in calls that stream" not in gains(remote(streaming=True))


def test_another_one_is_asked_for_the_whole_answer() -> None:
    same(lambda: pipeline(remote()))
    model = remote()
    fineflow.optimize(pipeline(model), strict=True).invoke(QUESTION)
    assert model.meter.labels == ["whole"]
    text = gains(model)
    assert "while the rest of the list is still being written, in calls that stream." in text
    assert "in all calls with streaming=True" in " ".join(text.split())
