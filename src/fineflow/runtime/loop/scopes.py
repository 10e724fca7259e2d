"""Scopes: stop all work of one call together, on all threads and loops, nested calls included.

A deadline stops the scope of its call; a worker thread of a cancelled call is stopped by its own scope. A scope is
found by a context variable, hence also in threads that copy their starter's context, as LangChain's do. Work that can
be cancelled registers itself. Stock's threads cannot be cancelled: they call ``check`` before each further step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from math import inf
from typing import Any

from fineflow.runtime import events

Stop = Callable[[], object]

current: ContextVar[Scope | None] = ContextVar("fineflow_scope", default=None)
"""Innermost scope of the current context."""


@contextmanager
def setting(*values: tuple[ContextVar[Any], Any]) -> Iterator[None]:
    """Sets context variables in the block."""
    tokens = [(variable, variable.set(value)) for variable, value in values]
    try:
        yield
    finally:
        with suppress(ValueError):  # closed in another context
            for variable, token in reversed(tokens):
                variable.reset(token)


class Scope:
    """Scope of one call, or of one thread's work for it. Nested in the scope that it is created in, if any.

    seconds: until its deadline; None: it has none of its own.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._stopped = False
        self._stops: dict[object, Stop] = {}
        self._outer = current.get()
        self.until = inf if seconds is None else events.now() + seconds  # the first of its own and outer deadlines
        if self._outer is not None:
            self.until = min(self.until, self._outer.until)
            self._outer.add(self, self.stop)

    def add(self, key: object, stop: Stop) -> None:
        """Registers ``stop``, called from any thread when the scope is stopped; at once if it already is."""
        self._stops[key] = stop
        if self._stopped and self._stops.pop(key, None) is not None:
            stop()

    def stopped(self) -> bool:
        """Returns True if the scope was stopped: its deadline has passed, or it was cancelled."""
        return self._stopped

    def discard(self, key: object) -> None:
        """Removes the function added under ``key``: its work has ended by itself."""
        self._stops.pop(key, None)

    def stop(self) -> None:
        """Stops all registered work. ``check`` raises from now on."""
        self._stopped = True
        while self._stops:
            try:
                _, stop = self._stops.popitem()
            except KeyError:  # another thread took the last one
                return
            stop()

    def inside(self) -> AbstractContextManager[None]:
        """Makes this the current scope of the block."""
        return setting((current, self))

    def close(self) -> None:
        """Removes an ended call from the outer scope."""
        if self._outer is not None:
            self._outer.discard(self)


def check() -> None:
    """Raises CancelledError if the current scope was stopped."""
    scope = current.get()
    if scope is not None and scope.stopped():
        raise asyncio.CancelledError("the call has been stopped: its deadline has passed, or it was cancelled")


def remaining() -> float | None:
    """Returns the seconds until the deadline of the current call, at least 0; None if it has none."""
    scope = current.get()
    return None if scope is None or scope.until == inf else max(scope.until - events.now(), 0.0)


@contextmanager
def on_stop(stop: Stop) -> Iterator[None]:
    """Calls ``stop`` if the current scope is stopped during the block."""
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
