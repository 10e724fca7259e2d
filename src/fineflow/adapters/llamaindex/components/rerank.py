"""LlamaIndex reranker on an engine, whose batches combine the nodes of all queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from fineflow.adapters.llamaindex.components.on_engine import OnEngine
from fineflow.ir import Op


class EngineReranker(OnEngine, BaseNodePostprocessor):
    """Keeps the ``top_n`` nodes that score highest against the query, as LlamaIndex's ``SentenceTransformerRerank``.

    Nodes get their new scores in place; with ``keep_retrieval_score`` the old one is kept as metadata. Nodes with equal
    scores keep their order. engine: serves RERANK. Its async method blocks no thread. Raises what the engine raises.
    """

    op = Op.RERANK

    top_n: int = 2
    keep_retrieval_score: bool = False

    @classmethod
    def class_name(cls) -> str:
        return "FineflowEngineReranker"

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns the scores of texts against a query, higher is better."""
        return self._queue.submit_sync(Op.RERANK, [(query, text) for text in texts], label="rerank")

    async def ascore(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns the scores of texts against a query, higher is better."""
        return await self._queue.submit_async(Op.RERANK, [(query, text) for text in texts], label="rerank")

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = _query(query_bundle)
        if not nodes:
            return []
        with self._told(nodes, query) as best:
            best += self._best(nodes, self.score(query, _texts(nodes)))
        return best

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = _query(query_bundle)
        if not nodes:
            return []
        with self._told(nodes, query) as best:
            best += self._best(nodes, await self.ascore(query, _texts(nodes)))
        return best

    @contextmanager
    def _told(self, nodes: list[NodeWithScore], query: str) -> Iterator[list[NodeWithScore]]:
        """Sends LlamaIndex's reranking event around the block, which fills the list with the best nodes."""
        best: list[NodeWithScore] = []
        payload: dict[str, Any] = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: self.engine.name,
            EventPayload.QUERY_STR: query,
            EventPayload.TOP_K: self.top_n,
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            yield best
            event.on_end(payload={EventPayload.NODES: best})

    def _best(self, nodes: list[NodeWithScore], scores: Sequence[float]) -> list[NodeWithScore]:
        for node, score in zip(nodes, scores, strict=True):
            if self.keep_retrieval_score:
                node.node.metadata["retrieval_score"] = node.score
            node.score = score
        return sorted(nodes, key=lambda node: node.score or 0.0, reverse=True)[: self.top_n]


def _query(bundle: QueryBundle | None) -> str:
    if bundle is None:
        raise ValueError("EngineReranker expects the query that the nodes were retrieved for, it got none")
    return bundle.query_str


def _texts(nodes: Sequence[NodeWithScore]) -> list[str]:
    return [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
