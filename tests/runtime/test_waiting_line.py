"""The waiting line: who comes next, validated and aged; turns that block tasks and threads; pools of permits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speaker import Speaker, ask, prompt

from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.runtime.queues.admission import AdmissionRequest, Limits, ProcessAdmission
from fineflow.runtime.queues.llm_queue import LLMQueue
from fineflow.runtime.queues.permits import PermitPool, PermitRequest, State
from fineflow.runtime.queues.policy import PATIENCE, FairShares, Policy, Take, Waiting, by_depth, fifo
from fineflow.runtime.queues.waiting_line import Ticket, Waiter, WaitingLine
from fineflow.testing import virtual

WAIT = 10.0


class Request(Waiter):
    """A request of some items."""


def joined(line: WaitingLine[Request], items: int = 1, tenant: str = "", priority: int = 0) -> Request:
    made = Request()
    number = next(line.numbers)
    made.seen = Waiting(number, f"query {number}", 0, Op.EMBED, items, tenant=tenant, priority=priority)
    line.join(made)
    return made


def served(line: WaitingLine[Request], policy: Policy) -> list[int]:
    """The numbers of all requests, in the order in which they are served one by one."""
    numbers = []
    while line:
        first = line.order(policy, 1)[0]
        line.serve((first, 1))
        numbers.append(first.seen.number)
    return numbers


@pytest.fixture
def line() -> WaitingLine[Request]:
    return WaitingLine()


# Who waits


def test_requests_are_listed_by_arrival_whatever_their_tenant_and_priority(line: WaitingLine[Request]) -> None:
    requests = [joined(line, 2, tenant, priority) for tenant in "ba" for priority in (0, 3)]
    assert list(line) == requests
    assert (len(line), line.items, bool(line)) == (4, 8, True)
    line.leave(requests[1])
    line.leave(requests[1])  # a second time changes nothing
    assert list(line) == [requests[0], *requests[2:]]
    assert line.drain() == [requests[0], *requests[2:]]
    assert (len(line), line.items, bool(line)) == (0, 0, False)


def test_a_request_that_rejoins_is_first_again(line: WaitingLine[Request]) -> None:
    first, second = joined(line), joined(line)
    line.serve((first, 1))
    assert list(line) == [second]
    line.rejoin(first)
    assert list(line) == [first, second] and line.order(fifo, 1) == [first]
    alone: WaitingLine[Request] = WaitingLine()
    only = joined(alone)
    alone.leave(only)
    alone.rejoin(only)
    assert list(alone) == [only]


# Who comes next


def test_the_earliest_of_a_tenant_and_rank(line: WaitingLine[Request]) -> None:
    first, other, urgent, last = joined(line), joined(line, tenant="other"), joined(line, priority=1), joined(line)
    assert line.earliest(last) is first and line.earliest(other) is other and line.earliest(urgent) is urgent
    line.leave(first)
    assert line.earliest(first) is last
    line.drain()
    assert line.earliest(first) is None


def test_a_batch_is_carried_out_by_serving_it(line: WaitingLine[Request]) -> None:
    large, small = joined(line, 5), joined(line, 1)
    assert line.batch(fifo, 3) == [(large, 3)]
    assert line.batch(fifo, 3) == [(large, 3)] and (line.items, line.rounds) == (6, 0)
    line.serve((large, 3))
    assert (large.seen.items, line.items, line.rounds) == (2, 3, 1)
    assert line.batch(fifo, 3) == [(large, 2), (small, 1)]
    line.serve((large, 2), (small, 1))
    assert not line and line.rounds == 2


@pytest.mark.parametrize(
    "takes", [[], [Take(0, 4)], [Take(0, 0)], [Take(9, 1)], [Take(0, 1), Take(0, 1)], [Take(0, 2), Take(1, 2)]]
)
def test_a_batch_that_breaks_the_contract_is_refused(line: WaitingLine[Request], takes: list[Take]) -> None:
    joined(line, 5), joined(line, 5)
    with pytest.raises(BackendError, match="must take between 1 and 3 items"):
        line.batch(lambda waiting, slots: takes, 3)
    assert (len(line), line.items, line.rounds) == (2, 10, 0)


def test_an_order_counts_each_request_once_and_leaves_out_unknown_ones(line: WaitingLine[Request]) -> None:
    assert line.order(fifo, 2) == []
    first, second = joined(line), joined(line)
    takes = [Take(1, 1), Take(7, 1), Take(0, 9), Take(1, 1)]
    assert line.order(lambda waiting, slots: takes, 2) == [second, first]
    for none in ([], [Take(7, 1)]):
        with pytest.raises(BackendError, match="took none of 2 waiting requests"):
            line.order(lambda waiting, slots, none=none: none, 2)


def test_an_error_of_a_policy_is_raised_as_it_is(line: WaitingLine[Request]) -> None:
    joined(line)
    error = ZeroDivisionError("in a policy")

    def broken(waiting: Sequence[Waiting], slots: int) -> list[Take]:
        raise error

    for ask_it in (line.batch, line.order):
        with pytest.raises(ZeroDivisionError) as found:
            ask_it(broken, 1)
        assert found.value is error


def test_requests_age_only_while_priorities_differ(line: WaitingLine[Request]) -> None:
    seen: list[list[int]] = []

    def watching(waiting: Sequence[Waiting], slots: int) -> list[Take]:
        seen.append([request.passed for request in waiting if request.query.startswith("query")])
        return fifo(waiting, slots)

    joined(line, 9)
    for _ in range(2):
        line.serve(*line.batch(watching, 1))
    urgent = joined(line, 9, priority=1)
    line.batch(watching, 18)
    line.serve((urgent, 1))
    line.batch(watching, 18)
    line.leave(urgent)
    line.batch(watching, 18)
    assert [each for each in seen if each] == [[0], [0], [0], [2], [1], [3], [0]]


def test_a_low_priority_waits_for_so_many_rounds_and_no_more(line: WaitingLine[Request]) -> None:
    low = joined(line)
    for passed in range(PATIENCE):
        high = joined(line, priority=1)
        assert line.order(fifo, 1) == [high], passed
        line.serve((high, 1))
    joined(line, priority=1)
    assert line.order(fifo, 1) == [low]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=40))
def test_looking_at_the_first_of_each_lane_finds_what_looking_at_all_finds(arrivals: list[tuple[str, int]]) -> None:
    short: WaitingLine[Request] = WaitingLine()
    full: WaitingLine[Request] = WaitingLine()
    for tenant, priority in arrivals:
        for each in (short, full):
            joined(each, 1, tenant, priority)
    assert served(short, fifo) == served(full, lambda waiting, slots: fifo(waiting, slots))


def test_new_shares_forget_what_was_given(line: WaitingLine[Request]) -> None:
    requests = [joined(line, tenant="a") for _ in range(4)]
    later = [joined(line, tenant="b") for _ in range(2)]
    for _ in range(2):
        line.serve((line.order(fifo, 1)[0], 1))
    line.serve((requests[1], 1))  # now "a" was given more
    assert line.order(fifo, 1) == [later[1]]
    line.shares = FairShares()
    assert line.order(fifo, 1) == [requests[2]]


# Turns


def test_a_turn_of_a_task_ends_from_another_thread() -> None:
    async def main() -> None:
        turn = Ticket()
        thread = threading.Thread(target=turn.end)
        thread.start()
        await asyncio.wait_for(turn.wait(), WAIT)
        thread.join(WAIT)

    asyncio.run(main())


def test_a_turn_that_ends_with_an_error_raises_that_object() -> None:
    error = ValueError("no")

    async def main() -> None:
        turn = Ticket()
        assert turn.end(error)
        with pytest.raises(ValueError, match="no") as found:
            await turn.wait()
        assert found.value is error

    asyncio.run(main())
    turn = Ticket()
    assert turn.end(error)
    with pytest.raises(ValueError, match="no") as found:
        turn.wait_sync()
    assert found.value is error


def test_the_end_of_a_turn_is_no_news_for_a_cancelled_task() -> None:
    problems: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        turn = Ticket()
        task = asyncio.ensure_future(turn.wait())
        await asyncio.sleep(0)
        task.cancel()
        assert turn.end()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(main())
    assert not problems


def test_a_turn_says_when_its_event_loop_is_closed() -> None:
    async def main() -> Ticket:
        return Ticket()

    assert not asyncio.run(main()).end()


def test_a_turn_of_a_thread_may_have_a_timeout() -> None:
    turn = Ticket()
    assert not turn.wait_sync(0)
    turn.end()
    assert turn.wait_sync(WAIT)


# Pools of permits


Pool = PermitPool[PermitRequest]


def asked(pool: Pool) -> PermitRequest:
    request = PermitRequest()
    pool.enqueue(request)
    return request


def states(*requests: PermitRequest) -> list[str]:
    return [request.state.value for request in requests]


def test_a_permit_is_handed_to_the_next_request() -> None:
    pool = Pool(1, fifo)
    first, second, third = (asked(pool) for _ in range(3))
    assert states(first, second, third) == ["granted", "waiting", "waiting"]
    pool.release(first)
    pool.release(first)  # a second time changes nothing
    assert states(first, second, third) == ["idle", "granted", "waiting"]
    assert (pool.running, pool.waiting) == (1, 1)
    pool.withdraw(second)  # it was granted, and does not need it
    assert states(second, third) == ["idle", "granted"] and (pool.running, pool.waiting) == (1, 0)


def test_a_request_that_waits_is_refused_and_one_that_was_granted_is_not() -> None:
    pool, error = Pool(1, fifo), ValueError("no")
    granted, waits = asked(pool), asked(pool)
    for each in (granted, waits):
        pool.withdraw(each, error)
    assert states(granted, waits) == ["granted", "idle"] and (pool.running, pool.waiting) == (1, 0)
    with pytest.raises(ValueError, match="no") as found:
        waits.turn.wait_sync(WAIT)
    assert found.value is error


def test_a_permit_beyond_the_limit_counts() -> None:
    pool = Pool(1, fifo)
    first, beyond = asked(pool), PermitRequest()
    assert not pool.enqueue(beyond, blocks_loop=True)
    waits = asked(pool)
    assert pool.running == 2
    pool.release(first)
    assert states(beyond, waits) == ["granted", "waiting"] and pool.running == 1
    pool.release(beyond)
    assert states(waits) == ["granted"]


def test_another_size_holds_from_now_on() -> None:
    pool = Pool(2, fifo)
    requests = [asked(pool) for _ in range(5)]
    pool.resize(3)
    assert states(*requests) == ["granted"] * 3 + ["waiting"] * 2
    pool.resize(1)
    pool.release(requests[0])
    assert pool.running == 2 and pool.waiting == 2
    pool.resize(None)
    assert states(*requests[1:]) == ["granted"] * 4


def test_requests_of_a_closed_event_loop_pass_the_permit_on_however_many_they_are() -> None:
    pool = Pool(1, fifo)
    first = asked(pool)

    async def on_a_loop() -> list[PermitRequest]:
        return [asked(pool) for _ in range(3000)]

    gone = asyncio.run(on_a_loop())
    alive = asked(pool)
    pool.release(first)
    assert set(states(*gone)) == {"idle"} and states(alive) == ["granted"]
    assert (pool.running, pool.waiting) == (1, 0)


def test_a_permit_that_is_released_while_the_policy_decides_is_granted_once() -> None:
    """Python may collect an abandoned stream anywhere, whose end releases a permit."""
    abandoned: list[PermitRequest] = []

    def collecting(waiting: Sequence[Waiting], slots: int) -> list[Take]:
        if abandoned:
            pool.release(abandoned.pop())
        return by_depth(waiting, slots)

    pool = Pool(2, collecting)
    first, second, *rest = (asked(pool) for _ in range(5))
    abandoned.append(second)
    pool.release(first)
    assert states(*rest) == ["granted", "granted", "waiting"] and (pool.running, pool.waiting) == (2, 1)


# The users of the line


def test_calls_of_a_low_priority_are_admitted_in_the_end() -> None:
    admission = ProcessAdmission(Limits(max_queries=1))

    def asked_for(priority: int) -> AdmissionRequest:
        request = AdmissionRequest(priority=priority)
        request.admission = admission
        admission.enqueue(request)
        return request

    inside, low, passed = asked_for(1), asked_for(0), 0
    while low.state is State.WAITING:
        following = asked_for(1)
        admission.release(inside)
        inside, passed = following, passed + 1
    assert passed == PATIENCE + 1


def test_other_weights_hold_for_calls_that_wait() -> None:
    admission = ProcessAdmission(Limits(max_queries=1))
    requests = [AdmissionRequest(tenant) for tenant in ["", *"aaaabbbb"]]
    for request in requests:
        request.admission = admission
        admission.enqueue(request)
    admission.change(Limits(max_queries=1, tenants={"b": 3}))
    inside, order = requests[0], ""
    while admission.waiting:
        admission.release(inside)
        (inside,) = (request for request in requests if request.state is State.GRANTED)
        order += inside.tenant
    assert order.count("b", 0, 5) == 3 and sorted(order) == sorted("aaaabbbb")


def test_other_limits_begin_with_new_shares() -> None:
    admission = ProcessAdmission(Limits(max_queries=1))
    requests = [AdmissionRequest(tenant) for tenant in ["", *"aab"]]
    for request in requests:
        request.admission = admission
        admission.enqueue(request)
    admission.release(requests[0])
    assert states(*requests) == ["idle", "granted", "waiting", "waiting"]  # "b" was given less so far
    admission.change(Limits(max_queries=1))
    admission.release(requests[1])
    assert states(*requests) == ["idle", "idle", "granted", "waiting"]


def test_a_policy_that_admits_nobody_to_an_llm_fails_the_requests_that_wait() -> None:
    async def run() -> None:
        queue = LLMQueue(Speaker(), lambda waiting, slots: [])
        with pytest.raises(BackendError, match="took none of 1 waiting requests"):
            await ask(queue, prompt(1))
        queue.policy = fifo
        assert await ask(queue, prompt(1)) == "one two three"

    virtual.run(run())
