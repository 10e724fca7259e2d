"""What holds an event loop is seen, and what only looks like it is not."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fineflow.testing import virtual_threads
from fineflow.testing.stalls import held

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_sleep_on_the_loop_is_seen() -> None:
    async def blocking() -> str:
        await asyncio.sleep(3)
        time.sleep(0.5)  # noqa: ASYNC251
        return "done"

    found = held(blocking)
    assert found.value == "done"
    assert 0.5 <= found.seconds < 0.6
    assert "blocking" in found.by


def test_a_wait_for_a_thread_is_seen() -> None:
    async def blocking() -> None:
        slow = threading.Thread(target=time.sleep, args=(0.5,))
        slow.start()
        slow.join()

    assert 0.5 <= held(blocking).seconds < 0.6


def test_what_is_computed_on_the_loop_is_seen() -> None:
    async def blocking() -> None:
        compute(0.2)

    assert held(blocking).seconds >= 0.2


def test_what_others_do_meanwhile_is_not() -> None:
    async def fair() -> None:
        await asyncio.gather(
            asyncio.sleep(5),
            asyncio.to_thread(time.sleep, 0.5),
            *[asyncio.to_thread(compute, 0.2) for _ in range(4)],  # they have the interpreter in turns with the loop
            _ticks(),
        )

    async def _ticks() -> None:
        for _ in range(50):
            await asyncio.sleep(0.01)

    assert held(fair).seconds < 0.05


def test_what_is_done_once_does_not_count() -> None:
    done: list[bool] = []

    async def first() -> None:
        if not done:
            done.append(True)
            time.sleep(0.5)  # noqa: ASYNC251

    assert held(first).seconds < 0.05
    done.clear()
    assert held(first, warm=False).seconds >= 0.5
