"""Concurrent searches: through the batching queue of a store, against as many stock searches in threads.

Stores of LangChain and of LlamaIndex, with vectors of 384 dimensions: Chroma in this process (with and without a
filter), whose collection takes many vectors in one call, and the in-memory store of each, which builds a matrix of all
its vectors in every search. Both sides call the store's own method from one thread per query, started together, with
precomputed vectors. Whole calls are measured as well: ``ainvoke`` of a chain that searches, and ``aretrieve`` of a
retriever, stock and optimized. The results of both sides are compared, document by document.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.adapters.langchain.resources import engine_of
from fineflow.adapters.langchain.stores.batched_search import RetrieverSearch
from fineflow.adapters.langchain.stores.facts import with_vector
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.queues.batch_queue import batch_queue_of

QUERIES, DOCUMENTS, DIMENSIONS = 64, 3000, 384
Find = Callable[[str], Any]
Ask = Callable[[str], Awaitable[Any]]


class Sides(NamedTuple):
    """Measured functions of one store: a search, and a whole call on a loop, by stock and by fineflow."""

    own: Find
    queued: Find
    entry: str
    call: Ask
    optimized: Ask


def langchain(client: Any, documents: int, vectors: dict[str, list[float]]) -> Iterator[tuple[str, Sides]]:
    """Yields the stores of LangChain, all with the same texts."""
    from langchain_chroma import Chroma
    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables import RunnableLambda, RunnableParallel
    from langchain_core.vectorstores import InMemoryVectorStore

    drawn = random.Random(1)

    @fineflow.external
    class Vectors(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [vector(drawn) for _ in texts]

        def embed_query(self, text: str) -> list[float]:
            return vectors[text]

    chroma, memory = Chroma("searching", Vectors(), client=client), InMemoryVectorStore(Vectors())
    for start in range(0, documents, 1000):
        numbers = range(start, min(start + 1000, documents))
        for store in (chroma, memory):
            store.add_texts(
                [f"document {n}" for n in numbers], [{"n": n} for n in numbers], ids=[f"{n}" for n in numbers]
            )
    half = {"n": {"$gte": documents // 2}}
    for name, retriever in {
        "Chroma": chroma.as_retriever(),
        "Chroma, half of it filtered out": chroma.as_retriever(search_kwargs={"filter": half}),
        "InMemoryVectorStore": memory.as_retriever(),
    }.items():
        chain: Any = RunnableParallel(docs=retriever, same=RunnableLambda(lambda text: text))
        own = partial(retriever._get_relevant_documents, run_manager=None)
        optimized = fineflow.optimize(chain, eager=True)
        yield name, Sides(own, through_queue(retriever, vectors), "ainvoke", chain.ainvoke, optimized.ainvoke)


def llamaindex(client: Any, documents: int, vectors: dict[str, list[float]]) -> Iterator[tuple[str, Sides]]:
    """Yields the stores of LlamaIndex."""
    from llama_index.core import StorageContext, VectorStoreIndex
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters, SimpleVectorStore
    from llama_index.core.vector_stores.types import VectorStoreQuery
    from llama_index.vector_stores.chroma import ChromaVectorStore

    from fineflow.adapters.llamaindex.stores.searches import searched

    @fineflow.external
    class Vectors(BaseEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            return vectors[query]

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return vectors[query]

        def _get_text_embedding(self, text: str) -> list[float]:
            return vectors[text]

    drawn = random.Random(1)
    nodes = [
        TextNode(id_=f"{n}", text=f"document {n}", metadata={"n": n}, embedding=vector(drawn)) for n in range(documents)
    ]
    half = MetadataFilters(filters=[MetadataFilter(key="n", value=documents // 2, operator=FilterOperator.GTE)])
    chroma = ChromaVectorStore(chroma_collection=client.create_collection("searching-of-LlamaIndex"))
    context = StorageContext.from_defaults(vector_store=chroma)
    over_chroma = VectorStoreIndex(nodes, embed_model=Vectors(), storage_context=context)
    context = StorageContext.from_defaults(vector_store=SimpleVectorStore())
    in_memory = VectorStoreIndex(nodes, embed_model=Vectors(), storage_context=context)
    for name, index, filters in (
        ("LlamaIndex: Chroma", over_chroma, None),
        ("LlamaIndex: Chroma, half of it filtered out", over_chroma, half),
        ("LlamaIndex: SimpleVectorStore", in_memory, None),
    ):
        store: Any = index.vector_store

        def own(query: str, store: Any = store, filters: Any = filters) -> Any:
            return store.query(VectorStoreQuery(vectors[query], similarity_top_k=4, filters=filters))

        def queued(query: str, store: Any = store, filters: Any = filters) -> Any:
            return searched(store, VectorStoreQuery(vectors[query], similarity_top_k=4, filters=filters), {}, "search")

        retriever = index.as_retriever(similarity_top_k=4, filters=filters)
        optimized: Any = fineflow.optimize(retriever, eager=True)
        yield name, Sides(own, queued, "aretrieve", retriever.aretrieve, optimized.aretrieve)


def vector(drawn: random.Random) -> list[float]:
    return [drawn.gauss(0.0, 1.0) for _ in range(DIMENSIONS)]


def through_queue(retriever: Any, vectors: dict[str, list[float]]) -> Find:
    engine = engine_of(retriever.vectorstore)
    assert engine is not None, "the store has no queue"
    queue = batch_queue_of(engine)

    def find(query: str) -> Any:
        ready = with_vector(retriever, query, retriever.vectorstore.embeddings, vectors[query])
        return queue.submit_sync(Op.SEARCH, [RetrieverSearch(ready, query, None)])[0].result()

    return find


def in_threads(find: Find, queries: list[str]) -> tuple[float, list[Any]]:
    """Runs all queries, one thread each; returns the seconds until all are answered, and the results."""
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


def on_a_loop(ask: Ask, queries: list[str]) -> tuple[float, list[Any]]:
    """Calls all queries concurrently on one loop; returns the same."""

    async def main() -> tuple[float, list[Any]]:
        start = time.perf_counter()
        found = await asyncio.gather(*map(ask, queries))
        return time.perf_counter() - start, found

    return asyncio.run(main())


def measured(documents: int, vectors: dict[str, list[float]]) -> Iterator[tuple[str, Sides]]:
    """Yields all stores by name; those of LlamaIndex only if its packages are installed."""
    import chromadb
    from chromadb.config import Settings

    client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
    yield from langchain(client, documents, vectors)
    if installed("llama_index.vector_stores.chroma"):
        yield from llamaindex(client, documents, vectors)


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--queries", type=positive, default=QUERIES, help=f"queries at once ({QUERIES})")
    parser.add_argument("--documents", type=positive, default=DOCUMENTS, help=f"in the store ({DOCUMENTS})")
    given = parser.parse_args(argv)
    drawn = random.Random(2)
    vectors = {f"query {i}": vector(drawn) for i in range(given.queries)}
    queries = list(vectors)
    took: dict[str, tuple[list[float], list[float]]] = {}
    same, sizes = True, {}
    for name, each in measured(given.documents, vectors):
        kinds: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            f"{name}: searches": (partial(in_threads, each.own, queries), partial(in_threads, each.queued, queries)),
            f"{name}: {each.entry}": (
                partial(on_a_loop, each.call, queries),
                partial(on_a_loop, each.optimized, queries),
            ),
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
        "searches through the queue are faster than stock's in threads": all(
            ratio > 1 for kind, ratio in ratios.items() if kind.endswith("searches")
        ),
        "both find the same documents in the same order": same,
    }
    figures = {"seconds": took, "ratios": ratios, "batches": sizes}
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
