"""Lowers ``IndexDocuments`` to a split (CALL), EMBED and INGEST, and ``SearchIndex`` to EMBED and SEARCH.

Documents are split and embedded as soon as they are known; the factory and the write are stock's. A search gets its
store from the write, so it waits for that; the vector of its query does not. Vectors are made ahead only if the store
is known to embed all documents in one call: ``IndexDocuments.makes`` is the class that its factory made last.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Awaitable, Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from langchain_core.documents import Document

from fineflow.adapters.analysis import analyse, is_plain
from fineflow.adapters.core.builder import DOCUMENTS, VALUE, Leaf, Symbol
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, believed
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.components.indexing import IndexDocuments, SearchIndex
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current
from fineflow.adapters.langchain.kernels.searches import search
from fineflow.adapters.langchain.kernels.vectors import Direct, embed
from fineflow.adapters.langchain.lowering.retrieval.early_vectors import embed_early
from fineflow.adapters.langchain.lowering.retrieval.ingest import STORES, ClaimingEmbeddings, row_of_writes
from fineflow.adapters.langchain.lowering.retrieval.retrievers import defined_in, shadow_vectorstore
from fineflow.adapters.langchain.models.local import LocalEmbeddings, encoder_of
from fineflow.adapters.langchain.stores.facts import EMBEDS, known
from fineflow.adapters.langchain.stores.known_stores import KNOWN, SEARCHES, Known
from fineflow.ir import PURE, Effect, Effects, Op, Primitive
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.work import Work
from fineflow.runtime.loop.workers import in_thread

_PIECES, _VECTORS, _INDEX = "pieces", "vectors", "index "
_RUNS = ("invoke", "ainvoke", "stream", "astream", "transform", "atransform")
_STEPS = ("_index", "_aindex", "split", "asplit", "new_store", "write", "awrite")


def _lower_index(index: IndexDocuments, value: Symbol, b: ChainBuilder) -> Symbol:
    if b.options:
        raise NotLowered("keyword arguments are bound to it")
    if not isinstance(value, Leaf):
        raise NotLowered("its input is a dict, not a list of documents")
    believed(index.embeddings, EMBEDS, b)
    if why := _own_code(index.splitter):
        raise NotLowered(why)
    pieces = value
    if index.splitter is not None:
        with b.inside(_PIECES, ""):
            b.objects[b.leaf] = index.splitter
            pieces = b.add(
                Op.CALL,
                {"documents": value.ref},
                name="split",
                component=index.splitter,
                effects=Effects(PURE.kind, "", "splits documents"),
                kind=DOCUMENTS,
                kernel=_split,
                claimed=True,
            )
    given = {"documents": pieces.ref}
    row = _row(index)
    if row is not None:
        with b.inside(_VECTORS, ""):
            b.objects[b.leaf] = index.embeddings
            given["vectors"] = _embed_pieces(index, row, pieces, b).ref
    else:
        b.note(b.leaf or _name(index), False, "its store is not known yet, which makes the vectors itself")
    name = _name(index)
    effects = Effects(Effect.WRITE, b.resource(index), f"adds documents to a new {name}")
    kind = f"{_INDEX}{b.leaf}"
    return b.add(Op.INGEST, given, component=index, engine=name, effects=effects, kind=kind, by_stock=True)


def _name(index: IndexDocuments) -> str:
    return getattr(index.makes, "__name__", "store")


def _own_code(splitter: Any) -> str:
    """Returns why a splitter may do anything; "" for one of a package, with settings of packages or pure functions."""
    kind = type(splitter)
    if splitter is None:
        return ""
    if not of_package(kind.__module__):
        return f"its splitter {kind.__name__} is a class of your own"
    for name, value in vars(splitter).items():
        if isinstance(value, BuiltinFunctionType) or not isinstance(value, (FunctionType, MethodType, partial)):
            continue
        if not of_package(defined_in(value)) and not analyse(value).pure:
            return f"its splitter holds a function of your own ({name}) that is not known to be pure"
    return ""


def _row(index: IndexDocuments) -> Known | None:
    """Returns the row of the store that the factory makes; None if vectors made ahead might not be used."""
    return next((row for row in STORES if row.base is not None and index.makes is row.base), None)


def _embed_pieces(index: IndexDocuments, row: Known, pieces: Leaf, b: ChainBuilder) -> Leaf:
    encoder = encoder_of(index.embeddings)
    if encoder is not None:
        # Vectors of a model whose rounding depends on the batch are made as stock makes them: all in one call.
        return b.add(
            Op.EMBED,
            {"texts": pieces.ref},
            component=encoder,
            engine=encoder.engine.name,
            kind=VALUE,
            of="call" if isinstance(encoder, LocalEmbeddings) else "documents",
            claimed=True,
            max_batch=encoder.engine.max_batch,
        )
    name = type(index.embeddings).__name__
    return b.add(
        Op.EMBED,
        {"texts": pieces.ref},
        component=index.embeddings,
        engine=name,
        effects=Effects(Effect.EXTERNAL, "", f"{name} embeds documents"),
        kind=VALUE,
        of="call",
        claimed=True,
        foreign=True,
        kernel=partial(_embed_directly, row),
    )


def _embed_directly(row: Known, p: Primitive, args: Args, run: Execution) -> Any:
    current(run)
    sync = run.call.sync or not row.asynchronous  # as the store's own writing methods do
    return embed(p.with_(component=Direct(p.component, sync=sync)), args, run)


def _split(p: Primitive, args: Args, run: Execution) -> Work:
    current(run)
    documents, splitter = args["documents"], p.component
    if type(documents) not in (list, tuple) or not all(map(_is_plain, documents)):
        raise LeftToStock("its input is not a list of documents with plain metadata")
    documents = list(documents)

    async def start(entry: Entry) -> Any:
        entry.running()
        if run.call.sync:
            return await in_thread(lambda: list(splitter.transform_documents(documents)))
        return list(await splitter.atransform_documents(documents))

    return Work(run.work(p, Arguments(documents), start), list)


def _is_plain(document: Any) -> bool:
    return type(document) is Document and is_plain(document.metadata)


def _shadow_index(index: IndexDocuments, site: Site) -> Any:
    copy, pieces, vectors = copying.copy(index), site.part(_PIECES), site.part(_VECTORS)
    copy.__dict__["new_store"] = index.new_store  # which notes what the factory made
    if pieces.planned is not None:
        _claim_pieces(copy, index, pieces)
    if vectors.planned is index.embeddings:
        _claim_vectors(copy, index, vectors)
    return copy


def _claim_pieces(copy: Any, index: IndexDocuments, site: Site) -> None:
    def split(documents: list[Document]) -> list[Document]:
        return list(claim(site, documents, lambda: index.split(documents))[1])

    async def asplit(documents: list[Document]) -> list[Document]:
        return list((await aclaim(site, documents, lambda: index.asplit(documents)))[1])

    copy.__dict__.update(split=split, asplit=asplit)


def _claim_vectors(copy: Any, index: IndexDocuments, site: Site) -> None:
    def claiming(store: Any) -> Any:
        """Returns the store with embeddings that claim, or itself if it may not be copied."""
        row = row_of_writes(store)
        if row is None or row.embeddings(store) is not index.embeddings or row.copied(store, site.sync):
            return store
        return row.with_embeddings(store, ClaimingEmbeddings(index.embeddings, site))

    def write(store: Any, documents: list[Document]) -> None:
        index.write(claiming(store), documents)

    def awrite(store: Any, documents: list[Document]) -> Awaitable[None]:
        return index.awrite(claiming(store), documents)

    copy.__dict__.update(write=write, awrite=awrite)


def _lower_search(step: SearchIndex, value: Symbol, b: ChainBuilder) -> Symbol:
    if b.options:
        raise NotLowered("keyword arguments are bound to it")
    query, store = b.pick(value, step.query_key), b.pick(value, step.index_key)
    made_by = store.kind.removeprefix(_INDEX) if isinstance(store, Leaf) and store.kind.startswith(_INDEX) else None
    index = None if made_by is None else b.objects.get(made_by)
    if not isinstance(index, IndexDocuments):
        raise NotLowered("its index is not made by IndexDocuments in the same chain")
    query = b.whole(query)
    args = {"query": query.ref, "store": b.whole(store).ref}
    row = _row(index)
    if row is not None and row in KNOWN:
        args["vector"] = embed_early(index.embeddings, row, query, b).ref
    return b.add(
        Op.SEARCH,
        args,
        component=step,
        engine=_name(index),
        effects=Effects(Effect.READ, b.resource(index), "searches the new store"),
        kind=DOCUMENTS,
        foreign=True,
        kernel=partial(_search, SimpleNamespace(assume_pure=b.assume_pure, trusting=b.trusting)),
        assumed=b.assume_pure,
    )


def _search(trust: Any, p: Primitive, args: Args, run: Execution) -> Work:
    store, vector = args["store"], args.get("vector")
    row = known(store)
    if row is None:
        try:
            believed(store, SEARCHES, trust)
        except NotLowered as why:
            raise LeftToStock(str(why)) from None
    given = {"query": args["query"]}
    if vector is not None and row is not None and row.embeddings(store) is vector.embeddings:
        given["vector"] = vector
    return search(p.with_(component=p.component.retriever(store)), given, run)


def _shadow_search(step: SearchIndex, site: Site) -> Any:
    copy = step.model_copy()
    retriever: Callable[[Any], Any] = lambda store: shadow_vectorstore(step.retriever(store), site)  # noqa: E731
    copy.__dict__["retriever"] = retriever
    return copy


ROWS = (
    Row(
        IndexDocuments,
        (*_RUNS, *_STEPS),
        _lower_index,
        _shadow_index,
        reads=("splitter", "embeddings", "vector_store_factory", "makes"),
    ),
    Row(SearchIndex, (*_RUNS, "retriever"), _lower_search, _shadow_search, reads=("index_key", "query_key")),
)
