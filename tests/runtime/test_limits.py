"""Who is admitted, who waits, who is next, and what is left when somebody gives up. No LangChain."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineflow.errors import Overloaded
from fineflow.runtime.loop.scopes import Scope, current
from fineflow.runtime.queues import admission
from fineflow.runtime.queues.admission import ADMITTED, WAITING, Door, Limits, Ticket, enter, enter_sync
from fineflow.testing.gates import wait_until


def nobody() -> None:
    """Is woken."""


def ticket(door: Door, tenant: str = "", priority: int = 0) -> Ticket:
    made = Ticket(tenant, priority)
    made.door = door
    return made


def ask(door: Door, tenant: str = "", priority: int = 0) -> Ticket:
    made = ticket(door, tenant, priority)
    door.ask(made, nobody)
    return made


def served(door: Door, inside: Ticket, waiting: list[Ticket]) -> list[Ticket]:
    """The order in which those who wait come in when one leaves after the other."""
    order = []
    while waiting:
        door.leave(inside)
        (inside,) = [each for each in waiting if each.state == ADMITTED]
        waiting = [each for each in waiting if each is not inside]
        order.append(inside)
    door.leave(inside)
    return order


@pytest.fixture
def one() -> Door:
    return Door(Limits(max_queries=1))


def test_without_limits_everybody_is_admitted() -> None:
    door = Door()
    tickets = [ask(door) for _ in range(100)]
    assert {each.state for each in tickets} == {ADMITTED} and (door.running, door.waiting) == (100, 0)


def test_first_come_first_served(one: Door) -> None:
    inside, waiting = ask(one), [ask(one) for _ in range(5)]
    assert (one.running, one.waiting) == (1, 5)
    assert served(one, inside, waiting) == waiting
    assert (one.running, one.waiting, one.counts.finished) == (0, 0, 6)


def test_higher_priorities_first_inside_a_tenant(one: Door) -> None:
    inside = ask(one)
    low, high, middle, other = ask(one, priority=-1), ask(one, priority=7), ask(one), ask(one)
    assert served(one, inside, [low, high, middle, other]) == [high, middle, other, low]


def test_tenants_are_served_by_weight() -> None:
    door = Door(Limits(max_queries=1, tenants={"paid": 4, "free": 1}))
    inside = ask(door, "free")
    waiting = [ask(door, "free") for _ in range(20)] + [ask(door, "paid") for _ in range(20)]
    order = served(door, inside, waiting)
    first = Counter(each.tenant for each in order[:20])
    assert first == {"paid": 16, "free": 4}


def test_a_priority_does_not_outrank_other_tenants() -> None:
    door = Door(Limits(max_queries=1))
    inside = ask(door, "pushy", 9)
    waiting = [ask(door, "pushy", 9) for _ in range(4)] + [ask(door, "modest") for _ in range(4)]
    tenants = [each.tenant for each in served(door, inside, waiting)]
    assert tenants[:2] == ["modest", "pushy"] or tenants[:2] == ["pushy", "modest"]
    assert Counter(tenants[:6])["modest"] == 3


def test_who_was_away_is_due_nothing_for_that_time() -> None:
    door = Door(Limits(max_queries=1))
    inside = ask(door, "busy")
    waiting = [ask(door, "busy") for _ in range(50)]
    for each in waiting[:40]:
        door.leave(inside)
        assert each.state == ADMITTED
        inside = each
    late = [ask(door, "late") for _ in range(10)]
    order = served(door, inside, waiting[40:] + late)
    assert Counter(each.tenant for each in order[:10])["late"] in (5, 6)


def test_as_many_tenants_as_users_leave_nothing_behind(one: Door) -> None:
    inside = ask(one, "first")
    for i in range(3000):
        following = ask(one, f"user {i}")
        one.leave(inside)
        inside = following
    one.leave(inside)
    assert not one._queues and len(one._served) <= 1025


@given(st.lists(st.sampled_from("abc"), min_size=60, max_size=90), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_shares_follow_the_weights_as_long_as_both_wait(tenants: list[str], a: int, b: int) -> None:
    door = Door(Limits(max_queries=1, tenants={"a": a, "b": b}))
    inside = ask(door, "c")
    waiting = [ask(door, tenant) for tenant in tenants if tenant != "c"]
    there = Counter(each.tenant for each in waiting)
    given_so_far: Counter[str] = Counter()
    for each in served(door, inside, waiting):
        given_so_far[each.tenant] += 1
        if all(given_so_far[name] < there[name] for name in "ab"):  # the bound of start-time fair queueing
            assert abs(given_so_far["a"] / a - given_so_far["b"] / b) <= 1 / a + 1 / b + 1e-9


@pytest.mark.parametrize("overload", ["wait", "raise"])
def test_beyond_the_limits_a_call_is_turned_away(overload: str) -> None:
    most = None if overload == "raise" else 1
    door = Door(Limits(max_queries=2, max_waiting=most, overload=overload))
    for _ in range(3 if most else 2):
        ask(door)
    with pytest.raises(Overloaded, match="max_queries=2"):
        ask(door)
    assert door.counts.overloaded == 1 and door.running == 2 and door.waiting == (most or 0)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"max_queries": 0}, ValueError, "at least 1"),
        ({"max_queries": True}, TypeError, "whole number"),
        ({"max_queries": 1, "max_waiting": -1}, ValueError, "at least 0"),
        ({"max_waiting": 3}, ValueError, "without max_queries"),
        ({"max_queries": 1, "max_waiting": 3, "overload": "raise"}, ValueError, "no call ever waits"),
        ({"overload": "drop"}, ValueError, "'wait' or 'raise'"),
        ({"tenants": {"free": 0}}, ValueError, "above 0"),
        ({"tenants": {"free": float("inf")}}, ValueError, "finite"),
        ({"tenants": {"free": "much"}}, TypeError, "names to weights"),
    ],
)
def test_limits_that_are_none(given: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        Limits(**given)


def test_who_gives_up_leaves_the_queue(one: Door) -> None:
    inside, first, second = ask(one), ask(one), ask(one)
    one.withdraw(first)
    assert one.waiting == 1
    one.leave(inside)
    assert second.state == ADMITTED and one.counts.cancelled == 1
    one.withdraw(first)  # a second time changes nothing
    one.leave(second)
    assert (one.running, one.waiting) == (0, 0) and not one._queues


def test_who_is_admitted_and_gone_passes_the_place_on(one: Door) -> None:
    inside = ask(one)
    gone, following = ticket(one), ticket(one)

    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    one.ask(gone, closed)
    one.ask(following, nobody)
    one.leave(inside)
    assert following.state == ADMITTED and one.running == 1


def test_other_limits_let_more_in(one: Door) -> None:
    ask(one)
    waiting = [ask(one) for _ in range(3)]
    one.change(Limits(max_queries=3))
    assert [each.state for each in waiting] == [ADMITTED, ADMITTED, WAITING]
    one.change(Limits())
    assert (one.running, one.waiting) == (4, 0)


def test_being_told_when_nobody_is_inside(one: Door) -> None:
    told: list[str] = []
    one.when_empty(lambda: told.append("now"))
    inside, following = ask(one), ask(one)
    one.when_empty(lambda: told.append("later"))
    one.leave(inside)
    assert told == ["now"]  # the next one has come in
    one.leave(following)
    assert told == ["now", "later"]


# Waiting, from coroutines and threads.


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> tuple[Door, Ticket]:
    """The door of the process, with one inside and no place left."""
    door = Door(Limits(max_queries=1))
    monkeypatch.setattr(admission, "_door", door)
    return door, ask(door)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_a_coroutine_waits_for_its_turn(full: tuple[Door, Ticket]) -> None:
    door, inside = full
    mine = Ticket()
    task = asyncio.ensure_future(enter(mine))
    await until(lambda: door.waiting == 1)
    door.leave(inside)
    await task
    assert mine.state == ADMITTED


async def test_a_cancelled_coroutine_does_not_wait_any_more(full: tuple[Door, Ticket]) -> None:
    door, inside = full
    task = asyncio.ensure_future(enter(Ticket()))
    await until(lambda: door.waiting == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (door.running, door.waiting) == (1, 0)
    door.leave(inside)
    assert door.running == 0


async def test_cancelled_at_the_moment_of_admission(full: tuple[Door, Ticket]) -> None:
    door, inside = full
    task = asyncio.ensure_future(enter(Ticket()))
    await until(lambda: door.waiting == 1)
    door.leave(inside)  # the task will hear of it in the next turn of the loop
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (door.running, door.waiting) == (0, 0)


def test_threads_wait_without_an_event_loop(full: tuple[Door, Ticket]) -> None:
    door, inside = full
    order: list[int] = []
    lock = threading.Lock()

    def call(number: int) -> None:
        mine = Ticket()
        enter_sync(mine)
        with lock:
            order.append(number)
        door.leave(mine)

    with ThreadPoolExecutor(20) as pool:
        calls = [pool.submit(call, i) for i in range(20)]
        wait_until(lambda: door.waiting == 20)
        door.leave(inside)
        for each in calls:
            each.result(10)
    assert sorted(order) == list(range(20)) and door.counts.finished == 21


async def test_a_thread_that_runs_an_event_loop_does_not_wait(full: tuple[Door, Ticket]) -> None:
    with pytest.raises(Overloaded, match="event loop"):
        enter_sync(Ticket())
    assert full[0].waiting == 0


def test_a_waiting_thread_is_woken_when_its_scope_is_stopped(full: tuple[Door, Ticket]) -> None:
    door, _ = full
    scope, ended = Scope(), []

    def wait() -> None:
        current.set(scope)
        try:
            enter_sync(Ticket())
        except asyncio.CancelledError:
            ended.append("cancelled")

    thread = threading.Thread(target=contextvars.copy_context().run, args=(wait,))
    thread.start()
    wait_until(lambda: door.waiting == 1)
    scope.stop()
    thread.join(10)
    assert ended == ["cancelled"] and door.waiting == 0


def test_turning_away_wakes_all_who_wait(full: tuple[Door, Ticket]) -> None:
    door, _ = full

    def call() -> None:
        with pytest.raises(Overloaded, match="closed"):
            enter_sync(Ticket())

    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(call) for _ in range(5)]
        wait_until(lambda: door.waiting == 5)
        door.turn_away()
        for each in calls:
            each.result(10)
    assert (door.running, door.waiting, door.counts.overloaded) == (1, 0, 5)
