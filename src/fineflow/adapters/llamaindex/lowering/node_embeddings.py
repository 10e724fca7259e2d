"""Retrievers that embed nodes during a search. Stock embeds one after the other; here a list is embedded concurrently.

Only stock knows which nodes these are: embedding starts when stock passes them to a method of the retriever.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from llama_index.core.indices.document_summary import DocumentSummaryIndexEmbeddingRetriever
from llama_index.core.indices.list.retrievers import SummaryIndexEmbeddingRetriever
from llama_index.core.indices.tree.select_leaf_embedding_retriever import TreeSelectLeafEmbeddingRetriever
from llama_index.core.schema import MetadataMode

from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.builder import unlowered
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import RETRIEVING, shadow_store
from fineflow.adapters.llamaindex.methods import instead, preceded
from fineflow.adapters.llamaindex.models.embeddings import begin_texts, shadow_embedding
from fineflow.adapters.llamaindex.thread_affinity import may_leave, move


def _shadow_comparing(given: str, retriever: Any, site: Site) -> Any:
    """Returns a copy of a retriever whose model claims; in async calls it does not block the event loop."""
    made = copy.copy(retriever)
    made._embed_model = shadow_embedding(retriever._embed_model, site)
    if "_vector_store" in vars(retriever):
        made._vector_store = shadow_store(retriever._vector_store, site)
    leaves = site.sync or may_leave(retriever, site.options.trusting)
    if given and leaves:
        instead(made, given, partial(preceded, then=partial(_begin, retriever._embed_model, site)))
    if leaves and not site.sync:
        move(made, "_aretrieve")
    return made


def _begin(model: Any, site: Site, query_bundle: Any, nodes: Any) -> None:
    if all(type(node).__module__.startswith("llama_index.") for node in nodes):
        missing = [node for node in nodes if node.embedding is None]
        begin_texts(model, [node.get_content(metadata_mode=MetadataMode.EMBED) for node in missing], site)


def _comparing(base: type, methods: tuple[str, ...], given: str = "") -> Row:
    """Returns the row of such a retriever. given: the method that gets the query and the nodes to embed."""
    return Row(
        base,
        methods,
        unlowered("texts of nodes are embedded concurrently, when stock gets to them"),
        partial(_shadow_comparing, given),
        components=lambda retriever: (retriever,),
        composite=True,
    )


ROWS = (
    _comparing(SummaryIndexEmbeddingRetriever, (*RETRIEVING, "_get_embeddings"), "_get_embeddings"),
    _comparing(
        TreeSelectLeafEmbeddingRetriever,
        (
            *(*RETRIEVING, "_retrieve_level", "_select_nodes", "_get_most_similar_nodes"),
            "_get_query_text_embedding_similarities",
        ),
        "_get_query_text_embedding_similarities",
    ),
    _comparing(DocumentSummaryIndexEmbeddingRetriever, RETRIEVING),
)
