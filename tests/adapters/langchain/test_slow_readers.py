"""A model does not run away from a reader that is slow; what others wait for is not held up by it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough, RunnablePick
from pydantic import ConfigDict, Field

import fineflow
from fineflow.declare import external
from fineflow.runtime.call.streams import AHEAD
from fineflow.testing.gates import Gate, Meter
from fineflow.testing.langchain import FakeChat

QUESTION = {"q": "why?"}
LONG = 20 * AHEAD
ON_THE_WAY = 3 * AHEAD
"""What may be between a model and its reader at most: the stream, and what a thread has handed over."""


def words(count: int) -> str:
    return " ".join(f"w{i}" for i in range(count))


@external
class Talker(BaseChatModel):
    """Says one piece after the other as fast as they are taken; ``said``: how many so far."""

    said: list[int] = Field(default_factory=list)
    gates: dict[int, Gate] = Field(default_factory=dict)  # by piece: waited at before it
    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def _llm_type(self) -> str:
        return "talker"

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for i in range(LONG):
            self.said.append(i)
            if i in self.gates:
                self.gates[i].wait_sync()
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"w{i} "))

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        for i in range(LONG):
            self.said.append(i)
            await asyncio.sleep(0)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"w{i} "))


def ask(model: Any) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template("{q}") | model


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_model_waits_for_its_reader() -> None:
    model = Talker()
    stream = fineflow.optimize(ask(model), eager=True, strict=True).astream(QUESTION)
    assert (await anext(stream)).text == "w0 "
    begun = len(model.said)  # before there was a reader
    assert begun < AHEAD
    await turns()
    assert len(model.said) <= begun + AHEAD + 1
    for i in range(1, 2 * AHEAD):
        assert (await anext(stream)).text == f"w{i} "
    await turns()
    assert 2 * AHEAD <= len(model.said) <= 3 * AHEAD + 2
    assert len([chunk async for chunk in stream if chunk.text]) == LONG - 2 * AHEAD


def test_a_model_in_a_thread_waits_for_its_reader() -> None:
    begin, gate = Gate(), Gate()  # the second is what it would come to if it ran away
    model = Talker(gates={1: begin, ON_THE_WAY: gate})
    stream = fineflow.optimize(ask(model), eager=True, strict=True).stream(QUESTION)
    assert next(stream).text == "w0 "
    begin.open()
    with pytest.raises(TimeoutError):
        gate.wait_arrived(timeout=0.3)
    assert len(model.said) <= ON_THE_WAY
    gate.open()
    assert len([chunk for chunk in stream if chunk.text]) == LONG - 1


async def test_what_others_wait_for_is_written_to_its_end() -> None:
    first, second = FakeChat(default=words(LONG)), FakeChat(default=words(LONG))
    chain = RunnablePassthrough.assign(a=ask(first)) | RunnablePassthrough.assign(
        b=RunnablePick("a") | (lambda message: message.text[:5]) | ChatPromptTemplate.from_template("{x}") | second
    )
    tokens = Gate(opened=True)
    first.token_gate = tokens
    stream = fineflow.optimize(chain, strict=True).astream(QUESTION)
    await anext(stream)
    async with asyncio.timeout(10):
        await tokens.arrived(LONG)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_slow_reader_of_one_stream_does_not_hold_up_the_only_place() -> None:
    """With one place, a paused model has to give it to the other, on which the reader may be waiting."""
    meter = Meter()
    models = {name: FakeChat(default=words(LONG), meter=meter) for name in "ab"}
    chain = RunnablePassthrough.assign(**{name: ask(model) for name, model in models.items()})
    stream = fineflow.optimize(chain, eager=True, strict=True).astream(QUESTION, {"max_concurrency": 1})
    found = {"a": 0, "b": 0}
    async with asyncio.timeout(20):
        async for chunk in stream:
            for name in found.keys() & chunk.keys():
                found[name] += bool(chunk[name].text)
    assert found == {"a": LONG, "b": LONG}


def test_one_thread_that_reads_two_streams_in_turn() -> None:
    """Stock reads both in one thread, piece by piece: neither model may wait for the end of the other."""
    chain = RunnablePassthrough.assign(**{name: ask(FakeChat(default=words(LONG))) for name in "ab"})
    optimized = fineflow.optimize(chain, eager=True, strict=True)
    found: list[Any] = []
    reading = threading.Thread(
        target=lambda: found.extend(optimized.stream(QUESTION, {"max_concurrency": 1})), daemon=True
    )
    reading.start()
    reading.join(30)
    assert not reading.is_alive()
    assert {name: sum(bool(chunk[name].text) for chunk in found if name in chunk) for name in "ab"} == {
        "a": LONG,
        "b": LONG,
    }
