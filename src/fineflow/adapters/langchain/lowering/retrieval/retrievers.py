"""Lowers retrievers to EMBED, SEARCH, MAP and AGGREGATE primitives, and claims their inner methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.stores import BaseStore
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from fineflow.adapters.core.builder import DOCUMENTS, TEXT, VALUE, Leaf, Record, Symbol
from fineflow.adapters.core.devices import engine_on, store_on
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.own_state import known_itself
from fineflow.adapters.core.recognition import Row, held
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, OwnClass, believed
from fineflow.adapters.core.unfinished import unfinished
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.lowering.retrieval.early_vectors import embed_early
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.langchain.models.local import encoder_of
from fineflow.adapters.langchain.resources import keep_to_connections
from fineflow.adapters.langchain.run_recorder import starts_runs
from fineflow.adapters.langchain.stores.facts import EMBEDS, known, own_function, query_embeddings
from fineflow.adapters.langchain.stores.known_stores import SEARCHES
from fineflow.ir import Effect, Effects, Graph, Op, Ref
from fineflow.ir.traverse import combined

_FINDING = ("_get_relevant_documents", "_aget_relevant_documents")
_EMBEDDING = ("embedding", "_embedding_function", "embedding_function", "embedding_service")
_WRITING = frozenset({"TimeWeightedVectorStoreRetriever"})
_SHOWN = frozenset({"name", "tags", "metadata"})
_PLAIN = frozenset(
    {"abc", "builtins", "collections", "datetime", "decimal", "enum", "functools", "pathlib", "re", "typing"}
)
_HELD = ("vectorstore", "_PGVectorStore__vs", *_EMBEDDING)
"""Attributes of retrievers and stores that hold the store or embeddings they use."""


def query_of(value: Symbol, b: ChainBuilder) -> Leaf:
    """Returns a retriever's query. Raises NotLowered if its input is a dict, or if arguments are bound to it."""
    if not isinstance(value, Leaf):
        raise NotLowered("its input is a dict, not a query")
    if b.options:
        raise NotLowered("keyword arguments are bound to a retriever")
    return value


def lower_vectorstore(retriever: VectorStoreRetriever, value: Symbol, b: ChainBuilder) -> Symbol:
    query = query_of(value, b)
    if starts_runs(retriever):
        raise NotLowered("its search started a run of its own, which only stock can place")
    store = retriever.vectorstore
    believed(retriever, _FINDING, b)
    believed(store, SEARCHES, b)
    believed(getattr(store, "embeddings", None), EMBEDS, b)
    if not b.assume_pure and (why := own_function(retriever)):
        raise NotLowered(why)
    args = {"query": query.ref}
    encoder = encoder_of(query_embeddings(store))
    if unfinished(store) is not None and (row := known(store)) is not None:
        args["vector"] = embed_early(row.embeddings(store), row, query, b).ref
    elif encoder is not None:
        vector = b.add(
            Op.EMBED,
            {"texts": query.ref},
            component=encoder,
            engine=encoder.engine.name,
            kind=VALUE,
            of="query",
            **engine_on(encoder.engine),
        )
        args["vector"] = vector.ref
    keep_to_connections(store)
    return b.search(retriever, args, store, foreign=True, assumed=b.assume_pure, **store_on(store))


def held_by(retriever: Any) -> Iterator[Any]:
    return held(retriever, _HELD)


def shadow_vectorstore(retriever: VectorStoreRetriever, site: Site) -> Any:
    # Tracing, too, reads the settings from the user's object when stock gets there.
    copy = _shadow_any(retriever, site)
    copy.__dict__["_get_ls_params"] = retriever._get_ls_params
    return copy


def _shadow_any(retriever: BaseRetriever, site: Site) -> Any:
    copy = retriever.model_copy()

    def search(query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        own = lambda: retriever._get_relevant_documents(query, run_manager=run_manager, **kwargs)  # noqa: E731
        docs: list[Document]
        entry, docs = claim(site, (query, kwargs or None), own)
        if entry.reports is not None:
            entry.reports.replay(run_manager)
        return docs

    async def asearch(query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        own = lambda: retriever._aget_relevant_documents(query, run_manager=run_manager, **kwargs)  # noqa: E731
        docs: list[Document]
        entry, docs = await aclaim(site, (query, kwargs or None), own)
        if entry.reports is not None:
            await entry.reports.areplay(run_manager)
        return docs

    copy.__dict__.update(_get_relevant_documents=search, _aget_relevant_documents=asearch)
    return copy


def _lower_any(retriever: BaseRetriever, value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers a retriever of an installed package, or of a declared class, to a search by its own methods."""
    query = query_of(value, b)
    kind = type(retriever)
    if starts_runs(retriever):
        raise NotLowered("its search started a run of its own, which only stock can place")
    if kind.__name__ in _WRITING:
        raise NotLowered(f"{kind.__name__} changes what it keeps when it searches")
    if not retriever._new_arg_supported:
        raise NotLowered("its search takes no run manager")
    believed(retriever, _FINDING, b)
    if not b.assume_pure:
        own = None if b.trusting else next((each for each in kind.__mro__ if not known_itself(each)), None)
        if own is not None:
            raise OwnClass(own)
        if (b.trusting or of_package(kind.__module__)) and (why := _own_part(retriever)):
            raise NotLowered(why)
    stores: list[Any] = [part for part in vars(retriever).values() if isinstance(part, (VectorStore, BaseStore))]
    names = [b.resource(part) for part in (stores or [retriever])]
    reason = f"searches by {kind.__name__}"
    first, *others = [Effects(Effect.READ, name, reason) for name in dict.fromkeys(names)]
    return b.add(
        Op.SEARCH,
        {"query": query.ref},
        component=retriever,
        engine=kind.__name__,
        effects=replace(first, also=tuple(others)),
        kind=DOCUMENTS,
        foreign=True,
        by_method=True,
    )


def _own_part(retriever: BaseRetriever) -> str:
    """Returns why parts of a retriever keep it from running ahead: code of the user's, or another runnable; or ""."""
    kind = type(retriever).__name__
    for name, value in {**vars(retriever), **(retriever.__pydantic_private__ or {})}.items():
        for part in _parts(value):
            if isinstance(part, Runnable):
                return f"{kind} runs another runnable ({name}), which only stock can place"
            for inner in held(part, _HELD):
                code = inner if isinstance(inner, (FunctionType, MethodType, partial)) else type(inner)
                if name not in _SHOWN and not of_package(defined_in(code)) and defined_in(code) not in _PLAIN:
                    return f"{kind} holds code of your own ({name})"
    return ""


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else (value,)


def defined_in(code: Any) -> str:
    """Returns the module that a function, that of a partial, or a class says that it was defined in."""
    while isinstance(code, partial):
        code = code.func
    return str(getattr(code, "__module__", ""))


def _lower_multi_query(retriever: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    query = query_of(value, b)
    if type(retriever.llm_chain).__name__ == "LLMChain":
        raise NotLowered("LLMChain is deprecated and not recognised")
    with b.inside("llm_chain", "queries"), b.step():
        lines = b.lower(retriever.llm_chain, Record({"question": query}))
    found: dict[str, Ref] = {}
    with b.step():
        body = _body(retriever.retriever, b)
        mapped = b.add(
            Op.MAP,
            {"items": b.whole(lines).ref},
            name="searches",
            body=body,
            kind=VALUE,
            effects=combined(p.effects for p in body),
        )
        found["lists"] = mapped.ref
        if retriever.include_original:
            with b.inside("retriever", "original"):
                found["original"] = b.whole(b.lower(retriever.retriever, query)).ref
        union = b.add(Op.AGGREGATE, found, name="unique", component=retriever, kind=DOCUMENTS, how="unique")
    return union


def _body(retriever: Any, b: ChainBuilder) -> Graph:
    """Returns the graph of one search; its only input is the query."""
    inner = b.body()
    with inner.inside("retriever", ""):
        docs = inner.whole(inner.lower(retriever, Leaf(Ref("item"), TEXT)))
    if any(p.by_stock for p in inner.primitives):
        raise NotLowered(f"its base retriever {type(retriever).__name__} is not recognised")
    return Graph(tuple(inner.primitives), docs.ref, inputs=("item",))


def _shadow_multi_query(retriever: Any, site: Site) -> Any:
    parts = {
        "llm_chain": site.of(retriever.llm_chain, "llm_chain"),
        "retriever": site.of(retriever.retriever, "retriever"),
    }
    return retriever.model_copy(update=parts)


def _lower_compression(retriever: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    query = query_of(value, b)
    with b.inside("base_retriever", ""), b.step():
        docs = b.lower(retriever.base_retriever, query)
    with b.inside("base_compressor", ""):
        return b.lower(retriever.base_compressor, Record({"documents": docs, "query": query}))


def _shadow_compression(retriever: Any, site: Site) -> Any:
    return retriever.model_copy(
        update={
            "base_retriever": site.of(retriever.base_retriever, "base_retriever"),
            "base_compressor": site.of(retriever.base_compressor, "base_compressor"),
        }
    )


ROWS = (
    Row(
        VectorStoreRetriever,
        (*RUN, *_FINDING),
        lower_vectorstore,
        shadow_vectorstore,
        "retriever",
        ("vectorstore",),
        components=held_by,
        calls=(*_FINDING, *SEARCHES, *EMBEDS),
    ),
)
ANY = (Row(BaseRetriever, RUN, _lower_any, _shadow_any, "retriever", None, calls=_FINDING),)
"""Comes after the rows of known retrievers."""


def classic_rows() -> tuple[Row, ...]:
    """Returns the rows of langchain-classic, which is imported."""
    try:
        from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
    except ImportError:
        return ()
    queries = ("generate_queries", "agenerate_queries", "retrieve_documents", "aretrieve_documents", "unique_union")
    return (
        Row(
            MultiQueryRetriever,
            (*RUN, *_FINDING, *queries),
            _lower_multi_query,
            _shadow_multi_query,
            "multi_query",
            ("llm_chain", "retriever", "include_original"),
            composite=True,
        ),
        Row(
            ContextualCompressionRetriever,
            (*RUN, *_FINDING),
            _lower_compression,
            _shadow_compression,
            reads=("base_retriever", "base_compressor"),
            composite=True,
        ),
    )
