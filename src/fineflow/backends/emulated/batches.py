"""Emulated embedding models and rerankers."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections.abc import Sequence
from operator import mul
from typing import Any, ClassVar

from fineflow.backends.emulated.cores import SharedCores
from fineflow.backends.emulated.profiles import CROSS_ENCODER, EMBEDDER, STORE, BatchProfile
from fineflow.ir import Op


class _EmulatedBatches:
    """Base of the emulated batch engines. cores: the processor that it shares with other engines, if any."""

    ops: ClassVar[frozenset[Op]]

    def __init__(self, profile: BatchProfile, name: str, cores: SharedCores | None = None) -> None:
        self.profile = profile
        self.device = cores.device if cores is not None else ""
        self._work = cores.work if cores is not None else asyncio.sleep
        self.name = name
        self.max_batch = profile.max_batch
        self.batches: list[int] = []  # sizes, in order

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Runs a batch (``BatchEngine.execute``)."""
        if op not in self.ops:
            raise ValueError(f"{self.name!r} does not serve {op.value!r}; it serves: {', '.join(sorted(self.ops))}")
        self.batches.append(len(items))
        await self._work(self.profile.seconds(len(items)))
        return [self.compute(item) for item in items]

    def compute(self, item: Any) -> Any:
        """Returns the result of one item."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Does nothing: there is nothing to free."""


class EmulatedEmbedding(_EmulatedBatches):
    """Serves EMBED: ``word_vector`` of each text."""

    ops = frozenset({Op.EMBED})

    def __init__(
        self,
        profile: BatchProfile = EMBEDDER,
        *,
        name: str = "emulated-embedding",
        dimensions: int = 32,
        cores: SharedCores | None = None,
    ) -> None:
        super().__init__(profile, name, cores)
        self.dimensions = dimensions

    def compute(self, item: tuple[str, str]) -> list[float]:
        return word_vector(item[1], self.dimensions)


class EmulatedReranker(_EmulatedBatches):
    """Serves RERANK: ``overlap`` of each pair of query and document."""

    ops = frozenset({Op.RERANK})
    repeats = True

    def __init__(
        self,
        profile: BatchProfile = CROSS_ENCODER,
        *,
        name: str = "emulated-reranker",
        cores: SharedCores | None = None,
    ) -> None:
        super().__init__(profile, name, cores)

    def compute(self, item: tuple[str, str]) -> float:
        return overlap(*item)


class EmulatedSearch(_EmulatedBatches):
    """Serves SEARCH as a vector store does.

    rows: pairs of a vector and a value. Items: ``(vector, k)``; results: lists of at most ``k`` values, highest dot
    product first, ties in the order of the rows.
    """

    ops = frozenset({Op.SEARCH})

    def __init__(
        self,
        rows: Sequence[tuple[Sequence[float], Any]],
        profile: BatchProfile = STORE,
        *,
        name: str = "emulated-search",
        cores: SharedCores | None = None,
    ) -> None:
        super().__init__(profile, name, cores)
        self.rows = list(rows)

    def compute(self, item: tuple[Sequence[float], int]) -> list[Any]:
        vector, k = item
        near = sorted(self.rows, key=lambda row: math.fsum(map(mul, row[0], vector)), reverse=True)
        return [found for _, found in near[:k]]


def word_vector(text: str, dimensions: int = 32) -> list[float]:
    """Returns a unit vector: the sum of hash vectors of the words. Texts that share words are close to each other.

    A text without words counts as one word.
    """
    total = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()) or [text]:
        digest = hashlib.shake_128(word.encode()).digest(dimensions)
        total = [t + byte / 127.5 - 1.0 for t, byte in zip(total, digest, strict=True)]
    norm = math.sqrt(math.fsum(t * t for t in total))
    return [t / norm for t in total]


def overlap(query: str, text: str) -> float:
    """Returns the share of the query's words that the text contains, between 0 and 1."""
    words = set(re.findall(r"\w+", query.lower()))
    return len(words & set(re.findall(r"\w+", text.lower()))) / len(words) if words else 0.0
