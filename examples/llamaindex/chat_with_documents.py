"""A conversation about documents with LlamaIndex: questions are condensed, and several queries are searched for each.

Stock (the framework's own code) runs each turn and keeps the memory; its retriever searches all queries concurrently,
each as soon as the model has completed its line. The store emulates a remote one: every search sleeps for 100 ms.

Needs no model hub: the models come with `pip install ".[demo,llama-index]"`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.chat_engine import CondensePlusContextChatEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.vector_stores.simple import SimpleVectorStore

import fineflow
from fineflow.demo.data import QUESTIONS, default_model, write_corpus
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.llamaindex import EngineEmbedding, EngineLLM

QUERIES = "Write three search queries, one per line, for: {query}"
CONTEXT = "Answer the visitor from what is known. Keep the answer short.\n\nWhat is known:\n{context_str}\n"


@fineflow.external
class RemoteStore(SimpleVectorStore):
    """In-memory store with the latency of a service. A custom class, so it is declared external."""

    def query(self, query: Any, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return super().query(query, **kwargs)


def corpus() -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        return [Document(text=path.read_text(encoding="utf-8")) for path in sorted(Path(folder).iterdir())]


def build() -> BaseChatEngine:
    """Builds a stock LlamaIndex chat engine."""
    index = VectorStoreIndex.from_documents(
        corpus(),
        embed_model=EngineEmbedding(SentenceTransformerEngine(bundled_minilm())),
        storage_context=StorageContext.from_defaults(vector_store=RemoteStore()),
    )
    llm = EngineLLM(engine=TransformersEngine(default_model()), max_tokens=48, context_window=2048)
    retriever = QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=3)],
        llm=llm,
        query_gen_prompt=QUERIES,
        mode=FUSION_MODES.RECIPROCAL_RANK,
        similarity_top_k=3,
        use_async=False,
    )
    return CondensePlusContextChatEngine.from_defaults(
        retriever, llm=llm, memory=ChatMemoryBuffer.from_defaults(token_limit=1024), context_prompt=CONTEXT
    )


def talk(chat: BaseChatEngine) -> tuple[list[str], float]:
    """Returns the answers of one conversation, the last one streamed, and its seconds."""
    chat.reset()
    start = time.perf_counter()
    said = [str(chat.chat(message)) for message in QUESTIONS[:-1]]
    said.append("".join(chat.stream_chat(QUESTIONS[-1]).response_gen))
    return said, time.perf_counter() - start


def main() -> None:
    chat = build()
    optimized = fineflow.optimize(chat)
    for note in fineflow.explain(optimized).all_notes:
        if note.done:
            print(note)

    expected, _ = talk(chat)
    answers, _ = talk(optimized)
    for message, answer in zip(QUESTIONS, answers, strict=True):
        print(f"\n{message}\n{answer}")
    remembered = [message.content for message in optimized.chat_history]
    print("\nequal:", answers == expected and remembered[1::2] == [answer.strip() for answer in answers])

    times = [(talk(chat)[1], talk(optimized)[1]) for _ in range(3)]
    stock, ours = (median(each) for each in zip(*times, strict=True))
    print(f"stock {1000 * stock:.0f} ms, fineflow {1000 * ours:.0f} ms per conversation (median of {len(times)})")


if __name__ == "__main__":
    main()
