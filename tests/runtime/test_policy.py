"""Batching policies are pure functions on the queue."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineflow.ir import Op
from fineflow.runtime.queues.policy import (
    FairShares,
    Policy,
    Take,
    Waiting,
    app_fifo,
    by_depth,
    by_path,
    by_start,
    decide,
    fifo,
    per_invocation,
)
from fineflow.runtime.queues.waiting_line import Waiter, WaitingLine

POLICIES = [by_start, by_depth, by_path, fifo, app_fifo, per_invocation]


def waiting(number: int, query: str, depth: int, items: int = 1, op: Op = Op.EMBED) -> Waiting:
    return Waiting(number, query, depth, op, items)


def numbers(takes: list[Take]) -> list[int]:
    return [take.number for take in takes]


def test_the_deepest_of_every_query_comes_before_the_rest_of_the_first() -> None:
    # Figure 7 of the paper: A and B of query 1, G and H of query 2, room for two: A with G, not A with B.
    a, b = waiting(0, "one", 3), waiting(1, "one", 2)
    g, h = waiting(2, "two", 5), waiting(3, "two", 4)
    assert numbers(by_depth([a, b, g, h], 2)) == [0, 2]
    assert numbers(fifo([a, b, g, h], 2)) == [0, 1]


def test_slots_that_remain_go_to_the_next_depth() -> None:
    queue = [waiting(0, "one", 1), waiting(1, "one", 2), waiting(2, "two", 1)]
    assert numbers(by_depth(queue, 8)) == [1, 2, 0]


def test_buckets_go_by_their_earliest_arrival() -> None:
    queue = [waiting(5, "late", 9), waiting(3, "early", 1), waiting(4, "late", 1)]
    assert numbers(by_depth(queue, 1)) == [3]


def test_equal_depths_of_a_query_go_by_arrival_whatever_the_order_of_the_queue() -> None:
    queue = [waiting(2, "q", 1), waiting(0, "q", 1), waiting(1, "q", 1)]
    assert numbers(by_depth(queue, 8)) == [0, 1, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_large_request_is_split(policy: Policy) -> None:
    assert policy([waiting(0, "q", 1, items=10)], 4) == [Take(0, 4)]


@pytest.mark.parametrize("policy", [by_start, by_depth, by_path, fifo, app_fifo])
def test_a_batch_is_filled_with_part_of_the_next_request(policy: Policy) -> None:
    assert policy([waiting(0, "p", 1, items=3), waiting(1, "q", 1, items=3)], 4) == [Take(0, 3), Take(1, 1)]


def test_per_invocation_never_mixes_requests() -> None:
    assert per_invocation([waiting(1, "q", 1, items=1), waiting(0, "p", 1, items=3)], 8) == [Take(0, 3)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_serves_one_operation(policy: Policy) -> None:
    queue = [waiting(0, "p", 1), waiting(1, "q", 1, op=Op.RERANK), waiting(2, "r", 1)]
    assert 1 not in numbers(policy(queue, 8))


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_waits_nothing_is_taken(policy: Policy) -> None:
    assert policy([], 4) == []


requests = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.sampled_from([Op.EMBED, Op.RERANK]), st.integers(1, 20)),
    max_size=12,
)


@pytest.mark.parametrize("policy", POLICIES)
@given(queue=requests, slots=st.integers(1, 8))
def test_everything_is_served_in_bounded_batches(
    policy: Policy, queue: list[tuple[str, int, Op, int]], slots: int
) -> None:
    left = {n: Waiting(n, *fields) for n, fields in enumerate(queue)}
    served = dict.fromkeys(left, 0)
    batches = 0
    while left:
        takes = policy(list(left.values()), slots)
        assert 1 <= sum(take.items for take in takes) <= slots
        assert len({take.number for take in takes}) == len(takes)
        assert len({left[take.number].op for take in takes}) == 1
        for take in takes:
            before = left.pop(take.number)
            assert 1 <= take.items <= before.items
            served[take.number] += take.items
            if take.items < before.items:
                left[take.number] = Waiting(
                    before.number, before.query, before.depth, before.op, before.items - take.items
                )
        batches += 1
    assert served == {n: items for n, (_, _, _, items) in enumerate(queue)}
    assert batches <= sum(served.values())


@given(flood=st.integers(1, 30), slots=st.integers(1, 4))
def test_newer_queries_do_not_starve_an_older_one(flood: int, slots: int) -> None:
    old = waiting(0, "old", 0, items=slots + 1)
    rest = [waiting(n, f"new {n}", 9, items=5) for n in range(1, flood + 1)]
    assert by_depth([*rest, old], slots)[0] == Take(0, slots)


def asked(number: int, query: str, **known: Any) -> Waiting:
    return Waiting(number, query, known.pop("depth", 1), Op.EMBED, known.pop("items", 1), **known)


def test_requests_of_one_primitive_stay_together() -> None:
    queue = [asked(n, "q", primitive=name) for n, name in enumerate(["a", "b", "a", "", "b"])]
    assert numbers(by_depth(queue, 8)) == [0, 2, 1, 4, 3]
    assert numbers(per_invocation(queue, 8)) == [0, 2]


def test_queries_that_have_begun_are_finished_first() -> None:
    queue = [asked(0, "late", started=2.0), asked(1, "early", started=1.0), asked(2, "late", started=2.0)]
    assert numbers(app_fifo(queue, 2)) == [1, 0]


def test_what_has_slack_waits_for_what_holds_up_its_query_and_others() -> None:
    queue = [asked(0, "one", path=9.0, started=2.0), asked(1, "one", path=4.0, started=2.0)]
    queue += [asked(2, "two", path=3.0, started=1.0), asked(3, "two", path=1.0, started=1.0)]
    assert numbers(by_path(queue, 8)) == [2, 0, 3, 1]
    assert numbers(by_path(queue[1:], 1)) == [2] and numbers(by_path(queue[1::2], 8)) == [3, 1]  # no slack any more


def test_by_default_queries_that_began_first_go_first_by_their_longest_path() -> None:
    queue = [asked(0, "late", started=2.0, path=9.0), asked(1, "early", started=1.0, path=1.0)]
    queue += [asked(2, "early", started=1.0, path=5.0), asked(3, "early", started=1.0, path=1.0, depth=4)]
    assert numbers(by_start(queue, 8)) == [2, 3, 1, 0]
    decodes = [replace(each, op=Op.DECODE) for each in queue]
    assert numbers(by_start(decodes, 8)) == [2, 0, 3, 1]  # what has slack waits for the critical one of the other query
    assert numbers(by_start([decodes[0], decodes[1]], 8)) == [1, 0]  # no slack any more


def test_small_requests_of_later_queries_go_before_bulk_in_a_quarter_of_the_batch() -> None:
    bulk = asked(0, "early", started=1.0, items=48)
    vectors = [asked(n, f"late {n}", started=2.0) for n in range(1, 7)]
    assert by_start([bulk, *vectors], 16) == [*(Take(n, 1) for n in range(1, 5)), Take(0, 12)]
    assert by_start([bulk, *vectors], 3) == [Take(0, 3)]
    own = [asked(7, "late 1", started=2.0, items=48), asked(8, "early", started=1.0)]
    assert by_start([bulk, vectors[0], *own], 16) == [Take(0, 16)]  # their own bulk holds these up anyway
    decodes = [replace(each, op=Op.DECODE) for each in (bulk, *vectors)]
    assert by_start(decodes, 16) == [Take(0, 16)]


def _later_than_bound(policy: Policy, seed: int) -> str:
    """Serves a random load; returns which request waited longer than the bound of ``by_start``, or ""."""
    chosen = random.Random(seed)
    slots = chosen.choice([1, 2, 4, 8, 16, 32])
    queries = {f"q{n}": chosen.uniform(0.0, 20.0) for n in range(chosen.randint(2, 12))}
    arriving = [
        (max(began, chosen.uniform(0.0, 40.0)), query, chosen.choice([1, 1, 2, 5, 48]), chosen.randint(1, 6))
        for query, began in queries.items()
        for _ in range(chosen.randint(1, 6))
    ]
    arriving.sort()
    line: WaitingLine[Waiter] = WaitingLine()
    waited: dict[int, int] = {}  # batches
    ahead: dict[int, int] = {}  # items of queries that did not begin later, served while the request waited
    now = 0.0
    while arriving or line:
        while arriving and (arriving[0][0] <= now or not line):
            now = max(now, arriving[0][0])
            _, query, items, depth = arriving.pop(0)
            waiter = Waiter()
            number, path = next(line.numbers), chosen.uniform(0.0, 9.0)
            waiter.seen = asked(number, query, items=items, depth=depth, started=queries[query], path=path)
            waited[number] = ahead[number] = 0
            line.join(waiter)
        batch = line.batch(policy, slots)
        taken = [(waiter.seen, items) for waiter, items in batch]
        line.serve(*batch)
        for each in (waiter.seen for waiter in line):
            later = sum(items for seen, items in taken if seen.started > each.started)
            if later > slots // 4:
                return f"seed {seed}: {later} of {slots} slots went to later queries while {each} waited"
            waited[each.number] += 1
            ahead[each.number] += sum(items for _, items in taken) - later
            if waited[each.number] * (slots - slots // 4) > ahead[each.number]:
                return f"seed {seed}: {each} waited {waited[each.number]} batches behind {ahead[each.number]} items"
        now += 1.0
    return ""


def test_by_default_no_request_waits_behind_later_queries_beyond_a_quarter_of_each_batch() -> None:
    assert [found for seed in range(300) if (found := _later_than_bound(by_start, seed))] == []
    assert any(_later_than_bound(by_depth, seed) for seed in range(10))  # the loads can tell


def test_higher_priorities_come_first_and_whoever_waits_rises() -> None:
    queue = [asked(0, "a"), asked(1, "b", priority=2), asked(2, "c", priority=1), asked(3, "d", passed=32)]
    assert numbers(decide(fifo, queue, 8, {})) == [1, 3, 2, 0]
    assert numbers(decide(fifo, queue, 2, {})) == [1, 3]
    assert numbers(decide(per_invocation, queue, 8, {})) == [1]


def test_a_batch_of_several_priorities_serves_one_operation() -> None:
    queue = [asked(0, "a"), Waiting(1, "b", 1, Op.RERANK, 1, priority=1), Waiting(2, "c", 1, Op.RERANK, 1)]
    assert numbers(decide(fifo, queue, 8, {})) == [1, 2]


def test_a_batch_is_shared_by_weight_between_tenants() -> None:
    many = [asked(n, f"m{n}", tenant="many", items=4) for n in range(10)]
    few = [asked(n, f"f{n}", tenant="few", weight=3.0, items=4) for n in range(10, 20)]
    taken = {take.number: take.items for take in decide(fifo, [*many, *few], 16, {})}
    assert sum(items for number, items in taken.items() if number < 10) == 4
    assert list(taken) == [0, 10, 11, 12]
    assert numbers(decide(per_invocation, [*many, *few], 16, {"many": 1.0, "few": 0.0})) == [10]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6)), min_size=1, max_size=40))
def test_tenants_that_always_wait_get_what_their_weight_says(stream: list[tuple[str, int]]) -> None:
    """However large the requests are, the work of one is never more than a batch ahead of its share."""
    weights, shares, given_so_far = {"a": 1.0, "b": 2.0}, FairShares(), {"a": 0, "b": 0}
    waiting_now = [
        asked(n, f"q{n}", tenant=tenant, weight=weights[tenant], items=items)
        for n, (tenant, items) in enumerate([*stream, ("a", 99), ("b", 199)])
    ]
    for _ in range(30):
        takes = decide(fifo, waiting_now, 4, shares.waiting(request.tenant for request in waiting_now))
        for take in takes:
            request = next(r for r in waiting_now if r.number == take.number)
            given_so_far[request.tenant] += take.items
            shares.give(request, take.items)
            waiting_now.remove(request)
            if request.items > take.items:
                waiting_now.append(replace(request, items=request.items - take.items))
        if {request.tenant for request in waiting_now} != {"a", "b"}:
            return
        assert abs(given_so_far["a"] - given_so_far["b"] / 2) <= 4


def test_a_tenant_that_was_away_gets_nothing_for_that_time() -> None:
    shares = FairShares()
    for _ in range(5):
        shares.waiting(["busy"])
        shares.give(asked(0, "q", tenant="busy"), 100)
    used = shares.waiting(["busy", "back"])
    assert used["back"] >= used["busy"] - 100


STREAMS: dict[str, Callable[[int], Waiting]] = {
    "deeper": lambda n: asked(n, f"new {n}", depth=99),
    "longer": lambda n: asked(n, f"new {n}", path=99.0, started=float(n)),
    "more important": lambda n: asked(n, f"new {n}", priority=1),
    "of another tenant": lambda n: asked(n, f"new {n}", tenant="other", weight=3.0),
    "of another operation": lambda n: replace(asked(n, f"new {n}"), op=Op.RERANK),
    "large": lambda n: asked(n, f"new {n}", items=50),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stream", STREAMS)
def test_nobody_waits_for_ever_behind_a_stream_of_others(policy: Policy, stream: str) -> None:
    """Two new requests with every batch, which has room for two: the old query is done within 40 batches."""
    old = asked(0, "old", items=3, path=1.0)
    queue, shares, number = [old, asked(1, "old", path=0.1, started=0.0)], FairShares(), 1
    for batch in range(40):
        queue += [STREAMS[stream](number := number + 1) for _ in range(2)]
        seen = [replace(r, passed=batch if r.query == "old" else 0) for r in queue]
        for take in decide(policy, seen, 2, shares.waiting(r.tenant for r in seen)):
            request = next(r for r in queue if r.number == take.number)
            shares.give(request, take.items)
            queue.remove(request)
            if request.items > take.items:
                queue.append(replace(request, items=request.items - take.items))
        if not any(request.query == "old" for request in queue):
            return
    raise AssertionError(f"after 40 batches {[r for r in queue if r.query == 'old']} still waits")
