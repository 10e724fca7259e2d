"""Permits of a limited component: how many calls run, which is next, and that no call waits while it holds one."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fineflow.errors import FineflowWarning
from fineflow.runtime.loop import scopes
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.component_calls import ComponentPermits, LimitedComponent, acall_component, call_component
from fineflow.runtime.queues.permits import Permit, lend_permits
from fineflow.runtime.queues.policy import Take
from fineflow.runtime.queues.registry import set_policy
from fineflow.runtime.queues.request_context import must_not_wait
from fineflow.runtime.statistics import statistics
from fineflow.testing import virtual_threads
from fineflow.testing.gates import wait_until


def limited(at_once: int, name: str = "tool") -> tuple[LimitedComponent, ComponentPermits]:
    component = LimitedComponent(name)
    component.limit(at_once)
    assert component.permits is not None
    return component, component.permits


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@contextmanager
def asked(**values: Any) -> Iterator[None]:
    """What the code of the block says of itself to queues."""
    tokens = [getattr(request_context, name).set(value) for name, value in values.items()]
    yield
    for token in tokens:
        token.var.reset(token)


class Calls:
    """Calls of one component: which of them have begun, and until when they work."""

    def __init__(self, component: LimitedComponent) -> None:
        self.component = component
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[str]] = {}

    def start(self, name: str, **values: Any) -> None:
        self.gates[name] = asyncio.Event()
        with asked(**{"query": name, **values}):
            self.tasks[name] = asyncio.create_task(
                acall_component("tool", name, self.component, lambda: self._work(name))
            )

    async def _work(self, name: str) -> str:
        self.begun.append(name)
        await self.gates[name].wait()
        return name

    async def end(self, name: str) -> None:
        self.gates[name].set()
        assert await self.tasks[name] == name
        await turns()


def test_so_many_at_once_and_the_others_in_the_order_of_the_policy() -> None:
    component, permits = limited(2)

    async def main() -> None:
        calls = Calls(component)
        for name, query, depth in (("a", "a", 0), ("b", "b", 0), ("shallow", "q", 1), ("deep", "q", 5), ("r", "r", 0)):
            calls.start(name, query=query, depth=depth)
        await turns()
        assert calls.begun == ["a", "b"]
        assert (permits.running, permits.waiting) == (2, 3)
        assert (statistics().engines["tool"].running, statistics().engines["tool"].queued) == (2, 3)
        for ended, begun in (("a", "deep"), ("b", "shallow"), ("deep", "r")):
            await calls.end(ended)
            assert calls.begun[-1] == begun  # of each query the deepest first, queries by their arrival
        await calls.end("shallow")
        await calls.end("r")

    before = statistics().engines["tool"].batches if "tool" in statistics().engines else 0
    asyncio.run(main())
    assert (permits.running, permits.waiting) == (0, 0)
    figures = statistics().engines["tool"]
    assert (figures.batches - before, figures.queued, figures.running) == (5, 0, 0)


@pytest.mark.parametrize(("policy", "order"), [("fifo", ["b", "c"]), ("app_fifo", ["c", "b"])])
def test_a_policy_may_be_set(policy: str, order: list[str]) -> None:
    component, _ = limited(1)
    set_policy(component, policy)

    async def main() -> list[str]:
        calls = Calls(component)
        for name, started in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
            calls.start(name, started=started)
        await turns()
        for name in ("a", *order):
            await calls.end(name)
        return calls.begun

    assert asyncio.run(main()) == ["a", *order]


def test_priorities_and_tenants_come_before_the_policy() -> None:
    component, _ = limited(1)

    async def main() -> list[str]:
        calls = Calls(component)
        for name, priority in (("a", 0), ("b", 0), ("c", 3)):
            calls.start(name, priority=priority)
        await turns()
        for name in ("a", "c", "b"):
            await calls.end(name)
        return calls.begun

    assert asyncio.run(main()) == ["a", "c", "b"]


@pytest.mark.parametrize("policy", [lambda waiting, slots: 1 / 0, lambda waiting, slots: [], lambda *_: [Take(99, 1)]])
def test_a_policy_that_is_wrong_costs_the_order_and_nothing_else(policy: Any) -> None:
    component, permits = limited(1)
    set_policy(component, policy)

    async def main() -> list[str]:
        calls = Calls(component)
        for name in "abc":
            calls.start(name)
        await turns()
        with pytest.warns(FineflowWarning, match="order of their arrival"):
            await calls.end("a")
        await calls.end("b")
        await calls.end("c")
        return calls.begun

    assert asyncio.run(main()) == ["a", "b", "c"]
    assert permits.running == 0


def test_a_cancelled_call_waits_no_more_and_gives_its_place_back() -> None:
    component, permits = limited(1)

    async def main() -> None:
        calls = Calls(component)
        for name in "abc":
            calls.start(name)
        await turns()
        calls.tasks["b"].cancel()
        await turns()
        assert permits.waiting == 1
        calls.tasks["a"].cancel()
        await turns()
        assert calls.begun == ["a", "c"]
        calls.tasks["c"].cancel()
        await turns()

    asyncio.run(main())
    assert (permits.running, permits.waiting) == (0, 0)


def test_a_call_that_is_cancelled_at_the_moment_it_is_admitted() -> None:
    component, permits = limited(1)

    async def main() -> None:
        calls = Calls(component)
        for name in "ab":
            calls.start(name)
        await turns()
        calls.gates["a"].set()
        await calls.tasks["a"]
        calls.tasks["b"].cancel()  # its turn is on the way to its loop
        await turns()
        assert calls.begun == ["a"]

    asyncio.run(main())
    assert (permits.running, permits.waiting) == (0, 0)


def test_the_number_may_change_while_calls_wait() -> None:
    component, permits = limited(1)

    async def main() -> None:
        calls = Calls(component)
        for name in "abcd":
            calls.start(name)
        await turns()
        component.limit(2)
        await turns()
        assert calls.begun == ["a", "b"]
        component.limit(None)
        await turns()
        assert calls.begun == ["a", "b", "c", "d"]
        for name in "abcd":
            await calls.end(name)

    asyncio.run(main())
    assert (permits.running, permits.waiting) == (0, 0)


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_threads_and_loops_share_the_places() -> None:
    component, permits = limited(2)
    most, now, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(1)
        with lock:
            now -= 1

    async def awork() -> None:
        await asyncio.to_thread(work)

    def thread() -> None:
        for _ in range(5):
            call_component("tool", "", component, work)

    def loop() -> None:
        async def main() -> None:
            await asyncio.gather(*(acall_component("tool", "", component, awork) for _ in range(5)))

        asyncio.run(main())

    def run() -> None:
        threads = [threading.Thread(target=target) for target in (thread, thread, thread, loop, loop)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)

    virtual_threads.run(run)
    assert most == 2
    assert (permits.running, permits.waiting) == (0, 0)


def test_a_loop_that_has_ended_holds_up_nobody() -> None:
    component, permits = limited(1)
    hold = Permit(permits)
    hold.acquire_sync()
    loop = asyncio.new_event_loop()

    async def work() -> None:
        raise AssertionError("it was never its turn")

    task = loop.create_task(acall_component("tool", "", component, work))
    loop.run_until_complete(asyncio.sleep(0))
    assert permits.waiting == 1
    loop.close()
    hold.release()
    assert (permits.running, permits.waiting) == (0, 0)
    call_component("tool", "", component, lambda: None)
    task.get_coro().close()  # type: ignore[union-attr]
    del task
    gc.collect()
    assert (permits.running, permits.waiting) == (0, 0)


def test_a_deadline_ends_the_wait_of_a_thread() -> None:
    component, permits = limited(1)
    hold = Permit(permits)
    hold.acquire_sync()
    found: list[BaseException] = []
    deadline = scopes.Scope()

    def wait() -> None:
        try:
            with deadline.inside():
                call_component("tool", "", component, lambda: None)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: permits.waiting > 0)
    deadline.stop()
    thread.join(30)
    assert [type(error) for error in found] == [asyncio.CancelledError]
    assert permits.waiting == 0
    hold.release()
    assert permits.running == 0


def test_what_is_called_from_inside_has_the_place_meanwhile() -> None:
    component, permits = limited(1)

    def inner() -> str:
        lent = lend_permits()
        assert len(lent) == 1
        try:
            assert permits.running == 0
            return call_component("tool", "inner", component, lambda: "inner")
        finally:
            for hold in lent:
                hold.reclaim_sync()
            assert permits.running == 1

    assert call_component("tool", "outer", component, lambda: inner() + inner()) == "innerinner"
    assert permits.running == 0
    assert lend_permits() == []

    async def ainner() -> str:
        lent = lend_permits()
        try:
            return await acall_component("tool", "inner", component, lambda: asyncio.sleep(0, "inner"))
        finally:
            for hold in lent:
                await hold.reclaim()

    async def both() -> str:
        one, other = await asyncio.gather(ainner(), ainner())  # given away once for both
        assert permits.running == 1
        return one + other

    assert asyncio.run(acall_component("tool", "outer", component, both)) == "innerinner"
    assert permits.running == 0


def test_whoever_is_cancelled_while_taking_a_place_back_goes_on_without_it() -> None:
    component, permits = limited(1)

    async def main() -> None:
        hold, other = Permit(permits), Permit(permits)
        await hold.acquire()
        lent = hold.lend()
        await other.acquire()
        back = asyncio.create_task(hold.reclaim())
        await turns()
        back.cancel()
        await turns()
        hold.release()
        assert lent and permits.running == 1
        other.release()

    asyncio.run(main())
    assert component.permits is permits
    assert (permits.running, permits.waiting) == (0, 0)


def test_a_thread_on_which_a_loop_runs_waits_for_nobody() -> None:
    component, permits = limited(1)

    async def main() -> None:
        calls = Calls(component)
        calls.start("a")
        await turns()
        assert call_component("tool", "", component, lambda: permits.running) == 2  # "a" could not end while it waits
        token = must_not_wait.set(True)
        assert await acall_component("tool", "", component, lambda: asyncio.sleep(0, permits.running)) == 2
        must_not_wait.reset(token)
        await calls.end("a")

    asyncio.run(main())
    assert permits.running == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_forked_child_has_all_places() -> None:
    component, permits = limited(1)
    hold = Permit(permits)
    hold.acquire_sync()
    child = os.fork()
    if not child:
        free = (permits.running, permits.waiting) == (0, 0)
        call_component("tool", "", component, lambda: None)  # would wait for ever
        hold.release()
        os._exit(0 if free and permits.running == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert permits.running == 1
    hold.release()


def test_without_a_limit_calls_are_counted() -> None:
    component = LimitedComponent("counted")

    async def main() -> None:
        calls = Calls(component)
        work = asyncio.create_task(acall_component("counted", "", component, lambda: calls._work("a")))
        calls.gates["a"] = asyncio.Event()
        await turns()
        figures = statistics().engines["counted"]
        assert (figures.queued, figures.running, figures.batches) == (0, 1, 0)
        calls.gates["a"].set()
        await work

    asyncio.run(main())
    with pytest.raises(ValueError, match="no"):
        call_component("counted", "", component, failing)
    figures = statistics().engines["counted"]
    assert (figures.queued, figures.running, figures.batches, figures.failed) == (0, 0, 2, 1)
    assert figures.runs.count == 2 and figures.waits.count == 2


def failing() -> None:
    raise ValueError("no")
