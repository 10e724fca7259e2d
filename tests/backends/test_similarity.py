"""Reranking by the similarity of embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fineflow.backends.similarity import EmbeddingSimilarityEngine
from fineflow.ir import Op
from fineflow.protocols import BatchEngine

VECTORS = {
    "east": [2.0, 0.0],
    "north": [0.0, 3.0],
    "north-east": [1.0, 1.0],
    "west": [-1.0, 0.0],
    "nowhere": [0.0, 0.0],
}


class TableEngine:
    """Looks its vectors up; queries point the same way as documents but are longer."""

    name = "table"
    max_batch = 3

    def __init__(self, ops: frozenset[Op] = frozenset({Op.EMBED})) -> None:
        self.ops = ops
        self.batches: list[list[Any]] = []

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        self.batches.append(list(items))
        return [[x * (5 if kind == "query" else 1) for x in VECTORS[text]] for kind, text in items]

    async def aclose(self) -> None:
        raise AssertionError("the embedding engine belongs to somebody else")


def rerank(engine: BatchEngine, *pairs: tuple[str, str]) -> list[Any]:
    return asyncio.run(engine.execute(Op.RERANK, pairs))


def test_scores_are_cosines() -> None:
    engine = EmbeddingSimilarityEngine(TableEngine())
    found = rerank(engine, *(("east", text) for text in VECTORS))
    assert found == [1.0, 0.0, pytest.approx(0.5**0.5, abs=1e-5), -1.0, 0.0]


def test_each_distinct_text_is_embedded_once_and_in_bounded_batches() -> None:
    table = TableEngine()
    engine = EmbeddingSimilarityEngine(table)
    rerank(engine, ("east", "north"), ("east", "west"), ("east", "north"), ("north", "east"))
    assert table.batches == [
        [("query", "east"), ("document", "north"), ("document", "west")],
        [("query", "north"), ("document", "east")],
    ]


def test_the_noise_of_batches_does_not_tell_equal_documents_apart() -> None:
    class Noisy(TableEngine):
        async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
            noise = 1e-7 * len(self.batches)
            return [[x + noise for x in vector] for vector in await super().execute(op, items)]

    engine = EmbeddingSimilarityEngine(Noisy())
    assert rerank(engine, ("east", "north-east")) == rerank(engine, ("east", "north-east"))


def test_embedding_can_go_through_a_queue() -> None:
    table = TableEngine()
    asked: list[Op] = []

    async def submit(op: Op, items: Sequence[Any]) -> list[Any]:
        asked.append(op)
        return await table.execute(op, items)

    assert rerank(EmbeddingSimilarityEngine(table, submit=submit), ("east", "west")) == [-1.0]
    assert asked == [Op.EMBED]


def test_its_batch_and_the_query_fill_one_of_the_embedding_engine_which_it_leaves_open() -> None:
    engine = EmbeddingSimilarityEngine(TableEngine())
    assert isinstance(engine, BatchEngine)
    assert (engine.name, engine.max_batch, engine.ops) == ("similarity", 2, frozenset({Op.RERANK}))
    assert EmbeddingSimilarityEngine(TableEngine(), name="other", max_batch=7).max_batch == 7
    asyncio.run(engine.aclose())


def test_bad_use_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match="expected an engine that serves 'embed', got 'table', which serves: search"):
        EmbeddingSimilarityEngine(TableEngine(frozenset({Op.SEARCH})))
    with pytest.raises(ValueError, match="it serves: rerank"):
        asyncio.run(EmbeddingSimilarityEngine(TableEngine()).execute(Op.EMBED, [("query", "east")]))
