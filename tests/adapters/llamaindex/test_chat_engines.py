"""Chat engines: the same conversation as stock, by every entry point, and what of it is sooner."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer, Memory
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.retrievers import QueryFusionRetriever

import fineflow
from fineflow.adapters.llamaindex.methods import blocks
from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.llamaindex import EngineLLM
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate, Trap, wait_until
from fineflow.testing.leaks import left, settled
from fineflow.testing.llamaindex.chat_differential import assert_same_chat
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeEmbedding, FakeLLM, FakeStore
from fineflow.testing.stalls import held

WAIT = 10  # seconds; only a failing test waits this long
TURNS = (QUESTION, "and the {mill}", "who built it")
ENGINES = {
    "simple": SimpleChatEngine,
    "context": ContextChatEngine,
    "condense": CondenseQuestionChatEngine,
    "condense and context": CondensePlusContextChatEngine,
}
CONTEXT = "You answer visitors of the town. " * 30 + "\nWhat is known:\n{context_str}\n"


def chat_of(
    kind: str,
    llm: Callable[[], Any] | None = None,
    *,
    memory: Callable[[], BaseMemory] | None = None,
    store: Callable[[], Any] | None = None,
    embedding: Callable[..., Any] = FakeEmbedding,
    fusion: bool = False,
    **settings: Any,
) -> Callable[[CallbackManager], Any]:
    """Makes chat engines of a kind over an index of their own."""

    def make(manager: CallbackManager) -> Any:
        model = llm() if llm is not None else FakeLLM(answers=answer, context_window=3000, num_output=60)
        model.callback_manager = manager
        remembered = memory() if memory is not None else ChatMemoryBuffer.from_defaults(token_limit=1500)
        if kind == "simple":
            made: Any = SimpleChatEngine(model, remembered, [system()], callback_manager=manager)
            return made
        vectors = embedding(callback_manager=manager)
        found = index(vectors, store() if store is not None else None, callback_manager=manager)
        if kind == "condense":
            engine: Any = found.as_query_engine(llm=model, similarity_top_k=3)
            engine.callback_manager = engine.retriever.callback_manager = manager
            made = CondenseQuestionChatEngine.from_defaults(engine, llm=model, memory=remembered)
            made.callback_manager = manager
            return made
        retriever: Any = found.as_retriever(similarity_top_k=3)
        retriever.callback_manager = manager
        if fusion:
            writer = FakeLLM(default="the mill\nthe tower\nthe church", callback_manager=manager)
            retriever = QueryFusionRetriever(
                [retriever], llm=writer, num_queries=4, use_async=False, similarity_top_k=4
            )
            retriever.callback_manager = manager
        chat: Any = ENGINES[kind]
        made = chat.from_defaults(retriever, llm=model, memory=remembered, system_prompt="Be brief.", **settings)
        made.callback_manager = manager
        return made

    return make


def system() -> ChatMessage:
    return ChatMessage(role=MessageRole.SYSTEM, content="You answer visitors of the town.")


def engine_llm(**settings: Any) -> Callable[[], EngineLLM]:
    return lambda: EngineLLM(engine=GatedLLM(answer), context_window=3000, max_tokens=60, **settings)


# The same conversation


@pytest.mark.parametrize("llm", [None, engine_llm(), engine_llm(is_chat_model=False)], ids=["fake", "engine", "plain"])
@pytest.mark.parametrize("kind", ENGINES)
def test_a_conversation_is_that_of_stock(kind: str, llm: Any) -> None:
    found = assert_same_chat(chat_of(kind, llm), TURNS)
    assert [len(turn.history) for turn in found["chat"].turns] == [2, 4, 6]
    assert all(turn.tokens for turn in found["astream_chat"].turns)


@pytest.mark.parametrize("kind", ["context", "condense and context"])
def test_fusion_and_postprocessors_inside_a_chat(kind: str) -> None:
    settings: dict[str, Any] = {"fusion": True, "node_postprocessors": [SimilarityPostprocessor(similarity_cutoff=0.0)]}
    found = assert_same_chat(chat_of(kind, engine_llm(), **settings), TURNS)
    assert all(turn.nodes for turn in found["chat"].turns)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("limit", [60, 200])
def test_memories_that_forget(kind: str, limit: int) -> None:
    def memory() -> BaseMemory:
        return ChatMemoryBuffer.from_defaults(token_limit=limit)

    assert_same_chat(chat_of(kind, engine_llm(), memory=memory), (*TURNS, "where does it lead", "since when"))


@pytest.mark.parametrize("kind", ENGINES)
def test_memories_in_a_database(kind: str) -> None:
    # Kept and closed: a connection that is collected while another loop ends answers to that loop (aiosqlite 0.22.1).
    opened: list[Memory] = []

    def memory() -> BaseMemory:
        opened.append(Memory.from_defaults(token_limit=120, session_id="one", token_flush_size=40))
        return opened[-1]

    assert_same_chat(chat_of(kind, engine_llm(), memory=memory), TURNS)
    engines = [memory.sql_store._async_engine for memory in opened]
    for engine in filter(None, engines):
        asyncio.run(engine.dispose())


@pytest.mark.parametrize("kind", ENGINES)
def test_a_history_that_is_given(kind: str) -> None:
    def history() -> dict[str, Any]:
        said = ["which town is this", "It is {context_str} by the river."]
        roles = (MessageRole.USER, MessageRole.ASSISTANT)
        return {"chat_history": [ChatMessage(role=role, content=text) for role, text in zip(roles, said, strict=True)]}

    assert_same_chat(chat_of(kind, engine_llm()), TURNS, arguments=history)


def test_contexts_that_are_too_long_for_one_prompt() -> None:
    def small() -> EngineLLM:
        return EngineLLM(engine=GatedLLM(answer), context_window=700, max_tokens=60)

    found = assert_same_chat(chat_of("context", small), (QUESTION,))
    assert repr(found["chat"].spans).count("LLM.predict") > 1


@pytest.mark.parametrize("kind", ["context", "condense", "condense and context"])
def test_a_search_that_fails(kind: str) -> None:
    def store() -> FakeStore:
        return FakeStore(gate=Trap(ConnectionError("gone"), at=2))

    found = assert_same_chat(chat_of(kind, engine_llm(), store=store), TURNS)
    assert [turn.error for turn in found["chat"].turns] == [None, ("ConnectionError", "gone"), None]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # stock's own thread
@pytest.mark.parametrize("kind", ENGINES)
def test_a_model_that_fails(kind: str) -> None:
    def llm() -> FakeLLM:
        return FakeLLM(answers=lambda text: ConnectionError("gone") if "chapel" in text else "ok")

    found = assert_same_chat(chat_of(kind, llm), (QUESTION, "and the chapel"))
    assert all(seen.turns[0].error is None and seen.turns[1].error for seen in found.values())


@pytest.mark.parametrize("kind", ENGINES)
def test_a_stream_that_is_closed_early(kind: str) -> None:
    found = assert_same_chat(chat_of(kind, engine_llm()), TURNS, entries=("stream_chat", "astream_chat"), read=1)
    assert [len(turn.history) for turn in found["stream_chat"].turns] == [2, 4, 6]  # what was not read is remembered


def test_no_nodes_and_earlier_ones() -> None:
    chunks = index().as_retriever(similarity_top_k=1).retrieve(QUESTION)
    nothing: dict[str, Any] = {"node_postprocessors": [SimilarityPostprocessor(similarity_cutoff=2.0)]}
    assert_same_chat(chat_of("context", engine_llm(), **nothing), TURNS[:2])
    assert_same_chat(chat_of("context", engine_llm(), **nothing), TURNS[:1], arguments=lambda: {"prev_chunks": chunks})


def test_who_listens_to_the_model_is_changed_when_stock_changes_it() -> None:
    model = engine_llm()()
    mine = model.callback_manager
    made = chat_of("condense and context", lambda: model)(CallbackManager([]))
    model.callback_manager = mine
    optimized = fineflow.optimize(made, strict=True)
    fineflow.explain(optimized)
    assert model.callback_manager is mine
    optimized.chat(QUESTION)
    assert model.callback_manager is made.callback_manager


# What it is


@pytest.mark.parametrize("kind", ENGINES)
def test_what_stands_for_a_chat_engine_is_one(kind: str) -> None:
    made = chat_of(kind, engine_llm())(CallbackManager([]))
    optimized: Any = fineflow.optimize(made, strict=True)
    assert isinstance(optimized, ENGINES[kind])
    assert optimized._memory is made._memory
    optimized.chat(QUESTION)
    assert [message.content for message in made.chat_history] == [m.content for m in optimized.chat_history]
    assert len(made.chat_history) == 2
    optimized.reset()
    assert made.chat_history == []
    assert fineflow.optimize(optimized).__wrapped__ is made


def test_a_chat_engine_of_your_own_is_left_to_stock() -> None:
    class Own(ContextChatEngine):
        def _get_nodes(self, message: str) -> Any:
            return super()._get_nodes("the mill")

    def make(manager: CallbackManager) -> Any:
        made = chat_of("context", engine_llm())(manager)
        made.__class__ = Own
        return made

    found = assert_same_chat(make, TURNS[:1], entries=("chat",))
    assert "the mill" in found["chat"].turns[0].sources[0][1] or found["chat"].turns[0].nodes
    assert "is not recognised" in str(fineflow.explain(make(CallbackManager([]))))


def test_explain_names_what_is_prefilled() -> None:
    plan = str(fineflow.explain(chat_of("condense and context", engine_llm())(CallbackManager([]))))
    assert "what comes before {context_str} is prefilled at once" in plan
    assert "condensed" in plan


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


# How turns end


@pytest.mark.parametrize("kind", ["context", "condense", "condense and context"])
def test_turns_that_are_cancelled_at_any_moment_leave_nothing(kind: str) -> None:
    made = chat_of(kind, engine_llm(), context_template=CONTEXT) if kind == "context" else chat_of(kind, engine_llm())
    chat: Any = fineflow.optimize(made(CallbackManager([])), strict=True, eager=True)
    expected = chat.chat(QUESTION).response
    before, moments = left(), random.Random(kind)

    async def cancelled(after: int) -> None:
        turn = asyncio.create_task(chat.achat("and the mill"))
        for _ in range(after):
            await asyncio.sleep(0)
        turn.cancel()
        await asyncio.wait([turn])

    for _ in range(12):
        asyncio.run(cancelled(moments.randrange(80)))
    assert not settled(before=before)
    chat.reset()
    assert chat.chat(QUESTION).response == expected


def test_a_turn_that_is_late_is_stopped_and_not_remembered() -> None:
    gate = Gate()
    backend = GatedLLM("ok", gate=gate)
    made = chat_of("context", lambda: EngineLLM(engine=backend))(CallbackManager([]))
    chat = fineflow.optimize(made, timeout=0.3)
    with pytest.raises(TimeoutError):
        chat.chat(QUESTION)
    gate.open()
    backend.meter.wait_idle()
    assert made.chat_history == []
    assert str(fineflow.optimize(made, timeout=30).chat(QUESTION)) == "ok"


def test_turns_at_the_same_time_do_not_get_in_each_others_way() -> None:
    """Stock sets on the one query engine whether it streams, so that turns of several threads can fail."""
    chat: Any = fineflow.optimize(chat_of("condense", engine_llm())(CallbackManager([])), strict=True)

    def turn(number: int) -> str:
        if number % 2:
            return str(chat.chat(QUESTION, chat_history=GIVEN))
        return "".join(chat.stream_chat(QUESTION, chat_history=GIVEN).response_gen)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(turn, range(12)))) == 1
    assert len(chat.chat_history) == 24


GIVEN = [ChatMessage(role=MessageRole.USER, content="which town is this")]
