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
        return _engine(obj) or lane(_own(obj), {})
    if isinstance(obj, BaseDocumentCompressor):
        return _engine(scorer_of(obj)) or shown(obj)
    return shown(obj) if isinstance(meant(obj), (VectorStore, BaseRetriever, BaseTool)) else ""


def _own(model: Any) -> Any:
    """Returns a model as the user made it, if it is the shadow of one: methods of its own tell them apart."""
    methods = [name for name, value in vars(model).items() if callable(value) and hasattr(type(model), name)]
    if not methods:
        return model
    made = model.model_copy()
    for name in methods:
        made.__dict__.pop(name, None)
    return made


def _engine(holder: Any) -> str:
    name = getattr(getattr(holder, "engine", None), "name", "")
    return name if isinstance(name, str) else ""
