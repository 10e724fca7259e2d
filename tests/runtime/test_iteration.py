"""Iterators on the other side of a channel: ended, failed, abandoned, and what they leave behind."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fineflow.errors import BackendError
from fineflow.runtime.loop import runtime_loop, submission
from fineflow.runtime.loop.iteration import iterate_async, iterate_in_thread, iterate_sync
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.loop.scopes import Scope
from fineflow.runtime.loop.submission import run_async, run_sync
from fineflow.testing.gates import Gate

WAIT = 10.0  # seconds; only a failing test waits this long

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")


@pytest.fixture
def rarely_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that is not woken up stays asleep."""
    monkeypatch.setattr(submission, "POLL_SECONDS", 1000.0)


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
    """A loop that is closed by hand closes none of its async generators, and Python collects them as they are.

    A side that is about to wake the reader may notice the closed loop before.
    """
    source, loop = Endless(stuck=stuck), asyncio.new_event_loop()
    items = iterate_async(source.on_loop, buffer=buffer)
    assert loop.run_until_complete(ask(items)) == 1
    loop.close()
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
