"""The runtime's event loop: one per process, on its own daemon thread, started on first use.

Engines and their queues live on this loop, so that queries from any thread and any event loop share batches.
``submission`` carries single calls to the loop and back, ``iteration`` carries streams of items.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import threading
import weakref
from collections.abc import Callable

from fineflow.runtime.loop.forks import in_forked_children

_EXIT_SECONDS = 5.0  # interpreter exit waits so long for tasks that do not react to their cancellation


class Runtime:
    """The loop and its thread.

    submissions: unfinished work from other threads and loops, each with the function that ends it if its task never
    started. An event loop holds its tasks weakly; these are the strong references. shut_down: stopped by ``stop()``,
    as opposed to interpreter exit.
    """

    def __init__(self) -> None:
        self.loop = contextvars.Context().run(asyncio.new_event_loop)  # it would keep what the first call set
        self.submissions: dict[object, Callable[[], None]] = {}
        self.shut_down = False
        started = threading.Event()
        self.thread = threading.Thread(target=self._main, args=(started,), name="fineflow-runtime", daemon=True)
        self.thread.start()
        started.wait()
        self.ident = self.thread.ident

    def _main(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        try:
            self.loop.run_forever()
        finally:
            while tasks := asyncio.all_tasks(self.loop):  # a loop: late submissions may have become tasks meanwhile
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            for end in tuple(self.submissions.values()):  # too late to become tasks, but their callers wait
                end()

    def stop(self) -> None:
        """Stops the loop, which cancels its tasks, and joins the thread for at most ``_EXIT_SECONDS``."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_EXIT_SECONDS)


_runtime: Runtime | None = None
_stopped_for_exit = False
_lock = threading.Lock()


def current_runtime() -> Runtime:
    """Returns the runtime; starts it if necessary. RuntimeError once interpreter exit has stopped it."""
    global _runtime
    found = _runtime
    if found is not None:
        return found
    with _lock:
        if _stopped_for_exit:
            raise RuntimeError("fineflow's runtime has stopped because the interpreter is exiting; start no work now")
        if _runtime is None:
            _runtime = Runtime()
        return _runtime


@in_forked_children
def _forget() -> None:
    # A forked child has no runtime thread, and the lock may be held by a thread that does not exist there.
    global _runtime, _lock
    _runtime, _lock = None, threading.Lock()


@atexit.register
def _exit() -> None:
    global _runtime, _stopped_for_exit
    with _lock:
        _stopped_for_exit, found, _runtime = True, _runtime, None
    if found is not None:
        found.stop()


def stop() -> None:
    """Stops the loop and its thread and cancels all work on it. The next use starts a new one.

    Callers that wait for such work get a BackendError. RuntimeError on the loop's own thread.
    """
    global _runtime
    if _runtime is not None and threading.current_thread() is _runtime.thread:
        raise RuntimeError("fineflow.shutdown() was called on fineflow's runtime thread, which cannot wait for itself")
    with _lock:
        found, _runtime = _runtime, None
    if found is not None:
        found.shut_down = True
        found.stop()


def engine_loop() -> asyncio.AbstractEventLoop:
    """Returns the loop that engines and their queues live on; starts it if necessary. A forked child gets its own.

    RuntimeError once interpreter exit has stopped it.
    """
    return current_runtime().loop


def on_runtime_thread() -> bool:
    """Returns True on the thread of the runtime's loop, where only its own work runs."""
    return _runtime is not None and threading.get_ident() == _runtime.ident


def on_engine_loop() -> bool:
    """Returns True on a thread that must not block: the runtime's, or that of a running loop that hosts engines."""
    if on_runtime_thread():
        return True
    loop = asyncio._get_running_loop()
    return loop is not None and loop in _hosts


# Loops in virtual time: their engines must follow their clock, so they cannot live on the runtime's loop.

_hosts: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

virtual_loop: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar(
    "fineflow_virtual_loop", default=None
)
"""The loop in virtual time that the current context belongs to; worker threads inherit it."""


def add_engine_host(loop: asyncio.AbstractEventLoop) -> None:
    """Makes engines and queues used from ``loop`` live on it instead of on the runtime's loop."""
    _hosts.add(loop)


def refuse_blocking(name: str, instead: str) -> None:
    """Raises RuntimeError if a blocking call of ``name`` would block the loop that it waits for."""
    loop = virtual_loop.get()
    if loop is not None and not loop.is_closed() and asyncio._get_running_loop() is not loop:
        raise RuntimeError(
            "an engine was called through a blocking method from a worker thread of a loop in virtual time: the clock "
            "stands still while a thread works, so the engine's time would never pass; use the async methods of "
            "components there (ainvoke, aembed_query, ...), and async functions in RunnableLambda"
        )
    if on_engine_loop():
        raise RuntimeError(
            f"{name}() was called on fineflow's runtime thread, which it would block forever; "
            f"await {instead}() there, or call it from a worker thread"
        )
