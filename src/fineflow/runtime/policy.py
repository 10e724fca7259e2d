"""Which waiting requests form the next batch of an engine: pure functions on the queue (Ayo, section 5.2).

A policy gets the waiting requests and the free slots of the batch, and says how many items to take from the front of
which request. All policies here fill a batch with requests for one operation only, take at least one item while any
request waits, split a request that does not fit, and let no request wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fineflow.ir import Op


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request as policies see it.

    number: arrival order, unique. query: id of the query it belongs to. depth: longest path from its primitive to the
    output. items: how many of its items are not yet in a batch, at least 1.
    """

    number: int
    query: str
    depth: int
    op: Op
    items: int


@dataclass(frozen=True, slots=True)
class Take:
    """Take the next ``items`` items of request ``number``."""

    number: int
    items: int


Policy = Callable[[Sequence[Waiting], int], list[Take]]


def by_depth(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """Topology-aware batching (Ayo, Algorithm 2).

    Requests of one query form a bucket; buckets go by their earliest arrival. The deepest requests of every bucket
    come first, since they hold up the most of their query; slots that remain go to the next depth of every bucket.
    """
    buckets: dict[str, list[Waiting]] = {}
    for request in sorted(waiting, key=lambda r: r.number):
        buckets.setdefault(request.query, []).append(request)
    ranked: list[tuple[int, Waiting]] = []
    for bucket in buckets.values():
        rank = {depth: i for i, depth in enumerate(sorted({r.depth for r in bucket}, reverse=True))}
        ranked += ((rank[r.depth], r) for r in bucket)
    ranked.sort(key=lambda pair: pair[0])  # stable: inside a rank, buckets by arrival, then requests by arrival
    return _fill((request for _, request in ranked), slots)


def fifo(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """Blind batching: requests in the order of their arrival, whatever they are for."""
    return _fill(sorted(waiting, key=lambda r: r.number), slots)


def per_invocation(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """No batching across calls: every batch belongs to one request, in the order of arrival."""
    return _fill(sorted(waiting, key=lambda r: r.number)[:1], slots)


def _fill(requests: Iterable[Waiting], slots: int) -> list[Take]:
    taken: list[Take] = []
    op: Op | None = None
    for request in requests:
        if slots < 1:
            break
        if op is None:
            op = request.op
        if request.op is op:
            taken.append(Take(request.number, min(request.items, slots)))
            slots -= taken[-1].items
    return taken
