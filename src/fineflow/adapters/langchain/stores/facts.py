"""Facts about vector stores: their search methods, where they keep the embeddings of queries, which results are fresh.

The table is in ``known_stores``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from fineflow.adapters.analysis import analyse
from fineflow.adapters.core.batched_search import chroma_contents
from fineflow.adapters.core.trust import put_on
from fineflow.adapters.langchain.kernels.common import LeftToStock
from fineflow.adapters.langchain.stores.known_stores import SEARCHES, Known, row_of

EMBEDS = ("embed_query", "aembed_query", "embed_documents", "aembed_documents")


def known(store: VectorStore) -> Known | None:
    """Returns the row of a store, if its class has exactly the search methods that were read; None otherwise."""
    row = row_of(store)
    if row is None or not row.able(store):
        return None
    kind, base = type(store), row.base
    same = kind is base or all(getattr(kind, name, None) is getattr(base, name, None) for name in row.methods)
    return row if same else None


def overridden(store: VectorStore) -> bool:
    """Returns True if a method was replaced on this very object."""
    row = row_of(store)
    return put_on(store, SEARCHES if row is None else row.methods)


def contents(store: Any) -> Any:
    """Returns what two objects over the same documents share; the store itself if it is not known."""
    row = row_of(store)
    if row is None:  # another class over a Chroma collection
        return chroma_contents(store)
    return row.contents(store)


def query_embeddings(store: VectorStore) -> Any:
    """Returns the embeddings that a known store's searches use; None for other stores."""
    row = known(store)
    return row.embeddings(store) if row is not None else None


def awaits_embeddings(store: VectorStore) -> bool:
    """Returns True if a known store's async searches await ``aembed_query``; others run ``embed_query`` in a thread."""
    row = known(store)
    return row is not None and row.asynchronous


def has_vector(retriever: VectorStoreRetriever, query: str) -> bool:
    """Returns True for a retriever returned by ``with_vector`` that has the vector of ``query``."""
    row = known(retriever.vectorstore)
    ready = row.embeddings(retriever.vectorstore) if row is not None else None
    return isinstance(ready, Ready) and ready.has(query)


def with_vector(
    retriever: VectorStoreRetriever, query: str, embeddings: Any, vector: list[float] | BaseException
) -> Any:
    """Returns a copy of the retriever whose store finds the vector of ``query`` ready and embeds other texts as before.

    vector: the vector, or the exception that embedding raised, which the store then meets as it would in stock. Raises
    LeftToStock if the store no longer uses ``embeddings``.
    """
    row = known(retriever.vectorstore)
    if row is None or row.embeddings(retriever.vectorstore) is not embeddings:
        raise LeftToStock("its store was replaced after the plan was made")
    ready = Ready(embeddings, {}, vector) if isinstance(vector, BaseException) else Ready(embeddings, {query: vector})
    return retriever.model_copy(update={"vectorstore": row.with_embeddings(retriever.vectorstore, ready)})


class Ready(Embeddings):
    """Embeddings that already hold some vectors.

    failure: raised by the embedding that ran ahead. It is raised once, by the first call; later calls embed.
    """

    def __init__(
        self, behind: Embeddings, vectors: dict[str, list[float]], failure: BaseException | None = None
    ) -> None:
        self._behind = behind
        self._vectors = vectors
        self._failure = failure

    def has(self, text: str) -> bool:
        """Returns True if the vector of a text is ready."""
        return text in self._vectors

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def embed_query(self, text: str) -> list[float]:
        self._raise()
        return self._vectors[text] if text in self._vectors else self._behind.embed_query(text)

    async def aembed_query(self, text: str) -> list[float]:
        self._raise()
        return self._vectors[text] if text in self._vectors else await self._behind.aembed_query(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self._raise()
        if all(text in self._vectors for text in texts):
            return [self._vectors[text] for text in texts]
        return self._behind.embed_documents(texts)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self._raise()
        if all(text in self._vectors for text in texts):
            return [self._vectors[text] for text in texts]
        return await self._behind.aembed_documents(texts)


def own_function(retriever: VectorStoreRetriever) -> str:
    """Returns the reason not to search ahead of stock: a user function in the settings that is not pure; "" if none.

    Examples are a filter of ``InMemoryVectorStore``, Chroma's ``relevance_score_fn`` and FAISS's embedding function.
    Also covers searches that are known to do more than read.
    """
    store, given = retriever.vectorstore, retriever.search_kwargs
    row = row_of(store)
    if row is not None and (why := row.early(store, given)):
        return why
    held = (getattr(store, "__dict__", {}).get(name) for name in ("override_relevance_score_fn", "embedding_function"))
    for value in _parts((given, *held)):
        if callable(value) and not isinstance(value, Embeddings):
            verdict = analyse(value)
            if not (verdict.pure and verdict.still_holds()):
                name = getattr(value, "__name__", type(value).__name__).replace("<lambda>", "lambda")
                return f"its search calls {name}, which is not known to be pure: {verdict.reason}"
    return ""


def unready(store: VectorStore, *, sync: bool) -> str:
    """Returns why a store cannot be searched ahead now, by its sync or its async methods; "" if it can."""
    row = row_of(store)
    return row.copied(store, sync) if row is not None else ""


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list, tuple, set)):
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for part in inner:
            yield from _parts(part)
    else:
        yield value
