"""Which texts a call embeds, each by itself: of embeddings on an engine, and of stores that embed all that they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.lowering.retrieval.ingest import STORES, WRITES, row_of_writes

_EMBEDDING = ("embed_documents", "aembed_documents")
_MAKING = ("from_documents", "afrom_documents", "from_texts", "afrom_texts")


def embedded(obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, list[str]] | None:
    """Returns the embeddings that a call of ``obj.name`` uses, and those texts that are known by now.

    None for calls of which this is not known. Of arguments, elements of a list may be unknown.
    """
    given = list(args)
    embeddings: Any
    if type(obj) is EngineEmbeddings and name in _EMBEDDING:
        embeddings = obj
    elif name in _MAKING and isinstance(obj, type) and _makes(obj, name):
        embeddings = given[1] if len(given) > 1 else named.get("embedding")
    elif name in WRITES and isinstance(obj, VectorStore) and (row := row_of_writes(obj)) is not None:
        embeddings = row.embeddings(obj)
    else:
        return None
    if type(embeddings) is not EngineEmbeddings:
        return None
    texts = given[0] if given else named.get("texts", named.get("documents"))
    if type(texts) not in (list, tuple):
        return None
    found = [each.page_content if type(each) is Document else each for each in texts]
    return embeddings, [text for text in found if type(text) is str]


def _makes(kind: type, name: str) -> bool:
    """Returns True if a class makes a store in the way of a known one."""
    for row in STORES:
        base: Any = row.base
        if base is not None and issubclass(kind, base):
            called = (name, "from_texts", "afrom_texts", "from_documents", "afrom_documents", *WRITES, *row.inner)
            return all(_same(kind, base, each) for each in called)
    return False


def _same(kind: Any, base: Any, name: str) -> bool:
    found, expected = getattr(kind, name, None), getattr(base, name, None)
    return getattr(found, "__func__", found) is getattr(expected, "__func__", expected)
