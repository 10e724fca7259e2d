"""Cancels the work of a call before stock (the framework's own code) sees the cancellation.

A cancelled task cancels the future it awaits, and stock then passes the cancellation on. But stock's streams first
wait for their parts to end by themselves (``RunnableAssign`` inside a sequence does), with all the work of these parts.
So the reader's task awaits one of our futures in place of stock's: it stops the work of the call first, then cancels
stock's future.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class _Watched(asyncio.Future[None]):
    """Future that is done when ``future`` is. ``cancel`` calls ``stop`` first."""

    def __init__(self, future: asyncio.Future[Any], stop: Callable[[], object]) -> None:
        super().__init__(loop=future.get_loop())
        self._asyncio_future_blocking = True  # a task requires this of every future it awaits
        self._future = future
        self._stop = stop
        future.add_done_callback(self._end)

    def _end(self, _: asyncio.Future[Any]) -> None:
        if not self.done():
            self.set_result(None)  # the awaiting code then reads the original future

    def cancel(self, msg: Any | None = None) -> bool:
        self._stop()
        return self._future.cancel(msg)


@types.coroutine
def stopping(work: Awaitable[T], stop: Callable[[], object]) -> Generator[Any, Any, T]:
    """Awaits ``work``. If the awaiting task is cancelled, calls ``stop`` before it cancels ``work``."""
    inner: Any = work.__await__()
    step: Callable[[Any], Any] = inner.send
    given: Any = None
    while True:
        try:
            waited = step(given)
        except StopIteration as end:
            value: T = end.value
            return value
        if getattr(waited, "_asyncio_future_blocking", False):
            waited._asyncio_future_blocking = False
            waited = _Watched(waited, stop)
        step, given = inner.send, None
        try:
            yield waited
        except GeneratorExit:
            inner.close()
            raise
        except asyncio.CancelledError as error:
            stop()
            step, given = inner.throw, error
        except BaseException as error:
            step, given = inner.throw, error
