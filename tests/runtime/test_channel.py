"""The channel between a producer and a consumer: threads and coroutines on any event loop, on either side."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fineflow.errors import BackendError
from fineflow.runtime.loop import runtime_loop, submission
from fineflow.runtime.loop.channel import Channel, pump
from fineflow.runtime.loop.iteration import iterate_async, iterate_in_thread, iterate_sync
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.loop.scopes import Scope
from fineflow.runtime.loop.submission import Submission, Unreachable, run_async, run_sync
from fineflow.testing.gates import Gate

WAIT = 10.0  # seconds; only a failing test waits this long

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop on a thread of its own, which is not the runtime's."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(WAIT)
    made.close()


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
    assert channel._error is None  # whose traceback refers to everything around the consumer


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


# Iterators on the other side.


class Endless:
    """An endless source that says when it was closed. ``stuck``: after one item it waits for ever."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.stuck = stuck
        self.produced = 0
        self.started = threading.Event()
        self.closed = threading.Event()

    async def on_loop(self) -> AsyncIterator[int]:
        try:
            while True:
                self.produced += 1
                self.started.set()
                yield self.produced
                await (asyncio.Event().wait() if self.stuck else asyncio.sleep(0))
        finally:
            self.closed.set()

    def in_thread(self) -> Iterator[int]:
        try:
            while True:
                self.produced += 1
                yield self.produced
        finally:
            self.closed.set()


async def first(items: AsyncIterator[int]) -> int:
    return await anext(items)


def first_unnoticed(items: AsyncIterator[int]) -> Any:
    return anext(items)  # begun outside of the loop, which then does not know of it


@pytest.mark.parametrize("ask", [first, first_unnoticed])
@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("buffer", [0, 1])
def test_an_async_iterator_is_abandoned_with_its_loop(buffer: int, stuck: bool, ask: Callable[..., Any]) -> None:
    """A loop that is closed by hand closes none of its async generators, and Python collects them as they are."""
    source, loop = Endless(stuck=stuck), asyncio.new_event_loop()
    items = iterate_async(source.on_loop, buffer=buffer)
    assert loop.run_until_complete(ask(items)) == 1
    loop.close()
    assert not source.closed.is_set() or not stuck
    del items
    gc.collect()
    assert source.closed.wait(WAIT)


@pytest.mark.usefixtures("rarely_polled")
@pytest.mark.parametrize("ask", [first, first_unnoticed])
def test_a_thread_is_abandoned_with_the_loop_of_its_reader(ask: Callable[..., Any]) -> None:
    source, loop = Endless(), asyncio.new_event_loop()
    items = iterate_in_thread(source.in_thread, buffer=2)
    assert loop.run_until_complete(ask(items)) == 1
    loop.close()
    del items
    gc.collect()
    assert source.closed.wait(WAIT)


class Leisurely(Endless):
    """Needs several turns of its loop to be closed."""

    async def on_loop(self) -> AsyncIterator[int]:
        try:
            while True:
                self.produced += 1
                yield self.produced
        finally:
            for _ in range(20):
                await asyncio.sleep(0.0001)
            self.closed.set()


async def test_closing_an_iterator_lets_its_source_close_in_peace() -> None:
    for _ in range(20):
        source = Leisurely()
        items: Any = iterate_async(source.on_loop, buffer=1)
        assert await anext(items) == 1
        await items.aclose()
        assert source.closed.is_set()


def test_closing_an_iterator_of_a_thread_does_so_too() -> None:
    for _ in range(20):
        source = Leisurely()
        items: Any = iterate_sync(source.on_loop, buffer=1)
        assert next(items) == 1
        items.close()
        assert source.closed.is_set()


@pytest.mark.parametrize("stuck", [False, True])
def test_an_iterator_collected_on_the_runtimes_thread_does_not_block_it(stuck: bool) -> None:
    source = Endless(stuck=stuck)
    box = [iterate_sync(source.on_loop, buffer=1)]
    assert next(box[0]) == 1
    engine_loop().call_soon_threadsafe(box.clear)
    assert source.closed.wait(WAIT)
    assert run_sync(alive)


async def alive() -> bool:
    return True


def test_a_stopped_scope_ends_an_iteration() -> None:
    source, scope = Endless(stuck=True), Scope()
    with scope.inside():
        items = iterate_sync(source.on_loop)
        assert next(items) == 1
        threading.Thread(target=scope.stop).start()
        with pytest.raises(asyncio.CancelledError):
            next(items)
        assert source.closed.is_set()
        with pytest.raises(asyncio.CancelledError):
            iterate_sync(source.on_loop)
    scope.close()


async def aiterated(make: Callable[[], AsyncIterator[Any]]) -> None:
    async for _ in iterate_async(make):
        pass


WAYS: dict[str, Callable[[Endless], Any]] = {
    "run_sync": lambda source: run_sync(lambda: drained(source)),
    "run_async": lambda source: asyncio.run(run_async(lambda: drained(source))),  # type: ignore[arg-type]
    "iterate_sync": lambda source: list(iterate_sync(source.on_loop)),
    "iterate_async": lambda source: asyncio.run(aiterated(source.on_loop)),
}


async def drained(source: Endless) -> None:
    async for _ in source.on_loop():
        pass


@pytest.mark.parametrize("way", WAYS)
def test_shutdown_ends_what_is_under_way(way: str) -> None:
    source = Endless(stuck=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(WAYS[way], source)
        assert source.started.wait(WAIT)
        runtime_loop.stop()
        with pytest.raises(BackendError, match="shutdown") as caught:
            waiting.result(WAIT)
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert run_sync(alive)  # on a new loop


# A blocking iterator in a worker thread.


async def test_a_blocking_iterator_is_read_in_one_thread_and_in_the_context_of_its_reader() -> None:
    found: list[tuple[int, str]] = []

    def source() -> Iterator[int]:
        for i in range(5):
            found.append((threading.get_ident(), var.get()))
            yield i

    var.set("reader")
    assert [i async for i in iterate_in_thread(source, buffer=2)] == [0, 1, 2, 3, 4]
    assert len(set(found)) == 1 and found[0][1] == "reader" and found[0][0] != threading.get_ident()


async def test_a_thread_reads_no_further_ahead_than_the_buffer() -> None:
    source = Endless()
    items = iterate_in_thread(source.in_thread, buffer=4)
    assert await anext(items) == 1
    # The thread goes on when half of the buffer is free, up to the capacity again.
    for taken in range(2, 30):
        assert await anext(items) == taken
        assert source.produced <= taken + 4
    await items.aclose()
    assert await asyncio.to_thread(source.closed.wait, WAIT)


async def test_the_error_of_a_blocking_iterator_is_the_same_object() -> None:
    error = ValueError("the source failed")

    def source() -> Iterator[int]:
        yield 1
        raise error

    found = []
    with pytest.raises(ValueError) as caught:
        async for item in iterate_in_thread(source, buffer=2):
            found.append(item)
    assert caught.value is error and found == [1]


async def test_what_makes_a_blocking_iterator_may_fail() -> None:
    def make() -> Iterator[int]:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        async for _ in iterate_in_thread(make, buffer=2):
            pass


async def test_cancelling_the_reader_does_not_wait_for_the_thread() -> None:
    gate, closed = Gate(), threading.Event()

    def source() -> Iterator[int]:
        try:
            gate.wait_sync()
            yield 1
            yield 2
        finally:
            closed.set()

    async def read() -> None:
        async for _ in iterate_in_thread(source, buffer=2):
            pass

    task = asyncio.create_task(read())
    await gate.arrived()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not closed.is_set()
    gate.open()
    assert await asyncio.to_thread(closed.wait, WAIT)


# Coroutines on another loop.


async def test_a_coroutine_waits_for_one_on_another_loop(loop: asyncio.AbstractEventLoop) -> None:
    error = TimeoutError("its own")

    async def where() -> tuple[asyncio.AbstractEventLoop, str]:
        return asyncio.get_running_loop(), var.get()

    async def fails() -> None:
        raise error

    var.set("caller")
    work = Submission(where, loop)
    work.start()
    assert await work.wait_async() == (loop, "caller")
    failing = Submission(fails, loop)
    failing.start()
    with pytest.raises(TimeoutError) as caught:
        await failing.wait_async()
    assert caught.value is error


def test_a_closed_loop_takes_nothing() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    with pytest.raises(Unreachable):
        Submission(alive, closed).start()


def test_a_keyboard_interrupt_does_not_stop_the_loop_it_is_raised_on(loop: asyncio.AbstractEventLoop) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    for make, kind in ((interrupted, KeyboardInterrupt), (alive, None)):
        work: Submission[Any] = Submission(make, loop)
        work.start()
        if kind is None:
            assert work.wait()
        else:
            with pytest.raises(kind):
                work.wait()
