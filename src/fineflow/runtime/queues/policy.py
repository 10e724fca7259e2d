"""Batching policies: pure functions that choose the next batch from the waiting requests (Ayo, section 5.2).

A policy gets the waiting requests and the free slots of the batch, and returns the number of items to take from the
front of each chosen request. All policies here fill a batch with requests for one operation only, take at least one
item while any request waits, split a request that does not fit, and starve no request. ``decide`` applies the rules
common to all: priorities of calls, and fair shares of tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fineflow.ir import Op
from fineflow.ir.objectives import LATENCY, THROUGHPUT, TTFT

PATIENCE = 16  # a waiting request rises by one priority after so many batches
_REMEMBERED = 1024  # tenants without waiting requests whose usage a queue remembers: each user may be a tenant
_SMALL = 4  # one out of so many slots of a batch may go to small requests of later queries
_BY_OBJECTIVE = {TTFT: 1, THROUGHPUT: -1}  # priorities
_CRITICAL = 0.7  # a request with at least this share of its query's longest path is critical


@dataclass(frozen=True, slots=True)
class Waiting:
    """Request as policies see it.

    number: arrival order, unique. query: id of its query. depth: longest path from its primitive to the output, in
    primitives. items: items that no batch has taken yet, at least 1; for a request to an LLM, its tokens. primitive:
    name of the primitive that it serves ("" outside of graphs). started: start of its query, in seconds. path:
    predicted seconds from its start to the end of the query. tenant, weight: the tenant of its call, and that tenant's
    share of the engine relative to others. priority: of its call, higher first. objective: of its call
    (``ir.objectives``). passed: batches that were served while it waited; counted only if ranks differ.
    """

    number: int
    query: str
    depth: int
    op: Op
    items: int
    primitive: str = ""
    started: float = 0.0
    path: float = 0.0
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    objective: str = LATENCY
    passed: int = 0

    @property
    def rank(self) -> int:
        """Its priority; the time to a first token counts one more, throughput one less."""
        return self.priority + _BY_OBJECTIVE.get(self.objective, 0)


@dataclass(frozen=True, slots=True)
class Take:
    """Choice of the next ``items`` items of request ``number``."""

    number: int
    items: int


Policy = Callable[[Sequence[Waiting], int], list[Take]]


def by_depth(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """Topology-aware batching (Ayo, Algorithm 2).

    Requests of one query form a bucket; buckets are ordered by their earliest arrival. The deepest requests of every
    bucket come first, since most of the query depends on them; remaining slots go to the next depth of every bucket.
    Requests of one primitive stay together.
    """
    buckets: dict[str, list[Waiting]] = {}
    for request in sorted(waiting, key=_arrival):
        buckets.setdefault(request.query, []).append(request)
    ranked: list[tuple[int, int, int, Waiting]] = []
    for position, bucket in enumerate(buckets.values()):
        rank = {depth: i for i, depth in enumerate(sorted({r.depth for r in bucket}, reverse=True))}
        begun: dict[str, int] = {}  # primitive -> its earliest request
        for request in bucket:
            earliest = begun.setdefault(request.primitive, request.number) if request.primitive else request.number
            ranked.append((rank[request.depth], position, earliest, request))
    ranked.sort(key=lambda found: found[:3])  # stable: at last by arrival
    return _fill((found[3] for found in ranked), slots)


def by_path(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """Critical paths first, by predicted seconds instead of hops (an extension named in Ayo, section 7.4).

    A request is critical if its path is at least 70 % as long as that of any other waiting request of its query.
    Critical requests come first. Inside both groups older queries come first, and inside a query longer paths. A
    request has slack only while a more critical one of its query waits, so it does not starve.
    """
    longest = _longest_paths(waiting)

    def rank(request: Waiting) -> tuple[bool, float, str, float, int]:
        slack = request.path < _CRITICAL * longest[request.query]
        return slack, request.started, request.query, -request.path, request.number

    return _fill(sorted(waiting, key=rank), slots)


def by_start(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """The default: queries that began first; inside a query the longest path to its end, in seconds, then in steps.

    So begun work is finished before newer work holds it up. In batches, small requests of later queries (one query
    vector, say) go before bulk (the vectors of a document's chunks), but take at most a quarter of each batch. So bulk
    that would take n batches by itself is done after at most 4/3 n, rounded up, whatever arrives meanwhile.

    A request to an LLM that has slack (see ``by_path``) waits for critical ones of later queries, too: only as long as
    a more critical one of its own query waits. In batches nothing has slack: the vector of a question is needed as soon
    as those of its document, however short its own path is.
    """
    longest = _longest_paths(waiting)
    began: dict[str, float] = {}
    for request in waiting:
        began[request.query] = min(began.get(request.query, request.started), request.started)

    def rank(request: Waiting) -> tuple[bool, float, int, str, float, int, int]:
        slack = request.op is Op.DECODE and request.path < _CRITICAL * longest[request.query]
        # Ids of queries count up: of those that began at the same moment, one comes first in all its steps.
        whose = began[request.query], len(request.query), request.query
        return slack, *whose, -request.path, -request.depth, request.number

    order = sorted(waiting, key=rank)
    room = slots // _SMALL
    if not room or not order or order[0].op is Op.DECODE or order[0].items <= room:
        return _fill(order, slots)
    small: list[Waiting] = []
    held_up = {request.query for request in order if request.items > room}  # by bulk of their own: they gain nothing
    for request in order[1:]:
        if request.op is order[0].op and request.items <= room and request.query not in held_up:
            small.append(request)
            room -= request.items
    chosen = {request.number for request in small}
    return _fill((*small, *(request for request in order if request.number not in chosen)), slots)


def fifo(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """Blind batching: requests of all queries in the order of their arrival."""
    return _fill(sorted(waiting, key=_arrival), slots)


def app_fifo(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """Older applications first: queries by their start (Parrot, section 5.4).

    Inside a query, by arrival: Parrot orders an application's requests topologically, which is the order in which they
    become ready.
    """
    return _fill(sorted(waiting, key=lambda request: (request.started, request.query, request.number)), slots)


def per_invocation(waiting: Sequence[Waiting], slots: int) -> list[Take]:
    """No batching across calls: every batch belongs to one primitive of one query, in the order of arrival.

    The per-invocation oriented baseline of Ayo, section 7.1.
    """
    if not waiting:
        return []
    first = min(waiting, key=_arrival)
    if not first.primitive:
        return _fill([first], slots)
    whose = (first.query, first.primitive)
    return _fill(sorted((r for r in waiting if (r.query, r.primitive) == whose), key=_arrival), slots)


POLICIES: Mapping[str, Policy] = {
    policy.__name__: policy for policy in (by_start, by_depth, by_path, fifo, app_fifo, per_invocation)
}


def decide(policy: Policy, waiting: Sequence[Waiting], slots: int, used: Mapping[str, float]) -> list[Take]:
    """Returns the next batch: by shares of tenants first, then by priorities, then by the policy.

    used: items given to each tenant so far, divided by its weight (``FairShares``).
    """
    if len({_urgency(request) for request in waiting}) > 1:
        policy = urgent(policy)
    if len({request.tenant for request in waiting}) > 1:
        policy = fair(policy, used)
    return policy(waiting, slots)


def mixes(policy: Policy) -> bool:
    """Returns True if a policy puts requests of different queries into one batch."""
    return len(policy([Waiting(0, "one", 0, Op.EMBED, 1), Waiting(1, "other", 0, Op.EMBED, 1)], 2)) > 1


def urgent(policy: Policy) -> Policy:
    """Returns the policy with calls of higher priority first.

    A request rises by one for every ``PATIENCE`` batches served while it waits, so a stream of requests with a higher
    priority cannot starve it.
    """

    def chosen(waiting: Sequence[Waiting], slots: int) -> list[Take]:
        taken: list[Take] = []
        rest = list(waiting)
        while rest and slots > 0:
            most = max(map(_urgency, rest))
            band = [request for request in rest if _urgency(request) == most]
            found = policy(band, slots)
            op = _op(found, band)
            taken += found
            slots -= sum(take.items for take in found)
            if slots < 1 or not mixes(policy):
                return taken
            rest = [request for request in rest if _urgency(request) < most and request.op is op]
        return taken

    return chosen


def fair(policy: Policy, used: Mapping[str, float]) -> Policy:
    """Returns the policy inside each tenant, with weighted fair queueing between tenants.

    The tenant with the least usage by weight (``used``) is served next, in steps of a sixteenth of the batch
    (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996, section 2).
    """

    def chosen(waiting: Sequence[Waiting], slots: int) -> list[Take]:
        tenants: dict[str, list[Waiting]] = {}
        for request in sorted(waiting, key=_arrival):
            tenants.setdefault(request.tenant, []).append(request)
        given = {tenant: used.get(tenant, 0.0) for tenant in tenants}
        first = min(given, key=given.__getitem__, default="")
        if len(tenants) < 2 or slots < 2 or not mixes(policy):
            return policy(tenants.get(first, []), slots)
        op = _op(policy(tenants[first], slots), tenants[first])
        size, step = slots, max(1, slots // 16)
        orders: dict[str, list[Take]] = {}  # of each tenant served so far: its next take is last
        taken: dict[int, int] = {}
        while given and slots > 0:
            tenant = min(given, key=given.__getitem__)
            if tenant not in orders:
                orders[tenant] = policy([r for r in tenants[tenant] if r.op is op], size)[::-1]
            order = orders[tenant]
            if not order:
                del given[tenant]
                continue
            take = order.pop()
            count = min(take.items, step, slots)
            taken[take.number] = taken.get(take.number, 0) + count
            given[tenant] += count / tenants[tenant][0].weight
            slots -= count
            if take.items > count:
                order.append(Take(take.number, take.items - count))
        return [Take(number, count) for number, count in taken.items()]

    return chosen


class FairShares:
    """Virtual time of start-time fair queueing: the usage of each tenant of one queue, in items divided by its weight.

    A tenant that returns starts at the current virtual time: it gets no credit for the time it was away.
    """

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._now = 0.0  # virtual time: the least usage of the tenants that waited at the last decision

    def waiting(self, tenants: Iterable[str]) -> Mapping[str, float]:
        """Returns the usage of the waiting tenants, in items divided by weight, and advances the virtual time."""
        found = {tenant: max(self._used.get(tenant, 0.0), self._now) for tenant in tenants}
        self._now = min(found.values(), default=self._now)
        ahead = {tenant: used for tenant, used in self._used.items() if used > self._now}
        self._used = (ahead if len(ahead) <= _REMEMBERED else {}) | found
        return found

    def give(self, request: Waiting, items: int) -> None:
        """Charges ``items`` served items to the tenant of a request."""
        self._used[request.tenant] = max(self._used.get(request.tenant, 0.0), self._now) + items / request.weight


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


def _longest_paths(waiting: Iterable[Waiting]) -> dict[str, float]:
    found: dict[str, float] = {}
    for request in waiting:
        found[request.query] = max(found.get(request.query, 0.0), request.path)
    return found


def _arrival(request: Waiting) -> int:
    return request.number


def _urgency(request: Waiting) -> int:
    return request.rank + request.passed // PATIENCE


def _op(taken: Sequence[Take], waiting: Sequence[Waiting]) -> Op | None:
    return next((request.op for request in waiting if taken and request.number == taken[0].number), None)
