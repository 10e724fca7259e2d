"""LangChain embeddings on an engine: calls from all chains and threads share the engine's batches."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from langchain_core.embeddings import Embeddings

from fineflow.adapters.inner_calls.queries_ahead import aquery_vector, query_vector
from fineflow.adapters.inner_calls.vectors_ahead import here
from fineflow.ir import Op
from fineflow.protocols import BatchEngine
from fineflow.runtime.queues.batch_queue import batch_queue_of


class EngineEmbeddings(Embeddings):
    """Ordinary LangChain ``Embeddings`` whose texts go through the queue of an engine that serves EMBED.

    Thread-safe, and usable on every event loop. Raises what the engine raises; ValueError if it does not serve EMBED.
    """

    on_engine: ClassVar[bool] = True  # its calls wait in a queue

    def __init__(self, engine: BatchEngine) -> None:
        if Op.EMBED not in engine.ops:
            served = ", ".join(sorted(engine.ops))
            raise ValueError(f"expected an engine that serves 'embed', got {engine.name!r}, which serves: {served}")
        self._queue = batch_queue_of(engine)

    @property
    def engine(self) -> BatchEngine:
        """The engine that embeds."""
        return self._queue.engine

    def __repr__(self) -> str:
        return f"EngineEmbeddings({self.engine!r})"

    def embed_query(self, text: str) -> list[float]:
        """Returns the vector of a query."""
        vector: list[float] = query_vector(self, text, partial(self._embed_query, text))
        return vector

    def _embed_query(self, text: str) -> list[float]:
        vectors: list[list[float]] = self._queue.submit_sync(Op.EMBED, [("query", text)], label="embed query")
        return vectors[0]

    async def aembed_query(self, text: str) -> list[float]:
        """Returns the vector of a query."""
        vector: list[float] = await aquery_vector(self, text, partial(self._aembed_query, text))
        return vector

    async def _aembed_query(self, text: str) -> list[float]:
        vectors: list[list[float]] = await self._queue.submit_async(Op.EMBED, [("query", text)], label="embed query")
        return vectors[0]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Returns the vectors of documents, in input order."""
        ahead = here.get()
        if ahead is not None and (made := ahead.vectors(self, texts)) is not None:
            return made
        return self._queue.submit_sync(Op.EMBED, _documents(texts), label="embed documents")

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Returns the vectors of documents, in input order."""
        ahead = here.get()
        if ahead is not None and (made := await ahead.avectors(self, texts)) is not None:
            return made
        return await self._queue.submit_async(Op.EMBED, _documents(texts), label="embed documents")

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Returns the vectors of documents, in input order. Only on the runtime's loop."""
        return await self._queue.submit(Op.EMBED, _documents(texts), label="embed documents")


def _documents(texts: list[str]) -> list[tuple[str, str]]:
    return [("document", text) for text in texts]
