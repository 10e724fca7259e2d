"""The channel between a producer and a consumer: threads and coroutines on any event loop, on either side."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fineflow.runtime.loop import submission
from fineflow.runtime.loop.channel import Channel, pump
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.testing.gates import Gate

WAIT = 10.0  # seconds; only a failing test waits this long


@pytest.fixture
def rarely_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that is not woken up stays asleep."""
    monkeypatch.setattr(submission, "POLL_SECONDS", 1000.0)


# Producers and consumers: each fills or empties a channel, and can be run as a thread or on a loop.


def produce(channel: Channel[int], count: int, error: BaseException | None = None) -> None:
    for i in range(count):
        channel.put(i)
        if channel.full and not channel.wait_for_room():
            return
    channel.end(error)


async def aproduce(channel: Channel[int], count: int, error: BaseException | None = None) -> None:
    for i in range(count):
        channel.put(i)
        if channel.full and not await channel.wait_for_room_async():
            return
    channel.end(error)


def consume(channel: Channel[int]) -> list[int]:
    found = []
    while channel.wait_for_item():
        found.append(channel.take())
    return found


async def aconsume(channel: Channel[int]) -> list[int]:
    found = []
    while await channel.wait_for_item_async():
        found.append(channel.take())
    return found


class Sides:
    """Runs both sides of a channel where ``kind`` says; gives what the consumer does."""

    KINDS = ("thread to thread", "thread to loop", "loop to thread", "loop to other loop", "one loop")

    def __init__(self, kind: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loops = {
            "thread to thread": (None, None),
            "thread to loop": (None, loop),
            "loop to thread": (loop, None),
            "loop to other loop": (engine_loop(), loop),
            "one loop": (loop, loop),
        }[kind]
        self._pool = ThreadPoolExecutor(2)

    def start(self, channel: Channel[int], count: int, error: BaseException | None = None) -> Future[list[int]]:
        producer, consumer = self._loops
        if consumer is None:
            found: Future[list[int]] = self._pool.submit(consume, channel)
        else:
            found = asyncio.run_coroutine_threadsafe(aconsume(channel), consumer)
        if producer is None:
            self._pool.submit(produce, channel, count, error)
        else:
            asyncio.run_coroutine_threadsafe(aproduce(channel, count, error), producer)
        return found


@pytest.mark.usefixtures("rarely_polled")
@pytest.mark.parametrize("capacity", [0, 1, 3])
@pytest.mark.parametrize("kind", Sides.KINDS)
def test_items_arrive_in_order(kind: str, capacity: int, loop: asyncio.AbstractEventLoop) -> None:
    assert Sides(kind, loop).start(Channel(capacity), 200).result(WAIT) == list(range(200))


@pytest.mark.parametrize("kind", Sides.KINDS)
def test_an_error_arrives_as_the_same_object_after_the_items(kind: str, loop: asyncio.AbstractEventLoop) -> None:
    error = ValueError("the producer failed")
    channel = Channel[int](2)
    found = Sides(kind, loop).start(channel, 5, error)
    with pytest.raises(ValueError) as caught:
        found.result(WAIT)
    assert caught.value is error
    assert channel.error is None  # whose traceback refers to everything around the consumer


@pytest.mark.usefixtures("rarely_polled")
@pytest.mark.parametrize("kind", Sides.KINDS)
def test_no_wake_up_is_lost(kind: str, loop: asyncio.AbstractEventLoop) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert Sides(kind, loop).start(Channel(2), 5000).result(6 * WAIT) == list(range(5000))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_a_thread_is_at_most_the_capacity_ahead(capacity: int) -> None:
    channel, produced, gate = Channel[int](capacity), [], Gate()

    def run() -> None:
        for i in range(20):
            produced.append(i)
            channel.put(i)
            if channel.full:
                gate.let()
                if not channel.wait_for_room():
                    return

    thread = threading.Thread(target=run)
    thread.start()
    gate.wait_sync()
    assert len(produced) == capacity
    assert channel.wait_for_item() and channel.take() == 0
    channel.close()
    thread.join(WAIT)
    assert not thread.is_alive() and len(produced) <= capacity + 1


async def test_a_coroutine_is_at_most_the_capacity_ahead() -> None:
    channel, produced = Channel[int](3), []

    async def source() -> AsyncIterator[int]:
        for i in range(20):
            produced.append(i)
            yield i

    task = asyncio.create_task(pump(source, channel))
    await turns()
    assert produced == [0, 1, 2]
    for i in range(20):
        assert await channel.wait_for_item_async()
        assert channel.take() == i
        await turns()
        assert len(produced) <= i + 4
    await task
    channel.end()
    assert not await channel.wait_for_item_async()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("rarely_polled")
def test_closing_ends_a_producer_that_waits(loop: asyncio.AbstractEventLoop) -> None:
    async def put(channel: Channel[int]) -> bool:
        channel.put(0)
        waiting.append(channel)
        return await channel.wait_for_room_async()

    def put_sync(channel: Channel[int]) -> bool:
        channel.put(0)
        waiting.append(channel)
        return channel.wait_for_room()

    waiting: list[Channel[int]] = []
    with ThreadPoolExecutor(1) as pool:
        results = [
            asyncio.run_coroutine_threadsafe(put(Channel(1)), loop),
            pool.submit(put_sync, Channel(1)),
        ]
        while len(waiting) < 2 or not all(channel._producer._wake for channel in waiting):
            pass
        assert not any(result.done() for result in results)
        for channel in waiting:
            channel.close()
        assert [result.result(WAIT) for result in results] == [False, False]
    assert all(channel.full for channel in waiting)  # a producer that looks only now stops, too


async def test_a_closed_channel_keeps_no_items() -> None:
    channel = Channel[int](0)
    channel.put(1)
    channel.close()
    assert not channel._items and not await channel.wait_for_room_async()


async def test_a_producer_goes_on_when_there_is_to_be_more_room() -> None:
    """As one that hurries when others wait for what it holds."""
    channel = Channel[int](1)
    channel.put(0)
    waiting = asyncio.create_task(channel.wait_for_room_async())
    await turns()
    assert not waiting.done()
    channel.resize(0)
    assert await waiting
    for i in range(1, 5):
        channel.put(i)
        assert not channel.full
    channel.resize(1)
    assert channel.full
    channel.end()
    assert await aconsume(channel) == [0, 1, 2, 3, 4]


def test_a_consumer_whose_loop_was_closed_has_left() -> None:
    channel, other = Channel[int](0), asyncio.new_event_loop()
    reading = other.create_task(aconsume(channel))
    other.run_until_complete(asyncio.sleep(0))
    channel.put(1)
    assert not channel.full
    reading.cancel()
    other.run_until_complete(asyncio.wait([reading]))
    other.close()
    channel.put(2)  # raises nothing
    assert channel.full and channel.closed
