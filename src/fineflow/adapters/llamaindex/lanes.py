"""Lanes of LlamaIndex's components in timelines of stock calls, named as the primitives of plans name their engines."""

from __future__ import annotations

from typing import Any

import wrapt
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.tools import BaseTool
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from fineflow.adapters.llamaindex.models.cross_encoders import scorer_of
from fineflow.adapters.llamaindex.models.embeddings import engine_name
from fineflow.adapters.llamaindex.models.llms import lane
from fineflow.adapters.llamaindex.stores.searches import meant


def lane_of(obj: Any) -> str:
    """Returns the lane of a component; "" for other objects."""
    if isinstance(obj, LLM):
        return lane(obj)
    if isinstance(obj, BaseEmbedding):
        return engine_name(obj)
    if isinstance(obj, BaseNodePostprocessor):
        held = scorer_of(obj)
        return str(getattr(getattr(obj, "engine", None) if held is None else held.engine, "name", type(obj).__name__))
    if isinstance(obj, BaseTool):
        return str(obj.metadata.name)
    held = meant(obj)
    held = held.__wrapped__ if isinstance(held, wrapt.ObjectProxy) else held  # the shadow of a store
    return type(held).__name__ if isinstance(held, (BasePydanticVectorStore, BaseRetriever)) else ""
