"""Short batches: the last items of a query need not wait for a batch that later queries fill up.

A batch takes ``fixed + each * items`` seconds, and none of its results is there before its end. So items of later
queries delay the query that the batch completes, by ``each`` seconds for every item. If what waits does not fill its
last batch, the items that will be missing there may as well be missing now: what waits needs no more batches, and the
last of it ends no later. A query between may wait for the short batch, and those that arrive meanwhile for one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fineflow.cost_model.costs import costs
from fineflow.cost_model.lines import Line
from fineflow.protocols import BatchEngine
from fineflow.runtime.queues.policy import Take, Waiting
from fineflow.runtime.queues.waiting_line import Waiter, WaitingLine

W = TypeVar("W", bound=Waiter)

_LATER = 4  # queries that arrive before an engine idles, for each that waits, if it is busy for four fifths of the time


def shortened(takes: Sequence[Take], waiting: Sequence[Waiting], slots: int, line: Line) -> Sequence[Take]:
    """Returns the items of ``takes`` that go in a short batch, in their order, or ``takes`` itself.

    A batch is short only if it completes the query that began first, and if that saves more seconds than others may
    lose, all queries together. waiting: all requests for that operation. slots: most items of a batch. line: seconds of
    a batch by its items.
    """
    room, size = sum(request.items for request in waiting) % slots, sum(take.items for take in takes)
    if not 0 < room < size:
        return takes
    alone, fewer, kept = line.at(room), size - room, list[Take]()
    for take in takes:
        if room:
            kept.append(Take(take.number, min(take.items, room)))
            room -= kept[-1].items
    given = {take.number: take.items for take in kept}
    left: dict[str, int] = {}  # items of each query
    for request in waiting:
        left[request.query] = left.get(request.query, 0) + request.items - given.get(request.number, 0)
    first = min(waiting, key=lambda request: (request.started, request.number)).query
    waits = sum(map(bool, left.values()))
    saved, lost = line.each * fewer * (len(left) - waits), alone * (waits - 1) + line.fixed * _LATER * waits
    return kept if not left[first] and saved > lost else takes


class ShortBatches:
    """Shortens the batches of one engine, as soon as its cost is measured.

    Never two in a row: a query that asks again and again would keep the engine from filling any batch.
    """

    def __init__(self) -> None:
        self._last = False  # True if the latest batch is short

    def shorten(self, engine: BatchEngine, batch: list[tuple[W, int]], line: WaitingLine[W]) -> list[tuple[W, int]]:
        """Returns a batch from ``line``, or fewer of its items."""
        op = batch[0][0].seen.op
        may = not self._last and len(batch) > 1 and costs.measured(engine.name, op)
        self._last = False
        if not may:
            return batch
        takes = [Take(request.seen.number, items) for request, items in batch]
        waiting = [request.seen for request in line if request.seen.op is op]
        kept = shortened(takes, waiting, engine.max_batch, costs.line(engine.name, op))
        self._last = kept is not takes
        return [(request, take.items) for (request, _), take in zip(batch, kept, strict=False)]
