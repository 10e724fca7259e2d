"""Queue and limit of the user's LlamaIndex components: stores, and retrievers."""

from __future__ import annotations

from typing import Any

import wrapt
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from fineflow.adapters.core.recognition import find
from fineflow.adapters.core.resources import stand
from fineflow.adapters.llamaindex.lowering.retrieval.retrievers import ROWS
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
