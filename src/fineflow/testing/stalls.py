"""Measures how long a call blocks its event loop, independently of other load on the machine.

A callback takes time in two ways: its thread sleeps or waits, which is measured in virtual time (``virtual_threads``),
or it computes, which is measured as CPU time of the thread. Time in which other programs or threads have the CPU does
not count.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Generic, NamedTuple, TypeVar

from fineflow.testing import virtual_threads

T = TypeVar("T")


class Held(NamedTuple, Generic[T]):
    """A coroutine's result, the longest time in seconds for which one callback blocked its loop, and that callback."""

    value: T
    seconds: float
    by: str


class _Longest:
    def __init__(self) -> None:
        self.seconds, self.by = 0.0, ""

    @contextmanager
    def watching(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Measures each callback of the loop; call it on the loop's thread."""
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
    """Runs ``make()`` in virtual time, on its own loop, and measures how long it blocks that loop.

    warm: runs it once first, so that loading and compiling do not count. Python's garbage collector, which stops all
    threads, is off meanwhile. Raises what the coroutine raises.
    """
    longest = _Longest()

    async def main() -> T:
        if warm:
            await make()
        with longest.watching(asyncio.get_running_loop()):
            return await asyncio.create_task(make())  # so that all of it runs in callbacks that are watched

    collecting = gc.isenabled()
    gc.disable()
    try:
        value, _ = virtual_threads.run(lambda: asyncio.run(main()))
    finally:
        if collecting:
            gc.enable()
    return Held(value, longest.seconds, longest.by)


def entered(make: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, set[str]]:
    """Runs ``make()`` on a loop of its own; returns its value, and the Python functions that ran on the loop's thread.

    Functions are named as ``module.Class.method``; also those that import modules.
    """
    found = dict[CodeType, str]()

    def seen(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code not in found:
            found[code] = f"{frame.f_globals.get('__name__')}.{code.co_qualname}"

    async def watched() -> T:
        sys.setprofile(seen)
        try:
            return await make()
        finally:
            sys.setprofile(None)

    return asyncio.run(watched()), set(found.values())
