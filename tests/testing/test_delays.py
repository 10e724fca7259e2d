"""Threads and wake-ups that are late at random do what they do on time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import delays
from delays import PLACES, Delays
from fineflow.testing import virtual_threads


def all_of_them() -> list[int]:
    async def woken() -> int:
        return await asyncio.to_thread(lambda: 3)

    arrived = threading.Event()
    threading.Thread(target=arrived.set).start()
    arrived.wait()
    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(abs, [-1, -2]), asyncio.run(woken())]


def test_each_place_is_late_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "SHARE", 1.0)
    before = [getattr(owner, name) for owner, name in PLACES]
    late = Delays(7)
    with late.everywhere():
        assert all_of_them() == [1, 2, 3]
        assert not any(getattr(owner, name) is method for (owner, name), method in zip(PLACES, before, strict=True))
    assert late.late >= 7
    assert [getattr(owner, name) for owner, name in PLACES] == before


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_virtual_time_waits_for_late_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "SHARE", 1.0)
    with Delays(7).everywhere():
        assert virtual_threads.run(all_of_them) == ([1, 2, 3], 0.0)
