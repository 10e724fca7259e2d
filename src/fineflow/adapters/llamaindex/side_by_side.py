"""Calls that stock makes one after the other with one query, started together: stock makes each when it gets there.

Nothing overtakes user code: the calls after one that may do more than read start when stock has made it. Of those that
may embed the query, the others wait for the vector of the first (``query_ahead``).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import wrapt

from fineflow.adapters.core.durations import observe, quick
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.inner_calls.bounds import AT_ONCE
from fineflow.adapters.inner_calls.calls_ahead import CallsAhead
from fineflow.adapters.llamaindex.query_ahead import QueryAhead
from fineflow.adapters.llamaindex.reading import Reading, Readings
from fineflow.runtime.call.values import Failed
from fineflow.runtime.events import now
from fineflow.runtime.loop.runtime_loop import engine_loop_if_any, on_engine_loop


class _Call:
    """One call that stock is about to make. made: by stock alone. taken: stock has the result of what ran ahead.

    reading: what is known of its component. inside: the calls that stock makes next, with its result.
    """

    __slots__ = ("ahead", "inside", "made", "name", "obj", "reading", "taken")

    def __init__(self, obj: Any, name: str) -> None:
        self.obj, self.name = obj, name
        self.reading = Reading("")
        self.ahead: QueryAhead | None = None
        self.inside: Group | None = None
        self.made = self.taken = False


class Group(CallsAhead):
    """The calls that stock is about to make, in its order. Thread-safe.

    query: that stock passes to all of them. then: returns the calls that follow from the result of one. last: those
    that follow from the call that stock has made last.
    """

    def __init__(self, site: Site, query: Any, sync: bool, then: Callable[[Any], Group | None] | None = None) -> None:
        self.calls: list[_Call] = []
        self.last: Group | None = None
        self._site, self._query, self._sync, self._then = site, query, sync, then
        super().__init__(site.shadows.options)
        self._here = site.here
        self._context = contextvars.copy_context()
        self._limit = asyncio.Semaphore(self._options.max_concurrency or AT_ONCE)
        self._loop = asyncio._get_running_loop()

    def add(self, obj: Any, name: str) -> None:
        """Adds a call of a method of a part of the user's object."""
        self.calls.append(_Call(obj, name))

    def begin(self, readings: Readings, *, others: bool = False) -> Group:
        """Starts the calls, if there are two that take some time. others: calls outside of this group run, too.

        If that fails, stock makes the calls and a warning says so; with ``strict=True`` it raises PlanningError.
        """
        if not self._sync or others or not on_engine_loop():  # stock may not wait there
            self._guarded(partial(self._begun, readings, others))
        return self

    def _begun(self, readings: Readings, others: bool) -> None:
        for call in self.calls:
            call.reading = found = readings.of(call.obj)
            if found.local and not self._sync and self._query.embedding is None:  # all would embed it at the same time
                call.reading = found._replace(refused=found.refused or "its embedding model serves one thread")
        slow = [call for call in self.calls if self._options.eager or not quick(call.obj, call.name)]
        if len(slow) > 1 or (others and slow):
            self._start_some()
        else:
            self._over = True

    @property
    def _what(self) -> str:
        return "calls of engines and retrievers could not run side by side"

    def _start_some(self) -> None:
        """Starts the calls that may start by now."""
        with self._lock:
            before, known = list[QueryAhead](), True  # those that may store a vector; False: stock makes one itself
            for call in self.calls:
                if self._over or (call.reading.refused and not call.made):
                    return
                embeds = self._sync and call.reading.embeds
                if call.ahead is None and not call.made and (known or not embeds):
                    self._start(call, before if embeds else (), embeds)
                if embeds and call.ahead is not None:
                    before.append(call.ahead)
                known = known and not (embeds and call.ahead is None and not call.made)

    def _start(self, call: _Call, before: Sequence[QueryAhead], embeds: bool) -> None:
        loop = engine_loop_if_any() if self._sync else self._loop
        if loop is None:
            return
        # A part that is optimized itself could call more components at a time than the user's bound allows.
        part = call.obj if self._options.max_concurrency is not None else self._site.nested(call.obj)
        query = self._query
        ahead = QueryAhead(getattr(part, call.name), (query,), {}, self._limit, query, before, embeds)
        if ahead.start(loop, self._context.copy(), partial(self._finished, call, ahead)):
            call.ahead = ahead

    def _finished(self, call: _Call, ahead: QueryAhead, value: Any) -> None:
        if not isinstance(value, Failed):
            observe(call.obj, call.name, ahead.took, ahead=True)
            with self._lock:
                if self._then is not None and not self._over:
                    call.inside = self._context.copy().run(self._then, value)

    # --- stock ------------------------------------------------------------------------------------------------------

    def take(self, number: int) -> Any:
        """Returns the part of a call as stock calls it."""
        return _Claiming(self._site.nested(self.calls[number].obj), self, self.calls[number])

    def _taken(self, call: _Call, query: Any) -> QueryAhead | None:
        """Returns the call that runs ahead, if it is the one that stock makes now."""
        with self._lock:
            self.last = None
            call.taken = call.ahead is not None and not call.taken and call.ahead.same(query)
            return call.ahead if call.taken else None

    def stock(self, call: _Call, part: Any, query: Any) -> Any:
        """Makes a call as stock does."""
        if (ahead := self._taken(call, query)) is None:
            with self._made(call):
                return getattr(part, call.name)(query)
        with self._has(call, ahead):
            return ahead.stock(_no_invocation)

    async def astock(self, call: _Call, part: Any, query: Any) -> Any:
        """``stock`` for async methods."""
        if (ahead := self._taken(call, query)) is None:
            with self._made(call):
                return await getattr(part, call.name)(query)
        with self._has(call, ahead):
            return await ahead.astock(_no_invocation)

    @contextmanager
    def _made(self, call: _Call) -> Iterator[None]:
        began = now()
        yield
        observe(call.obj, call.name, now() - began, ahead=False)
        call.made = True
        if not self._over:
            self._guarded(self._start_some)

    @contextmanager
    def _has(self, call: _Call, ahead: QueryAhead) -> Iterator[None]:
        try:
            yield
        finally:
            if self._here is not None:
                self._here.gains(ahead.head_start)
            self.last = call.inside

    def _left(self) -> Sequence[QueryAhead]:
        with self._lock:
            self._over = True
            found = [call.ahead for call in self.calls if call.ahead is not None and not call.taken]
            inside = [call.inside for call in self.calls if call.inside is not None]
        return [*found, *(each for group in inside for each in group._left())]


class _Claiming(wrapt.ObjectProxy[Any]):
    """A part whose next call is the one that runs ahead."""

    def __init__(self, part: Any, group: Group, call: _Call) -> None:
        super().__init__(part)
        self._self_group, self._self_call = group, call

    def retrieve(self, query: Any) -> Any:
        return self._self_group.stock(self._self_call, self.__wrapped__, query)

    async def aretrieve(self, query: Any) -> Any:
        return await self._self_group.astock(self._self_call, self.__wrapped__, query)

    query, aquery = retrieve, aretrieve


def _no_invocation() -> Any:
    raise AssertionError("a recorded call needs no invocation")
