"""A channel carries items from one producer to one consumer, each of them a thread or a coroutine on any event loop.

``iterate_sync`` and ``iterate_async`` read an async iterator on the runtime's loop from elsewhere;
``iterate_in_thread`` reads a blocking iterator in a worker thread from a coroutine.

A channel takes no lock: Python may collect an abandoned consumer wherever it allocates something, also inside of the
channel's own methods on the same thread. Single operations on a deque are atomic. A side that waits first leaves a
function that wakes it and then looks again; the other side first changes the state and then calls that function.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from fineflow.runtime.loop import scopes
from fineflow.runtime.loop.interpreter_exit import silent_at_exit
from fineflow.runtime.loop.runtime_loop import on_engine_loop, refuse_blocking
from fineflow.runtime.loop.submission import RuntimeSubmission, Submission, poll, set_done
from fineflow.runtime.loop.workers import in_thread

T = TypeVar("T")


class _Side:
    """One side of a channel: a thread or a coroutine that waits until ``ready()``. Only that side sets the fields."""

    __slots__ = ("_loop", "_wake")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # on which it waited last
        self._wake: Callable[[], object] | None = None

    def block(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Blocks the thread for at most so many seconds; returns ``ready()``."""
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake = partial(woken.put, None)
        try:
            if not ready():
                woken.get(timeout=seconds)
        except queue.Empty:
            pass
        finally:
            self._wake = None
        return ready()

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Waits on the running loop."""
        self._loop = loop = asyncio.get_running_loop()
        while not ready():
            woken: asyncio.Future[None] = loop.create_future()
            self._wake = partial(_wake_on, loop, woken)
            try:
                if not ready():
                    await woken
            finally:
                self._wake = None

    def wake(self) -> None:
        """Has this side look again. From any thread."""
        wake = self._wake
        if wake is not None:
            try:
                wake()
            except RuntimeError:  # its loop is closed
                pass

    def gone(self) -> bool:
        """Returns whether the loop that this side waits on is closed."""
        return self._loop is not None and self._loop.is_closed()


def _wake_on(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is loop:
        set_done(future)
    else:
        loop.call_soon_threadsafe(set_done, future)


class Channel(Generic[T]):
    """Items in order, then the end or an error. Bounded if the producer waits for room after each item.

    capacity: how many items the producer may be ahead of the consumer; 0 for any number.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False
        self._producer = _Side()
        self._consumer = _Side()

    # The producer.

    def put(self, item: T) -> None:
        """Adds an item. Does not wait."""
        self._items.append(item)
        self._consumer.wake()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the channel; the consumer gets ``error`` after the last item."""
        self._error, self._ended = error, True
        self._consumer.wake()

    @property
    def full(self) -> bool:
        """Whether the producer must wait, or stop: no room is left, or the consumer has left."""
        return self.closed or 0 < self._capacity <= len(self._items)

    @property
    def closed(self) -> bool:
        """Whether the consumer has left."""
        return self._closed or self._consumer.gone()

    def wait_for_room(self) -> bool:
        """Blocks a thread until there is room. Returns False if the consumer has left."""
        poll(partial(self._producer.block, self._has_room))
        return not self.closed

    async def wait_for_room_async(self) -> bool:
        """Does the same for a coroutine."""
        await self._producer.wait(self._has_room)
        return not self.closed

    def _has_room(self) -> bool:
        return self.closed or not self.full

    # The consumer.

    def wait_for_item(self, lost: Callable[[], bool] | None = None) -> bool:
        """Blocks a thread until it can ``take`` an item: True; False at the end.

        Raises the producer's error, the same object; Unreachable once ``lost()`` holds.
        """
        if not self._items:
            poll(partial(self._consumer.block, self._readable), lost)
        return self._has_item()

    async def wait_for_item_async(self) -> bool:
        """Does the same for a coroutine on any event loop."""
        if not self._items:
            await self._consumer.wait(self._readable)
        return self._has_item()

    def take(self) -> T:
        """Removes the next item, after ``wait_for_item`` has returned True."""
        item = self._items.popleft()
        if 2 * len(self._items) <= self._capacity:  # not at each item: waking another thread takes long
            self._producer.wake()
        return item

    def close(self) -> None:
        """Tells the producer that no more items are wanted. From any thread."""
        self._closed = True
        self._items.clear()
        self._producer.wake()

    def resize(self, capacity: int) -> None:
        """Changes the capacity. From any thread."""
        self._capacity = capacity
        self._producer.wake()

    def _readable(self) -> bool:
        return self._ended or bool(self._items)

    def _has_item(self) -> bool:
        if self._items:
            return True
        error, self._error = self._error, None
        if error is None:
            return False
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


async def pump(make: Callable[[], AsyncIterator[T]], channel: Channel[T]) -> None:
    """Puts the items of ``make()`` into a channel as there is room, and closes the source. Does not end the channel."""
    source = make()
    try:
        async for item in source:
            channel.put(item)
            if channel.full and not await channel.wait_for_room_async():
                return
    finally:
        await _aclose(source)


async def _aclose(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def end_with(channel: Channel[T], work: Submission[None]) -> None:
    """Has the end of ``work``, which fills the channel, end it."""
    work.outcome.add_done_callback(lambda outcome: channel.end(outcome.exception()))


class _OnCollection:
    """Calls a function when the generator that holds this is collected: without its loop it is not closed any more."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave

    def __del__(self) -> None:
        self._leave()


def iterate_sync(make: Callable[[], AsyncIterator[T]], *, buffer: int = 0) -> Iterator[T]:
    """Iterates ``make()``, which runs on the runtime's loop, from a thread.

    The source starts at the first ``next()`` and then runs ahead, by at most ``buffer`` items if that is not 0.
    Closing or abandoning the iterator closes the source and waits for that. Raises what the source raises, the same
    object; RuntimeError on the runtime's own thread.
    """
    refuse_blocking("iterate_sync", "iterate_async")
    scopes.check()
    return _iterate_sync(make, buffer, contextvars.copy_context())


def _iterate_sync(make: Callable[[], AsyncIterator[T]], buffer: int, context: contextvars.Context) -> Iterator[T]:
    channel: Channel[T] = Channel(buffer)
    with silent_at_exit:
        work = RuntimeSubmission(partial(pump, make, channel), context)
        end_with(channel, work)
        try:
            with scopes.on_stop(work.cancel):
                work.start()
                while channel.wait_for_item():
                    yield channel.take()
        finally:
            channel.close()
            if not work.outcome.done():
                work.stop()


async def iterate_async(make: Callable[[], AsyncIterator[T]], *, buffer: int = 0) -> AsyncIterator[T]:
    """Iterates ``make()``, which runs on the runtime's loop, from a coroutine on any event loop.

    As ``iterate_sync``. On the runtime's own loop the source is iterated directly.
    """
    if on_engine_loop():
        source = make()
        try:
            async for item in source:
                yield item
        finally:
            await _aclose(source)
        return
    channel: Channel[T] = Channel(buffer)
    async with silent_at_exit:
        work = RuntimeSubmission(partial(pump, make, channel))
        end_with(channel, work)

        def leave() -> None:
            channel.close()
            if not work.outcome.done():
                work.cancel()

        _abandoned = _OnCollection(leave)
        try:
            work.start()
            while await channel.wait_for_item_async():
                yield channel.take()
        finally:
            channel.close()
            if not work.outcome.done():
                await work.stop_async()


async def iterate_in_thread(make: Callable[[], Iterator[T]], *, buffer: int) -> AsyncGenerator[T, None]:
    """Iterates ``make()``, which blocks, in one worker thread, from a coroutine.

    The thread runs at most ``buffer`` items ahead. It cannot be interrupted: closing or abandoning the iterator, or
    cancelling the caller, returns at once, and the thread stops and closes the source at its next item. Raises what the
    source raises, the same object.
    """
    channel: Channel[T] = Channel(buffer)

    def pull() -> None:
        source = make()
        try:
            for item in source:
                channel.put(item)
                if channel.full and not channel.wait_for_room():
                    return
        finally:
            getattr(source, "close", lambda: None)()

    def end(pulling: asyncio.Future[None]) -> None:
        channel.end(asyncio.CancelledError() if pulling.cancelled() else pulling.exception())

    pulling = asyncio.ensure_future(in_thread(pull))
    pulling.add_done_callback(end)
    _abandoned = _OnCollection(channel.close)
    try:
        while await channel.wait_for_item_async():
            yield channel.take()
    finally:
        channel.close()
        pulling.cancel()
