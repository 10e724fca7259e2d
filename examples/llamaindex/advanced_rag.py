"""Advanced RAG with LlamaIndex: query fusion over two indexes, a reranker, an answer refined passage by passage.

The original query is searched at once, each generated one when its line is complete; the known part of the answer's
prompt is prefilled during retrieval, and each refine prompt while the previous answer is decoded.

The engines are emulated: scripted answers, with the latencies of Llama-2-7B on a GPU (`fineflow.engines`).
Needs `pip install ".[llama-index]"`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import TextNode

import fineflow
from fineflow.engines import EmulatedEmbedding, EmulatedLLM, EmulatedReranker
from fineflow.llamaindex import EngineEmbedding, EngineLLM, EngineReranker

QUESTION = "How is the pump of the north mill serviced?"
PARTS = ["pump", "wheel", "sluice", "gear", "belt", "stone", "hopper", "shaft"]


def passages(source: str) -> list[TextNode]:
    """Returns a page of some 200 words for each part."""
    pages = (f"{source}, the {part} of the north mill. " + f"The {part} is serviced in spring. " * 32 for part in PARTS)
    return [TextNode(id_=f"{source} {part}", text=page) for part, page in zip(PARTS, pages, strict=True)]


def say(prompt: str) -> str:
    """Returns the model's scripted answer."""
    if "search queries" in prompt:
        return "pump of the mill serviced in spring\nsluice gear and pump of the mill\nwhen is the pump serviced"
    return f"It is serviced in spring, as {prompt.count('serviced')} lines say."


def build() -> BaseQueryEngine:
    """Builds a stock LlamaIndex engine on its own emulated engines, so that both sides have separate caches."""
    llm = EngineLLM(engine=EmulatedLLM(say), max_tokens=64, context_window=2048)
    embedder: Any = EmulatedEmbedding()
    embedding = EngineEmbedding(embedder)
    indexes = [VectorStoreIndex(passages(source), embed_model=embedding) for source in ("Manual", "Log")]
    retriever = QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=3) for index in indexes],
        llm=llm,
        mode=FUSION_MODES.RECIPROCAL_RANK,
        num_queries=4,
        similarity_top_k=8,
        use_async=False,
    )
    reranker = EngineReranker(engine=EmulatedReranker(), top_n=3)
    return RetrieverQueryEngine.from_args(
        retriever, llm=llm, node_postprocessors=[reranker], response_mode=ResponseMode.REFINE
    )


def seconds(engine: BaseQueryEngine) -> tuple[str, list[str], float]:
    start = time.perf_counter()
    response = engine.query(QUESTION)
    took = time.perf_counter() - start
    return str(response), [f"{node.node_id} {node.score}" for node in response.source_nodes], took


def main() -> None:
    stock, optimized = build(), fineflow.optimize(build())
    for engine in (stock, optimized):
        engine.query("What turns the wheel?")  # the first call imports and plans
    expected, sources, slow = seconds(stock)
    answer, found, fast = seconds(optimized)
    print(f"stock:    {expected}\nfineflow: {answer}\nsources:  {', '.join(found)}")
    awaited = asyncio.run(optimized.aquery(QUESTION))
    print("equal:", answer == expected == str(awaited) and found == sources)
    print(f"stock {1000 * slow:.0f} ms, fineflow {1000 * fast:.0f} ms\n")
    for note in fineflow.explain(optimized).all_notes:
        if note.done:
            print(note)


if __name__ == "__main__":
    main()
