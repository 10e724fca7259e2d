"""Retrievers: EMBED, SEARCH, MAP and AGGREGATE primitives, and the claims on their inner methods."""

from __future__ import annotations

import copy as copying
import sys
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from fineflow.adapters.base import DOCUMENTS, VALUE, Builder, Leaf, NotLowered, Record, Row, Symbol, believed
from fineflow.adapters.langchain.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.recorder import clean, starts_runs
from fineflow.adapters.langchain.shadows import Shadows
from fineflow.ir import PURE, Effect, Effects, Graph, Op, Ref

RETRIEVE = ("invoke", "ainvoke", "stream", "astream", "transform", "atransform")

# Where stores keep the embeddings of their queries, for stores whose search methods were read (langchain-chroma 1.1.0,
# langchain-core 1.7.2). A copy of the store whose embeddings hold the vector already is asked for everything else.
_EMBEDDINGS = (
    ("langchain_chroma.vectorstores", "Chroma", "_embedding_function"),
    ("langchain_core.vectorstores.in_memory", "InMemoryVectorStore", "embedding"),
)
EMBEDS = ("embed_query", "aembed_query", "embed_documents", "aembed_documents")
_SEARCHES = (
    "similarity_search",
    "asimilarity_search",
    "similarity_search_with_score",
    "similarity_search_by_vector",
    "max_marginal_relevance_search",
    "amax_marginal_relevance_search",
    "similarity_search_with_relevance_scores",
)


def embeddings_attribute(store: VectorStore) -> str | None:
    """The attribute with the query embeddings, for stores whose search methods are exactly the known ones."""
    for module, name, attribute in _EMBEDDINGS:
        base = getattr(sys.modules.get(module), name, None)
        if base is not None and isinstance(store, base):
            kind = type(store)
            if all(getattr(kind, m, None) is getattr(base, m, None) for m in _SEARCHES):
                return attribute
    return None


def _lower_vectorstore(retriever: VectorStoreRetriever, value: Symbol, b: Builder) -> Symbol:
    if not isinstance(value, Leaf):
        raise NotLowered("a record goes into a retriever")
    if b.options:
        raise NotLowered("keyword arguments are bound to a retriever")
    if starts_runs(retriever):
        raise NotLowered("its search started a run of its own, which only stock can place")
    store = retriever.vectorstore
    believed(store, _SEARCHES, b)
    believed(getattr(store, "embeddings", None), EMBEDS, b)
    args = {"query": value.ref}
    attribute = embeddings_attribute(store)
    embeddings = getattr(store, attribute) if attribute else None
    if isinstance(embeddings, EngineEmbeddings):
        vector = b.add(
            Op.EMBED, {"texts": value.ref}, component=embeddings, engine=embeddings.engine.name, kind=VALUE, of="query"
        )
        args["vector"] = vector.ref
    effects = Effects(Effect.READ, b.resource(store), f"searches {type(store).__name__}")
    return b.add(
        Op.SEARCH,
        args,
        component=retriever,
        engine=type(store).__name__,
        effects=effects,
        kind=DOCUMENTS,
        foreign=True,
    )


def with_vector(retriever: VectorStoreRetriever, query: str, vector: list[float]) -> VectorStoreRetriever:
    """A copy of the retriever whose store finds the vector of ``query`` ready."""
    store = copying.copy(retriever.vectorstore)
    attribute = embeddings_attribute(store)
    assert attribute is not None  # lowering asked for the same
    setattr(store, attribute, Ready(getattr(store, attribute), {query: vector}))
    return retriever.model_copy(update={"vectorstore": store})


class Ready(Embeddings):
    """Embeddings of which some are there already."""

    def __init__(self, behind: Embeddings, vectors: dict[str, list[float]]) -> None:
        self._behind = behind
        self._vectors = vectors

    def embed_query(self, text: str) -> list[float]:
        found = self._vectors.get(text)
        return self._behind.embed_query(text) if found is None else found

    async def aembed_query(self, text: str) -> list[float]:
        found = self._vectors.get(text)
        return await self._behind.aembed_query(text) if found is None else found

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if all(text in self._vectors for text in texts):
            return [self._vectors[text] for text in texts]
        return self._behind.embed_documents(texts)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        if all(text in self._vectors for text in texts):
            return [self._vectors[text] for text in texts]
        return await self._behind.aembed_documents(texts)


def _shadow_vectorstore(retriever: VectorStoreRetriever, s: Shadows) -> Any:
    leaf = s.leaf
    copy = retriever.model_copy()

    def search(query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        own = lambda: retriever._get_relevant_documents(query, run_manager=run_manager, **kwargs)  # noqa: E731
        docs: list[Document]
        entry, docs = s.claim(leaf, (query, kwargs), own, clean)
        if entry.replay is not None:
            entry.replay.replay(run_manager)
        return docs

    async def asearch(query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        own = lambda: retriever._aget_relevant_documents(query, run_manager=run_manager, **kwargs)  # noqa: E731
        docs: list[Document]
        entry, docs = await s.aclaim(leaf, (query, kwargs), own, clean)
        if entry.replay is not None:
            await entry.replay.areplay(run_manager)
        return docs

    copy.__dict__.update(_get_relevant_documents=search, _aget_relevant_documents=asearch)
    return copy


def _lower_multi_query(retriever: Any, value: Symbol, b: Builder) -> Symbol:
    if not isinstance(value, Leaf) or b.options:
        raise NotLowered("keyword arguments are bound to a retriever, or a record goes into it")
    if type(retriever.llm_chain).__name__ == "LLMChain":
        raise NotLowered("LLMChain is deprecated and not recognised")
    with b.inside("llm_chain", "queries"), b.step():
        lines = b.lower(retriever.llm_chain, Record({"question": value}))
    found: dict[str, Ref] = {}
    with b.step():
        body = _body(retriever.retriever, b)
        mapped = b.add(
            Op.MAP, {"items": b.whole(lines).ref}, name="searches", body=body, kind=VALUE, effects=_strongest(body)
        )
        found["lists"] = mapped.ref
        if retriever.include_original:
            with b.inside("retriever", "original"):
                found["original"] = b.whole(b.lower(retriever.retriever, value)).ref
        union = b.add(Op.AGGREGATE, found, name="unique", component=retriever, kind=DOCUMENTS, how="unique")
    return union


def _strongest(body: Graph) -> Effects:
    """The effects of a map: the first effect of its body, one that writes before others."""
    found = [p.effects for p in body if p.effects.kind is not Effect.PURE]
    return next((e for e in found if e.kind is Effect.WRITE), found[0] if found else PURE)


def _body(retriever: Any, b: Builder) -> Graph:
    """The graph of one search; its only input is the query."""
    inner = b.body()
    with inner.inside("retriever", ""):
        docs = inner.whole(inner.lower(retriever, Leaf(Ref("item"), "text")))
    if any(p.params.get("by") == "stock" for p in inner.primitives):
        raise NotLowered(f"its base retriever {type(retriever).__name__} is not recognised")
    return Graph(tuple(inner.primitives), docs.ref, inputs=("item",))


def _shadow_multi_query(retriever: Any, s: Shadows) -> Any:
    parts = {"llm_chain": s.of(retriever.llm_chain, "llm_chain"), "retriever": s.of(retriever.retriever, "retriever")}
    return retriever.model_copy(update=parts)


def _lower_compression(retriever: Any, value: Symbol, b: Builder) -> Symbol:
    if not isinstance(value, Leaf) or b.options:
        raise NotLowered("keyword arguments are bound to a retriever, or a record goes into it")
    with b.inside("base_retriever", ""), b.step():
        docs = b.lower(retriever.base_retriever, value)
    with b.inside("base_compressor", ""):
        return b.lower(retriever.base_compressor, Record({"documents": docs, "query": value}))


def _shadow_compression(retriever: Any, s: Shadows) -> Any:
    return retriever.model_copy(
        update={
            "base_retriever": s.of(retriever.base_retriever, "base_retriever"),
            "base_compressor": s.of(retriever.base_compressor, "base_compressor"),
        }
    )


ROWS = (
    Row(
        VectorStoreRetriever,
        (*RETRIEVE, "_get_relevant_documents", "_aget_relevant_documents"),
        _lower_vectorstore,
        _shadow_vectorstore,
        "retriever",
    ),
)


def classic_rows() -> tuple[Row, ...]:
    """Rows of langchain-classic, where it is installed."""
    try:
        from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
    except ImportError:
        return ()
    inner = ("_get_relevant_documents", "_aget_relevant_documents")
    queries = ("generate_queries", "agenerate_queries", "retrieve_documents", "aretrieve_documents", "unique_union")
    return (
        Row(MultiQueryRetriever, (*RETRIEVE, *inner, *queries), _lower_multi_query, _shadow_multi_query, "multi_query"),
        Row(ContextualCompressionRetriever, (*RETRIEVE, *inner), _lower_compression, _shadow_compression, ""),
    )
