"""How long one callback holds the loop of the caller in the first calls of an app, its plan included.

LlamaIndex's own code packs the texts of all nodes into prompts in one go, for longer than the 5 ms asked for where a
machine is busy. So its apps may hold the loop for as long as stock does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from llama_index.core import Document, VectorStoreIndex

import fineflow
from benchmarks.micro.measure import Found
from benchmarks.micro.planning import INPUT, assigns
from fineflow.testing.langchain import FakeChat
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from fineflow.testing.stalls import held

CALLS = 20
LONGEST = 0.005  # seconds


def many_models(models: int = 25) -> Runnable[Any, Any]:
    """Returns a chain whose last model reads what all others answer."""
    prompt = ChatPromptTemplate.from_template("{question}")
    parts = {f"k{i}": prompt | FakeChat(default="yes") | StrOutputParser() for i in range(models - 1)}
    return RunnablePassthrough.assign(**parts) | prompt | FakeChat(default="done") | StrOutputParser()


def index_engine(response_mode: str) -> Any:
    """Returns a query engine of LlamaIndex whose synthesizer reads six nodes."""
    texts = [f"text {number} {'word ' * 50}" for number in range(8)]
    index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=FakeEmbedding())
    parts = {"llm": FakeLLM(latency=0.1), "embed_model": FakeEmbedding(latency=0.1)}
    return index.as_query_engine(**parts, similarity_top_k=6, response_mode=response_mode)


def longest(app: Any) -> float:
    """Returns the most seconds of processor time of one callback in the first calls of an app."""

    async def calls() -> None:
        for _ in range(CALLS):
            await (app.ainvoke(INPUT) if hasattr(app, "ainvoke") else app.aquery(INPUT["question"]))

    return held(calls, warm=False).seconds


APPS: dict[str, Callable[[], Any]] = {
    "25 models": many_models,
    "nine assigns": assigns,
    **{mode: partial(index_engine, mode) for mode in ("compact", "refine", "tree_summarize")},
}


def measured(runs: int) -> Found:
    """Measures new apps, stock and optimized in turns."""
    found = Found()
    longest(fineflow.optimize(many_models()))  # imports everything needed
    for name, make in APPS.items():
        both = [(longest(make()), longest(fineflow.optimize(make(), strict=True, eager=True))) for _ in range(runs)]
        stock, mine = (statistics.median(side) for side in zip(*both, strict=True))
        ratio = statistics.median(b / a for a, b in both)
        shown = f"{stock * 1e3:.1f} and {mine * 1e3:.1f} ms"
        found.add(f"longest callback, first calls, {name}", ratio, "fineflow / stock", shown)
        limit, what = LONGEST, f"at most {LONGEST * 1e3:.0f} ms"
        if hasattr(make(), "aquery"):
            limit, what = max(LONGEST, stock), f"{what}, or as long as stock does"
        found.aims[f"first calls of {name} hold the loop for {what}"] = mine <= limit
    return found
