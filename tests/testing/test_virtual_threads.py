"""Virtual time of threads and loops together: figures are sums of latencies, whatever the machine does meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.loop.submission import run_sync
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Meter, Span
from fineflow.testing.virtual import DeadlockError

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")


def work(seconds: float) -> int:
    """Computes for so many real seconds."""
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += 1
    return count


def test_threads_sleep_side_by_side_and_one_after_the_other() -> None:
    def call() -> str:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(time.sleep, [1.0, 3.0, 2.0]))
        time.sleep(0.5)
        return "done"

    assert virtual_threads.run(call) == ("done", 3.5)


def test_what_is_computed_takes_no_time_and_is_waited_for() -> None:
    def call() -> None:
        slow = threading.Thread(target=lambda: (work(0.1), time.sleep(0.2)))
        slow.start()
        time.sleep(0.1)  # ends first in real time, but the other begins to sleep at 0, too
        slow.join()

    assert virtual_threads.run(call).seconds == 0.2


def test_loops_of_several_threads_have_one_clock() -> None:
    async def one(seconds: float) -> float:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(time.sleep, seconds)
        return asyncio.get_running_loop().time()

    def call() -> Any:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(asyncio.run, one(1.0))
            second = pool.submit(asyncio.run, one(0.3))
            return first.result(), second.result()

    assert virtual_threads.run(call) == ((2.0, 0.6), 2.0)


def test_the_runtimes_loop_lives_by_it_and_ends_with_it() -> None:
    async def later() -> str:
        await asyncio.sleep(5)
        return "later"

    seen: list[Any] = []

    def call() -> str:
        seen.append(engine_loop())
        return run_sync(later)

    assert virtual_threads.run(call) == ("later", 5.0)
    assert seen[0].is_closed()
    assert engine_loop().time() > 5  # the next one has real time
    assert time.sleep.__module__ == "time"


def test_what_is_measured_is_measured_by_it() -> None:
    meter = Meter()

    def call() -> None:
        time.sleep(1)
        with meter.work("it"):
            time.sleep(2)

    virtual_threads.run(call)
    assert meter.spans == [Span("it", 1.0, 3.0)]


def test_timers_that_are_taken_back_do_not_count() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.sleep(100)
        async with asyncio.timeout(100):
            await asyncio.sleep(0.1)

    assert virtual_threads.run(lambda: asyncio.run(main())).seconds == 0.3


def test_what_the_call_raises_is_raised() -> None:
    with pytest.raises(KeyError, match="it"):
        virtual_threads.run(lambda: {}["it"])


def test_nobody_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_threads, "_PATIENCE_SECONDS", 0.05)
    never = threading.Event()
    with pytest.raises(DeadlockError, match="after 2 virtual seconds"):
        virtual_threads.run(lambda: never.wait(time.sleep(2)))  # type: ignore[func-returns-value]
    never.set()
    assert virtual_threads.run(lambda: time.sleep(1)).seconds == 1
