"""Channel that carries items from one producer to one consumer, each a thread or a coroutine on any event loop.

``iteration`` has the iterators built on channels; ``pump`` is a producer that reads an async iterator.

A channel takes no lock: Python may collect an abandoned consumer at any allocation, even inside the channel's own
methods on the same thread. Single operations on a deque are atomic. A waiting side first sets its wake function and
then checks the state again; the other side first changes the state and then calls that function.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from fineflow.runtime.loop.runtime_loop import set_done
from fineflow.runtime.loop.submission import poll

T = TypeVar("T")


class _Side:
    """One side of a channel: a thread or coroutine that waits until ``ready()``. Only that side sets the fields."""

    __slots__ = ("_loop", "_wake")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that it last waited on
        self._wake: Callable[[], object] | None = None

    def block(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Blocks the thread for at most ``seconds``; returns ``ready()``."""
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
        """Waits on the running loop until ``ready()``."""
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
        """Makes this side check its condition again. Thread-safe."""
        wake = self._wake
        if wake is not None:
            try:
                wake()
            except RuntimeError:  # its loop is closed
                pass

    def gone(self) -> bool:
        """Returns True if the loop that this side waits on is closed."""
        return self._loop is not None and self._loop.is_closed()


def _wake_on(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is loop:
        set_done(future)
    else:
        loop.call_soon_threadsafe(set_done, future)  # not `post`, which makes each item dearer by a tenth


class Channel(Generic[T]):
    """Items in order, then the end or an error. Bounded if the producer waits for room after each item.

    capacity: most items that the producer may be ahead of the consumer; 0 for any number. ended, error: set by the
    producer's ``end``; the consumer removes the error when it raises it.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self.ended = False
        self.error: BaseException | None = None
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
        self.error, self.ended = error, True
        self._consumer.wake()

    def end_with(self, outcome: Future[None]) -> None:
        """Ends the channel when ``outcome``, the producer's, is set."""
        outcome.add_done_callback(lambda outcome: self.end(outcome.exception()))

    @property
    def full(self) -> bool:
        """True if there is no room left, or the consumer has left."""
        return self.closed or 0 < self._capacity <= len(self._items)

    @property
    def closed(self) -> bool:
        """True if the consumer has left."""
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
        """Blocks a thread until there is an item to ``take``. Returns False at the end of the channel.

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
        if 2 * len(self._items) <= self._capacity:  # not at each item: waking another thread is slow
            self._producer.wake()
        return item

    def close(self) -> None:
        """Drops the items and stops the producer. Thread-safe."""
        self._closed = True
        self._items.clear()
        self._producer.wake()

    def resize(self, capacity: int) -> None:
        """Changes the capacity. Thread-safe."""
        self._capacity = capacity
        self._producer.wake()

    def _readable(self) -> bool:
        return self.ended or bool(self._items)

    def _has_item(self) -> bool:
        if self._items:
            return True
        error, self.error = self.error, None
        if error is None:
            return False
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


async def pump(make: Callable[[], AsyncIterator[T]], channel: Channel[T]) -> None:
    """Copies the items of ``make()`` to a channel as it has room, and closes the source. Does not end the channel."""
    source = make()
    try:
        async for item in source:
            channel.put(item)
            if channel.full and not await channel.wait_for_room_async():
                return
    finally:
        await aclose(source)


async def aclose(source: AsyncIterator[Any]) -> None:
    """Closes an async iterator, if it can be closed."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
