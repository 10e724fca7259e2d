"""Threads for the blocking methods of user components.

The number of threads has no bound: a component may itself wait for an optimized pipeline whose components need
threads, and any bound would be a deadlock for some depth of nesting. Idle threads are reused for a while.

A blocking call cannot be interrupted from outside. Who waits for it may be cancelled at once, and then the thread
finishes alone and its result is dropped. The threads are daemons, so that such a call cannot hold up the end of the
process for longer than ``_EXIT_SECONDS``.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from itertools import count
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

_IDLE_SECONDS = 30.0  # how long a thread waits for more work
_EXIT_SECONDS = 1.0  # how long the end of the interpreter waits for calls under way

_Job = Callable[[], None]


class _Worker:
    """One thread and the box through which it gets work."""

    _numbers = count(1)

    def __init__(self, pool: _Pool) -> None:
        self.box: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=self._main, args=(pool,), name=f"fineflow-worker-{next(self._numbers)}", daemon=True
        )

    def _main(self, pool: _Pool) -> None:
        while True:
            try:
                job = self.box.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                if pool.retire(self):
                    return
                continue  # somebody has just taken this worker: the job is on its way
            job()
            del job  # an idle thread must not keep the values of a finished call alive
            pool.idle(self)


class _Pool:
    """The workers of this process.

    Without a lock, by single operations that Python does in one go: Python may collect an abandoned stream wherever
    something is allocated, and closing it can mean to wait for threads that are about to come here.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []  # the one that became idle last is taken first
        self._busy: set[_Worker] = set()

    def submit(self, job: _Job) -> None:
        try:
            worker, new = self._idle.pop(), False
        except IndexError:
            worker, new = _Worker(self), True
        self._busy.add(worker)
        worker.box.put(job)
        if new:
            worker.thread.start()

    def idle(self, worker: _Worker) -> None:
        self._busy.discard(worker)
        self._idle.append(worker)

    def retire(self, worker: _Worker) -> bool:
        """Whether the worker may end: nobody has taken it meanwhile."""
        try:
            self._idle.remove(worker)
        except ValueError:
            return False
        return True

    def drain(self, seconds: float) -> None:
        """Waits for calls under way, but not for ever."""
        deadline = monotonic() + seconds
        while self._busy and monotonic() < deadline:
            threading.Event().wait(0.005)


_pool = _Pool()


def _forget() -> None:
    # A forked child has none of the threads.
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@atexit.register
def _exit() -> None:
    _pool.drain(_EXIT_SECONDS)


def submit(job: Callable[[], None]) -> None:
    """Has a worker thread call ``job``, which must raise nothing."""
    _pool.submit(job)


async def in_thread(function: Callable[[], T]) -> T:
    """Runs a blocking function in a worker thread, in a copy of the current context.

    Cancelling the caller takes effect at once; the function, if it has begun, runs to its end unheard.
    Raises: what the function raises, the same object (RuntimeError for StopIteration, which no future can carry).
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    _pool.submit(_job(function, contextvars.copy_context(), loop, done))
    with getattr(loop, "outside", nullcontext)():  # a loop with a clock of its own has to know
        return await done


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Awaits something that must not be left at work: cancelling the caller takes effect when it has ended."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # nobody else looks at it
        raise cancelled
    return task.result()


def _job(
    function: Callable[[], T], context: contextvars.Context, loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]
) -> _Job:
    def run() -> None:
        if done.cancelled():
            return
        try:
            result = context.run(function)
        except StopIteration as stop:
            error = RuntimeError("a component raised StopIteration")
            error.__cause__ = stop
            tell(done.set_exception, error)
        except BaseException as error:  # a SystemExit is the caller's to see, not this thread's to die of
            tell(done.set_exception, error)
        else:
            tell(done.set_result, result)

    def tell(settle: Callable[[Any], None], outcome: Any) -> None:
        def settled() -> None:
            if not done.done():
                settle(outcome)

        with suppress(RuntimeError):  # that loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settled)

    return run
