"""LlamaIndex: time of query engine calls, stock and optimized, and the time for which they block the event loop.

Models, embeddings and searches are services that sleep, and the clock is virtual: the seconds consist of the latencies
alone, the same on every machine. The column "path" is the critical path of an engine, computed by hand. Linux only
(``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
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
from llama_index.core.schema import TextNode
from llama_index.core.selectors import LLMMultiSelector
from llama_index.core.tools import QueryEngineTool

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeEmbedding, FakeLLM, FakeStore
from fineflow.testing.stalls import held

ANSWER, ASK, EMBED, SEARCH = 1.0, 0.6, 0.1, 0.2
"""Seconds of an answer, of a model call before the search, of an embedding, of a search."""

QUESTION = "Which bridge crosses the river in the old harbour?"
NODES, FOUND, QUERIES, QUESTIONS = 12, 6, 3, 4
BLOCKED, HELD = 0.5, 0.05
FIND = EMBED + SEARCH
WORDS = ("stone", "bridge", "river", "harbour", "lighthouse", "ferry", "tunnel", "town", "flood", "quarry", "bay")

Make = Callable[["Services"], Any]


@dataclass(frozen=True)
class Services:
    """Components of one engine. blocking: each blocks for ``BLOCKED`` seconds, its async methods on the loop too."""

    blocking: bool = False

    def llm(self, seconds: float, said: Any = None) -> Any:
        kind: Any = BlockingLLM if self.blocking else FakeLLM
        told = {"default": said} if isinstance(said, str) else {"answers": said or answer}
        latency = BLOCKED if self.blocking else seconds
        return kind(latency=latency, context_window=1200, num_output=80, **told)

    def embedding(self) -> Any:
        kind: Any = BlockingEmbedding if self.blocking else FakeEmbedding
        return kind(latency=BLOCKED if self.blocking else EMBED)

    def index(self, embedding: Any = None) -> VectorStoreIndex:
        kind: Any = _BlockingStore if self.blocking else FakeStore
        store = kind(latency=BLOCKED if self.blocking else SEARCH)
        texts = [" ".join(WORDS[(i + j * (i % 5 + 1)) % len(WORDS)] for j in range(160)) for i in range(NODES)]
        return VectorStoreIndex(
            nodes=[TextNode(id_=f"node {i}", text=f"Fact {i}: {text}") for i, text in enumerate(texts)],
            embed_model=embedding or self.embedding(),
            storage_context=StorageContext.from_defaults(vector_store=store),
        )

    def engine(self, mode: str, embedding: Any = None) -> Any:
        found = self.index(embedding)
        return found.as_query_engine(llm=self.llm(ANSWER), response_mode=mode, similarity_top_k=FOUND)

    def synthesizer(self, mode: Any, seconds: float = ANSWER) -> Any:
        return get_response_synthesizer(llm=self.llm(seconds), response_mode=mode)

    def tools(self, count: int) -> list[QueryEngineTool]:
        embedding = self.embedding()
        made = [self.engine("accumulate", embedding) for _ in range(count)]
        return [QueryEngineTool.from_defaults(each, name=f"tool{i}", description="it") for i, each in enumerate(made)]


@fineflow.external
class _BlockingStore(FakeStore):
    """Store whose async method calls the sync one, as in most stores."""

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        return self.query(query, **kwargs)


def answer(prompt: str) -> str:
    return f"The answer to {sum(map(ord, prompt)) % 1000} is in the old harbour."


def fusion(services: Services) -> Any:
    lines = "\n".join(f"{word} in the old harbour" for word in WORDS[:QUERIES])
    found = QueryFusionRetriever(
        [services.index().as_retriever()], llm=services.llm(ASK, lines), num_queries=QUERIES + 1, use_async=False
    )
    return RetrieverQueryEngine(found, services.synthesizer("simple_summarize"))


def sub_questions(services: Services) -> Any:
    asked = [{"sub_question": f"where is {WORDS[i]}", "tool_name": f"tool{i % 2}"} for i in range(QUESTIONS)]
    return SubQuestionQueryEngine(
        LLMQuestionGenerator.from_defaults(llm=services.llm(ASK, json.dumps(asked))),
        services.synthesizer("simple_summarize"),
        services.tools(2),
        verbose=False,
    )


def router(services: Services) -> Any:
    chosen = json.dumps([{"choice": 1, "reason": "it"}, {"choice": 3, "reason": "it"}])
    selector = LLMMultiSelector.from_defaults(llm=services.llm(ASK, chosen))
    return RouterQueryEngine(selector, services.tools(3), llm=services.llm(ANSWER))


def hyde(services: Services) -> Any:
    return TransformQueryEngine(
        services.engine("accumulate"), HyDEQueryTransform(llm=services.llm(ASK, "It is the stone bridge."))
    )


def steps(services: Services) -> Any:
    transform = StepDecomposeQueryTransform(llm=services.llm(ASK, "where is the harbour"))
    synthesizer = services.synthesizer("simple_summarize")
    return MultiStepQueryEngine(services.engine("accumulate"), transform, synthesizer, num_steps=2, index_summary="it")


def citations(services: Services) -> Any:
    retriever = services.index().as_retriever(similarity_top_k=FOUND)
    return CitationQueryEngine(
        retriever, llm=services.llm(ANSWER), response_synthesizer=services.synthesizer("accumulate")
    )


ENGINES: dict[str, tuple[Make, float]] = {
    "accumulate, 6 nodes": (lambda services: services.engine("accumulate"), FIND + ANSWER),
    "compact_accumulate": (lambda services: services.engine("compact_accumulate"), FIND + ANSWER),
    "tree_summarize, 2 levels": (lambda services: services.engine("tree_summarize"), FIND + 2 * ANSWER),
    "compact, 3 texts": (lambda services: services.engine("compact"), FIND + 3 * ANSWER),  # each needs the previous one
    "fusion of 4 queries": (fusion, ASK + FIND + ANSWER),
    "4 sub-questions, accumulate": (sub_questions, ASK + FIND + ANSWER + ANSWER),
    "router, 2 of 3 chosen": (router, max(ASK, EMBED) + SEARCH + ANSWER + ANSWER),
    "HyDE, accumulate": (hyde, ASK + FIND + ANSWER),
    "2 steps, accumulate": (steps, 2 * (ASK + FIND + ANSWER) + ANSWER),
    "citations, accumulate": (citations, FIND + ANSWER),
}


def seconds(make: Make, entry: str, *, optimized: bool) -> tuple[str, float]:
    """Returns the answer of a call and its virtual seconds."""
    engine = make(Services())
    engine = fineflow.optimize(engine, strict=True) if optimized else engine
    if entry == "aquery":
        found, took = virtual_threads.run(lambda: asyncio.run(engine.aquery(QUESTION)))
    else:
        found, took = virtual_threads.run(lambda: engine.query(QUESTION))
    return str(found), took


def longest(make: Make, *, optimized: bool) -> float:
    """Returns the longest time for which ``aquery`` blocks its event loop if all components block."""
    engine = make(Services(blocking=True))
    engine = fineflow.optimize(engine, strict=True) if optimized else engine
    return held(lambda: engine.aquery(QUESTION)).seconds


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"Query engines of llama-index-core {version('llama-index-core')}, virtual seconds.\n{hardware()}\n")
    rows: list[tuple[str, ...]] = [
        ("engine", "path", "query", "fineflow", "times", "aquery", "fineflow", "holds loop", "fineflow")
    ]
    figures: dict[str, dict[str, float]] = {}
    checks: dict[str, bool] = {}
    for name, (make, path) in ENGINES.items():
        took = figures[name] = {"path": path}
        for entry in ("query", "aquery"):
            one, took[f"stock {entry}"] = seconds(make, entry, optimized=False)
            other, took[f"fineflow {entry}"] = seconds(make, entry, optimized=True)
            if one != other:
                raise AssertionError(f"{name}: {entry} gave another answer")
            mine = took[f"fineflow {entry}"]
            checks[f"{name}: {entry} within 15 % of its critical path"] = mine <= 1.15 * path
            checks[f"{name}: {entry} at most 1.02 times stock"] = mine <= 1.02 * took[f"stock {entry}"]
        took["stock holds"], took["fineflow holds"] = (longest(make, optimized=each) for each in (False, True))
        checks[f"{name}: holds the event loop for less than {HELD * 1000:.0f} ms"] = took["fineflow holds"] < HELD
        rows.append((name, *_shown(took)))
    print(table(rows))
    print(f"\nHolds loop: by aquery, with components that block for {BLOCKED} s.\n")
    return finish({"seconds": figures}, checks, given.json)


def _shown(took: dict[str, float]) -> list[str]:
    ratio = took["stock query"] / took["fineflow query"]
    told = [f"{took[each]:.2f}" for each in ("path", "stock query", "fineflow query")]
    told += [f"{ratio:.1f}", *(f"{took[each]:.2f}" for each in ("stock aquery", "fineflow aquery"))]
    return [*told, f"{took['stock holds']:.2f}", f"{took['fineflow holds']:.3f}"]


if __name__ == "__main__":
    sys.exit(main())
