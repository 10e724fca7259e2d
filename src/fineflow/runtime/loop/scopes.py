"""Scopes: everything that one call does, on whatever thread and loop, nested calls included, is stopped together.

A deadline stops the scope of the call that it was set for; a worker thread of a cancelled call is stopped by a scope of
its own. A scope is found by a context variable, hence in threads that copy their starter's context, as LangChain's do.
What can be cancelled registers itself. Stock's threads cannot, and call ``check`` before each further step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Stop = Callable[[], object]

current: ContextVar[Scope | None] = ContextVar("fineflow_scope", default=None)
"""The innermost scope here."""


class Scope:
    """One call, or the work of one thread for it. Belongs to the scope that it is made in, if any."""

    def __init__(self) -> None:
        self._stopped = False
        self._stops: dict[object, Stop] = {}
        self._outer = current.get()
        if self._outer is not None:
            self._outer.add(self, self.stop)

    def add(self, key: object, stop: Stop) -> None:
        """Has ``stop`` called, from any thread, when the scope is stopped; at once if it has been."""
        self._stops[key] = stop
        if self._stopped and self._stops.pop(key, None) is not None:
            stop()

    def stopped(self) -> bool:
        """Returns whether the scope was stopped: its deadline has passed, or it was cancelled."""
        return self._stopped

    def discard(self, key: object) -> None:
        """Forgets what was added under ``key``: it has ended by itself."""
        self._stops.pop(key, None)

    def stop(self) -> None:
        """Stops what is registered. ``check`` raises from now on."""
        self._stopped = True
        while self._stops:
            try:
                _, stop = self._stops.popitem()
            except KeyError:  # another thread took the last one
                return
            stop()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Makes this the current scope of the block."""
        token = current.set(self)
        try:
            yield
        finally:
            current.reset(token)

    def close(self) -> None:
        """Leaves the outer scope: the call is over."""
        if self._outer is not None:
            self._outer.discard(self)


def check() -> None:
    """Raises CancelledError if the current scope was stopped."""
    scope = current.get()
    if scope is not None and scope.stopped():
        raise asyncio.CancelledError("the call has been stopped: its deadline has passed, or it was cancelled")


@contextmanager
def on_stop(stop: Stop) -> Iterator[None]:
    """Has ``stop`` called if the current scope is stopped during the block."""
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
