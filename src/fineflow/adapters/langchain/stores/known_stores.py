"""Vector stores whose search and writing methods were read, and the facts about each of them.

Read: langchain-chroma 1.1.0, langchain-core 1.7.2, FAISS of langchain-community 0.4.2, langchain-postgres 0.0.19.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from langchain_core.embeddings import Embeddings

from fineflow.adapters.core.batched_search import CHROMA, Together, chroma_contents
from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.resources import pooled
from fineflow.adapters.langchain.stores.batched_search import MEMORY

_KINDS = (
    "similarity_search",
    "similarity_search_with_score",
    "similarity_search_by_vector",
    "similarity_search_with_relevance_scores",
    "max_marginal_relevance_search",
    "max_marginal_relevance_search_by_vector",
)
SEARCHES = (*_KINDS, *(f"a{name}" for name in _KINDS))
"""Methods that retrievers call, directly or through each other."""
_INNER = (
    "_similarity_search_with_relevance_scores",
    "_asimilarity_search_with_relevance_scores",
    "_select_relevance_score_fn",
    "similarity_search_with_score_by_vector",
    "asimilarity_search_with_score_by_vector",
    "max_marginal_relevance_search_with_score_by_vector",
    "amax_marginal_relevance_search_with_score_by_vector",
)


@dataclass(frozen=True, slots=True)
class Known:
    """A store class.

    attribute: holds the embeddings of its queries. within: the attribute that holds the object with that attribute, if
    it is not the store itself. together: batches searches of several queries, if possible. asynchronous: its async
    searches await ``aembed_query`` (others call their sync twins, and so ``embed_query``, in a thread). inner: methods
    of its own that its searches call. able: returns True if the row holds for this very store. contents: returns what
    it shares with another object over the same documents.

    early: returns the reason not to search this store ahead of stock with the given settings; "" if none. connections:
    returns the number of searches that can run concurrently; a further one may fail. None: no limit. copied: returns
    the reason not to use a copy of it with other embeddings, by sync or async methods; "" if none.
    """

    module: str
    name: str
    attribute: str
    within: str = ""
    together: Together | None = None
    asynchronous: bool = False
    inner: tuple[str, ...] = ()
    able: Callable[[Any], bool] = lambda store: True
    contents: Callable[[Any], Any] = lambda store: store
    early: Callable[[Any, Mapping[str, Any]], str] = lambda store, settings: ""
    connections: Callable[[Any], int | None] = lambda store: None
    copied: Callable[[Any, bool], str] = lambda store, sync: ""

    @property
    def base(self) -> type | None:
        """The class, if its module is imported."""
        found: type | None = if_imported(self.module, self.name)
        return found

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods that a search may call, directly or indirectly."""
        return (*SEARCHES, *_INNER, *self.inner)

    def embeddings(self, store: Any) -> Any:
        """Returns the embeddings that its methods use."""
        return getattr(getattr(store, self.within) if self.within else store, self.attribute)

    def with_embeddings(self, store: Any, embeddings: Embeddings) -> Any:
        """Returns a copy of the store over the same documents, with other embeddings."""
        copy = copying.copy(store)
        if self.within:
            setattr(copy, self.within, copying.copy(getattr(store, self.within)))
        setattr(getattr(copy, self.within) if self.within else copy, self.attribute, embeddings)
        return copy


# FAISS returns the documents that it holds. ``index.search`` takes many vectors, but the distances then differ in the
# last bits (50,000 vectors, flat index, two queries), and 64 searches among 3,000 vectors take 4 ms one by one and 2 ms
# in four batches: so searches are not batched.


def _is_plain_faiss(store: Any) -> bool:
    return isinstance(store.embedding_function, Embeddings) and not _faiss_own(store, {})


def _faiss_own(store: Any, settings: Mapping[str, Any]) -> str:
    docstore: Any = getattr(store, "docstore", None)
    kind = type(docstore)
    ours = kind.__module__ == "langchain_community.docstore.in_memory" and "search" not in getattr(
        docstore, "__dict__", {}
    )
    return "" if ours else f"its docstore is a {kind.__name__}, which may do anything"


# PGVector: the first async call creates the tables, and the object remembers that.


def _pgvector_contents(store: Any) -> Any:
    engine = store._engine or store._async_engine
    return f"pgvector:{engine.url}:{store.collection_name}"


def _pooled(store: Any) -> int | None:
    store = getattr(store, "_PGVectorStore__vs", store)
    return pooled(getattr(store, "_engine", None) or getattr(store, "_async_engine", None) or store.engine)


def _pgvector_copied(store: Any, sync: bool) -> str:
    if sync != (not store.async_mode):
        return "it refuses calls of this kind, sync or async"
    return "" if sync or store._async_init else "its first call creates its tables"


def _table(store: Any) -> Any:
    store = getattr(store, "_PGVectorStore__vs", store)
    return f"pgvector:{store.engine.url}:{store.schema_name}.{store.table_name}"


def _no_inline(store: Any) -> bool:
    store = getattr(store, "_PGVectorStore__vs", store)
    return getattr(store.embedding_service, "embed_query_inline_template", None) is None


def _hybrid(store: Any, settings: Mapping[str, Any]) -> str:
    store = getattr(store, "_PGVectorStore__vs", store)
    if settings.get("hybrid_search_config") or getattr(store, "hybrid_search_config", None):
        return "its hybrid search keeps the text of the first query, so the order of searches matters"
    return ""


KNOWN = (
    Known(
        "langchain_chroma.vectorstores",
        "Chroma",
        "_embedding_function",
        together=CHROMA,
        inner=("_Chroma__query_collection",),
        contents=chroma_contents,
    ),
    Known(
        "langchain_core.vectorstores.in_memory",
        "InMemoryVectorStore",
        "embedding",
        together=MEMORY,
        asynchronous=True,
        inner=("_similarity_search_with_score_by_vector",),
        contents=lambda store: store.store,
    ),
    Known(
        "langchain_community.vectorstores.faiss",
        "FAISS",
        "embedding_function",
        asynchronous=True,
        inner=("_embed_query", "_aembed_query", "_embed_documents", "_aembed_documents", "_create_filter_func"),
        able=_is_plain_faiss,
        contents=lambda store: store.index,
        early=_faiss_own,
    ),
    Known(
        "langchain_postgres.vectorstores",
        "PGVector",
        "embedding_function",
        asynchronous=True,
        inner=("_PGVector__query_collection", "_PGVector__aquery_collection", "_results_to_docs_and_scores"),
        contents=_pgvector_contents,
        connections=_pooled,
        copied=_pgvector_copied,
    ),
    Known(
        "langchain_postgres.v2.vectorstores",
        "PGVectorStore",
        "embedding_service",
        within="_PGVectorStore__vs",
        asynchronous=True,
        able=_no_inline,
        contents=_table,
        early=_hybrid,
        connections=_pooled,
    ),
    Known(
        "langchain_postgres.v2.async_vectorstore",
        "AsyncPGVectorStore",
        "embedding_service",
        asynchronous=True,
        inner=("_AsyncPGVectorStore__query_collection", "_AsyncPGVectorStore__query_collection_with_filter"),
        able=_no_inline,
        contents=_table,
        early=_hybrid,
        connections=_pooled,
    ),
)


def row_of(store: Any) -> Known | None:
    """Returns the row of a store's class, even if a subclass overrides methods."""
    kind: Any = type(store)
    return _row_of(kind)  # called several times per search


@lru_cache(maxsize=512)
def _row_of(kind: type) -> Known | None:
    return next((row for row in KNOWN if (base := row.base) is not None and issubclass(kind, base)), None)
