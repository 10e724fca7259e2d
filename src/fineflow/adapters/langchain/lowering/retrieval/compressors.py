"""Lowers document compressors to RERANK primitives, and claims their ``compress_documents``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document

from fineflow.adapters.core.builder import DOCUMENTS, Leaf, Record, Symbol
from fineflow.adapters.core.devices import engine_on
from fineflow.adapters.core.own_state import keeps_state
from fineflow.adapters.core.recognition import NamedRow, Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, believed, keeps_promise
from fineflow.adapters.langchain.arguments import settings
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.components.rerank import EngineReranker
from fineflow.adapters.langchain.models.local import scorer_in
from fineflow.adapters.langchain.run_recorder import starts_runs
from fineflow.adapters.langchain.stores.facts import EMBEDS
from fineflow.ir import PURE, Effect, Effects, Op

COMPRESS = ("compress_documents", "acompress_documents")


def scorer_of(compressor: Any) -> Any:
    """Returns the part of a compressor that scores query and text independently of other texts, or None.

    That part declares ``pairwise = True`` and has ``score(query, texts)`` and ``ascore(query, texts)``.
    """
    model = getattr(compressor, "model", None)
    for candidate in (compressor, model):
        if getattr(candidate, "pairwise", False):
            return candidate
    return None if model is None else scorer_in(model)


def _lower_reranker(compressor: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    if not isinstance(value, Record) or set(value.fields) != {"documents", "query"}:
        raise NotLowered("not used as a compressor of retrieved documents")
    docs, query = value.fields["documents"], value.fields["query"]
    if not isinstance(docs, Leaf) or not isinstance(query, Leaf):
        raise NotLowered("its documents or its query are a dict")
    if starts_runs(compressor):
        raise NotLowered("it started a run of its own, which only stock can place")
    scorer = scorer_of(compressor)
    if scorer is None:
        believed(getattr(compressor, "model", None), ("score",), b)
        believed(getattr(compressor, "embeddings", None), EMBEDS, b)
    engine = getattr(scorer, "engine", None)
    args = {"query": query.ref, "documents": docs.ref}
    embeddings = getattr(compressor, "embeddings", None)
    if isinstance(embeddings, EngineEmbeddings):
        size = embeddings.engine.max_batch
        vectors = b.add(
            Op.EMBED,
            {"texts": docs.ref},
            component=embeddings,
            engine=embeddings.engine.name,
            of="documents",
            max_batch=size,
            **engine_on(embeddings.engine),
        )
        args["vectors"] = vectors.ref
    return b.add(
        Op.RERANK,
        args,
        component=compressor,
        engine=getattr(engine, "name", type(compressor).__name__),
        effects=_effects(compressor, scorer),
        kind=DOCUMENTS,
        pairwise=scorer is not None,
        max_batch=getattr(engine, "max_batch", 0),
        foreign=engine is None,
        **engine_on(engine),
    )


def _lower_service(compressor: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers a reranker that asks a service by its client, and copies the documents that it returns."""
    believed(getattr(compressor, "client", None), ("rerank",), b)
    believed(getattr(compressor, "session", None), ("post",), b)
    return _lower_reranker(compressor, value, b)


def _effects(compressor: Any, scorer: Any) -> Effects:
    if scorer is not None:
        return Effects(PURE.kind, "", "scores query and document")
    if isinstance(getattr(compressor, "embeddings", None), EngineEmbeddings):
        return Effects(PURE.kind, "", "compares vectors of models in this process")
    parts = (getattr(compressor, name, None) for name in ("model", "embeddings"))
    inner = next((part for part in parts if part and not isinstance(part, str)), compressor)
    return Effects(Effect.EXTERNAL, "", f"{type(inner).__name__} may call out")


def _shadow_compressor(compressor: Any, site: Site) -> Any:
    copy = compressor.model_copy()

    def compress(documents: Any, query: str, callbacks: Any = None) -> Any:
        own = lambda: compressor.compress_documents(documents, query, callbacks)  # noqa: E731
        if not isinstance(documents, Sequence):  # an iterator, which can be read only once
            return compressor.compress_documents(documents, query, callbacks)
        return claim(site, (list(documents), query, settings(compressor)), own)[1]

    async def acompress(documents: Any, query: str, callbacks: Any = None) -> Any:
        own = lambda: compressor.acompress_documents(documents, query, callbacks)  # noqa: E731
        if not isinstance(documents, Sequence):
            return await compressor.acompress_documents(documents, query, callbacks)
        return (await aclaim(site, (list(documents), query, settings(compressor)), own))[1]

    copy.__dict__.update(compress_documents=compress, acompress_documents=acompress)
    return copy


def _held(compressor: Any) -> Iterator[Any]:
    yield compressor.embeddings


def _lower_pipeline(pipeline: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    if not isinstance(value, Record):
        raise NotLowered("not used as a compressor of retrieved documents")
    docs, query = value.fields["documents"], value.fields["query"]
    for i, part in enumerate(pipeline.transformers):
        with b.inside(str(i), ""), b.step():
            if not isinstance(part, BaseDocumentCompressor):
                raise NotLowered(f"{type(part).__name__} in a compressor pipeline is not recognised")
            docs = b.lower(part, Record({"documents": docs, "query": query}))
    if any(p.by_stock and p.leaf.startswith(b.leaf) for p in b.primitives):
        raise NotLowered("a part of the compressor pipeline is not recognised")
    return docs


def _shadow_pipeline(pipeline: Any, site: Site) -> Any:
    parts = [site.of(part, str(i)) for i, part in enumerate(pipeline.transformers)]
    return pipeline.model_copy(update={"transformers": parts})


def _lower_unknown(compressor: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    reason = f"compressor {type(compressor).__name__} is not recognised: runs through its own methods"
    return b.opaque(compressor, value, reason, kind=DOCUMENTS)


def _tap_compressor(compressor: Any, site: Site) -> Any:
    copy = compressor.model_copy()

    def compress(documents: Sequence[Document], query: str, callbacks: Any = None) -> Any:
        value = _kept(compressor.compress_documents(documents, query, callbacks))
        site.feed(list(value))
        return value

    async def acompress(documents: Sequence[Document], query: str, callbacks: Any = None) -> Any:
        value = _kept(await compressor.acompress_documents(documents, query, callbacks))
        site.feed(list(value))
        return value

    copy.__dict__.update(compress_documents=compress, acompress_documents=acompress)
    return copy


def _kept(documents: Any) -> Sequence[Document]:
    """Returns a compressor's result as a sequence, which stock and the graph can both read."""
    return documents if isinstance(documents, Sequence) else list(documents)


class _PairwiseRow(Row):
    """Row by protocol: matches a compressor class that declares itself to be ``select(documents, score(...))``."""

    def matches(self, obj: Any) -> bool:
        return (
            isinstance(obj, BaseDocumentCompressor)
            and getattr(type(obj), "pairwise", False) is True
            and keeps_promise(obj, "pairwise", COMPRESS)
            and all(hasattr(obj, name) for name in ("score", "ascore", "select"))
            and not keeps_state(type(obj))
        )


_READ = ("engine", "model", "embeddings")
_COMMUNITY = "langchain_community.document_compressors"
_SERVICES = (
    ("langchain_classic.retrievers.document_compressors.cohere_rerank", "CohereRerank"),
    ("langchain_cohere.rerank", "CohereRerank"),
    (f"{_COMMUNITY}.jina_rerank", "JinaRerank"),
    (f"{_COMMUNITY}.dashscope_rerank", "DashScopeRerank"),
    (f"{_COMMUNITY}.volcengine_rerank", "VolcengineRerank"),
    (f"{_COMMUNITY}.infinity_rerank", "InfinityRerank"),
)
"""Rerankers whose ``compress_documents`` does no more than to copy the documents that ``rerank`` has chosen."""

_BY_RERANK = (*COMPRESS, "rerank")

ROWS: tuple[Row, ...] = (
    Row(EngineReranker, COMPRESS, _lower_reranker, _shadow_compressor, "reranker", _READ),
    _PairwiseRow(BaseDocumentCompressor, COMPRESS, _lower_reranker, _shadow_compressor, "reranker", _READ),
    *(
        NamedRow(
            BaseDocumentCompressor,
            _BY_RERANK,
            _lower_service,
            _shadow_compressor,
            "reranker",
            ("client", "session"),
            module=module,
            name=name,
        )
        for module, name in _SERVICES
    ),
)


def classic_rows() -> tuple[Row, ...]:
    """Returns the rows of langchain-classic, which is imported."""
    try:
        from langchain_classic.retrievers.document_compressors import (
            CrossEncoderReranker,
            DocumentCompressorPipeline,
            EmbeddingsFilter,
        )
    except ImportError:
        return ()
    return (
        Row(CrossEncoderReranker, COMPRESS, _lower_reranker, _shadow_compressor, "reranker", _READ),
        Row(
            EmbeddingsFilter,
            COMPRESS,
            _lower_reranker,
            _shadow_compressor,
            "filter",
            _READ,
            components=_held,
            calls=EMBEDS,
        ),
        Row(
            DocumentCompressorPipeline,
            COMPRESS,
            _lower_pipeline,
            _shadow_pipeline,
            reads=("transformers",),
            composite=True,
        ),
    )


LAST = (Row(BaseDocumentCompressor, (), _lower_unknown, _tap_compressor, "compressor", ()),)
"""The last row: opaque compressors, with whose result the graph can continue."""
