"""Worker threads for the blocking methods of user components.

Their number is not bounded: a component may itself wait for an optimized pipeline whose components need threads, so
any bound would deadlock at some depth of nesting. Idle threads are reused for a while.

A blocking call cannot be interrupted. A cancelled caller returns at once; the thread finishes on its own, and its
result is dropped. The threads are daemons, so a blocking call delays the end of the process by at most
``_EXIT_SECONDS``.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from itertools import count
from time import monotonic
from typing import Any, TypeVar

from fineflow.runtime.loop.forks import in_forked_children

T = TypeVar("T")

_IDLE_SECONDS = 30.0  # an unused thread ends after so long
_EXIT_SECONDS = 1.0  # interpreter exit waits so long for running calls

_Job = Callable[[], None]


class _Worker:
    """One thread and its inbox."""

    _numbers = count(1)

    def __init__(self, pool: _Pool) -> None:
        self.inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=self._main, args=(pool,), name=f"fineflow-worker-{next(self._numbers)}", daemon=True
        )

    def _main(self, pool: _Pool) -> None:
        while True:
            try:
                job = self.inbox.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                if pool.retire(self):
                    return
                continue  # this worker has just been taken: its job is about to arrive
            job()
            del job  # an idle thread must not keep the values of a finished call alive
            pool.idle(self)


class _Pool:
    """The workers of this process.

    Uses atomic operations instead of a lock: Python may collect an abandoned stream at any allocation, and closing it
    may mean waiting for threads that are about to get here.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []  # used from the end: those at the beginning time out
        self._busy: set[_Worker] = set()

    def submit(self, job: _Job) -> None:
        """Raises RuntimeError if no thread can be started."""
        try:
            worker, new = self._idle.pop(), False
        except IndexError:
            worker, new = _Worker(self), True
        self._busy.add(worker)
        worker.inbox.put(job)
        if new:
            try:
                worker.thread.start()
            except RuntimeError:
                self._busy.discard(worker)
                raise

    def idle(self, worker: _Worker) -> None:
        self._busy.discard(worker)
        self._idle.append(worker)

    def retire(self, worker: _Worker) -> bool:
        """Removes an idle worker. Returns False if it has been taken meanwhile."""
        try:
            self._idle.remove(worker)
        except ValueError:
            return False
        return True

    def drain(self, seconds: float) -> None:
        """Waits for running calls, for at most ``seconds``."""
        deadline = monotonic() + seconds
        while self._busy and monotonic() < deadline:
            threading.Event().wait(0.005)


_pool = _Pool()


@in_forked_children
def _forget() -> None:
    # A forked child has none of the threads.
    global _pool
    _pool = _Pool()


@atexit.register
def _exit() -> None:
    _pool.drain(_EXIT_SECONDS)


def submit(job: Callable[[], None]) -> None:
    """Calls ``job``, which must not raise, in a worker thread. Raises RuntimeError if none can be started."""
    _pool.submit(job)


async def in_thread(function: Callable[[], T]) -> T:
    """Runs a blocking function in a worker thread, in a copy of the current context.

    Cancelling the caller takes effect at once; a function that has begun runs on, and its result is dropped. Raises
    the function's exception, the same object (RuntimeError for StopIteration, which no future can carry).
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    _pool.submit(_job(function, contextvars.copy_context(), loop, done))
    with getattr(loop, "outside", nullcontext)():  # stops the clock of a loop in virtual time
        return await done


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Awaits a coroutine that must not be interrupted: cancelling the caller takes effect when it has ended."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
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
            report(done.set_exception, error)
        except BaseException as error:  # a SystemExit, too: it belongs to the caller and must not end this thread
            report(done.set_exception, error)
        else:
            report(done.set_result, result)

    def report(setter: Callable[[Any], None], outcome: Any) -> None:
        def set_outcome() -> None:
            if not done.done():
                setter(outcome)

        with suppress(RuntimeError):  # that loop is closed
            loop.call_soon_threadsafe(set_outcome)

    return run
