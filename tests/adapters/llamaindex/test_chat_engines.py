"""Chat engines: the same conversation as stock, by every entry point, and what of it is sooner."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from chat_setups import CONTEXT, ENGINES, TURNS, chat_of
from index_shapes import QUESTION, answer, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine import (
    ContextChatEngine,
)
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer, Memory
from llama_index.core.postprocessor import SimilarityPostprocessor

import fineflow
from fineflow.llamaindex import EngineLLM
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate, Trap
from fineflow.testing.leaks import left, settled
from fineflow.testing.llamaindex.chat_differential import assert_same_chat
from fineflow.testing.llamaindex.fakes import FakeLLM, FakeStore

pytestmark = pytest.mark.sweep

pytest.importorskip("llama_index.core")


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
    assert "is not recognised" in str(fineflow.explain(make(CallbackManager([])), graphs=True))


def test_explain_names_what_is_prefilled() -> None:
    plan = str(fineflow.explain(chat_of("condense and context", engine_llm())(CallbackManager([])), graphs=True))
    assert "what comes before {context_str} is prefilled at once" in plan
    assert "condensed" in plan


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
