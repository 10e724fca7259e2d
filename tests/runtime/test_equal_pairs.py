"""Equal pairs of one request to a reranker are scored once, where its engine says that they get equal scores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from fineflow.engines import EmulatedReranker, instances
from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.langchain import EngineCrossEncoder, EngineReranker
from fineflow.runtime.loop.submission import run_sync
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of
from fineflow.testing.differential import assert_same

PAIRS = [("bridge", "the old bridge"), ("bridge", "the mill"), ("bridge", "the old bridge"), ("mill", "the old bridge")]
DISTINCT = [("bridge", "the old bridge"), ("bridge", "the mill"), ("mill", "the old bridge")]


class Counting(EmulatedReranker):
    """Keeps the items of each batch, and numbers its scores, so that each item has its own."""

    def __init__(self, *, repeats: bool = True, fails: bool = False) -> None:
        super().__init__()
        self.ops = frozenset({Op.RERANK, Op.EMBED})  # type: ignore[misc]
        self.repeats, self.fails = repeats, fails
        self.seen: list[Any] = []

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        if self.fails:
            raise BackendError("no scores today")
        self.seen += items
        await asyncio.sleep(0)
        return [float(len(self.seen) - len(items) + i) for i in range(len(items))]


def scores(engine: Counting, pairs: Sequence[Any], op: Op = Op.RERANK) -> list[Any]:
    return run_sync(lambda: BatchQueue(engine).submit(op, pairs))


def test_each_pair_gets_the_score_of_its_equal() -> None:
    engine = Counting()
    assert scores(engine, PAIRS) == [0.0, 1.0, 0.0, 2.0]
    assert engine.seen == DISTINCT


@pytest.mark.parametrize(
    ("engine", "op", "pairs"),
    [
        (Counting(repeats=False), Op.RERANK, PAIRS),  # it may sample, or not say
        (Counting(), Op.EMBED, PAIRS),  # vectors are lists, which a caller may change
        (Counting(), Op.RERANK, list(map(list, PAIRS))),  # lists have no hash
        (Counting(), Op.RERANK, DISTINCT),
    ],
)
def test_otherwise_all_are_scored(engine: Counting, op: Op, pairs: Sequence[Any]) -> None:
    assert scores(engine, pairs, op) == [float(i) for i in range(len(pairs))]
    assert engine.seen == pairs


def test_two_requests_share_nothing() -> None:
    engine = Counting()

    async def both() -> list[Any]:
        queue = BatchQueue(engine)
        return await asyncio.gather(queue.submit(Op.RERANK, PAIRS[:2]), queue.submit(Op.RERANK, PAIRS[:2]))

    assert run_sync(both) == [[0.0, 1.0], [2.0, 3.0]]


def test_an_exception_reaches_the_request() -> None:
    with pytest.raises(BackendError, match="no scores today"):
        scores(Counting(fails=True), PAIRS)


@pytest.mark.parametrize("repeats", [True, False])
def test_a_group_scores_once_if_all_of_its_instances_do(repeats: bool) -> None:
    one, other = Counting(), Counting(repeats=repeats)
    run_sync(lambda: batch_queue_of(instances([one, other])).submit(Op.RERANK, PAIRS))
    assert len(one.seen) + len(other.seen) == (3 if repeats else 4)


def test_a_cross_encoder_returns_a_score_for_each_pair() -> None:
    engine = EmulatedReranker()
    assert EngineCrossEncoder(engine).score(PAIRS) == [1.0, 0.0, 1.0, 0.0]
    assert engine.batches == [3]


def test_documents_that_several_searches_found_stay_several() -> None:
    """The best documents are those of an engine that scores each, duplicates included."""

    def chain(engine: Any) -> Any:
        reranker = EngineReranker(engine=engine, top_n=3)

        def rerank(x: dict[str, Any]) -> Any:
            return reranker.compress_documents(x["found"], x["question"])

        async def arerank(x: dict[str, Any]) -> Any:
            return await reranker.acompress_documents(x["found"], x["question"])

        def found(x: dict[str, Any]) -> list[Document]:
            return [Document(text, metadata={"search": i}) for i in range(2) for _, text in PAIRS]

        return RunnablePassthrough.assign(found=found) | RunnableLambda(rerank, afunc=arerank)

    def every() -> EmulatedReranker:
        made = EmulatedReranker()
        made.repeats = False  # type: ignore[misc]
        return made

    asked = {"question": "old bridge"}
    assert chain(EmulatedReranker()).invoke(asked) == chain(every()).invoke(asked)
    assert_same(lambda: chain(EmulatedReranker()), asked)
