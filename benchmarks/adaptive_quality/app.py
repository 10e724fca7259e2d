"""The retrieval chain that is configured, on real models in this process, and the profiler of its questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from transformers import ContinuousBatchingConfig

from benchmarks.adaptive_quality.datasets import Dataset
from fineflow.demo.app import ANSWER, CLASSIFY, format_docs
from fineflow.demo.data import default_model
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineLLM
from fineflow.protocols import LLMEngine, Message
from fineflow.runtime.loop.submission import run_sync

CHUNK = 300  # characters: a paragraph of the bundled corpus, about 75 tokens of its model
ANSWER_TOKENS = 48
SUMMARY = """\
Summarize the passage for the question.

Context:
{context}

Question: {question}"""
"""Prompt of ``map_reduce``, near those that the bundled model was trained on. Its answers are cut at the length."""

_BLOCK = 16  # tokens of a block of the KV cache


@dataclass(frozen=True)
class Bench:
    """The chain (question → answer), its engines, and a profiler of questions."""

    chain: Runnable[str, str]
    engine: TransformersEngine
    embedding: SentenceTransformerEngine
    profiler: FieldProfiler
    chunks: int

    def forget(self) -> None:
        """Empties the prefix cache, so that every measurement starts from the same state."""
        run_sync(self.engine.reset_prefix_cache)

    def close(self) -> None:
        """Ends the engines."""
        run_sync(self.engine.aclose)
        run_sync(self.embedding.aclose)


def load(dataset: Dataset, model: str | None = None, kv_tokens: int = 8192) -> Bench:
    """Loads the models, and indexes the documents. kv_tokens: size of the engine's KV cache."""
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
    store, chunks = stored(dataset, embedding)
    chain = chain_of(store.as_retriever(), engine)
    return Bench(chain, engine, embedding, FieldProfiler(engine), len(chunks))


def stored(dataset: Dataset, embedding: SentenceTransformerEngine | None = None) -> tuple[VectorStore, list[str]]:
    """Returns a store of the documents' chunks, and the chunks."""
    store = InMemoryVectorStore(EngineEmbeddings(embedding or SentenceTransformerEngine(bundled_minilm())))
    splitter = RecursiveCharacterTextSplitter(chunk_size=CHUNK, chunk_overlap=0)
    chunks = [text for document in dataset.documents for text in splitter.split_text(document)]
    store.add_texts(chunks)
    return store, chunks


def chain_of(retriever: BaseRetriever, engine: LLMEngine) -> Runnable[str, str]:
    """Returns the chain that is configured: question → answer."""
    llm = ChatEngine(engine=engine, max_tokens=ANSWER_TOKENS)
    context = retriever | format_docs
    return {"context": context, "question": RunnablePassthrough()} | ANSWER | llm | StrOutputParser()


@dataclass(frozen=True)
class _Field:
    """A value of the profile. before: what the JSON has in front of it; guess: the value of a simple question."""

    name: str
    before: str
    guess: str
    read: Callable[[str], Any]


_FIELDS = (
    _Field("complexity", '{"complexity": "', "low", str),
    _Field("joint_reasoning", '", "joint_reasoning":', " false", lambda text: text == "true"),
    _Field("pieces", ', "pieces": ', "1", int),
)
_WORDS = _Field("summary_words", ', "summary_words":', "", int)


class FieldProfiler:
    """Asks a model for the profile of a question, field by field.

    The form of the JSON is known, so only its values are decoded, of a token each; what is between them
    becomes part of the next prompt, whose beginning is in the prefix cache (jump-forward decoding). All fields are
    asked for at once, each behind the values that a simple question has; from the first one on that has another value
    they are asked again, one after the other. The length of a summary is asked for only where Algorithm 1 may choose
    ``map_reduce``. The demo's model needs 26 steps for the whole object, more than for most answers.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._model = EngineLLM(engine=engine, logprobs=True)

    async def __call__(self, question: str) -> AIMessage:
        """Returns a message with the whole JSON, and the log-probs of its values."""
        return await self._profile(question, summaries=True)

    async def plain(self, question: str) -> AIMessage:
        """Returns the same without a length of summaries."""
        return await self._profile(question, summaries=False)

    async def _profile(self, question: str, *, summaries: bool) -> AIMessage:
        shown = CLASSIFY.format_messages(question=question)
        roles = {"human": "user"}
        prompt = self._engine.render_chat([Message(roles.get(one.type, one.type), str(one.content)) for one in shown])
        ahead, guessed = [], prompt
        for field in _FIELDS:
            guessed += field.before
            ahead.append(asyncio.ensure_future(self._value(guessed)))
            guessed += field.guess
        found, logprobs, right = dict[str, Any](), list[Any](), True
        try:
            for field, early in zip(_FIELDS, ahead, strict=True):
                prompt += field.before
                text, told = await (early if right else self._value(prompt))
                right = right and text.strip() == field.guess.strip()
                prompt, found[field.name] = prompt + text, field.read(text.strip())
                logprobs += told
        finally:
            for early in ahead:
                early.cancel()
        if summaries and found["complexity"] == "high" and (found["joint_reasoning"] or found["pieces"] > 1):
            text, told = await self._value(prompt + _WORDS.before, tokens=3)
            found[_WORDS.name] = _WORDS.read(text)
            logprobs += told
        return AIMessage(json.dumps(found), response_metadata={"logprobs": {"content": logprobs}})

    async def _value(self, prompt: str, tokens: int = 1) -> tuple[str, list[Any]]:
        """Returns what follows a prompt, and its log-probs."""
        [[decoded]] = (await self._model.agenerate([prompt], max_tokens=tokens, stop=["}"])).generations
        return decoded.text, decoded.generation_info["logprobs"]["content"]
