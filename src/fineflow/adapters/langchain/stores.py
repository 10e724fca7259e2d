"""What is known of vector stores: which methods search, where they keep the embeddings of their queries, what is fresh.

The table holds stores whose search methods were read (langchain-chroma 1.1.0, langchain-core 1.7.2).
"""

from __future__ import annotations

import copy as copying
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from fineflow.adapters.langchain.ahead import LeftToStock
from fineflow.adapters.langchain.arguments import exactly
from fineflow.adapters.langchain.together import CHROMA, MEMORY, Together
from fineflow.adapters.purity import analyse

EMBEDS = ("embed_query", "aembed_query", "embed_documents", "aembed_documents")
_KINDS = (
    "similarity_search",
    "similarity_search_with_score",
    "similarity_search_by_vector",
    "similarity_search_with_relevance_scores",
    "max_marginal_relevance_search",
    "max_marginal_relevance_search_by_vector",
)
SEARCHES = (*_KINDS, *(f"a{name}" for name in _KINDS))
"""The methods that retrievers reach, directly or through each other."""
_INNER = (
    "_similarity_search_with_relevance_scores",
    "_asimilarity_search_with_relevance_scores",
    "_similarity_search_with_score_by_vector",
    "similarity_search_with_score_by_vector",
    "_select_relevance_score_fn",
    "_Chroma__query_collection",
)


@dataclass(frozen=True, slots=True)
class Known:
    """A store class. attribute: where it keeps the embeddings of its queries. again: a found document as the next
    search for the same would find it, sharing with the store what that one would share. together: how searches of
    several queries are made as one, where they are. asynchronous: whether its async searches await ``aembed_query``
    (others call their sync twins in a thread, and these ``embed_query``).
    """

    module: str
    name: str
    attribute: str
    again: Callable[[Document], Document]
    together: Together | None = None
    asynchronous: bool = False


def _deep(doc: Document) -> Document:
    return doc.model_copy(deep=True)


def _over_the_same_values(doc: Document) -> Document:
    return Document(id=doc.id, page_content=doc.page_content, metadata=doc.metadata)  # pydantic copies the dict only


KNOWN = (
    Known(
        "langchain_chroma.vectorstores",
        "Chroma",
        "_embedding_function",
        again=_deep,  # every search reads its database
        together=CHROMA,
    ),
    Known(
        "langchain_core.vectorstores.in_memory",
        "InMemoryVectorStore",
        "embedding",
        again=_over_the_same_values,
        together=MEMORY,
        asynchronous=True,
    ),
)


def known(store: VectorStore) -> Known | None:
    """What is known of a store, for classes whose search methods are exactly those that were read."""
    for row in KNOWN:
        base = getattr(sys.modules.get(row.module), row.name, None)
        if base is not None and isinstance(store, base):
            kind = type(store)
            if all(getattr(kind, m, None) is getattr(base, m, None) for m in (*SEARCHES, *_INNER)):
                return row
    return None


def overridden(store: VectorStore) -> bool:
    """Whether somebody has put another method into this very object."""
    return not vars(store).keys().isdisjoint((*SEARCHES, *_INNER))


def contents(store: Any) -> Any:
    """What two objects share that are two ways to the same documents; else the store itself."""
    for attribute in ("_chroma_collection", "_collection"):
        collection: Any = getattr(store, "__dict__", {}).get(attribute)
        if type(collection).__module__.startswith("chromadb.") and hasattr(collection, "id"):
            return f"chroma:{collection.id}"
    base = getattr(sys.modules.get("langchain_core.vectorstores.in_memory"), "InMemoryVectorStore", None)
    return store.store if base is not None and isinstance(store, base) else store


def query_embeddings(store: VectorStore) -> Any:
    """The embeddings that a known store's searches use; None for other stores."""
    row = known(store)
    return getattr(store, row.attribute) if row is not None else None


def awaits_embeddings(store: VectorStore) -> bool:
    """Whether async searches of a known store await ``aembed_query``, rather than call ``embed_query`` in a thread."""
    row = known(store)
    return row is not None and row.asynchronous


def has_vector(retriever: VectorStoreRetriever, query: str) -> bool:
    """Whether it is one that ``with_vector`` returned, and has the vector."""
    row = known(retriever.vectorstore)
    ready = getattr(retriever.vectorstore, row.attribute) if row is not None else None
    return isinstance(ready, Ready) and ready.has(query)


def again(store: VectorStore) -> Callable[[Document], Document]:
    """How a known store's documents are made anew. Raises LookupError for other stores."""
    row = known(store)
    if row is None:
        raise LookupError(f"{type(store).__name__} is not a store whose searches are known")
    return row.again


def with_vector(
    retriever: VectorStoreRetriever, query: str, embeddings: Any, vector: list[float] | BaseException
) -> Any:
    """A copy of the retriever whose store finds the vector of ``query`` ready, and is asked for everything else.

    vector: or what embedding it raised, which the store meets then, as it would.
    Raises LeftToStock where the store is no longer one that would ask ``embeddings`` for it.
    """
    row = known(retriever.vectorstore)
    if row is None or getattr(retriever.vectorstore, row.attribute) is not embeddings:
        raise LeftToStock("its store was replaced after the plan was made")
    store = copying.copy(retriever.vectorstore)
    ready = Ready(embeddings, {}, vector) if isinstance(vector, BaseException) else Ready(embeddings, {query: vector})
    setattr(store, row.attribute, ready)
    return retriever.model_copy(update={"vectorstore": store})


class Ready(Embeddings):
    """Embeddings of which some are there already.

    failure: of the call that was made ahead. It is raised once, where that call is asked for; later calls are made.
    """

    def __init__(
        self, behind: Embeddings, vectors: dict[str, list[float]], failure: BaseException | None = None
    ) -> None:
        self._behind = behind
        self._vectors = vectors
        self._failure = failure

    def has(self, text: str) -> bool:
        """Whether the vector of a text is there."""
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
    """What speaks against searching early: a function of the user's in the settings that is not pure; "" if none is.

    A filter of ``InMemoryVectorStore`` is one, and the ``relevance_score_fn`` of Chroma.
    """
    settings = (retriever.search_kwargs, getattr(retriever.vectorstore, "override_relevance_score_fn", None))
    for value in _parts(settings):
        if callable(value):
            verdict = analyse(value)
            if not (verdict.pure and verdict.still_holds()):
                name = getattr(value, "__name__", type(value).__name__).replace("<lambda>", "lambda")
                return f"its search calls {name}, which is not known to be pure: {verdict.reason}"
    return ""


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list, tuple, set)):
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for part in inner:
            yield from _parts(part)
    else:
        yield value


def same_if(retriever: VectorStoreRetriever) -> str | None:
    """Equal for two retrievers of one store that find the same for the same query; None if there is no telling.

    Only of stores that make new documents in every search, from the same data. Settings are the same when they have
    the same types (a store may tell 1 from True), and functions when they are the same object.
    """
    store = retriever.vectorstore
    row = known(store)
    if row is None or _samples(getattr(store, row.attribute)):
        return None
    return f"{id(store)} {retriever.search_type} {exactly(retriever.search_kwargs)}"  # two may read one collection


def _samples(embeddings: Any) -> bool:
    """Whether it is LangChain's own fake, whose vectors are random."""
    kind = type(embeddings)
    return any(c.__name__ == "FakeEmbeddings" and c.__module__.startswith("langchain") for c in kind.__mro__)
