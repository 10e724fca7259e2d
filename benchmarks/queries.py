"""Overhead of the runtime: a thousand concurrent queries of a graph of twelve primitives, on fakes without latency.

The overhead is the additional processor time of the optimized chain over stock on the same fakes: the graph, the
shadow, the claims, and the pure work that both sides do (prompts, parsers). It is divided by all primitives of all
queries. Python's garbage collector is on, as for users; a second row has it off to show its share: it repeatedly visits
all live objects, so its cost grows with the number of queries in flight.

Memory is the memory of a query that waits for its last model call, measured while all queries wait at a gate.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
import tracemalloc
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore
from fineflow.testing.leaks import Left, settled

PRIMITIVES = 12
BOUND = 60e-6  # seconds of overhead per primitive
TEXTS = [f"The harbour of town {i} was built {i} hundred years ago." for i in range(4)]


def joined(documents: list[Document]) -> str:
    return "\n".join(document.page_content for document in documents)


def chain(gate: Gate | None = None) -> Runnable[Any, Any]:
    """Returns a chain of twelve primitives: a draft, two searches that do not need it, an answer from all three.

    gate: blocks the answer.
    """
    store = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings())
    draft = ChatPromptTemplate.from_template("Draft: {question}") | FakeChat(default="a draft") | StrOutputParser()
    found = itemgetter("question") | store.as_retriever(search_kwargs={"k": 2}) | joined
    more = itemgetter("topic") | store.as_retriever(search_kwargs={"k": 3}) | joined
    prompt = ChatPromptTemplate.from_template("{found}\n{more}\n{draft}\n{question}")
    model = FakeChat(default="an answer", gate=gate)
    asked = RunnablePassthrough.assign(draft=draft) | RunnablePassthrough.assign(found=found, more=more)
    return asked | prompt | model | StrOutputParser()


async def ask(runnable: Runnable[Any, Any], queries: int) -> None:
    inputs = ({"question": f"Who built harbour {i}?", "topic": f"town {i}"} for i in range(queries))
    answers = await asyncio.gather(*(runnable.ainvoke(each) for each in inputs))
    assert answers == ["an answer"] * queries


def processor_seconds(runnable: Runnable[Any, Any], queries: int, *, collector: bool) -> float:
    """Returns the processor time of all threads for concurrent queries; elapsed time would include other processes."""
    gc.collect()
    if not collector:
        gc.disable()
    try:
        start = time.process_time()
        asyncio.run(ask(runnable, queries))
        return time.process_time() - start
    finally:
        gc.enable()


def overheads(queries: int, runs: int, *, collector: bool) -> tuple[list[float], list[float]]:
    """Returns the seconds per query of stock and optimized in each run, in turns."""
    stock = chain()
    mine = fineflow.optimize(stock, strict=True)
    found: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + 1):  # the first one warms up
        for side in (0, 1) if run % 2 else (1, 0):
            seconds = processor_seconds((stock, mine)[side], queries, collector=collector)
            if run:
                found[side].append(seconds / queries)
    return found


def memory(queries: int, *, optimized: bool) -> float:
    """Returns the bytes that a query in flight holds, the caller's tasks included."""
    gate = Gate()
    runnable = fineflow.optimize(chain(gate), strict=True) if optimized else chain(gate)

    async def measure() -> float:
        gate.open()
        await ask(runnable, 10)  # creates what is kept after the first call
        gate.close()
        arrived = gate.arrivals
        gc.collect()
        tracemalloc.start()
        asking = asyncio.ensure_future(ask(runnable, queries))
        await gate.arrived(arrived + queries, timeout=120)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gate.open()
        await asking
        return held / queries

    return asyncio.run(measure())


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=7)
    parser.add_argument("--queries", type=positive, default=1000, help="queries at once (1000)")
    given = parser.parse_args(argv)
    primitives = len(fineflow.explain(chain()).e_graph.primitives)
    assert primitives == PRIMITIVES, f"the graph of the benchmark has {primitives} primitives"
    found = {collector: overheads(given.queries, given.runs, collector=collector) for collector in (False, True)}
    each = {on: [(b - a) / PRIMITIVES for a, b in zip(*pair, strict=True)] for on, pair in found.items()}
    overhead = statistics.median(each[True])
    held = {name: memory(given.queries, optimized=name == "optimized") for name in ("stock", "optimized")}
    nothing = settled()
    print(f"{given.queries} queries at once, {PRIMITIVES} primitives each, fakes without latency. {hardware()}")
    print(f"Processor time, medians of {given.runs} runs of each, stock and optimized in turns.\n")
    rows = [
        ("per query", "stock", "optimized", "difference", "per primitive"),
        *(
            (
                "processor time" if on else "without the collector",
                *(f"{statistics.median(seconds) * 1e6:.0f} us" for seconds in found[on]),
                f"{statistics.median(each[on]) * PRIMITIVES * 1e6:.0f} us",
                f"{statistics.median(each[on]) * 1e6:.1f} us",
            )
            for on in (True, False)
        ),
        (
            "memory in flight",
            *(f"{size / 1024:.1f} KiB" for size in (*held.values(), held["optimized"] - held["stock"])),
            f"{(held['optimized'] - held['stock']) / 1024 / PRIMITIVES:.2f} KiB",
        ),
    ]
    print(table(rows), end="\n\n")
    print(f"Left afterwards: {nothing}\n")
    checks = {
        f"a primitive costs the runtime less than {BOUND * 1e6:.0f} us (median)": overhead < BOUND,
        "nothing is left afterwards": nothing == Left(),
    }
    figures = {
        "overhead_s": {"median": overhead, "runs": each[True], "without_collector": each[False]},
        "memory_bytes": held,
        "left": repr(nothing),
        "queries": given.queries,
    }
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
