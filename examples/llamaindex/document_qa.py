"""Questions about documents passed with the question: they are indexed first, then a model answers from them.

While the documents are split and embedded, the model already writes more search queries, and these are embedded.
Searches wait for the index.

The embedding model is real and runs in this process; the language model emulates a remote service: its answers are
scripted, and it sleeps. Needs `pip install ".[demo,llama-index]"`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES

import fineflow
from fineflow.demo.data import QUESTIONS, write_corpus
from fineflow.engines import SentenceTransformerEngine, bundled_minilm
from fineflow.llamaindex import DocumentQA, EngineEmbedding
from fineflow.testing.llamaindex.fakes import FakeLLM

QUERIES = "Write three search queries, one per line, for: {query}"


COUNT = 3  # documents passed with a question


def documents() -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        return [Document(text=path.read_text(encoding="utf-8")) for path in sorted(Path(folder).iterdir())[:COUNT]]


def say(prompt: str) -> str:
    """Returns the model's scripted answer."""
    if "search queries" in prompt:
        topic = prompt.rpartition("for: ")[2].strip("? ")
        return f"{topic} history\n{topic} numbers\nfacts about {topic}"
    return f"An answer from a prompt of {len(prompt.split())} words."


LLM = FakeLLM(answers=say, latency=0.5)


def engine_over(index: VectorStoreIndex) -> BaseQueryEngine:
    retriever = QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=4)],
        llm=LLM,
        query_gen_prompt=QUERIES,
        mode=FUSION_MODES.RECIPROCAL_RANK,
        similarity_top_k=4,
        use_async=False,
    )
    return RetrieverQueryEngine.from_args(retriever, llm=LLM, response_mode=ResponseMode.COMPACT)


def timed(qa: DocumentQA, given: list[Document], question: str) -> tuple[str, list[tuple[str, float | None]], float]:
    start = time.perf_counter()
    response = qa.query(given, question)
    found = [(node.node.get_content(), node.score) for node in response.source_nodes]
    return str(response), found, time.perf_counter() - start


def main() -> None:
    embedding = EngineEmbedding(SentenceTransformerEngine(bundled_minilm()))
    qa = DocumentQA([SentenceSplitter(chunk_size=256, chunk_overlap=30)], embedding, engine_over)
    optimized = fineflow.optimize(qa)
    for note in fineflow.explain(optimized).all_notes:
        if note.done:
            print(note)

    given, times = documents(), []
    embedding.get_query_embedding("loads the model")
    for question in QUESTIONS[:2]:
        (expected, nodes, stock), (answer, found, ours) = (timed(each, given, question) for each in (qa, optimized))
        times.append((stock, ours))
        print(f"\n{question}\n{answer}")
        print("equal:", answer == expected and found == nodes)

    stock, ours = (median(each) for each in zip(*times, strict=True))
    print(f"stock {1000 * stock:.0f} ms, fineflow {1000 * ours:.0f} ms per question (median of {len(times)})")


if __name__ == "__main__":
    main()
