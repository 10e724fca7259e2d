"""The user's LlamaIndex components: queue and limit of stores and retrievers, and lanes in timelines of stock calls."""

from __future__ import annotations

from typing import Any

import wrapt
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.tools import BaseTool
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from fineflow.adapters.core.recognition import find
from fineflow.adapters.core.resources import stand
from fineflow.adapters.llamaindex.lowering.retrieval.retrievers import ROWS
from fineflow.adapters.llamaindex.models.cross_encoders import scorer_of
from fineflow.adapters.llamaindex.models.embeddings import engine_name
from fineflow.adapters.llamaindex.models.llms import lane
from fineflow.adapters.llamaindex.stores.searches import meant, store_standing
from fineflow.runtime.queues.component_calls import LimitedComponent


def standing(obj: Any) -> LimitedComponent:
    """Returns the queue and limit of a component, made on first use. Raises TypeError for what cannot have one."""
    if isinstance(obj, wrapt.ObjectProxy):  # an optimized one
        obj = obj.__wrapped__
    counts = meant(obj)
    if isinstance(counts, BasePydanticVectorStore):
        return store_standing(counts)
    if isinstance(counts, BaseRetriever):
        row = find(ROWS, counts)
        if row is not None and row.composite:
            raise TypeError(f"{type(counts).__name__} is taken apart into what it is made of: limit that")
        return stand(counts, lambda: LimitedComponent(type(counts).__name__))
    got = f"the class {obj.__name__}" if isinstance(obj, type) else type(obj).__name__
    raise TypeError(
        "expected a vector store, a retriever or a vector index of LlamaIndex (of an engine its retriever), "
        f"got {got}; requests to a server are limited by fineflow.engine(url, max_requests=...)"
    )


def lane_of(obj: Any) -> str:
    """Returns the lane of a component, named as the primitives of plans name their engines; "" for other objects."""
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
