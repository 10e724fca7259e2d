"""Writes of LangChain's stores in a session: the ids are returned, and the vectors are written meanwhile.

The innermost method that embeds and writes gets a wrapper, once per process, so ``from_documents``, ``add_documents``
and a ``VectorStoreRetriever``'s ``add_documents`` all reach it. Outside of a session it reads one context variable and
calls the method. What was given is copied as stock would have read it, and ids are made as stock makes them. An async
write runs on an event loop of its own, so that code on the caller's loop may wait for it.

Read: langchain-core 1.7.2 (InMemoryVectorStore), langchain-chroma 1.1.0.
"""

from __future__ import annotations

import asyncio
import copy
import sys
import uuid
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from fineflow.adapters.core.deferred import session_here
from fineflow.adapters.core.installers import foreign, if_imported
from fineflow.adapters.core.trust import same_method
from fineflow.adapters.core.unfinished import Unfinished
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.declare import declared_external

_WRAPPED = "_fineflow_deferred"
_ALONE = 2  # references to what only its owner holds: the owner's, and the argument of ``getrefcount``
_FREE = ("as_retriever", "_get_retriever_tags", "embeddings")


class Given(NamedTuple):
    """Arguments of a write, copied, and the ids that it returns."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ids: list[str]


class _Write(NamedTuple):
    """The innermost write of a store class. attribute: holds its embeddings. given: copies the arguments; None if what
    was passed is not what is expected, and stock may say so. contents: attribute of the dict that it writes to.
    """

    module: str
    name: str
    method: str
    attribute: str
    given: Callable[..., Given | None]
    contents: str = ""


def _memory(documents: Any, ids: Any = None, **kwargs: Any) -> Given | None:
    if type(documents) is not list or not all(isinstance(each, Document) for each in documents):
        return None
    if ids and (type(ids) is not list or len(ids) != len(documents)):
        return None
    known = ids or [each.id for each in documents]
    made = [each or str(uuid.uuid4()) for each in known]
    return Given(([each.model_copy() for each in documents],), {**kwargs, "ids": made}, made)


def _chroma(texts: Any, metadatas: Any = None, ids: Any = None, **kwargs: Any) -> Given | None:
    if type(texts) is not list or type(metadatas) not in (list, type(None)):
        return None
    if ids is not None and (type(ids) is not list or len(ids) != len(texts)):
        return None
    made = [str(uuid.uuid4()) if each is None else each for each in ids or [None] * len(texts)]
    return Given((list(texts), copy.deepcopy(metadatas)), {**kwargs, "ids": list(made)}, made)


_MEMORY = ("langchain_core.vectorstores.in_memory", "InMemoryVectorStore")
_WRITES = (
    _Write(*_MEMORY, "add_documents", "embedding", _memory, "store"),
    _Write(*_MEMORY, "aadd_documents", "embedding", _memory, "store"),
    _Write("langchain_chroma.vectorstores", "Chroma", "add_texts", "_embedding_function", _chroma),
)


def defer_writes() -> None:
    """Lets sessions defer the writes of stores whose modules are imported."""
    for each in _WRITES:
        kind = if_imported(each.module, each.name)
        own = vars(kind).get(each.method) if isinstance(kind, type) else None
        if callable(own) and not hasattr(own, _WRAPPED):
            made = _deferring(kind, own, each)
            setattr(made, _WRAPPED, True)
            setattr(kind, each.method, made)


def _deferring(kind: Any, own: Callable[..., Any], row: _Write) -> Callable[..., Any]:
    @wraps(own)
    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        ids = _deferred(kind, row, self, args, kwargs, own)
        return own(self, *args, **kwargs) if ids is None else ids

    @wraps(own)
    async def awrite(self: Any, *args: Any, **kwargs: Any) -> Any:
        ids = None
        if _on_any_loop(vars(self).get(row.attribute)):
            ids = _deferred(kind, row, self, args, kwargs, lambda *given, **named: asyncio.run(own(*given, **named)))
        return await own(self, *args, **kwargs) if ids is None else ids

    return awrite if iscoroutinefunction(own) else write


def _deferred(
    kind: Any, row: _Write, store: Any, args: tuple[Any, ...], kwargs: dict[str, Any], write: Callable[..., Any]
) -> list[str] | None:
    """Starts a write in a thread of its own and returns its ids; None if stock has to do it now."""
    writes = session_here()
    if writes is None or type(store) is not kind or not _trusted(vars(store).get(row.attribute)):
        return None
    if row.contents and sys.getrefcount(vars(store).get(row.contents)) > _ALONE:
        return None  # somebody else has it, and would read it past the store
    try:
        given = row.given(*args, **kwargs)
    except Exception:  # arguments that cannot be copied, or that stock refuses
        return None
    started = Unfinished(f"writing to {kind.__name__}")
    if given is None or not started.close(store, free=_FREE):
        return None
    writes.add(started)
    started.start(lambda: write(store, *given.args, **given.kwargs))
    return list(given.ids)


def _trusted(embeddings: Any) -> bool:
    """Returns True for embeddings of a package, or declared @external: user code is called when stock calls it."""
    classes = type(embeddings).__mro__
    return isinstance(embeddings, Embeddings) and all(foreign(each) or declared_external(each) for each in classes)


def _on_any_loop(embeddings: Any) -> bool:
    """Returns True for embeddings that have no client of the caller's event loop."""
    if not isinstance(embeddings, Embeddings):
        return False
    return type(embeddings) is EngineEmbeddings or same_method(type(embeddings), Embeddings, "aembed_documents")
