"""Quickstart for LlamaIndex: a query engine over an index, stock and optimized with one line, its plan, and the gain.

Needs no model hub: the chat model and the embedding model come with `pip install ".[demo,llama-index]"`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.prompts import ChatPromptTemplate

import fineflow
from fineflow.demo.data import QUESTIONS, default_model, write_corpus
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.llamaindex import EngineEmbedding, EngineLLM

ANSWER = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the question from the context. Keep the answer short."),
        ("user", "Context:\n{context_str}\n\nQuestion: {query_str}"),
    ]
)


def corpus() -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        return [Document(text=path.read_text(encoding="utf-8")) for path in sorted(Path(folder).iterdir())]


def build() -> BaseQueryEngine:
    """Builds a stock LlamaIndex engine: six documents, one model call per document, sequential in sync calls."""
    embedding = EngineEmbedding(SentenceTransformerEngine(bundled_minilm()))
    index = VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    llm = EngineLLM(engine=TransformersEngine(default_model()), max_tokens=48, context_window=1024)
    return index.as_query_engine(llm=llm, similarity_top_k=6, response_mode="accumulate", text_qa_template=ANSWER)


def seconds(engine: BaseQueryEngine, question: str) -> float:
    start = time.perf_counter()
    engine.query(question)
    return time.perf_counter() - start


def main() -> None:
    engine = build()
    optimized = fineflow.optimize(engine)  # the only change
    print(fineflow.explain(optimized))

    question = QUESTIONS[0]
    expected, answer = engine.query(question), optimized.query(question)
    awaited = asyncio.run(optimized.aquery(question))
    print(f"\n{question}\n{answer}")
    print("sources:", ", ".join(f"{node.score:.2f}" for node in answer.source_nodes))
    print("equal:", str(answer) == str(expected) == str(awaited))

    times = [(seconds(engine, text), seconds(optimized, text)) for text in QUESTIONS for _ in range(3)]
    stock, ours = (median(each) for each in zip(*times, strict=True))
    print(f"stock {1000 * stock:.0f} ms, fineflow {1000 * ours:.0f} ms per question (median of {len(times)})")


if __name__ == "__main__":
    main()
