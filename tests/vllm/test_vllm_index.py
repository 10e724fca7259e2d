"""Query engines of LlamaIndex on vLLM: what the optimized one answers is what stock answers, and models are shared."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("psutil")

from llama_index.core import VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode

import fineflow
from fineflow.backends.vllm import VLLMEngine
from fineflow.langchain import ChatEngine
from fineflow.llamaindex import EngineLLM
from fineflow.testing.llamaindex import FakeEmbedding

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
