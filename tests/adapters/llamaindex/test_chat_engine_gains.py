"""Work of chat engines that runs ahead, and the event loop that they leave free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest
from chat_setups import CONTEXT, ENGINES, TURNS, chat_of
from index_shapes import QUESTION, answer
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer

import fineflow
from fineflow.adapters.llamaindex.thread_affinity import blocks
from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.llamaindex import EngineLLM
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.llamaindex.chat_differential import assert_same_chat
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeEmbedding, FakeStore
from fineflow.testing.stalls import held

WAIT = 10  # seconds; only a failing test waits this long


# What is sooner


def in_thread(call: Callable[[], Any]) -> Any:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


@pytest.mark.parametrize("entry", ["chat", "stream_chat"])
def test_the_beginning_of_the_prompt_is_prefilled_while_the_store_searches(entry: str) -> None:
    gate, backend = Gate(), GatedLLM("ok")
    store = FakeStore(gate=gate)
    make = chat_of("context", lambda: EngineLLM(engine=backend), store=lambda: store, context_template=CONTEXT)
    chat = fineflow.optimize(make(CallbackManager([])), strict=True)
    call = in_thread(lambda: getattr(chat, entry)(QUESTION))
    gate.wait_arrived(1)
    wait_until(lambda: backend.prefills.calls == 1)
    assert backend.meter.calls == 0
    gate.open()
    response = call.result(WAIT)
    assert (str(response) if entry == "chat" else "".join(response.response_gen)) == "ok"


async def test_the_beginning_of_the_prompt_is_prefilled_while_the_question_is_condensed() -> None:
    tokens, backend = Gate(opened=True), GatedLLM("ok")
    backend.token_gate = tokens
    make = chat_of("condense and context", lambda: EngineLLM(engine=backend), context_prompt=CONTEXT)
    chat = fineflow.optimize(make(CallbackManager([])), strict=True)
    await chat.achat(QUESTION)
    before, asked = backend.prefills.calls, tokens.arrivals
    tokens.close()
    call = asyncio.create_task(chat.achat("and the mill"))
    await tokens.arrived(asked + 1)  # the model is about to write the question
    async with asyncio.timeout(WAIT):
        while backend.prefills.calls == before:
            await asyncio.sleep(0)
    assert backend.meter.in_flight == 1
    tokens.open()
    assert (await call).response == "ok"


@pytest.mark.parametrize("kind", ["context", "condense and context"])
def test_queries_of_a_fusion_are_searched_side_by_side(kind: str) -> None:
    gate = Gate()
    store = FakeStore(gate=gate)
    chat = fineflow.optimize(chat_of(kind, store=lambda: store, fusion=True)(CallbackManager([])), strict=True)
    call = in_thread(lambda: chat.chat(QUESTION))
    gate.wait_arrived(4)  # stock searches one after the other
    gate.open()
    assert call.result(WAIT).source_nodes


class Noting(EmulatedLLM):
    """An engine that notes the tokens it is asked to prefill and to decode from, and what of these it had."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(lambda _: "one two three four", LLMProfile(0.0, TOKEN, DECODED), **settings)
        self.prefilled: list[list[int]] = []
        self.asked: list[list[int]] = []
        self.cached_tokens: list[int] = []

    async def prefill(self, tokens: Any, *, priority: int = 0) -> None:
        self.prefilled.append(list(tokens))
        await super().prefill(tokens, priority=priority)

    async def generate(self, tokens: Any, sampling: Any, *, priority: int = 0) -> Any:
        self.asked.append(list(tokens))
        async for delta in super().generate(tokens, sampling, priority=priority):
            if delta.finish_reason is not None:
                self.cached_tokens.append(delta.cached_tokens)
            yield delta


TOKEN, DECODED, EMBED, SEARCH = 0.001, 0.01, 0.1, 0.5  # virtual seconds


def timed(kind: str, engine: EmulatedLLM, **settings: Any) -> Any:
    return chat_of(
        kind,
        lambda: EngineLLM(engine=engine, max_tokens=8, context_window=4000),
        store=lambda: FakeStore(latency=SEARCH),
        embedding=lambda callback_manager: FakeEmbedding(latency=EMBED, callback_manager=callback_manager),
        **settings,
    )(CallbackManager([]))


def seconds(chat: Any, entry: str) -> float:
    """What a turn takes, until it is remembered."""

    def call() -> Any:
        if not entry.startswith("a"):
            response = getattr(chat, entry)(QUESTION)
            return response.response if entry == "chat" else "".join(response.response_gen)

        async def turn() -> Any:
            response = await getattr(chat, entry)(QUESTION)
            if entry == "achat":
                return response.response
            return "".join([token async for token in response.async_response_gen()])

        return asyncio.run(turn())

    ran = virtual_threads.run(call)
    assert ran.value == "one two three four"
    return ran.seconds


in_virtual_time = pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")


@in_virtual_time
@pytest.mark.parametrize("entry", ["chat", "achat"])
def test_a_turn_takes_what_its_critical_path_takes(entry: str) -> None:
    stock, ours = Noting(), Noting()
    took = seconds(timed("context", stock, context_template=CONTEXT), entry)
    sooner = seconds(fineflow.optimize(timed("context", ours, context_template=CONTEXT), strict=True), entry)
    assert ours.asked == stock.asked  # token by token
    [begun], [asked] = ours.prefilled, ours.asked
    assert asked[: len(begun)] == begun
    assert ours.cached_tokens == [len(begun)] and stock.cached_tokens == [0]
    assert len(begun) > 150
    find, write = EMBED + SEARCH, 4 * DECODED
    assert took == pytest.approx(find + len(asked) * TOKEN + write, rel=0.05)
    assert sooner == pytest.approx(find + (len(asked) - len(begun)) * TOKEN + write, rel=0.15)
    assert sooner < took - 0.8 * len(begun) * TOKEN


@in_virtual_time
@pytest.mark.parametrize("entry", ["chat", "achat"])
def test_searches_of_a_turn_are_side_by_side(entry: str) -> None:
    stock, ours = Noting(), Noting()
    took = seconds(timed("context", stock, fusion=True), entry)
    sooner = seconds(fineflow.optimize(timed("context", ours, fusion=True), strict=True), entry)
    assert ours.asked == stock.asked
    answered = len(ours.asked[0]) * TOKEN + 4 * DECODED
    assert sooner == pytest.approx(EMBED + SEARCH + answered, rel=0.15)
    searches = 4 if entry == "chat" else 1  # stock's async method searches side by side, too
    assert took == pytest.approx(searches * (EMBED + SEARCH) + answered, rel=0.15)


# The event loop


@fineflow.external
class SlowMemory(ChatMemoryBuffer):
    """Its async methods are the sync ones, as in many a memory that somebody wrote."""

    def get(self, input: str | None = None, *args: Any, **kwargs: Any) -> list[ChatMessage]:
        time.sleep(0.5)
        return super().get(input, *args, **kwargs)

    def put(self, message: ChatMessage) -> None:
        time.sleep(0.5)
        super().put(message)

    async def aget(self, input: str | None = None, *args: Any, **kwargs: Any) -> list[ChatMessage]:
        return self.get(input, *args, **kwargs)

    async def aput(self, message: ChatMessage) -> None:
        self.put(message)


@in_virtual_time
@pytest.mark.parametrize("entry", ["achat", "astream_chat"])
@pytest.mark.parametrize("kind", ENGINES)
def test_the_event_loop_is_not_held(kind: str, entry: str) -> None:
    assert blocks(SlowMemory, "aget")
    stock = chat_of(
        kind,
        lambda: BlockingLLM(answers=answer, latency=0.5, num_output=60),
        memory=lambda: SlowMemory.from_defaults(token_limit=1500),
        store=partial(cast(Any, SlowStore), latency=0.5),
        embedding=lambda callback_manager: BlockingEmbedding(latency=0.5, callback_manager=callback_manager),
    )(CallbackManager([]))
    chat: Any = fineflow.optimize(stock, strict=True)

    async def turn(engine: Any) -> str:
        response = await getattr(engine, entry)(QUESTION)
        if entry == "achat":
            return str(response)
        return "".join([token async for token in response.async_response_gen()])

    seen = held(lambda: turn(chat))
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"
    assert seen.value.startswith("The answer")
    assert chat.chat_history[-1].content == seen.value
    assert held(lambda: turn(stock), warm=False).seconds >= 0.5


@fineflow.external
class SlowStore(FakeStore):
    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        return self.query(query, **kwargs)


def test_an_engine_of_your_own_that_starts_tasks_stays_on_the_loop() -> None:
    class Own(BaseChatEngine):
        async def achat(self, message: str, chat_history: Any = None) -> AgentChatResponse:
            task = asyncio.ensure_future(asyncio.sleep(0))
            task.cancel()
            return AgentChatResponse(response=f"heard {message}")

        def chat(self, message: str, chat_history: Any = None) -> AgentChatResponse:
            return AgentChatResponse(response=f"heard {message}")

        def stream_chat(self, message: str, chat_history: Any = None) -> Any:
            raise NotImplementedError

        async def astream_chat(self, message: str, chat_history: Any = None) -> Any:
            raise NotImplementedError

        def reset(self) -> None: ...

        @property
        def chat_history(self) -> list[ChatMessage]:
            return []

    assert_same_chat(lambda manager: Own(), TURNS[:1])
