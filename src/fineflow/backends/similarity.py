"""Reranker on an embedding engine: the score of a pair is the cosine of its two embeddings."""

from __future__ import annotations

import math
import operator
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fineflow.ir import Op
from fineflow.protocols import BatchEngine

# An embedding changes by about 1e-7 with its batch; equal texts must get equal scores.
_DIGITS = 5
_QUERIES = 64  # cached query vectors: the documents of one query may arrive in several batches


class EmbeddingSimilarityEngine:
    """Serves RERANK on an engine that serves EMBED: items ``(query, document)`` texts, results cosines from -1 to 1.

    Each distinct text of a batch is embedded once; recent queries are cached. ``submit`` runs the embedding: None calls
    the engine directly, whose owner thread orders the calls; ``batch_queue_of(embedding).submit`` batches them with all
    other requests of the engine. The embedding engine is not closed with this one.
    """

    ops = frozenset({Op.RERANK})
    repeats = True

    def __init__(
        self,
        embedding: BatchEngine,
        *,
        name: str | None = None,
        max_batch: int | None = None,
        submit: Callable[[Op, Sequence[Any]], Awaitable[list[Any]]] | None = None,
    ) -> None:
        if Op.EMBED not in embedding.ops:
            served = ", ".join(sorted(embedding.ops))
            raise ValueError(f"expected an engine that serves 'embed', got {embedding.name!r}, which serves: {served}")
        self.name = name or "similarity"
        # The documents of one query and the query itself fill a batch of the embedding engine.
        self.max_batch = max(1, embedding.max_batch - 1) if max_batch is None else max_batch
        self.embedding = embedding
        self._queries: dict[str, list[float]] = {}  # the most recent last
        self._submit = submit or self._in_batches

    def __repr__(self) -> str:
        return f"<EmbeddingSimilarityEngine {self.name!r} on {self.embedding!r}>"

    @property
    def device(self) -> str:
        """What the embedding engine runs on; "" if it does not say."""
        return str(getattr(self.embedding, "device", ""))

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Scores a batch (``BatchEngine.execute``)."""
        if op is not Op.RERANK:
            raise ValueError(f"EmbeddingSimilarityEngine does not serve {op.value!r}; it serves: rerank")
        sides = [(("query", query), ("document", document)) for query, document in items]
        known = {("query", query): self._queries[query] for query, _ in items if query in self._queries}
        texts = list(dict.fromkeys(text for pair in sides for text in pair if text not in known))
        vectors = known | dict(zip(texts, await self._submit(Op.EMBED, texts), strict=True))
        self._keep(vectors)
        return [_cosine(vectors[query], vectors[document]) for query, document in sides]

    def _keep(self, vectors: Mapping[tuple[str, str], list[float]]) -> None:
        for (kind, text), vector in vectors.items():
            if kind == "query":
                self._queries.pop(text, None)
                self._queries[text] = vector
        while len(self._queries) > _QUERIES:
            del self._queries[next(iter(self._queries))]

    async def _in_batches(self, op: Op, items: Sequence[Any]) -> list[Any]:
        size = self.embedding.max_batch
        parts = [await self.embedding.execute(op, items[i : i + size]) for i in range(0, len(items), size)]
        return [vector for part in parts for vector in part]

    async def aclose(self) -> None:
        """Does nothing: the embedding engine is not closed."""


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    norm = math.hypot(*a) * math.hypot(*b)
    return round(sum(map(operator.mul, a, b)) / norm, _DIGITS) if norm else 0.0
