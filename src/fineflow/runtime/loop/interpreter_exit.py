"""Silence at interpreter exit: daemon threads do not report failures that the exit itself causes.

Python keeps daemon threads running while it joins the threads of executors and runs atexit functions. By then executors
refuse work, engines are closed and the runtime's loop has stopped. Without fineflow a daemon thread would simply block
in a component until the process ends, so here it waits for the end, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import thread as executors
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from time import monotonic
from typing import Any

_HOLD_SECONDS = 10.0  # not forever: an atexit function of the user may join the thread
_PAUSE_SECONDS = 0.05


def exiting() -> bool:
    """Returns True if the main thread has ended and only daemon threads are left.

    Threads of executors, which Python joins first, do not count: executors take no new work by then.
    """
    main = threading.main_thread()
    if main.is_alive():
        return bool(getattr(executors, "_shutdown", False))  # a private name: without it this phase is not silent
    return all(thread.daemon or thread is main for thread in threading.enumerate())


def hold_daemon_thread() -> None:
    """Blocks a daemon thread of the user while the interpreter exits. Call it before an error is raised there."""
    for pause in _pauses():
        threading.Event().wait(pause)


async def hold_daemon_task() -> None:
    """Does the same for a coroutine on a daemon thread's loop."""
    for pause in _pauses():
        await asyncio.sleep(pause)


def _pauses() -> Iterator[float]:
    thread = threading.current_thread()
    if thread.daemon and not thread.name.startswith("fineflow-"):  # our own threads hand errors to other threads
        until = monotonic() + _HOLD_SECONDS
        while exiting() and monotonic() < until:
            yield _PAUSE_SECONDS


class _SilentAtExit(AbstractContextManager[Any], AbstractAsyncContextManager[Any]):
    """Holds daemon threads (``with``) and coroutines on their loops (``async with``) that raise inside the block."""

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and kind is not GeneratorExit:
            hold_daemon_thread()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and kind is not GeneratorExit:  # a coroutine that Python closes may not await
            await hold_daemon_task()


silent_at_exit = _SilentAtExit()
