"""Query engines of LlamaIndex with latencies, and what calls of them take in virtual time, stock and optimized.

Answers take ``ANSWER`` seconds, vectors ``EMBED``, searches ``SEARCH``, and what a container asks a model ``ASK``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from index_shapes import answer, index
from llama_index.core import Settings
from llama_index.core.indices.query.query_transform import HyDEQueryTransform, StepDecomposeQueryTransform
from llama_index.core.query_engine import (
    CitationQueryEngine,
    MultiStepQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector
from llama_index.core.tools import QueryEngineTool

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore

ANSWER, EMBED, SEARCH, ASK = 1.0, 0.1, 0.2, 0.6
FOUND = 6  # nodes that a search finds

Make = Callable[[], Any]


class Took(NamedTuple):
    """Virtual seconds of one call."""

    stock: float
    optimized: float


def took(make: Make, entry: str, *args: Any, eager: bool = False, first: bool = False) -> Took:
    """What a call takes, stock and optimized, of objects that are made anew. Both must answer the same.

    first: until the first token of its stream.
    """
    stock, said = _seconds(make(), entry, args, first)
    optimized, same = _seconds(fineflow.optimize(make(), strict=True, eager=eager), entry, args, first)
    assert said == same
    return Took(stock, optimized)


def _seconds(obj: Any, entry: str, args: tuple[Any, ...], first: bool) -> tuple[float, Any]:
    async def acall() -> Any:
        found = await getattr(obj, entry)(*args)
        return await anext(aiter(found.response_gen)) if first else found

    def call() -> Any:
        if entry.startswith("a"):
            return asyncio.run(acall())
        found = getattr(obj, entry)(*args)
        return next(iter(found.response_gen)) if first else found

    Settings._llm = FakeLLM()
    try:
        value, seconds = virtual_threads.run(call)
    finally:
        Settings._llm = None
    return seconds, [each.node.get_content() for each in value] if isinstance(value, list) else str(value)


def model(seconds: Any = ANSWER, said: Any = answer, **settings: Any) -> FakeLLM:
    return FakeLLM(answers=said, latency=seconds, **{"context_window": 900, "num_output": 60, **settings})


def searcher(count: int = 8, embedding: Any = None) -> Any:
    return index(embedding or FakeEmbedding(latency=EMBED), FakeStore(latency=SEARCH), count=count)


def engine(mode: str, *, seconds: Any = ANSWER, use_async: bool = False, embedding: Any = None) -> Any:
    found = searcher(embedding=embedding)
    return found.as_query_engine(llm=model(seconds), response_mode=mode, similarity_top_k=FOUND, use_async=use_async)


def fusion(mode: str = "reciprocal_rerank", *, use_async: bool = False, lines: int = 3, **settings: Any) -> Any:
    written = "\n".join(f"query {i} bridge" for i in range(lines))
    retrievers = [searcher(count).as_retriever(similarity_top_k=3) for count in (8, 5)]
    asked = {"num_queries": lines + 1, "similarity_top_k": 4, **settings}
    return QueryFusionRetriever(
        retrievers, llm=FakeLLM(default=written, latency=ASK), mode=mode, use_async=use_async, **asked
    )


def tools(mode: str = "compact_accumulate", count: int = 2, *, shared: bool = True) -> list[Any]:
    """Of indexes with one embedding model, or with one for each."""
    names, embedding = ("north", "south", "east", "west")[:count], FakeEmbedding(latency=EMBED) if shared else None
    made = [engine(mode, embedding=embedding) for _ in names]
    return [
        QueryEngineTool.from_defaults(part, name=name, description=f"the {name}")
        for part, name in zip(made, names, strict=True)
    ]


def sub_questions(*, use_async: bool = False, mode: str = "accumulate", questions: int = 4) -> Any:
    asked = [{"sub_question": f"where is number {i}", "tool_name": ("north", "south")[i % 2]} for i in range(questions)]
    return SubQuestionQueryEngine(
        LLMQuestionGenerator.from_defaults(llm=FakeLLM(default=json.dumps(asked), latency=ASK)),
        get_response_synthesizer(llm=model(), response_mode="simple_summarize"),
        tools(mode),
        verbose=False,
        use_async=use_async,
    )


def router(chosen: int, mode: str = "accumulate", *, room: int = 9000, shared: bool = True) -> Any:
    """room: tokens of the model that sums up. shared: whether its engines have one embedding model."""
    said = json.dumps([{"choice": i + 1, "reason": "it"} for i in range(chosen)])
    kind: Any = LLMMultiSelector if chosen > 1 else LLMSingleSelector
    selector = kind.from_defaults(llm=FakeLLM(default=said, latency=ASK))
    return RouterQueryEngine(selector, tools(mode, 3, shared=shared), llm=model(context_window=room))


def hyde(mode: str = "accumulate") -> Any:
    return TransformQueryEngine(engine(mode), HyDEQueryTransform(llm=model(ASK, lambda _: "the bridge is in town")))


def citations(mode: str = "accumulate") -> Any:
    return CitationQueryEngine.from_args(searcher(), llm=model(), similarity_top_k=FOUND, response_mode=mode)


def steps(mode: str = "accumulate") -> Any:
    transform = StepDecomposeQueryTransform(llm=model(ASK, lambda _: "where is the tower"))
    synthesizer = get_response_synthesizer(llm=model(context_window=9000), response_mode="simple_summarize")
    return MultiStepQueryEngine(engine(mode), transform, synthesizer, num_steps=2, index_summary="facts")


def fused(mode: str = "accumulate") -> Any:
    """A fusion inside of a query engine."""
    return RetrieverQueryEngine.from_args(fusion(num_queries=4), llm=model(), response_mode=mode)
