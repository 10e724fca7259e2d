"""How long a call holds the event loop that it runs on, in a measure that a busy machine does not change.

What a callback of the loop does takes time in two ways: its thread sleeps or waits, which is measured in virtual time
(``virtual_threads``), or it computes, which is measured as time on a processor. Time in which other programs or other
threads have the processor is neither.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from fineflow.testing import virtual_threads

T = TypeVar("T")


class Held(NamedTuple, Generic[T]):
    """What a coroutine returned; the longest time in seconds for which one callback held its loop, and which."""

    value: T
    seconds: float
    by: str


class _Longest:
    def __init__(self) -> None:
        self.seconds, self.by = 0.0, ""

    @contextmanager
    def watching(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Measures each callback of the loop, whose thread this is."""
        own, thread = asyncio.Handle._run, threading.get_ident()

        def run(handle: Any) -> None:
            if threading.get_ident() != thread:
                return own(handle)
            begun, computed = loop.time(), time.thread_time()
            own(handle)
            took = loop.time() - begun + time.thread_time() - computed
            if took > self.seconds:
                self.seconds, self.by = took, repr(getattr(handle._callback, "__self__", handle))

        asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            asyncio.Handle._run = own  # type: ignore[method-assign]


def held(make: Callable[[], Coroutine[Any, Any, T]], *, warm: bool = True) -> Held[T]:
    """Runs ``make()`` in virtual time, on a loop of its own, and measures how long it holds that.

    warm: runs it once before, so that what is loaded or compiled at first does not count. Python's garbage collector,
    which stops everybody whoever has allocated, is off meanwhile. Raises what the coroutine raises.
    """
    longest = _Longest()

    async def main() -> T:
        if warm:
            await make()
        with longest.watching(asyncio.get_running_loop()):
            return await asyncio.create_task(make())  # all of it in callbacks that begin while it is watched

    collecting = gc.isenabled()
    gc.disable()
    try:
        value, _ = virtual_threads.run(lambda: asyncio.run(main()))
    finally:
        if collecting:
            gc.enable()
    return Held(value, longest.seconds, longest.by)
