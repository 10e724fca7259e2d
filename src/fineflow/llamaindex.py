"""LlamaIndex components on engines in this process: ``from fineflow.llamaindex import EngineLLM, EngineEmbedding``.

They are ordinary components of LlamaIndex; the engines come from ``fineflow.engines``, and components of
``fineflow.langchain`` in the same process may share them. Without LlamaIndex, a name raises an ImportError that says
what to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fineflow._lazy import Lazy, lazily

if TYPE_CHECKING:
    from fineflow.adapters.llamaindex.components.document_qa import DocumentQA
    from fineflow.adapters.llamaindex.components.embedding import EngineEmbedding
    from fineflow.adapters.llamaindex.components.llm import EngineLLM
    from fineflow.adapters.llamaindex.components.rerank import EngineReranker
    from fineflow.adapters.llamaindex.models.local import local_engine
    from fineflow.watching.llamaindex import FineflowSpanHandler

__all__ = ["DocumentQA", "EngineEmbedding", "EngineLLM", "EngineReranker", "FineflowSpanHandler", "local_engine"]

_HERE, _EXTRA, _NEEDS = "fineflow.adapters.llamaindex", "llama-index", ("llama_index",)

__getattr__, __dir__ = lazily(
    __name__,
    {
        "DocumentQA": Lazy(f"{_HERE}.components.document_qa", _EXTRA, _NEEDS),
        "EngineEmbedding": Lazy(f"{_HERE}.components.embedding", _EXTRA, _NEEDS),
        "EngineLLM": Lazy(f"{_HERE}.components.llm", _EXTRA, _NEEDS),
        "EngineReranker": Lazy(f"{_HERE}.components.rerank", _EXTRA, _NEEDS),
        "local_engine": Lazy(f"{_HERE}.models.local", _EXTRA, _NEEDS),
        "FineflowSpanHandler": Lazy("fineflow.watching.llamaindex", _EXTRA, _NEEDS),
    },
)
