"""Calls that stock makes one after the other with one query, started together: stock makes each when it gets there.

Nothing overtakes user code: the calls after one that may do more than read start when stock has made it. A sync search
stores its vector in the query, by which the later ones then search: of those that may embed it, only the first starts,
and the others follow as soon as there is a vector.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import wrapt

from fineflow.adapters.core.durations import observe, quick
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.inner_calls.bounds import AT_ONCE
from fineflow.adapters.llamaindex.reading import Readings
from fineflow.adapters.llamaindex.recorded_calls import RecordedAhead
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.runtime.call.claims import equal
from fineflow.runtime.call.values import Failed
from fineflow.runtime.events import now
from fineflow.runtime.loop.runtime_loop import engine_loop, on_engine_loop


class _Call:
    """One call that stock is about to make. made: by stock alone. taken: stock has the
    result of the call that ran ahead. ended: that one has. refused, embeds: ``Reading``.

    given: the query that it gets; before: a copy of it. inside: the calls that stock makes next, with its result.
    """

    __slots__ = (
        "ahead",
        "before",
        "embeds",
        "ended",
        "given",
        "inside",
        "made",
        "name",
        "obj",
        "refused",
        "since",
        "taken",
    )

    def __init__(self, obj: Any, name: str) -> None:
        self.obj, self.name = obj, name
        self.refused, self.embeds = "", False
        self.ahead: RecordedAhead | None = None
        self.given: Any = None
        self.before: Any = None
        self.inside: Group | None = None
        self.made = self.taken = self.ended = False
        self.since = 0.0

    @property
    def open(self) -> bool:
        return self.ahead is None and not self.made


class Group:
    """The calls that stock is about to make, in its order. Thread-safe.

    query: that stock passes to all of them. then: returns the calls that follow from the result of one. last: those
    that follow from the call that stock has made last.
    """

    def __init__(self, site: Site, query: Any, sync: bool, then: Callable[[Any], Group | None] | None = None) -> None:
        self.calls: list[_Call] = []
        self.last: Group | None = None
        self._site, self._query, self._sync, self._then = site, query, sync, then
        self._options, self._here = site.shadows.options, site.here
        self._lock = threading.RLock()
        self._context = contextvars.copy_context()
        self._limit = asyncio.Semaphore(self._options.max_concurrency or AT_ONCE)
        self._over = self._waits = False
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
            call.refused, call.embeds, local = readings.of(call.obj)
            if local and not self._sync and self._query.embedding is None:  # all would embed it at the same time
                call.refused = call.refused or "its embedding model cannot serve several threads"
        slow = [call for call in self.calls if self._options.eager or not quick(call.obj, call.name)]
        if len(slow) > 1 or (others and slow):
            self._start_some()
        else:
            self._over = True

    def _go(self) -> None:
        self._guarded(self._start_some)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._over = True
            text = f"engines and retrievers could not run side by side ({type(error).__name__}: {error})"
            if self._options.strict:
                raise PlanningError(f"{text}; without strict=True this is a warning") from error
            warnings.warn(f"{text}; stock calls them. Please report this.", FineflowWarning, stacklevel=2)

    def _start_some(self) -> None:
        """Starts the calls that may start by now."""
        with self._lock:
            self._waits, vector = False, self._query.embedding
            for call in self.calls:
                if self._over or (call.refused and not call.made):
                    return
                waits = self._waits and call.embeds
                if call.open and not waits:
                    self._start(call, vector)
                if not self._sync or not call.embeds or waits or vector is not None:
                    continue
                vector = call.given.embedding if call.given is not None else None
                self._waits = vector is None and not (call.ended or call.made)

    def _start(self, call: _Call, vector: Any) -> None:
        loop = _engine_loop() if self._sync else self._loop
        if loop is None:
            return
        call.given = copy.copy(self._query)
        call.given.embedding = vector
        call.before = copy.copy(call.given)
        # A part that is optimized itself could call more components at a time than the user's bound allows.
        part = call.obj if self._options.max_concurrency is not None else self._site.nested(call.obj)
        reported = self._go_on if self._sync and call.embeds and vector is None else None
        ahead = RecordedAhead(getattr(part, call.name), (call.given,), {}, self._limit, reported)
        call.since = now()
        if ahead.start(loop, self._context.copy(), partial(self._finished, call, ahead)):
            call.ahead = ahead

    def _go_on(self) -> None:
        if self._waits:
            self._go()

    def _finished(self, call: _Call, ahead: RecordedAhead, value: Any) -> None:
        call.ended = True
        if not isinstance(value, Failed):
            observe(call.obj, call.name, now() - call.since - ahead.waited, ahead=True)
            with self._lock:
                if self._then is not None and not self._over:
                    call.inside = self._context.copy().run(self._then, value)
        self._go_on()

    # --- stock ------------------------------------------------------------------------------------------------------

    def take(self, number: int) -> Any:
        """Returns the part of a call as stock calls it."""
        return _Claiming(self._site.nested(self.calls[number].obj), self, self.calls[number])

    def _taken(self, call: _Call, query: Any) -> RecordedAhead | None:
        """Returns the call that runs ahead, if it is the one that stock makes now."""
        with self._lock:
            self.last = None
            same = call.ahead is not None and not call.taken and equal(call.before, query)
            call.taken = same
            return call.ahead if same else None

    def stock(self, call: _Call, part: Any, query: Any) -> Any:
        """Makes a call as stock does."""
        ahead = self._taken(call, query)
        if ahead is None:
            began = now()
            value = getattr(part, call.name)(query)
            self._stock_has(call, now() - began)
            return value
        try:
            return ahead.stock(_no_invocation)
        finally:
            self._stored(call, query, ahead)

    async def astock(self, call: _Call, part: Any, query: Any) -> Any:
        """``stock`` for async methods."""
        ahead = self._taken(call, query)
        if ahead is None:
            began = now()
            value = await getattr(part, call.name)(query)
            self._stock_has(call, now() - began)
            return value
        try:
            return await ahead.astock(_no_invocation)
        finally:
            self._stored(call, query, ahead)

    def _stock_has(self, call: _Call, took: float) -> None:
        observe(call.obj, call.name, took, ahead=False)
        call.made = True
        if not self._over:
            self._go()

    def _stored(self, call: _Call, query: Any, ahead: RecordedAhead) -> None:
        if self._here is not None:
            self._here.gains(ahead.head_start)
        self.last = call.inside
        if query.embedding is None:
            query.embedding = call.given.embedding

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the calls that stock has not made."""
        for ahead in self._left():
            ahead.drop()

    async def aclose(self) -> None:
        """``close`` for coroutines."""
        for ahead in self._left():
            await ahead.adrop()

    def _left(self) -> Sequence[RecordedAhead]:
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


def _engine_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return engine_loop()
    except RuntimeError:  # the interpreter is exiting
        return None


def _no_invocation() -> Any:
    raise AssertionError("a recorded call needs no invocation")
