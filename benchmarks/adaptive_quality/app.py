"""The retrieval chain that is configured, on real models in this process, and the profiler of its questions."""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from transformers import ContinuousBatchingConfig

from benchmarks.adaptive_quality.datasets import Dataset
from fineflow.adaptation import Profiler
from fineflow.demo.app import ANSWER, CLASSIFY, format_docs
from fineflow.demo.data import default_model
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineLLM
from fineflow.protocols import LLMEngine
from fineflow.runtime.loop.submission import run_sync

CHUNK = 300  # characters: a paragraph of the bundled corpus
CHARACTERS = 4  # of a token of its model, about
MOST_CHUNKS = 12  # of these, that fit into a prompt
ANSWER_TOKENS = 48
SUMMARY = """\
Summarize the passage for the question.

Context:
{context}

Question: {question}"""
"""Prompt of ``map_reduce``, near those that the bundled model was trained on. Its answers are cut at the length."""

TRAINED = 1000  # tokens of the longest prompts that the bundled model was trained on

_BLOCK = 16  # tokens of a block of the KV cache


@dataclass(frozen=True)
class Bench:
    """The chain (question → answer), its engines, and profilers of questions. most: chunks that fit into a prompt."""

    chain: Runnable[str, str]
    engine: TransformersEngine
    embedding: SentenceTransformerEngine
    about: str
    chunks: int
    most: int

    def profiler(self, *, values: bool = True) -> Profiler:
        """Returns a profiler of questions that has seen none."""
        return profiler_of(self.engine, self.about, values=values)

    async def embed(self, text: str) -> list[float]:
        """Returns the vector of a question."""
        return await EngineEmbeddings(self.embedding).aembed_query(text)

    def forget(self) -> None:
        """Empties the prefix cache, so that every measurement starts from the same state."""
        run_sync(self.engine.reset_prefix_cache)

    def close(self) -> None:
        """Ends the engines."""
        run_sync(self.engine.aclose)
        run_sync(self.embedding.aclose)


def load(dataset: Dataset, model: str | None = None, kv_tokens: int = 8192, chunk_tokens: int = 0) -> Bench:
    """Loads the models, and indexes the documents.

    kv_tokens: size of the engine's KV cache. chunk_tokens: size of the chunks, about; 0: a paragraph each.
    """
    batching = ContinuousBatchingConfig(
        page_size=_BLOCK,
        num_blocks=kv_tokens // _BLOCK,
        max_batch_tokens=512,
        max_requests_per_batch=64,
        auto_switch_to_flash=False,
    )
    engine = TransformersEngine(model or default_model(), batching=batching)
    run_sync(engine.start)
    embedding = SentenceTransformerEngine(bundled_minilm())
    embedding.load()
    store, chunks = stored(dataset, embedding, chunk_tokens)
    chain = chain_of(store.as_retriever(), engine)
    most = max(TRAINED // chunk_tokens, 1) if chunk_tokens else MOST_CHUNKS
    return Bench(chain, engine, embedding, dataset.about, len(chunks), most)


def stored(
    dataset: Dataset, embedding: SentenceTransformerEngine | None = None, chunk_tokens: int = 0
) -> tuple[VectorStore, list[str]]:
    """Returns a store of the documents' chunks, and the chunks."""
    store = InMemoryVectorStore(EngineEmbeddings(embedding or SentenceTransformerEngine(bundled_minilm())))
    chunks = chunked(dataset, chunk_tokens)
    store.add_texts(chunks)
    return store, chunks


def chunked(dataset: Dataset, chunk_tokens: int = 0) -> list[str]:
    """Returns the chunks of documents: paragraphs, or several of them, with at most so many tokens, about."""
    documents = ["\n\n".join(dataset.documents)] if chunk_tokens else dataset.documents
    size = chunk_tokens * CHARACTERS if chunk_tokens else CHUNK
    splitter = RecursiveCharacterTextSplitter(chunk_size=size, chunk_overlap=0)
    return [text for document in documents for text in splitter.split_text(document)]


def chain_of(retriever: BaseRetriever, engine: LLMEngine) -> Runnable[str, str]:
    """Returns the chain that is configured: question → answer."""
    llm = ChatEngine(engine=engine, max_tokens=ANSWER_TOKENS)
    context = retriever | format_docs
    return {"context": context, "question": RunnablePassthrough()} | ANSWER | llm | StrOutputParser()


def profiler_of(engine: LLMEngine, about: str, *, values: bool = True) -> Profiler:
    """Returns a profiler with the prompt that the bundled model was trained on. values: they alone are decoded."""
    shown = ChatEngine(engine=engine).prompt_text(CLASSIFY.format_messages(question="{question}"))
    return Profiler(EngineLLM(engine=engine, max_tokens=ANSWER_TOKENS), about, prompt=shown, values=values)
