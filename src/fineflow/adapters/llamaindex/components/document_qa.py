"""Question answering over documents that arrive with the question: they are indexed per call, then queried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.callbacks import CallbackManager
from llama_index.core.ingestion import arun_transformations
from llama_index.core.schema import Document, MetadataMode, QueryBundle, TransformComponent

Factory = Callable[[VectorStoreIndex], BaseQueryEngine]


class DocumentQA:
    """Indexes documents in memory, builds a query engine over them, and queries it. Nothing is kept for the next call.

    transformations, embed_model, callback_manager: as for ``VectorStoreIndex.from_documents``; None: LlamaIndex's
    settings. insert_batch_size: number of nodes embedded and added at once. query_engine_factory: builds the engine
    from an index. It should have no side effects: ``fineflow.optimize`` also calls it with an empty index, to find the
    work that does not depend on the documents.

    Raises TypeError if the factory is not callable or returns no query engine, or if a call gets no list of documents;
    otherwise what its parts raise.
    """

    def __init__(
        self,
        transformations: Sequence[TransformComponent] | None,
        embed_model: Any,
        query_engine_factory: Factory,
        *,
        callback_manager: CallbackManager | None = None,
        insert_batch_size: int = 2048,
    ) -> None:
        given: Any = query_engine_factory
        if not callable(given):
            kind = type(given).__name__
            raise TypeError(f"query_engine_factory is expected to make a query engine of an index, got {kind}")
        self.transformations = None if transformations is None else list(transformations)
        self.embed_model = embed_model
        self.query_engine_factory = query_engine_factory
        self.callback_manager = callback_manager
        self.insert_batch_size = insert_batch_size

    def query(self, documents: Sequence[Document], question: str | QueryBundle) -> RESPONSE_TYPE:
        """Answers a question about these documents."""
        _check(documents)
        index = self.kind.from_documents(documents, **self.settings)
        return self._engine(index).query(question)

    async def aquery(self, documents: Sequence[Document], question: str | QueryBundle) -> RESPONSE_TYPE:
        """Like ``query``, by the async methods of the parts."""
        _check(documents)
        index = VectorStoreIndex([], **self.settings)
        await self._ainsert(index, documents)
        return await self._engine(index).aquery(question)

    @property
    def kind(self) -> Any:
        """Class that builds the index."""
        return VectorStoreIndex

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments with which the index is built."""
        return {
            "transformations": self.transformations,
            "embed_model": self.embed_model,
            "callback_manager": self.callback_manager,
            "insert_batch_size": self.insert_batch_size,
        }

    def _engine(self, index: VectorStoreIndex) -> BaseQueryEngine:
        made = self.query_engine_factory(index)
        if not hasattr(made, "aquery"):
            raise TypeError(f"query_engine_factory is expected to return a query engine, got {type(made).__name__}")
        return made

    async def _ainsert(self, index: VectorStoreIndex, documents: Sequence[Document]) -> None:
        for document in documents:
            await index.docstore.aset_document_hash(document.id_, document.hash)
        nodes = await arun_transformations(documents, index._transformations)
        await index.ainsert_nodes([node for node in nodes if node.get_content(metadata_mode=MetadataMode.EMBED)])


def _check(documents: Any) -> None:
    if isinstance(documents, str | QueryBundle | Document):
        kind = type(documents).__name__
        raise TypeError(f"expected a list of documents, then the question; got {kind} in the place of the documents")
