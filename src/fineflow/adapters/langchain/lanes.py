"""Lanes of LangChain's components in timelines of stock calls, named as the primitives of plans name their engines."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import BaseDocumentCompressor
from langchain_core.language_models import BaseLanguageModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool
from langchain_core.vectorstores import VectorStore

from fineflow.adapters.langchain.lowering.retrieval.compressors import scorer_of
from fineflow.adapters.langchain.models.servers import lane
from fineflow.adapters.langchain.resources import meant, shown


def lane_of(obj: Any) -> str:
    """Returns the lane of a component, "" for other objects. A retriever that compresses has that of its compressor."""
    obj = getattr(obj, "base_compressor", obj)
    if isinstance(obj, BaseLanguageModel):
        return _engine(obj) or lane(obj, {})
    if isinstance(obj, BaseDocumentCompressor):
        return _engine(scorer_of(obj)) or shown(obj)
    return shown(obj) if isinstance(meant(obj), (VectorStore, BaseRetriever, BaseTool)) else ""


def _engine(holder: Any) -> str:
    name = getattr(getattr(holder, "engine", None), "name", "")
    return name if isinstance(name, str) else ""
