"""Many concurrent queries of a graph of twelve primitives, on fakes without latency: the time of each.

The overhead is the additional processor time of the optimized chain over stock on the same fakes: the graph, the
shadow, the claims, and the pure work that both sides do (prompts, parsers). It is divided by all primitives of all
queries. Python's garbage collector is on, as for users; one figure has it off to show its share: it repeatedly visits
all live objects, so its cost grows with the number of queries in flight.
"""

from __future__ import annotations

import asyncio
import gc
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from benchmarks.micro.measure import Found, calls_of_fineflow, in_turns, processor_seconds
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore
from fineflow.testing.leaks import Left, settled

PRIMITIVES = 12
BOUND = 60e-6  # seconds of overhead per primitive
AT_ONCE = (1, 100, 1000)
TURNS = 4  # measurements for each run, of fewer queries than the most
SEQUENTIAL = 50  # queries one after the other, for the figure of one at once
TEXTS = [f"The harbour of town {i} was built {i} hundred years ago." for i in range(4)]


def joined(documents: list[Document]) -> str:
    return "\n".join(document.page_content for document in documents)


def chain(gate: Gate | None = None, embeddings: Embeddings | None = None) -> Runnable[Any, Any]:
    """Returns a chain of twelve primitives: a draft, two searches that do not need it, an answer from all three.

    gate: blocks the answer. embeddings: of the questions.
    """
    store = FakeVectorStore.from_texts(TEXTS, embeddings or FakeEmbeddings())
    draft = ChatPromptTemplate.from_template("Draft: {question}") | FakeChat(default="a draft") | StrOutputParser()
    found = itemgetter("question") | store.as_retriever(search_kwargs={"k": 2}) | joined
    more = itemgetter("topic") | store.as_retriever(search_kwargs={"k": 3}) | joined
    prompt = ChatPromptTemplate.from_template("{found}\n{more}\n{draft}\n{question}")
    model = FakeChat(default="an answer", gate=gate)
    asked = RunnablePassthrough.assign(draft=draft) | RunnablePassthrough.assign(found=found, more=more)
    return asked | prompt | model | StrOutputParser()


async def ask(runnable: Runnable[Any, Any], queries: int) -> None:
    """Runs that many queries at once."""
    inputs = ({"question": f"Who built harbour {i}?", "topic": f"town {i}"} for i in range(queries))
    answers = await asyncio.gather(*(runnable.ainvoke(each) for each in inputs))
    assert answers == ["an answer"] * queries


def seconds(runnable: Runnable[Any, Any], queries: int, *, collector: bool) -> float:
    """Returns the processor time of a query among that many at once."""

    async def one_by_one() -> None:
        for _ in range(SEQUENTIAL):
            await ask(runnable, 1)

    gc.collect()
    if not collector:
        gc.disable()
    try:
        if queries == 1:
            return processor_seconds(lambda: asyncio.run(one_by_one())) / SEQUENTIAL
        return processor_seconds(lambda: asyncio.run(ask(runnable, queries))) / queries
    finally:
        gc.enable()


def measured(runs: int, at_once: tuple[int, ...] = AT_ONCE) -> Found:
    """Measures the overhead per primitive."""
    primitives = len(fineflow.explain(chain()).e_graph.primitives)
    assert primitives == PRIMITIVES, f"the graph of the benchmark has {primitives} primitives"
    stock, found = chain(), Found()
    mine = fineflow.optimize(stock, strict=True)
    most = at_once[-1]
    for queries, collector in (*((each, True) for each in at_once), (most, False)):
        name = f"{queries:,} at once{'' if collector else ', collector off'}"
        pair = in_turns(
            lambda queries=queries, on=collector: seconds(stock, queries, collector=on),
            lambda queries=queries, on=collector: seconds(mine, queries, collector=on),
            runs if queries == most else runs * TURNS,
        )
        each = (pair.ratio - 1) * pair.stock / PRIMITIVES
        shown = f"{pair.stock * 1e6:,.0f} and {pair.mine * 1e6:,.0f} us a query, {each * 1e6:.1f} us a primitive"
        found.add(f"processor time, {name}", pair.ratio, "fineflow / stock", shown)
        if queries == most and collector:
            found.aims[f"a primitive costs less than {BOUND * 1e6:.0f} us with {queries:,} queries at once"] = (
                each < BOUND
            )
    for queries in at_once[:2]:
        calls = calls_of_fineflow(lambda queries=queries: asyncio.run(ask(mine, queries)))
        found.add(f"calls, {queries:,} at once", calls / queries / PRIMITIVES, "calls of fineflow per primitive")
    nothing = settled()
    found.aims[f"nothing is left afterwards: {nothing}"] = nothing == Left()
    return found
