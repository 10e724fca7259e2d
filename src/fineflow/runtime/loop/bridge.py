"""How a thread of stock's waits for the event loop of its query, without ever waiting for good.

Python may collect an abandoned stream of the framework's on any thread, also on the loop's own; closing it can mean to
wait for worker threads, which in turn wait for the loop. So a wait here has an eye on the loop: when the call is over,
or the loop does not react, it ends with ``Unreachable``, and stock does by itself what it came for.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from fineflow.runtime.call.query import Call
from fineflow.runtime.loop.runtime_loop import exiting, on_engine_loop

T = TypeVar("T")

_LOOK_SECONDS = 1.0  # how often a waiting thread looks whether anybody will come
_STUCK_SECONDS = 5.0  # how long a loop may be busy before it counts as stuck

_AHEAD = 8  # items on the way from the loop to a thread
_END: Any = object()


class Unreachable(Exception):
    """The query's loop does not answer, or answers no longer."""


class Bridge:
    """The way from a thread to the loop of ``call``."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._loop = call.loop

    @property
    def here(self) -> bool:
        """Whether this thread is running the loop, which may not wait for itself."""
        return asyncio._get_running_loop() is self._loop

    def run(self, function: Callable[[], T]) -> T:
        """What a quick function returns on the loop. Raises Unreachable."""
        if self.here:
            return function()

        async def call() -> T:
            return function()

        return self.outcome(call())

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Has the loop call a function, some time."""
        with suppress(RuntimeError):  # the loop is closed: nobody is interested
            self._loop.call_soon_threadsafe(function, *args)

    def outcome(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns on the loop. Raises Unreachable."""
        try:
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Unreachable from None
        try:
            while not _ended(future):
                if self._lost():
                    raise Unreachable
            return future.result()
        except CancelledError:
            if exiting():
                raise
            raise Unreachable from None  # the loop was shut down
        finally:
            future.cancel()  # where this thread was interrupted, or nobody comes

    def items(self, source: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """The items of an iterator on the loop, as they come. Raises what it raises, and Unreachable.

        At most ``_AHEAD`` are taken from the iterator before they are asked for here.
        """
        arrived: queue.SimpleQueue[tuple[T, BaseException | None]] = queue.SimpleQueue()
        free, taken = asyncio.Semaphore(_AHEAD), 0

        async def pump() -> None:
            try:
                async for item in source():
                    await free.acquire()
                    arrived.put((item, None))
            except BaseException as error:
                arrived.put((_END, error))
                if isinstance(error, asyncio.CancelledError):
                    raise
            else:
                arrived.put((_END, None))

        pumping = pump()
        try:
            future = asyncio.run_coroutine_threadsafe(pumping, self._loop)
        except RuntimeError:
            pumping.close()
            raise Unreachable from None
        try:
            while True:
                try:
                    item, error = arrived.get(timeout=_LOOK_SECONDS)
                except queue.Empty:
                    if self._lost():
                        raise Unreachable from None
                    continue
                if error is not None:
                    raise error
                if item is _END:
                    return
                taken += 1
                if taken % (_AHEAD // 2) == 0:  # not for each: it wakes the loop
                    self.post(_release, free, _AHEAD // 2)
                yield item
        finally:
            future.cancel()

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place (``max_concurrency``) for a component that stock calls itself, where it can be had."""
        limit, taken = self._call.limit, False
        if limit is not None and not self.here:
            with suppress(Unreachable):
                taken = self.outcome(limit.acquire())
        try:
            yield
        finally:
            if limit is not None and taken:
                self.post(limit.release)

    def _lost(self) -> bool:
        """Whether nobody will come any more."""
        if self._call.claims.closed:
            return True
        reacts = threading.Event()
        try:
            self._loop.call_soon_threadsafe(reacts.set)
        except RuntimeError:
            return True
        return not reacts.wait(_STUCK_SECONDS)


def _ended(future: Future[Any]) -> bool:
    """Waits a while. Not for the result, which may itself be a TimeoutError."""
    try:
        future.exception(_LOOK_SECONDS)
    except TimeoutError:
        return False
    except CancelledError:
        pass
    return True


def _release(free: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        free.release()


class Chunks(Iterator[T]):
    """A generator of stock's that does not block the runtime's thread if it happens to be collected there."""

    def __init__(self, generator: Generator[T, None, None]) -> None:
        self._generator = generator

    def __next__(self) -> T:
        return next(self._generator)

    def throw(self, *error: Any) -> T:
        return self._generator.throw(*error)

    def close(self) -> None:
        """Closes the generator; on the runtime's thread without waiting for it."""
        if on_engine_loop():
            threading.Thread(target=self._generator.close, name="fineflow-close", daemon=True).start()
        else:
            self._generator.close()
