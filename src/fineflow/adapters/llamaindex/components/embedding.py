"""LlamaIndex embeddings on an engine, whose batches combine calls from all indexes, queries and threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding

from fineflow.adapters.llamaindex.components.on_engine import OnEngine
from fineflow.ir import Op
from fineflow.protocols import BatchEngine

_MOST = 2048  # texts per call that LlamaIndex allows


class EngineEmbedding(OnEngine, BaseEmbedding):
    """LlamaIndex embedding model whose texts go through the queue of an engine that serves EMBED.

    embed_batch_size: texts that LlamaIndex passes per call; by default four of the engine's batches. Works from any
    thread and event loop. Raises what the engine raises; ValueError if it does not serve EMBED.
    """

    op = Op.EMBED

    def __init__(self, engine: BatchEngine, **kwargs: Any) -> None:
        kwargs.setdefault("model_name", getattr(engine, "name", "unknown"))
        kwargs.setdefault("embed_batch_size", min(max(4 * getattr(engine, "max_batch", 1), 1), _MOST))
        super().__init__(**{"engine": engine, **kwargs})

    @classmethod
    def class_name(cls) -> str:
        return "FineflowEngineEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vectors: list[list[float]] = self._queue.submit_sync(Op.EMBED, [("query", query)], label="embed query")
        return vectors[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        vectors: list[list[float]] = await self._queue.submit_async(Op.EMBED, [("query", query)], label="embed query")
        return vectors[0]

    async def aembed_queries(self, queries: Sequence[str]) -> list[list[float]]:
        """Embeds several queries in one request. Raises what the engine raises."""
        return await self._queue.submit_async(Op.EMBED, [("query", each) for each in queries], label="embed queries")

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._queue.submit_sync(Op.EMBED, _documents(texts), label="embed documents")

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await self._queue.submit_async(Op.EMBED, _documents(texts), label="embed documents")


def _documents(texts: list[str]) -> list[tuple[str, str]]:
    return [("document", text) for text in texts]
