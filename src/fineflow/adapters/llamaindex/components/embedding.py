"""LlamaIndex embeddings on an engine: calls from all indexes, queries and threads meet in the engine's batches."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import Field, PrivateAttr, field_validator

from fineflow.backends.base import BatchEngine
from fineflow.ir import Op
from fineflow.runtime.scheduler import EngineQueue, queue_of

_MOST = 2048  # texts per call that LlamaIndex allows


class EngineEmbedding(BaseEmbedding):
    """An ordinary LlamaIndex embedding model whose texts go through the queue of an engine that serves EMBED.

    embed_batch_size: texts that LlamaIndex hands over at once; four of the engine's batches where not given. Works from
    every thread and event loop. Raises what the engine raises; ValueError if it does not serve EMBED.
    """

    engine: Any = Field(exclude=True, repr=False, frozen=True)
    _queue: EngineQueue = PrivateAttr()

    def __init__(self, engine: BatchEngine, **kwargs: Any) -> None:
        kwargs.setdefault("model_name", getattr(engine, "name", "unknown"))
        kwargs.setdefault("embed_batch_size", min(max(4 * getattr(engine, "max_batch", 1), 1), _MOST))
        super().__init__(**{"engine": engine, **kwargs})

    @field_validator("engine")
    @classmethod
    def _serves_embed(cls, engine: Any) -> Any:
        if Op.EMBED not in getattr(engine, "ops", ()):
            raise ValueError(f"expected an engine that serves 'embed', got {engine!r}")
        return engine

    def model_post_init(self, context: Any, /) -> None:
        """Joins the engine's queue."""
        super().model_post_init(context)
        self._queue = queue_of(self.engine)

    @classmethod
    def class_name(cls) -> str:
        return "FineflowEngineEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vectors: list[list[float]] = self._queue.submit_sync(Op.EMBED, [("query", query)], label="embed query")
        return vectors[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        vectors: list[list[float]] = await self._queue.submit_async(Op.EMBED, [("query", query)], label="embed query")
        return vectors[0]

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
