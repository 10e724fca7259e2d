"""What is stopped as one: everything that a call does, on whatever thread and loop, calls that it makes included.

A deadline stops the call that it was given for; a worker thread of a call that was cancelled is stopped by itself.

A scope is found by context variable, hence in threads that copy their starter's context, as LangChain's do. What can be
cancelled registers itself; stock's threads, which cannot, look at ``check`` before each further step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Stop = Callable[[], object]

current: ContextVar[Scope | None] = ContextVar("fineflow_scope", default=None)
"""The innermost of them that is under way here."""


class Scope:
    """One call, or the work of one thread for it, inside of another one if that is under way here."""

    def __init__(self) -> None:
        self._stopped = False
        self._stops: dict[object, Stop] = {}
        self._outer = current.get()
        if self._outer is not None:
            self._outer.add(self, self.stop)

    def add(self, key: object, stop: Stop) -> None:
        """Has ``stop`` called, from any thread, when the scope is; now, if that has happened."""
        self._stops[key] = stop
        if self._stopped and self._stops.pop(key, None) is not None:
            stop()

    def stopped(self) -> bool:
        """Whether its deadline has passed, or it was cancelled."""
        return self._stopped

    def discard(self, key: object) -> None:
        """It has ended by itself."""
        self._stops.pop(key, None)

    def stop(self) -> None:
        """Cancels what is registered. What looks only later finds that the scope was stopped."""
        self._stopped = True
        while self._stops:
            try:
                _, stop = self._stops.popitem()
            except KeyError:  # another thread took the last one
                return
            stop()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Has what is done in the block belong to it."""
        token = current.set(self)
        try:
            yield
        finally:
            current.reset(token)

    def close(self) -> None:
        """The call is over: the one around it need not know of it any more."""
        if self._outer is not None:
            self._outer.discard(self)


def check() -> None:
    """Raises CancelledError where a call around this was stopped."""
    scope = current.get()
    if scope is not None and scope.stopped():
        raise asyncio.CancelledError("the call has been stopped: its deadline has passed, or it was cancelled")


@contextmanager
def on_stop(stop: Stop) -> Iterator[None]:
    """Has ``stop`` called if the deadline of a call around this passes during the block."""
    scope = current.get()
    if scope is None:
        yield
        return
    key = object()
    scope.add(key, stop)
    try:
        yield
    finally:
        scope.discard(key)
