"""Fakes that are real LlamaIndex components: scripted answers, latencies or gates, and a meter.

They replace remote services: a call sleeps, or waits at a gate, without using the CPU. Answers depend only on the
arguments. ``FakeLLM``, ``FakeEmbedding`` and ``FakeStore`` have real async methods; those of ``BlockingLLM`` and
``BlockingEmbedding`` block the event loop, as in many LlamaIndex components.
"""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.llm import LLM
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from fineflow.testing.gates import Gate, Meter, await_, wait
from fineflow.testing.vectors import vector_of

Answer = str | BaseException
Script = Mapping[str, Answer] | Callable[[str], Answer]


class _Latency(BaseModel):
    """Base of fakes with a latency.

    latency: seconds per call, or a function of its text that returns them. gate: waited at before that. meter: counts
    the calls.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    latency: float | Callable[[str], float] = Field(default=0.0, exclude=True)
    gate: Gate | None = Field(default=None, exclude=True, repr=False)
    meter: Meter = Field(default_factory=Meter, exclude=True, repr=False)

    def _pause(self, text: str) -> None:
        wait(self.gate, self._takes(text))

    async def _apause(self, text: str) -> None:
        await await_(self.gate, self._takes(text))

    def _takes(self, text: str) -> float:
        return self.latency(text) if callable(self.latency) else self.latency


class _Scripted(_Latency):
    """Base of fakes with scripted answers.

    answers: a function of the prompt's text, or a mapping: the first key that occurs in it selects the answer,
    ``default`` is used if none does. An exception instead of a text is raised.
    """

    answers: Script = Field(default_factory=dict, exclude=True)
    default: str = "ok"
    is_chat: bool = True
    context_window: int = 3900
    num_output: int = 256

    def _said(self, text: str) -> str:
        if callable(self.answers):
            said = self.answers(text)
        else:
            said = next((answer for key, answer in self.answers.items() if key in text), self.default)
        if isinstance(said, BaseException):
            raise copy.copy(said)  # a copy, since an exception raised twice collects the tracebacks of both
        return said

    def _answer(self, text: str) -> str:
        with self.meter.work(text):
            self._pause(text)
            return self._said(text)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.num_output,
            is_chat_model=self.is_chat,
            model_name="fake",
        )


class FakeLLM(_Scripted, LLM):
    """An LLM with scripted answers."""

    @classmethod
    def class_name(cls) -> str:
        return "FakeLLM"

    async def _aanswer(self, text: str) -> str:
        with self.meter.work(text):
            await self._apause(text)
            return self._said(text)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _reply(self._answer(text_of(messages)))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _reply(await self._aanswer(text_of(messages)))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self._answer(prompt))

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=await self._aanswer(prompt))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        def pieces() -> ChatResponseGen:
            for piece in _pieces(self._answer(text_of(messages))):
                yield _reply(piece.text, piece.delta)

        return pieces()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        async def pieces() -> ChatResponseAsyncGen:
            for piece in _pieces(await self._aanswer(text_of(messages))):
                yield _reply(piece.text, piece.delta)

        return pieces()

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        def pieces() -> CompletionResponseGen:
            yield from _pieces(self._answer(prompt))

        return pieces()

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        async def pieces() -> CompletionResponseAsyncGen:
            for piece in _pieces(await self._aanswer(prompt)):
                yield piece

        return pieces()


class BlockingLLM(_Scripted, CustomLLM):
    """The same with sync methods only: LlamaIndex calls them on the event loop."""

    @classmethod
    def class_name(cls) -> str:
        return "BlockingLLM"

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self._answer(prompt))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        def pieces() -> CompletionResponseGen:
            yield from _pieces(self._answer(prompt))

        return pieces()


class FakeEmbedding(_Latency, BaseEmbedding):
    """Sums of hash-based word vectors: texts that share words are near each other."""

    dimensions: int = 32

    def _vector(self, text: str) -> list[float]:
        with self.meter.work(text):
            self._pause(text)
            return vector_of(text, self.dimensions)

    async def _avector(self, text: str) -> list[float]:
        with self.meter.work(text):
            await self._apause(text)
            return vector_of(text, self.dimensions)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._avector(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return vector_of(text, self.dimensions)


class BlockingEmbedding(_Latency, BaseEmbedding):
    """The same, but its async method blocks the event loop."""

    dimensions: int = 32

    def _get_query_embedding(self, query: str) -> list[float]:
        with self.meter.work(query):
            self._pause(query)
            return vector_of(query, self.dimensions)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        with self.meter.work(query):
            self._pause(query)
            return vector_of(query, self.dimensions)

    def _get_text_embedding(self, text: str) -> list[float]:
        return vector_of(text, self.dimensions)


class FakeStore(SimpleVectorStore):
    """LlamaIndex's in-memory store, with a latency or a gate before every search."""

    _latency: float = PrivateAttr(default=0.0)
    _gate: Gate | None = PrivateAttr(default=None)
    _meter: Meter = PrivateAttr(default_factory=Meter)

    def __init__(self, *, latency: float = 0.0, gate: Gate | None = None, meter: Meter | None = None) -> None:
        super().__init__()
        self._latency, self._gate, self._meter = latency, gate, meter or Meter()

    @property
    def meter(self) -> Meter:
        """Counts the searches."""
        return self._meter

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        with self._meter.work(query.query_str or ""):
            wait(self._gate)
            time.sleep(self._latency)
            return super().query(query, **kwargs)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        with self._meter.work(query.query_str or ""):
            await await_(self._gate)
            await asyncio.sleep(self._latency)
            return super().query(query, **kwargs)


def text_of(messages: Sequence[ChatMessage]) -> str:
    """Returns the messages as one text, which is searched for the keys of a script."""
    return "\n".join(f"{message.role.value}: {message.content}" for message in messages)


def _reply(text: str, delta: str | None = None) -> ChatResponse:
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=delta)


def _pieces(text: str) -> Iterator[CompletionResponse]:
    said = ""
    for word in re.findall(r"\S+\s*|\s+", text):
        said += word
        yield CompletionResponse(text=said, delta=word)


async def stalls(work: Any, *, every: float = 0.005) -> tuple[Any, float]:
    """Returns a coroutine's result, and the longest time in seconds for which it blocked the event loop."""
    longest, ended = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not ended:
            before = time.perf_counter()
            await asyncio.sleep(every)
            longest = max(longest, time.perf_counter() - before - every)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        result = await work
    finally:
        ended = True
        await watching
    return result, longest


__all__ = [
    "BlockingEmbedding",
    "BlockingLLM",
    "FakeEmbedding",
    "FakeLLM",
    "FakeStore",
    "stalls",
    "text_of",
]
