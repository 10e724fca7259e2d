"""Coroutines submitted to an event loop from another thread or loop, whose caller waits for the outcome.

``run_sync`` and ``run_async`` submit to the runtime's loop. Exceptions arrive as the same object; the work sees the
context variables of its caller.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from fineflow.errors import BackendError
from fineflow.runtime.loop import scopes
from fineflow.runtime.loop.interpreter_exit import silent_at_exit
from fineflow.runtime.loop.runtime_loop import current_runtime, on_engine_loop, refuse_blocking

T = TypeVar("T")

POLL_SECONDS = 1.0  # interval at which a blocked thread handles signals and checks the loop that it waits for


class Unreachable(Exception):
    """The loop is closed, has been shut down or does not respond."""


class Submission(Generic[T]):
    """One coroutine, created by ``make()`` on ``loop``. ``outcome`` is its result, for waiters on any thread or loop.

    context: the context that it runs in; by default a copy of the caller's. KeyboardInterrupt and SystemExit end up in
    the outcome, too: raised in a task they would stop the loop.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[T]],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None = None,
    ) -> None:
        self.outcome: Future[T] = Future()
        self.unwanted = False  # cancelled by its waiter
        self._make = make
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Submits the coroutine. Raises Unreachable if the loop is closed.

        Not part of the constructor: an interrupted thread must already hold the object that it has to cancel.
        """
        try:
            self._loop.call_soon_threadsafe(self._create_task, context=self._context)
        except RuntimeError:
            raise Unreachable from None

    def cancel(self) -> None:
        """Cancels the coroutine without waiting. Thread-safe."""
        self.unwanted = True
        with suppress(RuntimeError):  # the loop is closed, and its tasks are gone
            self._loop.call_soon_threadsafe(self._cancel)

    def wait(self, lost: Callable[[], bool] | None = None) -> T:
        """Blocks for the result. Raises the coroutine's exception; Unreachable once ``lost()`` holds."""
        poll(self.done_within, lost)
        return self.outcome.result()

    def done_within(self, seconds: float) -> bool:
        """Blocks until there is an outcome, at most so long. Returns whether there is one."""
        try:
            self.outcome.exception(seconds)
        except TimeoutError:
            return False
        return True

    async def wait_async(self) -> T:
        """Waits for the result, on any event loop. Raises the coroutine's exception.

        Cancelling the caller cancels the coroutine and waits for its end.
        """
        try:
            await done_with(self.outcome)
        except asyncio.CancelledError:
            await self.stop_async()
            raise
        return self.outcome.result()

    def stop(self) -> None:
        """Cancels the coroutine and blocks until it has ended. Raises its exception if it ends with another one.

        Does not wait on the runtime's thread, where Python may collect an abandoned generator.
        """
        self.cancel()
        if not on_engine_loop():
            _raise_failure(self.outcome.exception())

    async def stop_async(self) -> None:
        """Does the same on any event loop. Cancelling the caller does not shorten the wait.

        Does not wait if no loop is running: then Python is closing an async generator whose loop has ended.
        """
        self.cancel()
        if asyncio._get_running_loop() is None:
            return
        done = done_with(self.outcome)
        while not self.outcome.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        _raise_failure(self.outcome.exception())

    # On the loop.

    def _create_task(self) -> None:
        if self.outcome.done():
            self._ended()
            return
        self._task = self._loop.create_task(self._run(), context=self._context)
        self._task.add_done_callback(self._ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # its waiter was interrupted before it was submitted
            self._ended()

    async def _run(self) -> None:
        try:
            result = await self._make()
        except BaseException as error:
            self._fail(error)
        else:
            self.outcome.set_result(result)

    def _ended(self, task: asyncio.Task[None] | None = None) -> None:
        if not self.outcome.done():  # cancelled before its first step, or never started
            self._fail(asyncio.CancelledError())

    def _fail(self, error: BaseException) -> None:
        self.outcome.set_exception(error)


class RuntimeSubmission(Submission[T]):
    """Coroutine on the runtime's loop, started if necessary. Fails with BackendError if ``shutdown()`` cancels it."""

    def __init__(self, make: Callable[[], Awaitable[T]], context: contextvars.Context | None = None) -> None:
        self._runtime = current_runtime()
        super().__init__(make, self._runtime.loop, context)

    def start(self) -> None:
        try:
            self._submit()
        except Unreachable:  # shut down since then; there is a new runtime
            self._runtime.submissions.pop(self, None)
            self._runtime = current_runtime()
            self._loop = self._runtime.loop
            self._submit()

    def start_soon(self) -> None:
        """Submits the coroutine in the next iteration of the running loop, with all others of this iteration.

        Submitting wakes the runtime's thread. So what is ready together arrives there together, and can share a batch.
        """
        loop = asyncio.get_running_loop()
        if loop not in _leaving:
            _leaving[loop] = []
            loop.call_soon(_send, loop)
        _leaving[loop].append(self)

    def start_or_fail(self) -> None:
        """Submits the coroutine; a failure to do so becomes its outcome."""
        try:
            self.start()
        except Exception as error:
            if not self.outcome.done():
                self._fail(error)

    def _submit(self) -> None:
        self._runtime.submissions[self] = self._ended
        super().start()

    def _ended(self, task: asyncio.Task[None] | None = None) -> None:
        super()._ended(task)
        self._runtime.submissions.pop(self, None)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self._runtime.shut_down and not self.unwanted:
            cause, error = error, BackendError("fineflow.shutdown() was called while this was running")
            error.__cause__ = cause
        super()._fail(error)


_leaving: WeakKeyDictionary[asyncio.AbstractEventLoop, list[RuntimeSubmission[Any]]] = WeakKeyDictionary()
"""What tasks of a loop submit in its current iteration."""


def _send(loop: asyncio.AbstractEventLoop) -> None:
    works = _leaving.pop(loop)
    runtime = works[0]._runtime
    if len(works) > 1 and all(work._runtime is runtime for work in works):
        runtime.submissions.update((work, work._ended) for work in works)
        with suppress(RuntimeError):  # shut down since then: each finds the new runtime
            runtime.loop.call_soon_threadsafe(_create_tasks, works)
            return
    for work in works:
        work.start_or_fail()


def _create_tasks(works: Sequence[Submission[Any]]) -> None:
    for work in works:
        work._create_task()


def _raise_failure(error: BaseException | None) -> None:
    if isinstance(error, Exception):
        raise error


def done_with(outcome: Future[Any]) -> asyncio.Future[None]:
    """Returns a future of the running loop that is set once there is an outcome."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def wake(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # that loop is closed
            loop.call_soon_threadsafe(set_done, done)

    outcome.add_done_callback(wake)
    return done


def set_done(future: asyncio.Future[None]) -> None:
    """Sets the future, unless it is done or cancelled. Call it on the future's loop."""
    if not future.done():
        future.set_result(None)


def poll(wait: Callable[[float], bool], lost: Callable[[], bool] | None = None) -> None:
    """Blocks until ``wait(seconds)`` returns True. Raises Unreachable once ``lost()`` holds.

    Waits in steps: a signal that arrives just before a thread blocks is handled only when it wakes up.
    """
    while not wait(POLL_SECONDS):
        if lost is not None and lost():
            raise Unreachable


def run_sync(make: Callable[[], Awaitable[T]]) -> T:
    """Runs ``make()`` on the runtime's loop and blocks until it has ended, on any thread but the runtime's own.

    An interrupted wait (KeyboardInterrupt) cancels the work and waits for its end. Raises the work's exception, the
    same object; RuntimeError on the runtime's own thread.
    """
    refuse_blocking("run_sync", "run_async")
    scopes.check()
    with silent_at_exit:
        work = RuntimeSubmission(make)
        try:
            with scopes.on_stop(work.cancel):
                work.start()
                return work.wait()
        finally:
            if not work.outcome.done():
                work.stop()


async def run_async(make: Callable[[], Awaitable[T]]) -> T:
    """Runs ``make()`` on the runtime's loop and awaits its end, on any event loop.

    Cancelling the caller cancels the work and waits for it. Raises the work's exception, the same object.
    """
    if on_engine_loop():
        return await make()
    async with silent_at_exit:
        work = RuntimeSubmission(make)
        work.start_soon()
        return await work.wait_async()
