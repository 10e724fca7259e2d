"""The parts of an object that are called by themselves, and what of it an async call would hold the event loop with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.query_engine import RetrieverQueryEngine

from fineflow.adapters.llamaindex.ingestion.document_qa import is_document_qa, parts_of_qa
from fineflow.adapters.llamaindex.ingestion.indexing import blocking_parts, ingests
from fineflow.adapters.llamaindex.lowering.chat_engines import REMEMBERING, chat_of
from fineflow.adapters.llamaindex.lowering.postprocessors import called_in
from fineflow.adapters.llamaindex.lowering.retrievers import called_by
from fineflow.adapters.llamaindex.lowering.synthesizers import is_synthesizer
from fineflow.adapters.llamaindex.methods import as_written, blocks
from fineflow.adapters.llamaindex.models.llms import ASKING

QUERY, RETRIEVE, SYNTHESIZE = "query", "retrieve", "synthesize"
CHAT, STREAM_CHAT = "chat", "stream_chat"
METHODS = (
    *("query", "aquery", "_query", "_aquery", "retrieve", "aretrieve", "synthesize", "asynthesize"),
    *("_apply_node_postprocessors", "_async_apply_node_postprocessors"),
)
"""Those that define what a RetrieverQueryEngine does."""


def is_retriever_engine(obj: Any) -> bool:
    """Whether an object is a RetrieverQueryEngine as LlamaIndex wrote it."""
    return as_written(obj, RetrieverQueryEngine, *METHODS)


def parts_of(obj: Any, part: str) -> Iterator[Any]:
    """What may be called in a call of this part: components, and what they hold."""
    if ingests(obj):
        yield from blocking_parts(obj)
    elif is_document_qa(obj):
        yield from parts_of_qa(obj)
    elif (chat := chat_of(obj)) is not None:
        yield from (obj._llm, obj._memory)
        if chat.retrieves:
            yield from (*parts_of(obj._retriever, part), *called_in(obj._node_postprocessors))
        elif chat.condenses:
            yield from parts_of(obj._query_engine, QUERY)
    elif is_retriever_engine(obj):
        if part != SYNTHESIZE:
            yield from parts_of(obj._retriever, part)
            yield from called_in(obj._node_postprocessors)
        if part != RETRIEVE:
            yield from parts_of(obj._response_synthesizer, part)
    elif isinstance(obj, BaseRetriever):
        yield from called_by(obj)
    elif is_synthesizer(obj):
        yield from (obj, obj._llm)
    else:
        yield obj


_ASYNC = (
    "_aquery",
    "acustom_query",
    "_aretrieve",
    "_aget_query_embedding",
    "aquery",
    "_apostprocess_nodes",
    "aget_response",
    *(n for n in ASKING if n[0] == "a"),
    *REMEMBERING,
)
_TAKING_IN = ("acall", "_aparse_nodes", "_aget_text_embedding", "_aget_text_embeddings", "async_add")


def blocking(obj: Any, part: str) -> bool:
    """Whether an async call of this part would hold the event loop."""
    names = (*_ASYNC, *_TAKING_IN) if ingests(obj) else _ASYNC
    return any(blocks(type(each), name) for each in parts_of(obj, part) for name in names)
