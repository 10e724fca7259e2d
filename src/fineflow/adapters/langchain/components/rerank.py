"""LangChain rerankers on an engine: a document compressor, and a cross-encoder for LangChain's own compressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from langchain_core.callbacks import Callbacks
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from fineflow.ir import Op
from fineflow.protocols import BatchEngine
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of


class EngineReranker(BaseDocumentCompressor):
    """Keeps the ``top_n`` documents with the highest scores, best first, as LangChain's ``CrossEncoderReranker`` does.

    Documents with equal scores keep their order. engine: serves RERANK. Thread-safe, and usable on every event loop.
    Raises what the engine raises.
    """

    engine: Any = Field(frozen=True)
    top_n: int = 3
    _queue: BatchQueue = PrivateAttr()

    on_engine: ClassVar[bool] = True  # its calls wait in a queue
    pairwise: ClassVar[bool] = True
    """A document's score does not depend on the other documents, so documents may be scored as they arrive."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @field_validator("engine")
    @classmethod
    def _serves_rerank(cls, engine: Any) -> Any:
        return _check(engine)

    def model_post_init(self, context: Any, /) -> None:
        """Joins the engine's queue."""
        self._queue = batch_queue_of(self.engine)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Returns the best documents, best first."""
        return self.select(documents, self.score(query, [document.page_content for document in documents]))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Returns the best documents, best first."""
        return self.select(documents, await self.ascore(query, [document.page_content for document in documents]))

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns the scores of texts against a query, higher is better."""
        return self._queue.submit_sync(Op.RERANK, [(query, text) for text in texts], label="rerank")

    async def ascore(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns the scores of texts against a query, higher is better."""
        return await self._queue.submit_async(Op.RERANK, [(query, text) for text in texts], label="rerank")

    def select(self, documents: Sequence[Document], scores: Sequence[float]) -> list[Document]:
        """Returns the documents with the ``top_n`` highest scores, best first."""
        order = sorted(range(len(documents)), key=scores.__getitem__, reverse=True)
        return [documents[i] for i in order[: self.top_n]]


class EngineCrossEncoder(BaseCrossEncoder):
    """LangChain cross-encoder on an engine that serves RERANK, for LangChain's own ``CrossEncoderReranker``."""

    def __init__(self, engine: BatchEngine) -> None:
        self._queue = batch_queue_of(_check(engine))

    @property
    def engine(self) -> BatchEngine:
        """The engine that scores."""
        return self._queue.engine

    def __repr__(self) -> str:
        return f"EngineCrossEncoder({self.engine!r})"

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Returns the scores of pairs of query and document, higher is better."""
        return self._queue.submit_sync(Op.RERANK, text_pairs, label="rerank")

    async def ascore(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Async version of ``score`` (not part of LangChain's interface)."""
        return await self._queue.submit_async(Op.RERANK, text_pairs, label="rerank")


def _check(engine: Any) -> Any:
    ops = getattr(engine, "ops", None)
    if ops is None or Op.RERANK not in ops:
        raise ValueError(f"expected an engine that serves 'rerank', got {engine!r}")
    return engine
