"""Sub-questions over several indexes with LlamaIndex: a model splits a question, each index answers its part.

All sub-questions are embedded, searched and answered concurrently even in sync calls, where stock (the framework's own
code) runs them one by one.

The model, the embedding model and the store emulate remote services: scripted answers, and they sleep. Needs
`pip install ".[llama-index]"`.
"""

from __future__ import annotations

import json
import time

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import TextNode
from llama_index.core.tools import QueryEngineTool

import fineflow
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore

QUESTION = "How do the towns compare by their founders and by their people?"
TOWNS = {"Nelbury": ("Ada Milbeck", 40_000), "Dunwen": ("Tom Kormar", 12_000), "Erdale": ("Ida Hili", 7_000)}


def say(prompt: str) -> str:
    """Returns the model's scripted answer."""
    if "Sub Questions" in prompt or "sub_question" in prompt:
        asked = [{"sub_question": f"Who founded {town} and how large is it?", "tool_name": town} for town in TOWNS]
        return "```json\n" + json.dumps({"items": asked}) + "\n```"
    known = [f"{town}: {who}, {people:,}" for town, (who, people) in TOWNS.items() if who in prompt]
    return "; ".join(known) or "It is not said."


def index_of(town: str) -> VectorStoreIndex:
    founder, people = TOWNS[town]
    texts = [f"{town} was founded by {founder}.", f"{town} has {people:,} people.", f"In {town} it rains."]
    context = StorageContext.from_defaults(vector_store=FakeStore(latency=0.05))
    nodes = [TextNode(id_=f"{town} {i}", text=text) for i, text in enumerate(texts)]
    return VectorStoreIndex(nodes, embed_model=FakeEmbedding(latency=0.05), storage_context=context)


def build() -> BaseQueryEngine:
    """Builds a stock LlamaIndex engine."""
    llm = FakeLLM(answers=say, latency=0.3)
    tools = [
        QueryEngineTool.from_defaults(
            index_of(town).as_query_engine(llm=llm, similarity_top_k=3), name=town, description=f"facts about {town}"
        )
        for town in TOWNS
    ]
    return SubQuestionQueryEngine(
        question_gen=LLMQuestionGenerator.from_defaults(llm=llm),
        response_synthesizer=get_response_synthesizer(llm=llm, response_mode=ResponseMode.COMPACT),
        query_engine_tools=tools,
        verbose=False,
        use_async=False,
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
    print(f"stock:    {expected}\nfineflow: {answer}\n")
    print("\n".join(text for text in found if text.startswith("Sub question")))
    print("\nequal:", answer == expected and found == sources)
    print(f"stock {1000 * slow:.0f} ms, fineflow {1000 * fast:.0f} ms\n")
    print(fineflow.explain(optimized, last_run=True).timing[1][0])


if __name__ == "__main__":
    main()
