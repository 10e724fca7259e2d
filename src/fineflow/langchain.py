"""LangChain components of fineflow: ``from fineflow.langchain import ChatEngine, EngineEmbeddings``.

They are ordinary components of LangChain; the engines come from ``fineflow.engines``. Without LangChain, a name raises
an ImportError that says what to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fineflow._lazy import Lazy, lazily

if TYPE_CHECKING:
    from fineflow.adapters.langchain.components.chat import ChatEngine
    from fineflow.adapters.langchain.components.completion import EngineLLM
    from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
    from fineflow.adapters.langchain.components.indexing import IndexDocuments, SearchIndex
    from fineflow.adapters.langchain.components.rerank import EngineCrossEncoder, EngineReranker
    from fineflow.adapters.langchain.models.local import local_engine
    from fineflow.watching.langchain import AsyncFineflowCallbackHandler, FineflowCallbackHandler

__all__ = [
    "AsyncFineflowCallbackHandler",
    "ChatEngine",
    "EngineCrossEncoder",
    "EngineEmbeddings",
    "EngineLLM",
    "EngineReranker",
    "FineflowCallbackHandler",
    "IndexDocuments",
    "SearchIndex",
    "local_engine",
]

_HERE, _EXTRA, _NEEDS = "fineflow.adapters.langchain", "langchain", ("langchain_core",)

__getattr__, __dir__ = lazily(
    __name__,
    {
        "ChatEngine": Lazy(f"{_HERE}.components.chat", _EXTRA, _NEEDS),
        "EngineCrossEncoder": Lazy(f"{_HERE}.components.rerank", _EXTRA, _NEEDS),
        "EngineEmbeddings": Lazy(f"{_HERE}.components.embeddings", _EXTRA, _NEEDS),
        "EngineLLM": Lazy(f"{_HERE}.components.completion", _EXTRA, _NEEDS),
        "EngineReranker": Lazy(f"{_HERE}.components.rerank", _EXTRA, _NEEDS),
        "IndexDocuments": Lazy(f"{_HERE}.components.indexing", _EXTRA, _NEEDS),
        "SearchIndex": Lazy(f"{_HERE}.components.indexing", _EXTRA, _NEEDS),
        "local_engine": Lazy(f"{_HERE}.models.local", _EXTRA, _NEEDS),
        "AsyncFineflowCallbackHandler": Lazy("fineflow.watching.langchain", _EXTRA, _NEEDS),
        "FineflowCallbackHandler": Lazy("fineflow.watching.langchain", _EXTRA, _NEEDS),
    },
)
