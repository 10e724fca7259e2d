"""Limits on the number of component calls of one run of a user function that run ahead at a time."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.inner_calls.components import QUEUED, Components
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.options import Options

AT_ONCE = 16
"""Calls that run ahead at a time, if the user sets no bound."""

_QUEUED = 64  # the same, of components on engines: a queue is in front of each, which knows how many it can take

_Limits = dict[asyncio.AbstractEventLoop, asyncio.Semaphore]
_elsewhere: WeakKeyDictionary[asyncio.Semaphore, _Limits] = WeakKeyDictionary()
"""Twins of a call's bound for loops other than that of the call: a semaphore belongs to one loop."""


class Bounds:
    """claiming: the call that the function is a part of; None for none. most: calls at a time; any call has its own."""

    __slots__ = ("_claiming", "_components", "_limits", "_of_calls", "_set")

    def __init__(self, components: Components, claiming: Claiming | None, options: Options) -> None:
        self._components, self._claiming = components, claiming
        self._set = components.limit() or options.max_concurrency or 0  # 0: the user sets no bound
        self._limits: _Limits = {}
        self._of_calls: dict[tuple[int, str], tuple[object, int]] = {}  # the components, by their id and a method

    @property
    def most(self) -> int:
        return self._set or max(AT_ONCE, _QUEUED)

    @property
    def of_user(self) -> bool:
        """True if the user bounds the calls of components, among which requests of single texts would count."""
        return bool(self._set) or (self._claiming is not None and self._claiming.call.limit is not None)

    def of(self, call: FoundCall) -> int:
        """Returns the number of calls at which this one waits."""
        if self._set:
            return self._set
        key = id(call.component), call.name
        if key not in self._of_calls:
            parts = self._components.parts(call.component)
            asked = [part for part in parts if not self._components.computes(part, call.name)]
            queued = bool(asked) and all(getattr(type(part), QUEUED, False) for part in asked)
            self._of_calls[key] = call.component, _QUEUED if queued else AT_ONCE
        return self._of_calls[key][1]

    def limit(self, loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore | None:
        """Returns the bound on component calls on a loop, if the user has set one.

        A bound of the call around the function holds for all functions of this call, and for all inputs of a batch.
        """
        call = None if self._claiming is None else self._claiming.call
        bound = None if call is None else call.limit
        if call is not None and bound is not None and call.loop is loop:
            return bound
        if bound is None and not self._set:
            return None
        limits = self._limits if bound is None else _elsewhere.setdefault(bound, {})
        if loop not in limits:
            limits[loop] = asyncio.Semaphore(self._set or AT_ONCE)
        return limits[loop]
