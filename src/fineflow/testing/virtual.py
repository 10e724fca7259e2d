"""Virtual time: an asyncio event loop whose clock jumps to the next timer as soon as nothing else can run.

Code that sleeps with ``asyncio.sleep``, or waits with a timeout, takes no real time and exactly its virtual time:
measurements are the same on every machine and in every run. Engines used from this loop live on it, not on the
runtime's thread, so their queues and batches follow the virtual clock, too.

Work in threads (``run_in_executor``, ``asyncio.to_thread``) takes no virtual time: the clock stops until it has ended.
So use components with latencies by their async methods (``ainvoke``, ``astream``, ``abatch``). A thread that sleeps
really sleeps, and a thread must not wait for virtual time: a blocking call of an engine raises there.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, Generic, NamedTuple, TypeVar, TypeVarTuple, Unpack

from fineflow.runtime import events
from fineflow.runtime.loop.runtime_loop import add_engine_host, virtual_loop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NANOSECONDS = 10**9
_PATIENCE_SECONDS = 30.0  # of real time, for work in threads
_SHOWN = 5  # number of tasks that a deadlock message names


class Ran(NamedTuple, Generic[T]):
    """A coroutine's result, and the virtual seconds that it took."""

    value: T
    seconds: float


class DeadlockError(RuntimeError):
    """Nothing can happen any more: no task is ready, no timer is set, no thread is running."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with its own clock, which starts at 0 and counts whole nanoseconds.

    Code that runs it may get DeadlockError, if all tasks wait for nothing, or RuntimeError, if work in a thread takes
    longer than ``patience`` seconds of real time.
    """

    virtual = True

    def __init__(self, *, patience: float = _PATIENCE_SECONDS) -> None:
        self._now = 0
        self._threads = 0  # pieces of work in threads that have not reported their end yet
        self._patience = patience
        super().__init__(_Selector(self._idle))
        add_engine_host(self)
        events.own_clock()

    def time(self) -> float:
        """Returns the virtual seconds since the loop was made."""
        return self._now / _NANOSECONDS

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        # Whole nanoseconds, so that 0.1 + 0.2 and 0.3 are the same moment.
        return super().call_at(round(when, 9), callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._back)
        return future

    def _back(self, _: object) -> None:
        self._threads -= 1

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Stops the clock inside the block, which awaits something in real time."""
        self._threads += 1
        try:
            yield
        finally:
            self._threads -= 1

    async def shutdown_default_executor(self, *args: Any) -> None:
        with self.outside():
            await super().shutdown_default_executor(*args)

    def _idle(self, timeout: float | None, select: Callable[[float], list[Any]]) -> list[Any]:
        """Called if no task is ready: waits for threads, or jumps to the next timer, ``timeout`` seconds away."""
        if self._threads:
            found = select(self._patience)
            if not found:
                raise RuntimeError(
                    f"{self._threads} calls in threads have not ended within {self._patience:g} real seconds; "
                    "a thread must not wait for virtual time: use the async methods of components"
                )
            return found
        if timeout is None:
            raise DeadlockError(self._deadlock())
        self._now = round((self.time() + timeout) * _NANOSECONDS)
        return []

    def _deadlock(self) -> str:
        waiting = sorted(filter(None, map(_place, asyncio.all_tasks(self))))
        named = ", ".join(waiting[:_SHOWN]) + (", …" if len(waiting) > _SHOWN else "")
        return (
            f"nothing can happen any more after {self.time():g} virtual seconds: no timer is set and no thread is "
            f"running, but {len(waiting)} tasks wait: {named}"
        )


def _place(task: asyncio.Task[Any]) -> str:
    """Returns the task's name and the line that it waits at."""
    waiting: Any = task.get_coro()
    while getattr(waiting, "cr_await", None) is not None and hasattr(waiting.cr_await, "cr_frame"):
        waiting = waiting.cr_await
    frame = getattr(waiting, "cr_frame", None)
    where = f" at {frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame is not None else ""
    return f"{task.get_name()} ({getattr(waiting, '__qualname__', '?')}{where})"


class _Selector(selectors.DefaultSelector):
    """Never blocks by itself: calls ``idle`` if nothing is ready."""

    def __init__(self, idle: Callable[[float | None, Callable[[float], list[Any]]], list[Any]]) -> None:
        super().__init__()
        self._idle = idle

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        return self._idle(timeout, super().select)


def run(main: Coroutine[Any, Any, T], *, patience: float = _PATIENCE_SECONDS) -> Ran[T]:
    """Runs a coroutine in virtual time, as ``asyncio.run`` does in real time.

    Raises what the coroutine raises; DeadlockError; RuntimeError for threads (see ``VirtualTimeLoop``).
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(patience=patience)) as runner:
        context = copy_context()
        context.run(virtual_loop.set, runner.get_loop())
        value = runner.run(main, context=context)
        return Ran(value, runner.get_loop().time())
