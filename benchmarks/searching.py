"""Searches of many queries at once, measured: through the queue of a store, against as many stock searches in threads.

Two stores of LangChain's, with vectors of 384 dimensions: Chroma in this process (with and without a filter), whose
collection takes many vectors in one call, and InMemoryVectorStore, which makes a matrix of all that it holds in every
search. Both sides call the retriever's own method from one thread for each query, released at the same moment, with
vectors that are there already. Whole calls are measured as well: ``ainvoke`` of a chain that searches, stock and
optimized. What both sides find is compared, document by document.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.adapters.langchain.resources import engine_of
from fineflow.adapters.langchain.stores import with_vector
from fineflow.adapters.langchain.together import Search
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.scheduler import queue_of

QUERIES, DOCUMENTS, DIMENSIONS = 64, 3000, 384
Find = Callable[[str], Any]


def stores(documents: int, vectors: dict[str, list[float]]) -> dict[str, Any]:
    """Retrievers by name, all over the same texts."""
    import chromadb
    from chromadb.config import Settings
    from langchain_chroma import Chroma
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    drawn = random.Random(1)

    @fineflow.external
    class Vectors(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [vector(drawn) for _ in texts]

        def embed_query(self, text: str) -> list[float]:
            return vectors[text]

    client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
    chroma, memory = Chroma("searching", Vectors(), client=client), InMemoryVectorStore(Vectors())
    for start in range(0, documents, 1000):
        numbers = range(start, min(start + 1000, documents))
        for store in (chroma, memory):
            store.add_texts(
                [f"document {n}" for n in numbers], [{"n": n} for n in numbers], ids=[f"{n}" for n in numbers]
            )
    half = {"n": {"$gte": documents // 2}}
    return {
        "Chroma": chroma.as_retriever(),
        "Chroma, half of it filtered out": chroma.as_retriever(search_kwargs={"filter": half}),
        "InMemoryVectorStore": memory.as_retriever(),
    }


def vector(drawn: random.Random) -> list[float]:
    return [drawn.gauss(0.0, 1.0) for _ in range(DIMENSIONS)]


def through_queue(retriever: Any, vectors: dict[str, list[float]]) -> Find:
    engine = engine_of(retriever.vectorstore)
    assert engine is not None, "the store has no queue"
    queue = queue_of(engine)

    def find(query: str) -> Any:
        ready = with_vector(retriever, query, retriever.vectorstore.embeddings, vectors[query])
        return queue.submit_sync(Op.SEARCH, [Search(ready, query, None)])[0].result()

    return find


def in_threads(find: Find, queries: list[str]) -> tuple[float, list[Any]]:
    """All queries, one thread each: seconds until all are answered, and what was found."""
    found: list[Any] = [None] * len(queries)
    go = threading.Barrier(len(queries) + 1)

    def one(i: int) -> None:
        go.wait()
        found[i] = find(queries[i])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(queries))]
    for thread in threads:
        thread.start()
    go.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start, found


def on_a_loop(chain: Any, queries: list[str]) -> tuple[float, list[Any]]:
    """``ainvoke`` of all queries at once: the same."""

    async def main() -> tuple[float, list[Any]]:
        start = time.perf_counter()
        found = await asyncio.gather(*(chain.ainvoke(query) for query in queries))
        return time.perf_counter() - start, found

    return asyncio.run(main())


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--queries", type=positive, default=QUERIES, help=f"queries at once ({QUERIES})")
    parser.add_argument("--documents", type=positive, default=DOCUMENTS, help=f"in the store ({DOCUMENTS})")
    given = parser.parse_args(argv)
    from langchain_core.runnables import RunnableLambda, RunnableParallel

    drawn = random.Random(2)
    vectors = {f"query {i}": vector(drawn) for i in range(given.queries)}
    queries = list(vectors)
    took: dict[str, tuple[list[float], list[float]]] = {}
    same, sizes = True, {}
    for name, retriever in stores(given.documents, vectors).items():
        chain: Any = RunnableParallel(docs=retriever, same=RunnableLambda(lambda text: text))
        optimized = fineflow.optimize(chain, eager=True)
        own, ours = (
            lambda q, r=retriever: r._get_relevant_documents(q, run_manager=None),
            through_queue(retriever, vectors),
        )
        kinds: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            f"{name}: searches": (partial(in_threads, own, queries), partial(in_threads, ours, queries)),
            f"{name}: ainvoke": (partial(on_a_loop, chain, queries), partial(on_a_loop, optimized, queries)),
        }
        for kind, sides in kinds.items():
            took[kind] = ([], [])
            with events.record() as seen:
                for run in range(given.runs + 1):  # the first one warms up
                    both = [side() for side in sides[:: 1 if run % 2 else -1]]
                    for (seconds, _), kept in zip(both[:: 1 if run % 2 else -1], took[kind], strict=True):
                        kept += [seconds] * bool(run)
                    same = same and both[0][1] == both[1][1]
            batches = {each.batch for each in seen if each.batch >= 0}
            sizes[kind] = sum(each.items for each in seen if each.batch >= 0) / max(len(batches), 1)
    ratios = {kind: statistics.median(a / b for a, b in zip(*runs, strict=True)) for kind, runs in took.items()}
    print(f"{given.queries} at once among {given.documents} vectors of {DIMENSIONS} dimensions. {hardware()}")
    print(f"Medians of {given.runs} runs, the two in turns; all answered after\n")
    rows = [("", "stock", "fineflow", "times as fast", "searches in a batch")]
    for kind, runs in took.items():
        shown = (f"{statistics.median(each) * 1e3:.0f} ms" for each in runs)
        rows.append((kind, *shown, f"{ratios[kind]:.1f}", f"{sizes[kind]:.1f}"))
    print(table(rows), end="\n\n")
    checks = {
        "searches through the queue are sooner than stock's in threads": all(
            ratio > 1 for kind, ratio in ratios.items() if kind.endswith("searches")
        ),
        "both find the same documents in the same order": same,
    }
    figures = {"seconds": took, "ratios": ratios, "batches": sizes}
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
