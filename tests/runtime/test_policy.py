"""Batching policies are pure functions on the queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineflow.ir import Op
from fineflow.runtime.policy import Policy, Take, Waiting, by_depth, fifo, per_invocation

POLICIES = [by_depth, fifo, per_invocation]


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


@pytest.mark.parametrize("policy", [by_depth, fifo])
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
