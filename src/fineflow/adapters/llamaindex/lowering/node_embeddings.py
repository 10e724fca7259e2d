"""Retrievers that embed nodes while they search. Stock embeds one after the other; here those of a list side by side.

Which nodes these are, stock finds out. It hands them to one method of the retriever, and only then are they begun with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llama_index.core.indices.document_summary import DocumentSummaryIndexEmbeddingRetriever
from llama_index.core.indices.list.retrievers import SummaryIndexEmbeddingRetriever
from llama_index.core.indices.tree.select_leaf_embedding_retriever import TreeSelectLeafEmbeddingRetriever
from llama_index.core.schema import MetadataMode

from fineflow.adapters.llamaindex.lowering.context import Place
from fineflow.adapters.llamaindex.lowering.vector_search import RETRIEVING, shadow_store
from fineflow.adapters.llamaindex.methods import as_written, method, move
from fineflow.adapters.llamaindex.models.embeddings import begin_texts, shadow_embedding


@dataclass(frozen=True, slots=True)
class Comparing:
    """A class by its methods. given: the one among them that is handed the query and the nodes to embed."""

    base: type
    methods: tuple[str, ...]
    given: str = ""


COMPARING = (
    Comparing(SummaryIndexEmbeddingRetriever, (*RETRIEVING, "_get_embeddings"), "_get_embeddings"),
    Comparing(
        TreeSelectLeafEmbeddingRetriever,
        (
            *(*RETRIEVING, "_retrieve_level", "_select_nodes", "_get_most_similar_nodes"),
            "_get_query_text_embedding_similarities",
        ),
        "_get_query_text_embedding_similarities",
    ),
    Comparing(DocumentSummaryIndexEmbeddingRetriever, RETRIEVING),
)


def comparing_of(retriever: Any) -> Comparing | None:
    """How a retriever is recognised as one of these, if it is."""
    for row in COMPARING:
        if isinstance(retriever, row.base):
            return row if as_written(retriever, row.base, *row.methods) else None
    return None


def shadow_comparing(retriever: Any, row: Comparing, place: Place) -> Any:
    """A copy of a retriever whose model claims; in async calls it does not block the event loop."""
    made = copy.copy(retriever)
    made._embed_model = shadow_embedding(retriever._embed_model, place)
    if "_vector_store" in vars(retriever):
        made._vector_store = shadow_store(retriever._vector_store, place)
    if row.given:
        found = method(type(retriever), row.given)
        assert found is not None
        made.__dict__[row.given] = found.around(made, _given(made, found.function, retriever._embed_model, place))
    if not place.sync:
        move(made, "_aretrieve")
    return made


def _given(made: Any, own: Callable[..., Any], model: Any, place: Place) -> Callable[..., Any]:
    def compare(_: Any, query_bundle: Any, nodes: Any) -> Any:
        if all(type(node).__module__.startswith("llama_index.") for node in nodes):
            missing = [node for node in nodes if node.embedding is None]
            begin_texts(model, [node.get_content(metadata_mode=MetadataMode.EMBED) for node in missing], place)
        return own(made, query_bundle, nodes)

    return compare
