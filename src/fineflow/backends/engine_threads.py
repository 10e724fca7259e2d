"""Threads for the blocking calls of an engine, usable until the process ends.

``ThreadPoolExecutor`` refuses work as soon as the main thread has ended, but other threads of a program may still use
their engines then.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Call = Callable[[], None]


class EngineThreads(Executor):
    """At most ``count`` daemon threads, started on demand. They end with this object.

    Interpreter exit waits for running calls, as a thread that ends inside PyTorch aborts the process.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._leaving = threading.Event()
        weakref.finalize(self, _end, self._calls, self._threads).atexit = False
        _all.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls the function in a thread. RuntimeError after ``shutdown``."""
        outcome: Future[T] = Future()

        def call() -> None:
            if outcome.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:
                    outcome.set_exception(error)
                else:
                    outcome.set_result(result)

        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads of {self._name!r} have been shut down")
            self._calls.put(call)
            if len(self._threads) < self._count:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=_serve, args=(self._calls, self._leaving), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return outcome

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after the calls submitted so far; with ``cancel_futures``, after the running calls."""
        self._closed = True
        if cancel_futures:
            self._leaving.set()
        _end(self._calls, self._threads)
        if wait:
            for thread in tuple(self._threads):
                thread.join()


def _serve(calls: queue.SimpleQueue[_Call | None], leaving: threading.Event) -> None:
    # Holds no reference to the object: collecting it ends the thread.
    while (call := calls.get()) is not None and not leaving.is_set():
        call()
        del call  # an idle thread must not keep values of the last call alive


def _end(calls: queue.SimpleQueue[_Call | None], threads: list[threading.Thread]) -> None:
    for _ in threads:
        calls.put(None)


_all: weakref.WeakSet[EngineThreads] = weakref.WeakSet()


@atexit.register
def _exit() -> None:
    for each in tuple(_all):
        each.shutdown(cancel_futures=True)
