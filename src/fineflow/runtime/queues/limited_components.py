"""Components whose calls are limited: at most so many at once, over all queries, threads and event loops.

This is for components that are called as they are, without a queue that batches: stores, retrievers, tools, functions,
and servers of models. Policies decide who comes next, as for engines (``runtime.queues.policy``).
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from fineflow.errors import FineflowWarning
from fineflow.runtime.queues.permits import PermitPool, PermitRequest
from fineflow.runtime.queues.policy import Policy, by_depth, fifo
from fineflow.runtime.queues.registry import shared_queue
from fineflow.runtime.statistics import watch

in_use = False
"""True once any component was limited in this process."""

_changes = 0


class LimitedComponent:
    """A component of the user's in statistics and queues: its name, and its permits while it has a limit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.permits: ComponentPermits | None = None  # None: no limit
        self.keeps_alive: Any = None  # the component, where that is not the object that it was found by

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.permits or 'no limit'}>"

    def limit(self, at_once: int | None) -> None:
        """Allows at most ``at_once`` calls at once from now on (None: any number). Calls under way go on."""
        global _changes, in_use
        permits = self.permits
        _changes += (permits is None) is not (at_once is None)
        if at_once is not None:
            in_use = True
            permits = self.permits = shared_queue(ComponentPermits, self)
        elif permits is not None:
            self.permits = None
        if permits is not None:
            permits.resize(at_once)


class ComponentPermits(PermitPool[PermitRequest]):
    """The permits of one component. Where a user's policy fails, a warning says so and calls are served by arrival."""

    def __init__(self, engine: LimitedComponent, policy: Policy = by_depth) -> None:
        super().__init__(None, policy)
        self.engine = engine
        self.instances = (self,)
        self._warned = False
        watch(self)
        _all.add(self)

    def __repr__(self) -> str:
        return f"{self.running} of {self.at_once} permits in use, {self.waiting} waiting"

    def _next(self) -> list[PermitRequest]:
        try:
            return super()._next()
        except Exception as error:  # answers do not depend on who comes first
            if not self._warned:
                self._warned = True
                text = f"the policy of {self.engine.name!r} raised {type(error).__name__} ({error}); "
                warnings.warn(text + "calls are served in the order of their arrival", FineflowWarning, stacklevel=2)
            return self._line.order(fifo, 1)


_all: weakref.WeakSet[ComponentPermits] = weakref.WeakSet()


def _reset() -> None:
    for permits in tuple(_all):
        permits.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


def changes() -> int:
    """Number of times that a component was given a limit, or had it lifted. Plans made before a change are stale."""
    return _changes


component_finders: list[Callable[[Any], LimitedComponent | None]] = []
"""Functions that find the ``LimitedComponent`` of a user's object. Adapters append theirs when they are imported."""


def component_of(obj: Any) -> LimitedComponent | None:
    """The ``LimitedComponent`` of a user's object; None where there is none, or nothing was ever limited."""
    for find in component_finders if in_use else ():
        if (found := find(obj)) is not None:
            return found
    return None


def has_limit(obj: Any) -> bool:
    """True if a user's object has a limit now."""
    found = component_of(obj)
    return found is not None and found.permits is not None
