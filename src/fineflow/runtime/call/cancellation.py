"""Cancelling what a call does before stock hears of it.

A task that is cancelled cancels what it waits for, and that is stock's to pass on. Stock's streams wait for their parts
to end by themselves first (``RunnableAssign`` inside a sequence does), with all that these parts do. So the future that
a reader's task waits for is not stock's but one of ours, which stops the work of the call and then does as it was told.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class _Watched(asyncio.Future[None]):
    """Done when ``future`` is; what cancels it calls ``stop`` first."""

    def __init__(self, future: asyncio.Future[Any], stop: Callable[[], object]) -> None:
        super().__init__(loop=future.get_loop())
        self._asyncio_future_blocking = True  # as of every future that a task is given to wait for
        self._future = future
        self._stop = stop
        future.add_done_callback(self._end)

    def _end(self, _: asyncio.Future[Any]) -> None:
        if not self.done():
            self.set_result(None)  # whoever waits looks at the future itself then

    def cancel(self, msg: Any | None = None) -> bool:
        self._stop()
        return self._future.cancel(msg)


@types.coroutine
def stopping(work: Awaitable[T], stop: Callable[[], object]) -> Generator[Any, Any, T]:
    """Awaits ``work``. When the waiting task is cancelled, ``stop`` is called before ``work`` is told."""
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
