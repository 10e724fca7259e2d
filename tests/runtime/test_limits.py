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
from fineflow.runtime.queues.admission import AdmissionRequest, Limits, ProcessAdmission
from fineflow.runtime.queues.permits import State
from fineflow.testing.gates import wait_until


def ticket(door: ProcessAdmission, tenant: str = "", priority: int = 0) -> AdmissionRequest:
    made = AdmissionRequest(tenant, priority)
    made.admission = door
    return made


def ask(door: ProcessAdmission, tenant: str = "", priority: int = 0) -> AdmissionRequest:
    made = ticket(door, tenant, priority)
    door.enqueue(made)
    return made


def served(door: ProcessAdmission, inside: AdmissionRequest, waiting: list[AdmissionRequest]) -> list[AdmissionRequest]:
    """The order in which those who wait come in when one leaves after the other."""
    order = []
    while waiting:
        door.release(inside)
        (inside,) = [each for each in waiting if each.state == State.GRANTED]
        waiting = [each for each in waiting if each is not inside]
        order.append(inside)
    door.release(inside)
    return order


@pytest.fixture
def one() -> ProcessAdmission:
    return ProcessAdmission(Limits(max_queries=1))


def test_without_limits_everybody_is_admitted() -> None:
    door = ProcessAdmission()
    tickets = [ask(door) for _ in range(100)]
    assert {each.state for each in tickets} == {State.GRANTED} and (door.running, door.waiting) == (100, 0)


def test_first_come_first_served(one: ProcessAdmission) -> None:
    inside, waiting = ask(one), [ask(one) for _ in range(5)]
    assert (one.running, one.waiting) == (1, 5)
    assert served(one, inside, waiting) == waiting
    assert (one.running, one.waiting, one.counts.finished) == (0, 0, 6)


def test_higher_priorities_first_inside_a_tenant(one: ProcessAdmission) -> None:
    inside = ask(one)
    low, high, middle, other = ask(one, priority=-1), ask(one, priority=7), ask(one), ask(one)
    assert served(one, inside, [low, high, middle, other]) == [high, middle, other, low]


def test_tenants_are_served_by_weight() -> None:
    door = ProcessAdmission(Limits(max_queries=1, tenants={"paid": 4, "free": 1}))
    inside = ask(door, "free")
    waiting = [ask(door, "free") for _ in range(20)] + [ask(door, "paid") for _ in range(20)]
    order = served(door, inside, waiting)
    first = Counter(each.tenant for each in order[:20])
    assert first == {"paid": 16, "free": 4}


def test_a_priority_does_not_outrank_other_tenants() -> None:
    door = ProcessAdmission(Limits(max_queries=1))
    inside = ask(door, "pushy", 9)
    waiting = [ask(door, "pushy", 9) for _ in range(4)] + [ask(door, "modest") for _ in range(4)]
    tenants = [each.tenant for each in served(door, inside, waiting)]
    assert tenants[:2] == ["modest", "pushy"] or tenants[:2] == ["pushy", "modest"]
    assert Counter(tenants[:6])["modest"] == 3


def test_who_was_away_is_due_nothing_for_that_time() -> None:
    door = ProcessAdmission(Limits(max_queries=1))
    inside = ask(door, "busy")
    waiting = [ask(door, "busy") for _ in range(50)]
    for each in waiting[:40]:
        door.release(inside)
        assert each.state == State.GRANTED
        inside = each
    late = [ask(door, "late") for _ in range(10)]
    order = served(door, inside, waiting[40:] + late)
    assert Counter(each.tenant for each in order[:10])["late"] in (5, 6)


def test_as_many_tenants_as_users_leave_nothing_behind(one: ProcessAdmission) -> None:
    inside = ask(one, "first")
    for i in range(3000):
        following = ask(one, f"user {i}")
        one.release(inside)
        inside = following
    one.release(inside)
    assert not one._line and len(one._line.shares._used) <= 1025


@given(st.lists(st.sampled_from("abc"), min_size=60, max_size=90), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_shares_follow_the_weights_as_long_as_both_wait(tenants: list[str], a: int, b: int) -> None:
    door = ProcessAdmission(Limits(max_queries=1, tenants={"a": a, "b": b}))
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
    door = ProcessAdmission(Limits(max_queries=2, max_waiting=most, overload=overload))
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


def test_who_gives_up_leaves_the_queue(one: ProcessAdmission) -> None:
    inside, first, second = ask(one), ask(one), ask(one)
    one.withdraw(first)
    assert one.waiting == 1
    one.release(inside)
    assert second.state == State.GRANTED and one.counts.cancelled == 1
    one.withdraw(first)  # a second time changes nothing
    one.release(second)
    assert (one.running, one.waiting) == (0, 0) and not one._line


def test_who_is_admitted_and_gone_passes_the_place_on(one: ProcessAdmission) -> None:
    inside = ask(one)
    gone, following = ticket(one), ticket(one)

    async def on_a_loop() -> None:
        one.enqueue(gone)

    asyncio.run(on_a_loop())  # which is closed then
    one.enqueue(following)
    one.release(inside)
    assert following.state == State.GRANTED and one.running == 1


def test_other_limits_let_more_in(one: ProcessAdmission) -> None:
    ask(one)
    waiting = [ask(one) for _ in range(3)]
    one.change(Limits(max_queries=3))
    assert [each.state for each in waiting] == [State.GRANTED, State.GRANTED, State.WAITING]
    one.change(Limits())
    assert (one.running, one.waiting) == (4, 0)


def test_being_told_when_nobody_is_inside(one: ProcessAdmission) -> None:
    told: list[str] = []
    one.when_idle(lambda: told.append("now"))
    inside, following = ask(one), ask(one)
    one.when_idle(lambda: told.append("later"))
    one.release(inside)
    assert told == ["now"]  # the next one has come in
    one.release(following)
    assert told == ["now", "later"]


# Waiting, from coroutines and threads.


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> tuple[ProcessAdmission, AdmissionRequest]:
    """The door of the process, with one inside and no place left."""
    door = ProcessAdmission(Limits(max_queries=1))
    monkeypatch.setattr(admission, "_admission", door)
    return door, ask(door)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_a_coroutine_waits_for_its_turn(full: tuple[ProcessAdmission, AdmissionRequest]) -> None:
    door, inside = full
    mine = AdmissionRequest()
    task = asyncio.ensure_future(door.acquire(mine))
    await until(lambda: door.waiting == 1)
    door.release(inside)
    await task
    assert mine.state == State.GRANTED


async def test_a_cancelled_coroutine_does_not_wait_any_more(full: tuple[ProcessAdmission, AdmissionRequest]) -> None:
    door, inside = full
    task = asyncio.ensure_future(door.acquire(AdmissionRequest()))
    await until(lambda: door.waiting == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (door.running, door.waiting) == (1, 0)
    door.release(inside)
    assert door.running == 0


async def test_cancelled_at_the_moment_of_admission(full: tuple[ProcessAdmission, AdmissionRequest]) -> None:
    door, inside = full
    task = asyncio.ensure_future(door.acquire(AdmissionRequest()))
    await until(lambda: door.waiting == 1)
    door.release(inside)  # the task will hear of it in the next turn of the loop
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (door.running, door.waiting) == (0, 0)


def test_threads_wait_without_an_event_loop(full: tuple[ProcessAdmission, AdmissionRequest]) -> None:
    door, inside = full
    order: list[int] = []
    lock = threading.Lock()

    def call(number: int) -> None:
        mine = AdmissionRequest()
        door.acquire_sync(mine)
        with lock:
            order.append(number)
        door.release(mine)

    with ThreadPoolExecutor(20) as pool:
        calls = [pool.submit(call, i) for i in range(20)]
        wait_until(lambda: door.waiting == 20)
        door.release(inside)
        for each in calls:
            each.result(10)
    assert sorted(order) == list(range(20)) and door.counts.finished == 21


async def test_a_thread_that_runs_an_event_loop_does_not_wait(full: tuple[ProcessAdmission, AdmissionRequest]) -> None:
    with pytest.raises(Overloaded, match="event loop"):
        full[0].acquire_sync(AdmissionRequest())
    assert full[0].waiting == 0


def test_a_waiting_thread_is_woken_when_its_scope_is_stopped(full: tuple[ProcessAdmission, AdmissionRequest]) -> None:
    door, _ = full
    scope, ended = Scope(), []

    def wait() -> None:
        current.set(scope)
        try:
            door.acquire_sync(AdmissionRequest())
        except asyncio.CancelledError:
            ended.append("cancelled")

    thread = threading.Thread(target=contextvars.copy_context().run, args=(wait,))
    thread.start()
    wait_until(lambda: door.waiting == 1)
    scope.stop()
    thread.join(10)
    assert ended == ["cancelled"] and door.waiting == 0


def test_turning_away_wakes_all_who_wait(full: tuple[ProcessAdmission, AdmissionRequest]) -> None:
    door, _ = full

    def call() -> None:
        with pytest.raises(Overloaded, match="closed"):
            door.acquire_sync(AdmissionRequest())

    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(call) for _ in range(5)]
        wait_until(lambda: door.waiting == 5)
        door.refuse_waiting()
        for each in calls:
            each.result(10)
    assert (door.running, door.waiting, door.counts.overloaded) == (1, 0, 5)
