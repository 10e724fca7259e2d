"""Fakes that are real LangChain components: scripted answers, a latency model or gates, and a meter.

They replace remote services: a call sleeps, or waits at a gate, without using the CPU. Answers depend only on the
arguments. Each fake has a ``meter`` (``fineflow.testing.gates.Meter``) and an optional ``gate`` at which every call
waits before it answers. This module has the chat model, ``fineflow.testing.retrieval`` the other components.
"""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import ConfigDict, Field

from fineflow.runtime.events import now
from fineflow.testing.gates import Gate, Meter, await_, wait
from fineflow.testing.retrieval import FakeEmbeddings, FakeReranker, FakeRetriever, FakeVectorStore

__all__ = ["FakeChat", "FakeEmbeddings", "FakeReranker", "FakeRetriever", "FakeVectorStore", "prompt_text", "tokens_of"]

Answer = str | BaseException
Script = Mapping[str, Answer] | Callable[[list[BaseMessage]], Answer]


def tokens_of(text: str) -> list[str]:
    """Returns the words, each with the white space after it: ``"".join(tokens_of(text)) == text``."""
    return re.findall(r"\s+|\S+\s*", text)


class FakeChat(BaseChatModel):
    """A chat model with scripted answers.

    answers: a function of the messages, or a mapping: the first key that occurs in the prompt's text selects the
    answer, ``default`` is used if none does. An exception instead of a text is raised at the first token. prefill:
    seconds until decoding starts. step: seconds per token. gate: waited at before the first token. token_gate: waited
    at before each token, so that a test can release an answer token by token.
    """

    answers: Script = Field(default_factory=dict)
    default: str = "ok"
    prefill: float = 0.0
    step: float = 0.0
    gate: Gate | None = Field(default=None, exclude=True, repr=False)
    token_gate: Gate | None = Field(default=None, exclude=True, repr=False)
    meter: Meter = Field(default_factory=Meter, exclude=True, repr=False)
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @property
    def _llm_type(self) -> str:
        return "fineflow-fake-chat"

    def answer(self, messages: list[BaseMessage], stop: list[str] | None = None) -> str:
        """Returns the answer to ``messages``, cut before the first stop string. Raises a scripted exception."""
        said = self.answers(messages) if callable(self.answers) else self._scripted(prompt_text(messages))
        if isinstance(said, BaseException):
            raise copy.copy(said)  # a copy, since an exception raised twice collects the tracebacks of both
        cuts = [said.find(s) for s in stop or () if s in said]
        return said[: min(cuts)] if cuts else said

    def assemble(self, chunks: Sequence[ChatGenerationChunk]) -> ChatResult:
        """Returns the result that consists of ``chunks``: ``_generate(m) == assemble(list(_stream(m)))``."""
        return generate_from_stream(iter(chunks))

    def _scripted(self, text: str) -> Answer:
        script = cast(Mapping[str, Answer], self.answers)
        return next((answer for key, answer in script.items() if key in text), self.default)

    def _chunks(self, messages: list[BaseMessage], stop: list[str] | None) -> list[ChatGenerationChunk]:
        tokens = tokens_of(self.answer(messages, stop))
        asked = len(tokens_of(prompt_text(messages)))
        made: list[ChatGenerationChunk] = []
        for i, token in enumerate(tokens or [""]):
            message = AIMessageChunk(content=token)
            if i + 1 >= len(tokens):
                message.chunk_position = "last"
                message.response_metadata = {"finish_reason": "stop", "model_name": self._llm_type}
                message.usage_metadata = {
                    "input_tokens": asked,
                    "output_tokens": len(tokens),
                    "total_tokens": asked + len(tokens),
                }
            made.append(ChatGenerationChunk(message=message))
        return made

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with self.meter.work(prompt_text(messages)):
            wait(self.gate)
            start = now() + self.prefill
            _sleep_until(start)
            for i, chunk in enumerate(self._chunks(messages, stop)):
                wait(self.token_gate)
                _sleep_until(start + (i + 1) * self.step)
                yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with self.meter.work(prompt_text(messages)):
            await await_(self.gate)
            start = asyncio.get_running_loop().time() + self.prefill
            await _asleep_until(start)
            for i, chunk in enumerate(self._chunks(messages, stop)):
                await await_(self.token_gate)
                await _asleep_until(start + (i + 1) * self.step)
                yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self.assemble(list(self._stream(messages, stop, **kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self.assemble([chunk async for chunk in self._astream(messages, stop, **kwargs)])


def prompt_text(messages: Sequence[BaseMessage]) -> str:
    """Returns the messages as one text, which is searched for the keys of a script."""
    return "\n".join(f"{m.type}: {m.text}" for m in messages)


def _sleep_until(deadline: float) -> None:
    """Sleeps until a deadline; with one sleep per token the errors of many short sleeps would add up."""
    if (seconds := deadline - now()) > 0:
        time.sleep(seconds)


async def _asleep_until(deadline: float) -> None:
    if (seconds := deadline - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(seconds)
