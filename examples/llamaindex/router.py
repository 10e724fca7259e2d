"""A router with LlamaIndex: a model chooses indexes for a question, and their answers are summarized.

The question is embedded while the model chooses; only the chosen indexes are searched and answer, concurrently even in
sync calls, where stock (the framework's own code) queries one index after the other.

The model, the embedding model and the store emulate remote services: scripted answers, and they sleep. Needs
`pip install ".[llama-index]"`.
"""

from __future__ import annotations

import json
import time

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.response_synthesizers import TreeSummarize
from llama_index.core.schema import TextNode
from llama_index.core.selectors import LLMMultiSelector
from llama_index.core.tools import QueryEngineTool

import fineflow
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore

QUESTION = "What do the manuals and the log say about the pump?"
INDEXES = {
    "manuals": ["The pump is greased in spring.", "The wheel turns clockwise."],
    "log": ["The pump was greased on the 2nd of May.", "It rained."],
    "letters": ["Aunt Ida likes the mill.", "The miller is away."],
}


def say(prompt: str) -> str:
    """Returns the model's scripted answer."""
    if "Some choices are given below" in prompt:
        return json.dumps([{"choice": 1, "reason": "how it should be"}, {"choice": 2, "reason": "how it was"}])
    return "; ".join(text for texts in INDEXES.values() for text in texts if "pump" in text and text in prompt)


def build() -> BaseQueryEngine:
    """Builds a stock LlamaIndex engine."""
    llm, embedding = FakeLLM(answers=say, latency=0.3), FakeEmbedding(latency=0.1)
    tools = []
    for name, texts in INDEXES.items():
        context = StorageContext.from_defaults(vector_store=FakeStore(latency=0.1))
        nodes = [TextNode(id_=f"{name} {i}", text=text) for i, text in enumerate(texts)]
        index = VectorStoreIndex(nodes, embed_model=embedding, storage_context=context)
        engine = index.as_query_engine(llm=llm, similarity_top_k=1)
        tools.append(QueryEngineTool.from_defaults(engine, name=name, description=f"what the {name} say"))
    return RouterQueryEngine(
        selector=LLMMultiSelector.from_defaults(llm=llm),
        query_engine_tools=tools,
        llm=llm,
        summarizer=TreeSummarize(llm=llm),
    )


def timed(engine: BaseQueryEngine) -> tuple[str, list[str], float]:
    start = time.perf_counter()
    response = engine.query(QUESTION)
    return str(response), [node.text for node in response.source_nodes], time.perf_counter() - start


def main() -> None:
    engine = build()
    optimized = fineflow.optimize(engine)
    optimized.query(QUESTION)  # the first call plans
    expected, sources, slow = timed(engine)
    answer, found, fast = timed(optimized)
    print(f"stock:    {expected}\nfineflow: {answer}\nsources:  {' '.join(found)}")
    print("equal:", answer == expected and found == sources)
    print(f"stock {1000 * slow:.0f} ms, fineflow {1000 * fast:.0f} ms\n")
    print(fineflow.explain(optimized))


if __name__ == "__main__":
    main()
