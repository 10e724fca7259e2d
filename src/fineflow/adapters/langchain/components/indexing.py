"""LangChain components for documents that come with a request: index them, and search the index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from pydantic import Field


class IndexDocuments(Runnable[Iterable[Document], VectorStore]):
    """Splits documents, adds the pieces to a new vector store, and returns the store.

    The same as ``store = vector_store_factory(embeddings)`` and
    ``store.add_documents(splitter.transform_documents(documents))``, or their async methods. Keyword arguments of a
    call (``bind``) go to ``add_documents``.

    splitter: None adds the documents as they are. embeddings: make the vectors. vector_store_factory: called once per
    call, with the embeddings; it makes an empty store that uses them. No other step may touch the data of that store,
    unless it got the store from here: an optimized chain orders only steps that do.

    Raises what these raise, and TypeError if the factory does not return a vector store.
    """

    def __init__(
        self,
        splitter: BaseDocumentTransformer | None,
        embeddings: Embeddings,
        vector_store_factory: Callable[[Embeddings], VectorStore],
    ) -> None:
        if splitter is not None and not hasattr(splitter, "transform_documents"):
            raise TypeError(f"expected a splitter with transform_documents, or None; got {type(splitter).__name__}")
        if not callable(vector_store_factory):
            raise TypeError(f"expected a function that makes a store; got {type(vector_store_factory).__name__}")
        self.splitter = splitter
        self.embeddings = embeddings
        self.vector_store_factory = vector_store_factory
        self.makes: Any = vector_store_factory if isinstance(vector_store_factory, type) else None
        """Class of the store that the factory made last, if that store uses ``embeddings``; None for any other."""

    def invoke(self, input: Iterable[Document], config: RunnableConfig | None = None, **kwargs: Any) -> VectorStore:
        """Returns a store with the pieces of the documents."""
        return self._call_with_config(self._index, input, config, **kwargs)

    async def ainvoke(
        self, input: Iterable[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> VectorStore:
        """Returns a store with the pieces of the documents."""
        return await self._acall_with_config(self._aindex, input, config, **kwargs)

    def _index(self, documents: Iterable[Document], **kwargs: Any) -> VectorStore:
        pieces = self.split(list(documents))
        store = self.new_store()
        self.write(store, pieces, **kwargs)
        return store

    async def _aindex(self, documents: Iterable[Document], **kwargs: Any) -> VectorStore:
        pieces = await self.asplit(list(documents))
        store = await run_in_executor(None, self.new_store)
        await self.awrite(store, pieces, **kwargs)
        return store

    # The steps of a call. An optimized chain claims the first, and the vectors of the last.

    def split(self, documents: list[Document]) -> list[Document]:
        """Returns the pieces of documents."""
        return documents if self.splitter is None else list(self.splitter.transform_documents(documents))

    async def asplit(self, documents: list[Document]) -> list[Document]:
        """Async version of ``split``."""
        return documents if self.splitter is None else list(await self.splitter.atransform_documents(documents))

    def new_store(self) -> VectorStore:
        """Returns an empty store."""
        store: Any = self.vector_store_factory(self.embeddings)
        if not isinstance(store, VectorStore):
            raise TypeError(f"vector_store_factory must return a VectorStore, got {type(store).__name__}")
        self.makes = type(store) if store.embeddings is self.embeddings else None
        return store

    def write(self, store: VectorStore, pieces: list[Document], **kwargs: Any) -> None:
        """Adds documents to a store."""
        store.add_documents(pieces, **kwargs)

    async def awrite(self, store: VectorStore, pieces: list[Document], **kwargs: Any) -> None:
        """Async version of ``write``."""
        await store.aadd_documents(pieces, **kwargs)


class SearchIndex(RunnableSerializable[Mapping[str, Any], list[Document]]):
    """Searches the vector store in its input, a dict, and returns the documents that were found.

    The same as ``input[index_key].as_retriever(search_type=…, search_kwargs=…).invoke(input[query_key])``. Raises what
    that raises, and KeyError for a missing key.
    """

    index_key: str = "index"
    query_key: str = "question"
    search_type: str = "similarity"
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    def retriever(self, store: VectorStore) -> VectorStoreRetriever:
        """Returns the retriever that searches a store."""
        return store.as_retriever(search_type=self.search_type, search_kwargs=self.search_kwargs)

    def invoke(self, input: Mapping[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Returns the documents found."""
        return self.retriever(input[self.index_key]).invoke(input[self.query_key], config, **kwargs)

    async def ainvoke(
        self, input: Mapping[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Returns the documents found."""
        return await self.retriever(input[self.index_key]).ainvoke(input[self.query_key], config, **kwargs)
