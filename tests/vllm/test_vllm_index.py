"""Query engines of LlamaIndex on vLLM: what the optimized one answers is what stock answers, and models are shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("psutil")

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode

import fineflow
from fineflow.backends.vllm import VLLMEngine
from fineflow.langchain import ChatEngine
from fineflow.llamaindex import EngineLLM
from fineflow.protocols import Delta
from fineflow.runtime.loop.submission import run_sync
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeStore

TEXTS = [
    "Torstad is a town. Torstad is known for its salt mines.",
    "Kelmora Bridge stands in Velm.",
    "Varmond Labs makes solar panels.",
    "Silver Harbor Tools was founded in Torstad.",
]
QUESTION = "What is Torstad known for?"


def app(engine: VLLMEngine, mode: str, *, streaming: bool = False) -> RetrieverQueryEngine:
    llm = EngineLLM(engine=engine, max_tokens=24, temperature=0.0, context_window=1024)
    nodes: Any = [TextNode(id_=str(i), text=text) for i, text in enumerate(TEXTS)]
    searched = VectorStoreIndex(nodes, embed_model=FakeEmbedding()).as_retriever(similarity_top_k=2)
    fusion = QueryFusionRetriever([searched], llm=llm, num_queries=3, similarity_top_k=3, use_async=False)
    return RetrieverQueryEngine.from_args(fusion, llm=llm, response_mode=mode, streaming=streaming)  # type: ignore[arg-type]


def shown(response: Any) -> Any:
    return str(response), [(node.node_id, node.score) for node in response.source_nodes]


@pytest.mark.parametrize("mode", ["tree_summarize", "accumulate", "refine", "compact"])
def test_same_answer(engine: VLLMEngine, mode: str) -> None:
    stock = shown(app(engine, mode).query(QUESTION))
    optimized = fineflow.optimize(app(engine, mode), strict=True)
    assert shown(optimized.query(QUESTION)) == stock
    assert shown(asyncio.run(optimized.aquery(QUESTION))) == stock
    assert stock[0] and stock[1]


def test_same_text_in_pieces(engine: VLLMEngine) -> None:
    stock = "".join(app(engine, "compact", streaming=True).query(QUESTION).response_gen)
    optimized = fineflow.optimize(app(engine, "compact", streaming=True), strict=True)
    assert "".join(optimized.query(QUESTION).response_gen) == stock


def test_both_frameworks_get_the_same_from_one_engine(engine: VLLMEngine) -> None:
    ours = EngineLLM(engine=engine, max_tokens=16, temperature=0.0).chat([ChatMessage(role="user", content=QUESTION)])
    assert ours.message.content == ChatEngine(engine=engine, max_tokens=16, temperature=0.0).invoke(QUESTION).content


def test_a_chat_prefills_what_stands_before_its_context(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning = "You answer visitors of the town of Torstad. " * 40
    shared = engine.shared
    generate, prefill = shared.generate, shared.prefill
    cached: list[int] = []
    prefilled = Gate()

    async def noting(*args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
        async for delta in generate(*args, **kwargs):
            if delta.finish_reason is not None:
                cached.append(delta.cached_tokens)
            yield delta

    async def telling(*args: Any, **kwargs: Any) -> None:
        await prefill(*args, **kwargs)
        prefilled.open()

    def chat(found: Gate) -> ContextChatEngine:
        nodes: Any = [TextNode(id_=str(i), text=text) for i, text in enumerate(TEXTS)]
        store: Any = StorageContext.from_defaults(vector_store=FakeStore(gate=found))
        searched = VectorStoreIndex(nodes, storage_context=store, embed_model=FakeEmbedding()).as_retriever()
        llm = EngineLLM(engine=engine, max_tokens=8, temperature=0.0, context_window=1024)
        return ContextChatEngine.from_defaults(searched, llm=llm, context_template=beginning + "\n{context_str}\n")

    monkeypatch.setattr(shared, "generate", noting)
    monkeypatch.setattr(shared, "prefill", telling)
    run_sync(engine.reset_prefix_cache)
    # First, while nothing has been measured: with so small a model a prefill by itself may not be worth its request.
    ours = fineflow.optimize(chat(prefilled), strict=True).chat(QUESTION).response
    run_sync(engine.reset_prefix_cache)
    stock = chat(Gate(opened=True)).chat(QUESTION).response
    known = len(engine.encode(beginning))
    assert known > 300
    assert cached[0] >= known - 2 * engine.block_size
    assert cached[1] == 0
    assert ours == stock != ""
