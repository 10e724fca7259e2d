"""Chat engines over fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from index_shapes import QUESTION, answer, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from llama_index.core.retrievers import QueryFusionRetriever

from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

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
