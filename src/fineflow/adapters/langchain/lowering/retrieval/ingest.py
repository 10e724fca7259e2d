"""Lowers writes to vector stores: a store's own ``add_documents`` (or ``add_texts``) as a step is EMBED and INGEST.

The write itself is always stock's: one call of the store's own method, when stock gets there. Written in pieces, some
documents would be visible after a failure, or to a concurrent search. The vectors run ahead, in stages, if an engine
makes them: the store's method calls its embeddings as usual, and claims the vectors that were made ahead. A search of
the same store waits for the write; other steps do not.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Sequence
from types import MethodType
from typing import Any, NamedTuple, cast

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import VectorStore

from fineflow.adapters.core.builder import VALUE, Leaf, Symbol
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import believed
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.kernels.common import LeftToStock
from fineflow.adapters.langchain.models.local import LocalEmbeddings, encoder_of
from fineflow.adapters.langchain.stores.facts import EMBEDS
from fineflow.adapters.langchain.stores.known_stores import KNOWN, Known
from fineflow.ir import Effect, Effects, Op
from fineflow.runtime.loop.workers import in_thread

STORES = (*KNOWN, Known("fineflow.testing.retrieval", "FakeVectorStore", "embedding"))
"""Stores whose writing methods call the embeddings once, for all documents, and touch nothing but the store."""
WRITES = ("add_documents", "aadd_documents", "add_texts", "aadd_texts")
_VECTORS = "vectors"


class Write(NamedTuple):
    """A step that writes to ``store``."""

    store: VectorStore
    row: Known

    def copied(self, step: RunnableLambda[Any, Any]) -> bool:
        """True if the step may use a copy of the store; otherwise changes to the store object would be lost."""
        return not any(self.row.copied(self.store, name == "func") for name in {"func", "afunc"} & vars(step).keys())

    @property
    def embeddings(self) -> Any:
        """The embeddings that the store uses."""
        return self.row.embeddings(self.store)


def write_of(step: RunnableLambda[Any, Any]) -> Write | None:
    """Returns the write that a step consists of: its function is a bound, not overridden method of a known store."""
    methods = [func for name in ("func", "afunc") if (func := step.__dict__.get(name)) is not None]
    if not methods or not all(type(method) is MethodType for method in methods):
        return None
    store: Any = methods[0].__self__
    row = row_of_writes(store)
    if row is None or not all(method.__self__ is store for method in methods):
        return None
    own = [m for method in methods for m in WRITES if method.__func__ is getattr(row.base, m)]
    return Write(cast(VectorStore, store), row) if len(own) == len(methods) else None


def row_of_writes(store: Any) -> Known | None:
    """Returns the row of a store whose writing methods are those that were read; None for any other object."""
    for row in STORES:
        base = row.base
        if base is None or not isinstance(store, base) or not row.able(store):
            continue
        called = (*WRITES, *row.inner)
        if all(getattr(type(store), m) is getattr(base, m) and m not in vars(store) for m in called):
            return row
    return None


def lower_write(step: RunnableLambda[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol | None:
    """Lowers a step that writes to EMBED and INGEST; returns None for any other step.

    Raises NotLowered if the store's embeddings are of a user's class, which may do anything.
    """
    write = write_of(step)
    if write is None or b.options or not isinstance(value, Leaf):
        return None
    given = {"documents": value.ref}
    embeddings = write.embeddings
    if embeddings is not None:
        believed(embeddings, EMBEDS, b)
    encoder = encoder_of(embeddings)
    if encoder is not None and write.copied(step):
        # Vectors of a model whose rounding depends on the batch are made as stock makes them: all in one call.
        whole = isinstance(encoder, LocalEmbeddings)
        with b.inside(_VECTORS, ""):
            b.objects[b.leaf] = embeddings
            vectors = b.add(
                Op.EMBED,
                {"texts": value.ref},
                component=encoder,
                engine=encoder.engine.name,
                kind=VALUE,
                of="call" if whole else "documents",
                claimed=True,
                max_batch=encoder.engine.max_batch,
            )
        given["vectors"] = vectors.ref
    name = type(write.store).__name__
    effects = Effects(Effect.WRITE, b.resource(write.store), f"adds documents to {name}")
    return b.add(Op.INGEST, given, component=step, engine=name, effects=effects, kind=VALUE, by_stock=True)


def shadow_write(step: RunnableLambda[Any, Any], site: Site) -> Any:
    """Builds the step on a copy of the store whose embeddings claim; None for any other step."""
    vectors, write = site.part(_VECTORS), write_of(step)
    planned = vectors.planned
    if planned is None or write is None or write.embeddings is not planned or not write.copied(step):
        return None
    store = write.row.with_embeddings(write.store, ClaimingEmbeddings(planned, vectors))
    copy = copying.copy(step)
    site.reads(write.store)
    for name in {"func", "afunc"} & step.__dict__.keys():
        setattr(copy, name, MethodType(step.__dict__[name].__func__, store))
    return copy


class ClaimingEmbeddings(Embeddings):
    """Embeddings of a store that is written to: they claim vectors that were made ahead."""

    def __init__(self, behind: Embeddings, site: Site) -> None:
        self._behind = behind
        self._site = site

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return claim(self._site, list(texts), lambda: self._behind.embed_documents(texts))[1]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        here = self._site.here
        if here is not None and not here.bridge.here:  # a store may have its own event loop, as PGVectorStore does
            return await in_thread(lambda: self.embed_documents(texts))
        own = lambda: self._behind.aembed_documents(texts)  # noqa: E731
        vectors: list[list[float]] = (await aclaim(self._site, list(texts), own))[1]
        return vectors

    def embed_query(self, text: str) -> list[float]:
        return self._behind.embed_query(text)

    async def aembed_query(self, text: str) -> list[float]:
        return await self._behind.aembed_query(text)


def texts_of(documents: Any) -> list[str]:
    """Returns the texts that a store's method will embed. Raises LeftToStock for input that can be read only once."""
    if not isinstance(documents, Sequence) or isinstance(documents, str):
        raise LeftToStock("its input is not a list")
    texts = [part.page_content if type(part) is Document else part for part in documents]
    if not all(type(text) is str for text in texts):
        raise LeftToStock("its input has items that are neither documents nor texts")
    return texts
