"""Access to the event loop of a call from threads of stock (the framework's own code), without deadlocks.

Python may collect an abandoned stream of the framework on any thread, the loop's own included. Closing it can mean
waiting for worker threads, which in turn wait for the loop. So a thread that waits here watches the loop: once the call
is over, or the loop does not respond, the wait ends with ``Unreachable``, and stock does the work itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from fineflow.runtime.call.query import Call
from fineflow.runtime.loop.channel import Channel, pump
from fineflow.runtime.loop.interpreter_exit import silent_at_exit
from fineflow.runtime.loop.runtime_loop import on_engine_loop, post
from fineflow.runtime.loop.submission import Submission, Unreachable

T = TypeVar("T")

_STUCK_SECONDS = 5.0  # a loop that does not respond for so long counts as stuck
_BUFFER = 8  # most items that the loop is ahead of a thread


class Bridge:
    """Access to the loop of ``call`` from other threads."""

    def __init__(self, call: Call) -> None:
        self._call = call
        call.reached = True
        self._loop = call.loop

    @property
    def here(self) -> bool:
        """True on the loop's own thread, which must not wait for it."""
        return asyncio._get_running_loop() is self._loop

    @property
    def over(self) -> bool:
        """True if the call has ended."""
        return self._call.claims.closed

    def run(self, function: Callable[[], T]) -> T:
        """Runs a quick function on the loop and returns its result. Raises Unreachable."""
        if self.here:
            return function()

        async def call() -> T:
            return function()

        return self.outcome(call)

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Schedules a function call on the loop, without waiting for it."""
        post(self._loop, function, *args)

    def outcome(self, make: Callable[[], Awaitable[T]], goes_on: Callable[[], bool] = lambda: False) -> T:
        """Awaits ``make()`` on the loop and returns the result. Raises its exception, the same object; Unreachable.

        goes_on: returns True if the end of the call does not end this.
        """
        work = Submission(make, self._loop)
        with silent_at_exit:
            try:
                work.start()
                return work.wait(lambda: self._lost(over=not goes_on()))
            except asyncio.CancelledError:  # the loop was shut down
                raise Unreachable from None
            finally:
                work.cancel()  # unreachable, or this thread was interrupted

    def items(self, source: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Yields the items of an iterator on the loop. Raises its exception, the same object; Unreachable.

        The iterator is read at most ``_BUFFER`` items ahead.
        """
        channel: Channel[T] = Channel(_BUFFER)
        work = Submission(partial(pump, source, channel), self._loop)
        channel.end_with(work.outcome)
        with silent_at_exit:
            try:
                work.start()
                while channel.wait_for_item(self._lost):
                    yield channel.take()
            finally:
                work.cancel()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Holds a slot (``max_concurrency``) for a component that stock calls itself, if the loop responds."""
        limit, taken = self._call.limit, False
        if limit is not None and not self.here:
            with suppress(Unreachable):
                taken = self.outcome(limit.acquire)
        try:
            yield
        finally:
            if limit is not None and taken:
                self.post(limit.release)

    def _lost(self, *, over: bool = True) -> bool:
        """Returns True if the call is over, or its loop is closed or stuck. over: the former counts."""
        if over and self._call.claims.closed:
            return True
        responds = threading.Event()
        return not (post(self._loop, responds.set) and responds.wait(_STUCK_SECONDS))


class AbandonableStream(Iterator[T]):
    """Generator of stock that does not block the runtime's thread if Python collects it there."""

    def __init__(self, generator: Generator[T, Any, Any]) -> None:
        self._generator = generator

    def __next__(self) -> T:
        return next(self._generator)

    def send(self, value: Any) -> T:
        return self._generator.send(value)

    def throw(self, *error: Any) -> T:
        return self._generator.throw(*error)

    def close(self) -> None:
        """Closes the generator; on the runtime's thread, without waiting for it."""
        if on_engine_loop():
            threading.Thread(target=self._generator.close, name="fineflow-close", daemon=True).start()
        else:
            self._generator.close()
