"""Short batches: the last items of a query do not wait for many items of later ones."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from fineflow.cost_model.costs import costs
from fineflow.cost_model.lines import Line
from fineflow.engines import EmulatedEmbedding, instances
from fineflow.ir import Op
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.batch_queue import BatchQueue
from fineflow.runtime.queues.policy import Policy, Take, Waiting, by_start, fifo
from fineflow.runtime.queues.short_batches import shortened
from fineflow.testing import virtual

LINE = Line(0.05, 0.025)  # of the emulated embedder, which takes 16 texts at once
NAMES = itertools.count()  # of engines: costs are remembered by them
Ask = tuple[str, float, int]
"""Request: its query, the time at which it comes and that query began, and its items."""


def asked(number: int, query: str, items: int) -> Waiting:
    return Waiting(number, query, 1, Op.EMBED, items, started=float(number))


def short(waiting: Sequence[Waiting], slots: int = 16, line: Line = LINE) -> Sequence[Take]:
    return shortened(by_start(waiting, slots), waiting, slots, line)


def test_the_last_item_of_a_query_takes_as_many_others_along_as_their_last_batch_has_no_room_for() -> None:
    assert short([asked(0, "a", 1), asked(1, "b", 49)]) == [Take(0, 1), Take(1, 1)]  # three full batches remain
    assert short([asked(0, "a", 9), asked(1, "b", 32)], line=Line(0.0, 0.025)) == [Take(0, 9)]


@pytest.mark.parametrize(
    ("waiting", "line"),
    [
        ([asked(0, "a", 1), asked(1, "b", 47)], LINE),  # every batch is full
        ([asked(0, "a", 1), asked(1, "b", 14)], LINE),  # one batch is enough
        ([asked(0, "a", 3), asked(1, "b", 47)], LINE),  # two items do not complete the first query
        ([asked(0, "a", 1), asked(1, "b", 49), asked(2, "c", 49)], LINE),  # it may delay many
        ([asked(0, "a", 1), asked(1, "b", 49)], Line(0.05, 0.002)),  # another batch costs more than it saves
        ([asked(0, "a", 9), asked(1, "b", 20), asked(2, "c", 12)], Line(0.0, 0.025)),  # "b" waits longer than "a" saves
        ([asked(0, "a", 49)], LINE),
    ],
)
def test_other_batches_stay_as_they_are(waiting: Sequence[Waiting], line: Line) -> None:
    takes = by_start(waiting, 16)
    assert shortened(takes, waiting, 16, line) is takes


def test_what_waits_needs_no_more_batches_and_the_first_query_ends() -> None:
    chosen, found = random.Random(0), 0
    for _ in range(2000):
        slots = chosen.choice([2, 4, 16, 32])
        waiting = [
            asked(n, f"q{chosen.randint(0, 4)}", chosen.choice((1, 2, 5, 48))) for n in range(chosen.randint(1, 6))
        ]
        takes = by_start(waiting, slots)
        kept = shortened(takes, waiting, slots, Line(0.001, 0.025))
        if kept is takes:
            continue
        found += 1
        total, size = sum(each.items for each in waiting), sum(take.items for take in kept)
        assert 0 < size < sum(take.items for take in takes)
        assert 1 + -(-(total - size) // slots) == -(-total // slots)
        assert [take.number for take in kept] == [take.number for take in takes][: len(kept)]
        given = {take.number: take.items for take in kept}
        assert all(given[each.number] == each.items for each in waiting if each.query == waiting[0].query)
    assert found > 100


def served(
    asks: Sequence[Ask],
    policy: Policy = by_start,
    *,
    line: Line | None = LINE,
    count: int = 1,
    again: Sequence[Ask] = (),
) -> tuple[list[int], dict[str, float]]:
    """Returns the sizes of the batches, and when the requests of each query had ended.

    line: the cost that is known at the start. count: of instances. again: requests that come one after the other.
    """
    engines = [EmulatedEmbedding(name=f"short-{next(NAMES)}") for _ in range(count)]
    if line is not None:
        costs.know(engines[0].name, Op.EMBED, line)
    ended: dict[str, float] = {}

    async def one(queue: BatchQueue, query: str, at: float, items: int) -> None:
        await asyncio.sleep(at)
        request_context.query.set(query)
        request_context.started.set(at)
        await queue.submit(Op.EMBED, [("query", f"{query} {i}") for i in range(items)])
        ended[query] = asyncio.get_running_loop().time()

    async def main() -> None:
        group: Any = engines[0] if count == 1 else instances(engines)
        queue = BatchQueue(group, policy)

        async def in_turn() -> None:
            for ask in again:
                await one(queue, *ask)

        await asyncio.gather(*(asyncio.create_task(one(queue, *ask)) for ask in asks), asyncio.create_task(in_turn()))

    virtual.run(main())
    return [size for engine in engines for size in engine.batches], ended


PAIR = [("a", 0.0, 49), ("b", 0.1, 49)]


def test_an_older_query_ends_earlier_and_a_later_one_no_later() -> None:
    before, ends = served(PAIR, line=None)
    assert before == [16, 16, 16, 16, 16, 16, 2]  # its costs are not known yet when the first query ends
    sizes, earlier = served(PAIR)
    assert sizes == [16, 16, 16, 2, 16, 16, 16]
    assert earlier["a"] == pytest.approx(ends["a"] - 0.35)
    assert earlier["b"] <= ends["b"] + 1e-6


def test_other_policies_fill_their_batches() -> None:
    assert served(PAIR, fifo)[0] == [16, 16, 16, 16, 16, 16, 2]


def test_idle_instances_share_what_waits() -> None:
    cheap = Line(0.01, 0.025)
    assert short([asked(0, "a", 1), asked(1, "b", 17)], line=cheap) == [Take(0, 1), Take(1, 1)]  # on one instance
    assert served([("a", 0.0, 1), ("b", 0.0, 17)], count=2, line=cheap)[0] == [9, 9]


def test_no_two_batches_in_a_row_are_short() -> None:
    again = [("old", 0.0, 1)] * 30  # one after the other
    sizes, _ = served([("new", 0.001, 161)], again=again, line=Line(0.0, 0.025))
    short = [size < 16 for size in sizes[1:13]]  # the first one is over when the new query comes
    assert sum(short) == 6
    assert not any(one and other for one, other in itertools.pairwise(short))
