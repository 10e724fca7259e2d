"""Topology-aware batching of whole queries (Ayo, Figure 7), with an engine whose batches end when the test says so."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from graphs import KERNELS, graph, step

from fineflow.ir import Graph, Op
from fineflow.ir.spec import longest_paths
from fineflow.runtime.call.executor import Call, Execution
from fineflow.runtime.queues.batch_queue import BatchQueue
from fineflow.runtime.queues.policy import Policy, by_depth, fifo
from fineflow.testing import virtual


class Gated:
    """Room for two; a batch ends at the next ``tick``, and so does what other engines are at."""

    name = "llm"
    ops = frozenset({Op.EMBED})
    max_batch = 2

    def __init__(self) -> None:
        self.batches: list[str] = []
        self.ticks = 0
        self._at_work: list[asyncio.Future[None]] = []

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        self.batches.append("".join(items))
        await self.elsewhere()
        return list(items)

    async def elsewhere(self) -> None:
        self._at_work.append(asyncio.get_running_loop().create_future())
        await self._at_work[-1]

    async def tick(self) -> None:
        self.ticks += 1
        at_work, self._at_work = self._at_work, []
        for work in at_work:
            work.set_result(None)
        await turns()

    async def aclose(self) -> None: ...


async def turns() -> None:
    """Lets everything that can run on this loop run."""
    for _ in range(60):
        await asyncio.sleep(0)


def query(engine: Gated, queue: BatchQueue, names: str) -> Graph:
    """Of the names ABDE: D needs A, then comes a step elsewhere; E needs that and B."""
    a, b, d, e = names

    def asks(name: str) -> Any:
        return lambda *_: queue.submit(Op.EMBED, [name])

    made = graph(
        step(a, "input", does=asks(a)),
        step(b, "input", does=asks(b)),
        step(d, a, does=asks(d)),
        step("elsewhere", d, does=lambda _: engine.elsewhere()),
        step(e, "elsewhere", b, does=asks(e)),
    )
    depths = longest_paths(made)
    return made.with_primitives(p.with_(depth=depths[p.name]) for p in made)


async def both(policy: Policy) -> tuple[list[str], dict[str, int]]:
    """The batches of two queries that begin together, and after how many ticks each has ended."""
    engine = Gated()
    queue = BatchQueue(engine, policy)
    ended: dict[str, int] = {}
    calls = []

    def finished(names: str, value: Any) -> None:
        ended[names] = engine.ticks

    for names in ("ABDE", "GHJK"):
        call = Call(
            asyncio.get_running_loop(),
            KERNELS,
            entry="ainvoke",
            sync=False,
            context=contextvars.copy_context(),
            label=names,
        )
        calls.append(call)
        Execution(query(engine, queue, names), call, {"input": None}, partial(finished, names)).start()
    await turns()
    for _ in range(8):
        await engine.tick()
    for call in calls:
        await call.aclose()
    return engine.batches, ended


@pytest.mark.parametrize(
    ("policy", "batches", "ticks"),
    [(by_depth, ["AG", "DJ", "BH", "EK"], 4), (fifo, ["AB", "GH", "DJ", "EK"], 5)],
)
def test_depth_aware_batching_finishes_both_queries_sooner(policy: Policy, batches: list[str], ticks: int) -> None:
    found, ended = virtual.run(both(policy)).value
    assert found == batches
    assert ended == {"ABDE": ticks, "GHJK": ticks}
