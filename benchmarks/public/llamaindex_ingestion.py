"""LlamaIndex: time of ingestion, stock and optimized: building an index, a pipeline, and ``DocumentQA``.

Models and stores are services that sleep, and the clock is virtual: the seconds consist of the latencies alone, the
same on every machine. The column "path" is the critical path, computed by hand. Linux only
(``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import TextNode

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.llamaindex import DocumentQA
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.fakes import FakeLLM
from fineflow.testing.llamaindex.ingestion_differential import RecordingStore, TextEmbedding

BATCH, ADD, ANSWER, VECTOR = 0.3, 0.2, 1.0, 0.1
"""Seconds to embed a batch of texts, to add to the store, to answer, and to embed a query."""

AT_ONCE, GROUPS, QUERIES, WORKERS = 4, 6, 4, 2
"""Nodes of a batch, which are added together; batches; queries of a fusion; concurrent requests of an extractor."""

QUESTION = "Which bridge crosses the river in the old harbour?"
SHARE = 1.15

Optimize = Callable[[Any], Any]


class Row(NamedTuple):
    """One shape. path: seconds, computed by hand. entry: called method. run: builds, optimizes and calls the object."""

    name: str
    path: float
    entry: str
    run: Callable[[Optimize], Any]


def documents() -> list[Document]:
    return [Document(text=f"Fact {i} about the bridge.", id_=f"document {i}") for i in range(AT_ONCE * GROUPS)]


def nodes() -> list[TextNode]:
    return [TextNode(text=f"Fact {i} about the bridge.", id_=f"node {i}") for i in range(AT_ONCE * GROUPS)]


def model() -> TextEmbedding:
    return TextEmbedding(embed_batch_size=AT_ONCE, batch_latency=BATCH, latency=VECTOR)


def kept() -> StorageContext:
    return StorageContext.from_defaults(vector_store=RecordingStore(latency=ADD))


def build(optimize: Optimize) -> Any:
    return optimize(VectorStoreIndex).from_documents(
        documents(),
        embed_model=model(),
        storage_context=kept(),
        insert_batch_size=AT_ONCE,
        transformations=[SentenceSplitter()],
    )


def insert(optimize: Optimize) -> Any:
    index = VectorStoreIndex([], embed_model=model(), storage_context=kept(), insert_batch_size=AT_ONCE)
    return asyncio.run(optimize(index).ainsert_nodes(nodes()))


def extract(optimize: Optimize) -> Any:
    keywords = KeywordExtractor(llm=FakeLLM(latency=ANSWER), num_workers=WORKERS, show_progress=False)
    pipeline = IngestionPipeline(transformations=[keywords, model()], disable_cache=True)
    return optimize(pipeline).run(nodes=nodes())


def answer(prompt: str) -> str:
    return "river mill\nstone tower\nold church" if "search queries" in prompt else "It is the stone one."


def naive(llm: Any) -> Callable[[Any], Any]:
    return lambda index: index.as_query_engine(llm=llm, similarity_top_k=3)


def fusion(llm: Any) -> Callable[[Any], Any]:
    def make(index: Any) -> Any:
        retriever = QueryFusionRetriever(
            [index.as_retriever(similarity_top_k=3)],
            llm=llm,
            mode=FUSION_MODES.RECIPROCAL_RANK,
            num_queries=QUERIES,
            use_async=False,
        )
        return RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode=ResponseMode.COMPACT)

    return make


def ask(factory: Callable[[Any], Callable[[Any], Any]], entry: str) -> Callable[[Optimize], Any]:
    def run(optimize: Optimize) -> Any:
        llm = FakeLLM(answers=answer, latency=ANSWER)
        qa = optimize(DocumentQA([SentenceSplitter()], model(), factory(llm), insert_batch_size=AT_ONCE))
        found = getattr(qa, entry)(documents(), QUESTION)
        return str(asyncio.run(found) if entry.startswith("a") else found)

    return run


INDEXING = GROUPS * BATCH
ROWS: Sequence[Row] = (
    Row("an index is built", INDEXING + ADD, "from_documents", build),
    Row("nodes are inserted", INDEXING + ADD, "ainsert_nodes", insert),
    Row("keywords, then vectors", GROUPS * AT_ONCE / WORKERS * ANSWER + BATCH, "run", extract),
    Row("DocumentQA, naive", INDEXING + ANSWER, "query", ask(naive, "query")),
    Row("DocumentQA, naive", INDEXING + ANSWER, "aquery", ask(naive, "aquery")),
    Row("DocumentQA, fusion", INDEXING + ANSWER, "query", ask(fusion, "query")),
    Row("DocumentQA, fusion", INDEXING + ANSWER, "aquery", ask(fusion, "aquery")),
)


def seconds(row: Row, optimize: Optimize) -> float:
    return virtual_threads.run(lambda: row.run(optimize)).seconds


def main(argv: list[str] | None = None) -> int:
    parsed = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"{hardware()}, llama-index-core {version('llama-index-core')}; virtual seconds\n")
    rows, figures, checks = [["", "call", "path", "stock", "fineflow"]], {}, {}
    for row in ROWS:
        stock, ours = seconds(row, lambda obj: obj), seconds(row, lambda obj: fineflow.optimize(obj, strict=True))
        name = f"{row.name}, {row.entry}"
        figures[name] = {"path": row.path, "stock": stock, "fineflow": ours}
        checks[f"{name}: at most {SHARE:g} of the path"] = ours <= SHARE * row.path
        checks[f"{name}: no slower than stock"] = ours <= 1.02 * stock
        rows.append([row.name, row.entry, *(f"{each:.2f}" for each in (row.path, stock, ours))])
    print(table(rows))
    return finish(figures, checks, parsed.json)


if __name__ == "__main__":
    sys.exit(main())
