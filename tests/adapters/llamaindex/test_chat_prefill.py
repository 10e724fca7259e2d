"""Chat engines on a real model: what stands before the context is computed while the context is searched for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.resources import files
from typing import Any

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("transformers")

from index_shapes import QUESTION, index
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.memory import ChatMemoryBuffer

import fineflow
from fineflow.backends.transformers import TransformersEngine
from fineflow.llamaindex import EngineLLM
from fineflow.protocols import Delta, Sampling
from fineflow.runtime.loop.submission import run_sync
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeStore

BEGINNING = "You answer visitors of the town of Torstad. " * 20
ENGINES: dict[str, Any] = {"context": ContextChatEngine, "condense and context": CondensePlusContextChatEngine}
TEMPLATES: dict[str, Any] = {
    "context": {"context_template": BEGINNING + "\nWhat is known:\n{context_str}\n"},
    "condense and context": {"context_prompt": BEGINNING + "\nWhat is known:\n{context_str}\n"},
}


class Noting(TransformersEngine):
    """An engine that notes what of each prompt it had computed before, and tells when it has prefilled something."""

    def __init__(self) -> None:
        super().__init__(str(files("fineflow.demo") / "data" / "tinylm"), name="noting")
        self.cached_tokens: list[int] = []
        self.prefilled = Gate()

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        await super().prefill(tokens, priority=priority)
        self.prefilled.open()

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        async for delta in super().generate(tokens, sampling, priority=priority):
            if delta.finish_reason is not None:
                self.cached_tokens.append(delta.cached_tokens)
            yield delta


@pytest.fixture
def engine(one_core: None) -> Iterator[Noting]:
    engine = Noting()
    yield engine
    asyncio.run(engine.aclose())


def chat_of(kind: str, engine: Noting, found: Gate) -> Any:
    """A chat engine whose searches end when the gate is open."""
    llm = EngineLLM(engine=engine, max_tokens=6, temperature=0.0, context_window=2000)
    retriever = index(FakeEmbedding(), FakeStore(gate=found)).as_retriever(similarity_top_k=2)
    memory = ChatMemoryBuffer.from_defaults(token_limit=400)
    return ENGINES[kind].from_defaults(retriever=retriever, llm=llm, memory=memory, **TEMPLATES[kind])


@pytest.mark.parametrize("kind", ENGINES)
def test_what_stands_before_the_context_is_computed_during_the_search(kind: str, engine: Noting) -> None:
    stock = chat_of(kind, engine, Gate(opened=True)).chat(QUESTION)
    assert engine.cached_tokens[-1] == 0
    run_sync(engine.reset_prefix_cache)
    chat = fineflow.optimize(chat_of(kind, engine, engine.prefilled), strict=True)
    ours = chat.chat(QUESTION)
    known = len(engine.encode(BEGINNING))
    assert known > 200
    assert engine.cached_tokens[-1] >= known // 16 * 16 - 16  # whole blocks; the first one holds the template's start
    assert ours.response == stock.response and stock.response
