"""Indexes and query engines for tests, made of fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeWithScore, TextNode

from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore

QUESTION = "where is the bridge"
WORDS = ["bridge", "river", "town", "stone", "tower", "road", "mill", "market", "church", "school", "garden"]


def texts(count: int = 8, length: int = 200) -> list[str]:
    return [
        f"Fact {i} about the bridge: " + " ".join(WORDS[(i * 3 + j * (i + 1)) % len(WORDS)] for j in range(length))
        for i in range(count)
    ]


def nodes(count: int = 8, length: int = 200) -> list[TextNode]:
    found = enumerate(texts(count, length))
    return [TextNode(id_=f"node {i}", text=text, metadata={"number": i}) for i, text in found]


def scored() -> list[NodeWithScore]:
    return [NodeWithScore(node=node, score=1 - i / 10) for i, node in enumerate(nodes(6))]


def answer(prompt: str) -> str:
    """Depends on all of the prompt: a prompt that differs gets another answer."""
    seen = sum(ord(character) * (i % 97 + 1) for i, character in enumerate(prompt))
    return " ".join(["The", "answer", f"number {seen}", *(WORDS[(seen + i) % len(WORDS)] for i in range(seen % 40))])


def index(
    embedding: Any = None, store: Any = None, callback_manager: CallbackManager | None = None, count: int = 8
) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store or FakeStore())
    return VectorStoreIndex(
        nodes=nodes(count),
        embed_model=embedding or FakeEmbedding(),
        storage_context=context,
        callback_manager=callback_manager,
    )


def engine_of(mode: str, llm: Callable[[], Any] | None = None, **settings: Any) -> Callable[[CallbackManager], Any]:
    """Makes query engines over an index of their own."""

    def make(manager: CallbackManager) -> Any:
        model = llm() if llm is not None else FakeLLM(answers=answer, context_window=900, num_output=60)
        model.callback_manager = manager
        embedding = FakeEmbedding(callback_manager=manager)
        made = index(embedding, callback_manager=manager)
        engine = made.as_query_engine(llm=model, response_mode=mode, similarity_top_k=6, **settings)
        engine.callback_manager = engine.retriever.callback_manager = manager
        embedding.callback_manager = manager
        if hasattr(engine._response_synthesizer._llm, "callback_manager"):
            engine._response_synthesizer.callback_manager = manager
        return engine

    return make
