"""Threads that wait for the loop of a query, and what they do when nobody comes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fineflow.runtime.call.query import Call
from fineflow.runtime.loop import bridge as bridges
from fineflow.runtime.loop import submission
from fineflow.runtime.loop.bridge import AbandonableStream, Bridge
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.loop.submission import Unreachable

WAIT = 10.0


@pytest.fixture
def loop(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.AbstractEventLoop]:
    yield loop
    asyncio.run_coroutine_threadsafe(turns(10), loop).result(WAIT)  # what was posted may run


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def call_on(loop: asyncio.AbstractEventLoop) -> Call:
    return Call(loop, {}, "invoke", True, contextvars.copy_context(), "query")


@pytest.fixture
def stuck(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs one callback and does not come back before the end of the test."""
    monkeypatch.setattr(submission, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(bridges, "_STUCK_SECONDS", 0.01)
    inside, release = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        release.wait(WAIT)

    loop.call_soon_threadsafe(block)
    assert inside.wait(WAIT)
    yield loop
    release.set()


async def count(n: int, error: BaseException | None = None) -> AsyncIterator[int]:
    for i in range(n):
        yield i
    if error is not None:
        raise error


async def never() -> Any:
    await asyncio.Event().wait()


async def fails(error: BaseException) -> Any:
    raise error


def test_results_and_errors_arrive(loop: asyncio.AbstractEventLoop) -> None:
    bridge = Bridge(call_on(loop))
    assert bridge.run(threading.get_ident) != threading.get_ident()
    assert list(bridge.items(lambda: count(3))) == [0, 1, 2]
    for error in (ValueError("x"), TimeoutError("its own")):
        with pytest.raises(type(error)) as found:
            bridge.outcome(lambda error=error: fails(error))
        assert found.value is error
        with pytest.raises(type(error)) as found:
            list(bridge.items(lambda error=error: count(1, error)))
        assert found.value is error


def test_the_loop_itself_does_not_wait_for_itself(loop: asyncio.AbstractEventLoop) -> None:
    bridge = Bridge(call_on(loop))

    async def there() -> tuple[bool, int]:
        return bridge.here, bridge.run(lambda: 7)

    assert not bridge.here
    assert asyncio.run_coroutine_threadsafe(there(), loop).result(WAIT) == (True, 7)


WAYS: dict[str, Callable[[Bridge], Any]] = {
    "run": lambda bridge: bridge.run(lambda: 1),
    "outcome": lambda bridge: bridge.outcome(never),
    "items": lambda bridge: list(bridge.items(lambda: count(3))),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_does_not_react(way: str, stuck: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(Unreachable):
        WAYS[way](Bridge(call_on(stuck)))


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_is_closed(way: str) -> None:
    closed = asyncio.new_event_loop()
    bridge = Bridge(call_on(closed))
    closed.close()
    with pytest.raises(Unreachable):
        WAYS[way](bridge)
    bridge.post(print, "nobody is interested")


def test_a_call_that_is_over(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "POLL_SECONDS", 0.01)
    call = call_on(loop)

    async def endless() -> AsyncIterator[int]:
        yield 1
        await never()

    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(Bridge(call).outcome, never),
            pool.submit(lambda: list(Bridge(call).items(endless))),
        ]
        call.claims.closed = True
        for future in waiting:
            with pytest.raises(Unreachable):
                future.result(WAIT)


def test_a_loop_that_is_only_slow(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "POLL_SECONDS", 0.001)
    go = asyncio.Event()

    async def later() -> int:
        await go.wait()
        return 1

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Bridge(call_on(loop)).outcome, later)
        for _ in range(20):  # the loop answers, although what is waited for does not come
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.001), loop).result(WAIT)
        assert not waiting.done()
        loop.call_soon_threadsafe(go.set)
        assert waiting.result(WAIT) == 1


def test_items_that_nobody_wants_any_more(loop: asyncio.AbstractEventLoop) -> None:
    ended = threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            await never()
        finally:
            ended.set()

    items = Bridge(call_on(loop)).items(endless)
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]
    assert ended.wait(WAIT)


def test_chunks_are_the_generator_they_wrap() -> None:
    log: list[Any] = []

    def generator() -> Iterator[int]:
        try:
            yield 1
            yield 2
        except ValueError:
            yield 3
        finally:
            log.append("closed")

    def through() -> Iterator[int]:
        yield from AbandonableStream(generator())

    assert list(through()) == [1, 2]
    thrown = through()
    assert next(thrown) == 1
    assert thrown.throw(ValueError("x")) == 3  # type: ignore[attr-defined]
    left = through()
    assert next(left) == 1
    left.close()  # type: ignore[attr-defined]
    assert log == ["closed", "closed"]
    thrown.close()  # type: ignore[attr-defined]
    assert log == ["closed"] * 3


def test_chunks_collected_on_the_runtimes_thread_do_not_block_it() -> None:
    release, closed = threading.Event(), threading.Event()

    def generator() -> Iterator[int]:
        try:
            yield 1
        finally:
            release.wait(WAIT)
            closed.set()

    def through() -> Iterator[int]:
        yield from AbandonableStream(generator())

    box = [through()]
    assert next(box[0]) == 1
    engine_loop().call_soon_threadsafe(box.clear)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), engine_loop()).result(WAIT)
    assert not closed.is_set()
    release.set()
    assert closed.wait(WAIT)
