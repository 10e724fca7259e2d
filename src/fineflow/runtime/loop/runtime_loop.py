"""The runtime's event loop: one per process, on a daemon thread of its own, started when first needed.

Engines and their queues live on this loop, so that queries on any thread and any event loop meet in the same batches.
The functions here carry work from elsewhere to it and results, items and exceptions back. What the caller's context
variables say is visible in the work; exceptions arrive as the same object.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from fineflow.errors import BackendError
from fineflow.runtime.loop import scopes

T = TypeVar("T")

_LOOK_SECONDS = 1.0  # after which an interrupt of a waiting thread is noticed at the latest
_EXIT_SECONDS = 5.0  # how long the end of the interpreter waits for work that does not react to its cancellation


class _Runtime:
    """The loop and its thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.works: set[_Work[Any]] = set()  # strong references: an event loop holds its tasks weakly
        self.shut = False  # whether it ends before the interpreter does
        started = threading.Event()
        self.thread = threading.Thread(target=self._main, args=(started,), name="fineflow-runtime", daemon=True)
        self.thread.start()
        started.wait()

    def _main(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        try:
            self.loop.run_forever()
        finally:
            while tasks := asyncio.all_tasks(self.loop):  # what was on its way here may have become tasks meanwhile
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            for work in tuple(self.works):  # came too late even for that: nobody must wait for it for ever
                work._cancelled()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_EXIT_SECONDS)


_runtime: _Runtime | None = None
_hosts: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_exiting = False
_lock = threading.Lock()


def _running() -> _Runtime:
    global _runtime
    found = _runtime
    if found is not None:
        return found
    with _lock:
        if _exiting:
            raise RuntimeError("fineflow's runtime has stopped because the interpreter is exiting; start no work now")
        if _runtime is None:
            _runtime = _Runtime()
        return _runtime


def _forget() -> None:
    # In a forked child the thread does not exist and the lock may be held by one that does not exist either.
    global _runtime, _lock
    _runtime, _lock = None, threading.Lock()


@atexit.register
def _exit() -> None:
    global _runtime, _exiting
    with _lock:
        _exiting, found, _runtime = True, _runtime, None
    if found is not None:
        found.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def stop() -> None:
    """Ends the loop and its thread, and cancels what is under way on it. The next use starts anew.

    Whoever waits for something of it gets a BackendError. RuntimeError on the loop's own thread.
    """
    global _runtime
    if _runtime is not None and threading.current_thread() is _runtime.thread:
        raise RuntimeError("fineflow.shutdown() was called on fineflow's runtime thread, which cannot wait for itself")
    with _lock:
        found, _runtime = _runtime, None
    if found is not None:
        found.shut = True
        found.stop()


def engine_loop() -> asyncio.AbstractEventLoop:
    """The loop that engines and their queues live on. Starts it when needed; a forked child gets one of its own."""
    return _running().loop


def exiting() -> bool:
    """Whether the interpreter has begun to exit: the loop ends, and what waits for it gets a CancelledError."""
    return _exiting


def host_engines(loop: asyncio.AbstractEventLoop) -> None:
    """Has engines and queues that are used from ``loop`` live on it instead of the runtime's own (virtual time)."""
    _hosts.add(loop)


hosted: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar(
    "fineflow_hosted", default=None
)
"""The loop with a clock of its own that the current context belongs to; threads that it starts work have it, too."""


def on_engine_loop() -> bool:
    """Whether the calling thread is the runtime's, which must never block, or runs a loop that hosts engines."""
    if _runtime is not None and threading.current_thread() is _runtime.thread:
        return True
    return bool(_hosts) and asyncio._get_running_loop() in _hosts


class _Work(Generic[T]):
    """A coroutine on the runtime's loop; ``done`` is its outcome, for waiters anywhere."""

    def __init__(self, make: Callable[[], Awaitable[T]], context: contextvars.Context) -> None:
        self.done: Future[T] = Future()
        self._make = make
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._runtime = _running()
        self._unwanted = False  # whether its waiter has cancelled it

    def start(self) -> None:
        # Not part of making it: whoever can be interrupted must already hold what is to be cancelled.
        self._runtime.works.add(self)
        try:
            self._runtime.loop.call_soon_threadsafe(self._start, context=self._context)
        except RuntimeError:  # the loop has been shut down since: there is a new one, if any
            self._runtime.works.discard(self)
            self._runtime = _running()
            self._runtime.works.add(self)
            self._runtime.loop.call_soon_threadsafe(self._start, context=self._context)

    def cancel(self) -> None:
        self._unwanted = True
        with suppress(RuntimeError):  # the loop is closed: its end cancelled everything
            self._runtime.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # interrupted while it was being started
            self._cancelled()

    def _start(self) -> None:
        if self.done.done():
            self._runtime.works.discard(self)
            return
        self._task = self._runtime.loop.create_task(self._run(), context=self._context)
        self._task.add_done_callback(self._finish)

    async def _run(self) -> None:
        try:
            result = await self._make()
        except BaseException as error:  # a KeyboardInterrupt that left the task would end the loop
            self._fail(error)
        else:
            self.done.set_result(result)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._cancelled()  # before its first step, or there is nothing left to say

    def _cancelled(self) -> None:
        if not self.done.done():
            self._fail(asyncio.CancelledError())
        self._runtime.works.discard(self)

    def _fail(self, error: BaseException) -> None:
        """Tells the waiter, who has not asked for the end of the loop.

        At the end of the interpreter there are only daemon threads left to wait. They are told nothing: in stock they
        would be stuck in a component until the process is gone.
        """
        if isinstance(error, asyncio.CancelledError) and not self._unwanted:
            if self._runtime.shut:
                told = BackendError("fineflow.shutdown() was called while this was under way")
                told.__cause__, error = error, told
            elif _exiting:
                return
        self.done.set_exception(error)

    def settle(self) -> None:
        """Cancels, waits for the end, raises what the work raised on its way out. Blocks; for other threads."""
        self.cancel()
        if not on_engine_loop():  # an abandoned iterator may be collected on any thread, also on that one
            _raise_failure(self.done.exception())

    async def asettle(self) -> None:
        """The same for a coroutine of another loop; further cancellations of the caller do not shorten it."""
        self.cancel()
        ended = _signal(self.done)
        while not self.done.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ended])
        _raise_failure(self.done.exception())


def _raise_failure(error: BaseException | None) -> None:
    if isinstance(error, Exception):
        raise error


def _signal(done: Future[Any]) -> asyncio.Future[None]:
    """A future of the running loop that is set when ``done`` is."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ended.done():
            ended.set_result(None)

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # that loop is closed: nobody waits any more
            loop.call_soon_threadsafe(wake)

    done.add_done_callback(tell)
    return ended


def _refuse_on_engine_loop(name: str, instead: str) -> None:
    host = hosted.get()
    if host is not None and not host.is_closed() and asyncio._get_running_loop() is not host:
        raise RuntimeError(
            "an engine was called through a blocking method from a worker thread of a loop in virtual time: the clock "
            "stands still while a thread works, so the engine's time would never pass; use the async methods of "
            "components there (ainvoke, aembed_query, ...), and async functions in RunnableLambda"
        )
    if on_engine_loop():
        raise RuntimeError(
            f"{name}() was called on fineflow's runtime thread, which it would block for ever; "
            f"await {instead}() there, or call it from a worker thread"
        )


def _outcome(done: Future[T]) -> T:
    # Looks up now and then: a signal that comes just before the wait begins is noticed only when it ends.
    while True:
        try:
            return done.result(_LOOK_SECONDS)
        except TimeoutError:
            if done.done():  # its own
                return done.result()


def run_sync(make: Callable[[], Awaitable[T]]) -> T:
    """Runs ``make()`` on the runtime's loop and blocks until it has ended; for every thread but the runtime's own.

    An interrupted wait (KeyboardInterrupt) cancels the work and waits for its end. Raises what the work raises, the
    same object; RuntimeError on the runtime's own thread.
    """
    _refuse_on_engine_loop("run_sync", "run_async")
    scopes.check()
    work = _Work(make, contextvars.copy_context())
    try:
        with scopes.on_stop(work.cancel):
            work.start()
            return _outcome(work.done)
    finally:
        if not work.done.done():
            work.settle()


async def run_async(make: Callable[[], Awaitable[T]]) -> T:
    """Runs ``make()`` on the runtime's loop and awaits its end, from a coroutine on any event loop.

    Cancelling the caller cancels the work and waits for it. Raises what the work raises, the same object.
    """
    if on_engine_loop():
        return await make()
    work = _Work(make, contextvars.copy_context())
    work.start()
    try:
        await _signal(work.done)
    except asyncio.CancelledError:
        await work.asettle()
        raise
    return work.done.result()


_END = object()


async def _pump(
    make: Callable[[], AsyncIterator[T]], deliver: Callable[[T], None], free: asyncio.Semaphore | None
) -> None:
    source = make()
    try:
        async for item in source:
            if free is not None:
                await free.acquire()
            deliver(item)
    finally:
        await _aclose(source)


async def _aclose(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def iterate_sync(make: Callable[[], AsyncIterator[T]], *, buffer: int = 0) -> Iterator[T]:
    """Iterates ``make()``, which runs on the runtime's loop, from a plain thread.

    The source starts at the first ``next()`` and then runs ahead, by at most ``buffer`` items if that is not 0.
    Closing or abandoning the iterator closes the source and waits for that. Raises what the source raises.
    """
    _refuse_on_engine_loop("iterate_sync", "iterate_async")
    scopes.check()
    return _iterate_sync(make, buffer, contextvars.copy_context())


def _iterate_sync(make: Callable[[], AsyncIterator[T]], buffer: int, context: contextvars.Context) -> Iterator[T]:
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    free = asyncio.Semaphore(buffer) if buffer else None
    work = _Work(lambda: _pump(make, items.put, free), context)
    work.done.add_done_callback(lambda _: items.put(_END))
    try:
        with scopes.on_stop(work.cancel):
            work.start()
            while (item := items.get()) is not _END:
                _release(free)
                yield cast(T, item)
            work.done.result()
    finally:
        if not work.done.done():
            work.settle()


async def iterate_async(make: Callable[[], AsyncIterator[T]], *, buffer: int = 0) -> AsyncIterator[T]:
    """Iterates ``make()``, which runs on the runtime's loop, from a coroutine on any event loop.

    As ``iterate_sync``. On the runtime's own loop the source is iterated directly.
    """
    if on_engine_loop():
        source = make()
        try:
            async for item in source:
                yield item
        finally:
            await _aclose(source)
        return
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[Any] = asyncio.Queue()
    free = asyncio.Semaphore(buffer) if buffer else None

    def deliver(item: object) -> None:
        loop.call_soon_threadsafe(items.put_nowait, item)  # raises where that loop is closed, which ends the pump

    def end(_: Future[None]) -> None:
        with suppress(RuntimeError):
            deliver(_END)

    work = _Work(lambda: _pump(make, deliver, free), contextvars.copy_context())
    work.done.add_done_callback(end)
    try:
        work.start()
        while (item := await items.get()) is not _END:
            _release(free)
            yield item
        work.done.result()
    finally:
        if not work.done.done():
            await work.asettle()


def _release(free: asyncio.Semaphore | None) -> None:
    if free is not None:
        with suppress(RuntimeError):
            engine_loop().call_soon_threadsafe(free.release)
