"""The next request of a query that has just ended one gets into the next batch, also if it comes a moment later."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from fineflow.engines import EmulatedEmbedding
from fineflow.ir import Op
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.batch_queue import BatchQueue
from fineflow.runtime.queues.policy import Policy, by_start, fifo
from fineflow.testing import virtual

BATCH = 0.45  # seconds of 16 texts
NAMES = itertools.count()


async def ask(queue: BatchQueue, query: str, began: float, items: int, depth: int = 3) -> None:
    request_context.query.set(query)
    request_context.started.set(began)
    request_context.depth.set(depth)
    await queue.submit(Op.EMBED, [("query", f"{query} {i}") for i in range(items)])


def second_ends(*, pause: float, depth: int = 3, policy: Policy = by_start, others: float = 1.0) -> float:
    """Returns when the second request of a query has ended, which it makes ``pause`` seconds after its first one.

    64 items of another query, which began at ``others``, wait meanwhile. depth: of the first request.
    """

    async def two(queue: BatchQueue) -> float:
        await ask(queue, "two", 0.5, 16, depth)
        await asyncio.sleep(pause)
        await ask(queue, "two", 0.5, 16)
        return asyncio.get_running_loop().time()

    async def main() -> float:
        engine: Any = EmulatedEmbedding(name=f"next-{next(NAMES)}")
        queue = BatchQueue(engine, policy)
        task = asyncio.create_task(two(queue))
        await asyncio.sleep(0.1)
        bulk = asyncio.create_task(ask(queue, "others", others, 64))
        ended = await task
        await bulk
        return ended

    return virtual.run(main()).value


def test_it_goes_first_also_a_moment_later() -> None:
    assert second_ends(pause=0.0005) == pytest.approx(2 * BATCH, abs=0.005)


@pytest.mark.parametrize(
    "given",
    [
        {"pause": 0.01},  # the engine waits 1 ms at most
        {"pause": 0.0005, "depth": 1},  # the query has no next request
        {"pause": 0.0005, "policy": fifo},
    ],
)
def test_otherwise_the_engine_goes_on_at_once(given: dict[str, object]) -> None:
    assert second_ends(**given) >= 3 * BATCH  # type: ignore[arg-type]


def test_it_does_not_hold_up_older_queries() -> None:
    ended = second_ends(pause=0.0005, others=0.0)
    assert ended == pytest.approx(6 * BATCH + 0.001, abs=1e-6)  # one wait: for these, when they have ended


def test_an_idle_engine_begins_at_once() -> None:
    async def main() -> float:
        engine: Any = EmulatedEmbedding(name=f"next-{next(NAMES)}")
        queue = BatchQueue(engine)
        await asyncio.create_task(ask(queue, "one", 0.0, 16))
        await asyncio.sleep(1.0)
        await asyncio.create_task(ask(queue, "other", 1.0, 16))
        return asyncio.get_running_loop().time()

    assert virtual.run(main()).value == pytest.approx(1.0 + 2 * BATCH, abs=1e-6)
