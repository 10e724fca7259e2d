from __future__ import annotations

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fineflow.testing.gates import Gate, Meter


def test_threads_wait_until_the_gate_opens() -> None:
    gate, passed = Gate(), []
    with ThreadPoolExecutor(3) as pool:
        for i in range(3):
            pool.submit(lambda i=i: (gate.wait_sync(), passed.append(i)))
        gate.wait_arrived(3)
        assert passed == []
        gate.open()
    assert sorted(passed) == [0, 1, 2]


async def test_coroutines_wait_until_the_gate_opens() -> None:
    gate = Gate()
    tasks = [asyncio.create_task(gate.wait()) for _ in range(2)]
    await gate.arrived(2)
    assert not any(task.done() for task in tasks)
    gate.open()
    await asyncio.gather(*tasks)
    await gate.wait()
    assert gate.arrivals == 3


async def test_a_thread_and_two_event_loops_meet_at_one_gate() -> None:
    gate = Gate()
    threads = [
        threading.Thread(target=gate.wait_sync),
        threading.Thread(target=lambda: asyncio.run(gate.wait())),
    ]
    for thread in threads:
        thread.start()
    mine = asyncio.create_task(gate.wait())
    await gate.arrived(3)
    gate.open()
    await mine
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


async def test_let_passes_as_many_as_it_says() -> None:
    gate, passed = Gate(), []

    async def walk(name: str) -> None:
        await gate.wait()
        passed.append(name)

    first = asyncio.create_task(walk("first"))
    await gate.arrived(1)
    gate.let(2)
    await first
    await walk("second")
    with pytest.raises(TimeoutError):
        await gate.wait(timeout=0.01)
    assert passed == ["first", "second"]


def test_a_closed_gate_holds_those_who_come_later() -> None:
    gate = Gate(opened=True)
    gate.wait_sync()
    gate.let(5)
    gate.close()
    with pytest.raises(TimeoutError, match=r"the gate stayed closed, after 0\.01 s"):
        gate.wait_sync(timeout=0.01)


async def test_a_timeout_says_how_many_came() -> None:
    gate = Gate(opened=True)
    gate.wait_sync()
    with pytest.raises(TimeoutError, match="expected 2 to arrive at the gate, 1 did"):
        gate.wait_arrived(2, timeout=0.01)
    with pytest.raises(TimeoutError, match="expected 2 to arrive at the gate, 1 did"):
        await gate.arrived(2, timeout=0.01)


def test_a_waiter_whose_loop_is_gone_does_not_stop_the_others() -> None:
    gate = Gate()

    async def abandon() -> None:
        task = asyncio.create_task(gate.wait())
        await gate.arrived(1)
        task.cancel()

    asyncio.run(abandon())
    gate.open()
    gate.wait_sync()


async def test_a_meter_counts_work_in_flight() -> None:
    meter, gate = Meter(), Gate()

    async def work(label: str) -> None:
        with meter.work(label):
            await gate.wait()

    tasks = [asyncio.create_task(work(x)) for x in "ab"]
    await gate.arrived(2)
    assert (meter.in_flight, meter.peak, meter.calls, meter.labels) == (2, 2, 2, ["a", "b"])
    with pytest.raises(TimeoutError, match="2 calls are still running"):
        meter.wait_idle(timeout=0.01)
    tasks[0].cancel()
    gate.open()
    await meter.idle()
    assert (meter.in_flight, meter.peak, meter.calls) == (0, 2, 2)
    assert all(span.start <= span.end for span in meter.spans)
    await tasks[1]
    assert tasks[0].cancelled() or await asyncio.gather(tasks[0], return_exceptions=True)


def test_copies_share_gate_and_meter() -> None:
    gate, meter = Gate(), Meter()
    assert copy.deepcopy(gate) is gate
    assert copy.deepcopy([meter])[0] is meter
