"""Fake embeddings, vector store, retriever and reranker: relevance is shared words, time is sleep or a gate."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field

from fineflow.backends.emulated import overlap
from fineflow.testing.gates import Gate, Meter, await_, wait
from fineflow.testing.vectors import vector_of


class FakeEmbeddings(Embeddings):
    """Sums of hash-based word vectors, of unit length: texts that share words are near each other.

    dimensions: length of the vectors. latency: seconds per call. per_text: seconds per text of a call.
    """

    def __init__(
        self, *, dimensions: int = 32, latency: float = 0.0, per_text: float = 0.0, gate: Gate | None = None
    ) -> None:
        self.dimensions = dimensions
        self.latency = latency
        self.per_text = per_text
        self.gate = gate
        self.meter = Meter()

    def vector(self, text: str) -> list[float]:
        """Returns the vector of a text. A text without words counts as one word."""
        return vector_of(text, self.dimensions)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        with self.meter.work(f"{len(texts)} documents"):
            wait(self.gate, self.latency + self.per_text * len(texts))
            return [self.vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        with self.meter.work(text):
            wait(self.gate, self.latency + self.per_text)
            return self.vector(text)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        with self.meter.work(f"{len(texts)} documents"):
            await await_(self.gate, self.latency + self.per_text * len(texts))
            return [self.vector(text) for text in texts]

    async def aembed_query(self, text: str) -> list[float]:
        with self.meter.work(text):
            await await_(self.gate, self.latency + self.per_text)
            return self.vector(text)


class FakeVectorStore(VectorStore):
    """Documents in a list, searched by cosine similarity; equal similarities keep the order of insertion.

    latency: seconds per search, after the query has been embedded. Every search returns new ``Document`` objects.
    """

    def __init__(self, embedding: Embeddings | None = None, *, latency: float = 0.0, gate: Gate | None = None) -> None:
        self.embedding = embedding or FakeEmbeddings()
        self.latency = latency
        self.gate = gate
        self.meter = Meter()
        self._rows: list[tuple[list[float], Document]] = []

    @property
    def embeddings(self) -> Embeddings:
        return self.embedding

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> Self:
        ids = kwargs.pop("ids", None)
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        texts = list(texts)
        names = ids or [str(len(self._rows) + i) for i in range(len(texts))]
        vectors = self.embedding.embed_documents(texts)
        rows = zip(texts, vectors, metadatas or [{}] * len(texts), names, strict=True)
        self._rows += [(v, Document(page_content=t, metadata=m, id=name)) for t, v, m, name in rows]
        return names

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return self.similarity_search_by_vector(self.embedding.embed_query(query), k, label=query)

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return await self.asimilarity_search_by_vector(await self.embedding.aembed_query(query), k, label=query)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        with self.meter.work(kwargs.get("label", "vector")):
            wait(self.gate, self.latency)
            return self._nearest(embedding, k)

    async def asimilarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        with self.meter.work(kwargs.get("label", "vector")):
            await await_(self.gate, self.latency)
            return self._nearest(embedding, k)

    def _nearest(self, embedding: list[float], k: int) -> list[Document]:
        def nearness(row: tuple[list[float], Document]) -> float:
            return math.fsum(a * b for a, b in zip(embedding, row[0], strict=True))

        return [doc.model_copy(deep=True) for _, doc in sorted(self._rows, key=nearness, reverse=True)[:k]]


class FakeRetriever(BaseRetriever):
    """Returns the ``k`` documents that share most words with the query; ties keep their order.

    latency: seconds per query. failing: exceptions by key; a query that contains a key raises a copy of its exception.
    """

    documents: list[Document]
    k: int = 4
    latency: float = 0.0
    failing: dict[str, Exception] = Field(default_factory=dict)
    gate: Gate | None = Field(default=None, exclude=True, repr=False)
    meter: Meter = Field(default_factory=Meter, exclude=True, repr=False)
    model_config = ConfigDict(arbitrary_types_allowed=True)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        with self.meter.work(query):
            wait(self.gate, self.latency)
            return self._found(query)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        with self.meter.work(query):
            await await_(self.gate, self.latency)
            return self._found(query)

    def _found(self, query: str) -> list[Document]:
        for key, error in self.failing.items():
            if key in query:
                raise copy.copy(error)
        ranked = sorted(self.documents, key=lambda doc: overlap(query, doc.page_content), reverse=True)
        return [doc.model_copy(deep=True) for doc in ranked[: self.k]]


class FakeReranker(BaseDocumentCompressor):
    """Scores each document on its own (``pairwise``) by shared words, and keeps the best ``top_n``.

    overhead: seconds per call. per_document: seconds per document of a call. Follows the contract of every engine
    reranker: ``compress_documents(d, q) == select(d, score(q, [x.page_content for x in d]))``, and the score of a
    document does not depend on the other documents of the call.
    """

    pairwise: ClassVar[bool] = True
    top_n: int = 3
    overhead: float = 0.0
    per_document: float = 0.0
    gate: Gate | None = Field(default=None, exclude=True, repr=False)
    meter: Meter = Field(default_factory=Meter, exclude=True, repr=False)
    model_config = ConfigDict(arbitrary_types_allowed=True)

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns one score per text, higher is better."""
        with self.meter.work(f"{query} x {len(texts)}"):
            wait(self.gate, self.overhead + self.per_document * len(texts))
            return [overlap(query, text) for text in texts]

    async def ascore(self, query: str, texts: Sequence[str]) -> list[float]:
        """Async version of ``score``."""
        with self.meter.work(f"{query} x {len(texts)}"):
            await await_(self.gate, self.overhead + self.per_document * len(texts))
            return [overlap(query, text) for text in texts]

    def select(self, documents: Sequence[Document], scores: Sequence[float]) -> list[Document]:
        """Returns the best ``top_n``, best first; equal scores keep the order of ``documents``."""
        ranked = sorted(zip(documents, scores, strict=True), key=lambda pair: pair[1], reverse=True)
        return [document for document, _ in ranked[: self.top_n]]

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        return self.select(documents, self.score(query, [d.page_content for d in documents]))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        return self.select(documents, await self.ascore(query, [d.page_content for d in documents]))
