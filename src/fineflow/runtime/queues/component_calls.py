"""Calls of components that no queue batches: stores, retrievers, tools, functions, and model servers.

Their calls are recorded in statistics and timelines. A component may have a limit on concurrent calls, over all
queries, threads and event loops. Policies choose the next call, as for engines (``runtime.queues.policy``).
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Any, Self, TypeVar

from fineflow.errors import FineflowWarning
from fineflow.runtime import events
from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.queues.permits import Permit, PermitPool, PermitRequest
from fineflow.runtime.queues.policy import Policy, by_start, fifo
from fineflow.runtime.queues.registry import shared_queue
from fineflow.runtime.queues.waiting_line import WaitingLine
from fineflow.runtime.statistics import tally, watch

T = TypeVar("T")

_NO_LIMIT: nullcontext[None] = nullcontext()
_changes = 0


class LimitedComponent:
    """Counterpart of a user's component in statistics and queues: its name, and its permits while it has a limit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.permits: ComponentPermits | None = None  # None: no limit
        self.keeps_alive: Any = None  # the component, if it was found by another object

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.permits or 'no limit'}>"

    def limit(self, at_once: int | None) -> None:
        """Allows at most ``at_once`` concurrent calls from now on (None: any number). Running calls continue."""
        global _changes
        _changes += (self.permits is None) is not (at_once is None)
        permits = self.permits if at_once is None else shared_queue(ComponentPermits, self)
        self.permits = None if at_once is None else permits
        if permits is not None:
            permits.resize(at_once)


class ComponentPermits(PermitPool[PermitRequest]):
    """Permits of one component. If a user's policy raises, it warns once and serves calls by arrival."""

    def __init__(self, engine: LimitedComponent, policy: Policy = by_start) -> None:
        super().__init__(None, policy)
        self.engine = engine
        self.instances = (self,)
        self._warned = False
        watch(self)
        _all.add(self)

    def __repr__(self) -> str:
        return f"{self.running} of {self.at_once} permits in use, {self.waiting} waiting"

    def reset(self) -> None:
        """Drops all requests: in a forked child, the parent's callers on other threads do not exist."""
        self._lock = threading.RLock()
        self._line = WaitingLine()
        self.running = 0

    def _order(self, free: int) -> list[PermitRequest]:
        try:
            return super()._order(free)
        except Exception as error:  # safe: answers do not depend on the order
            if not self._warned:
                self._warned = True
                text = f"the policy of {self.engine.name!r} raised {type(error).__name__} ({error}); "
                warnings.warn(text + "calls are served in the order of their arrival", FineflowWarning, stacklevel=2)
            return self._line.order(fifo, 1)


_all: weakref.WeakSet[ComponentPermits] = weakref.WeakSet()


@in_forked_children
def _reset() -> None:
    for permits in tuple(_all):
        permits.reset()


def limit_changes() -> int:
    """Returns the number of limits set or lifted so far. Plans made before a change are stale."""
    return _changes


component_finders: list[Callable[[Any], LimitedComponent | None]] = []
"""Functions that find the ``LimitedComponent`` of a user's object. Adapters append theirs at import."""


def limited_component(obj: Any) -> LimitedComponent | None:
    """Returns the ``LimitedComponent`` of a user's object; None if there is none, or nothing was ever limited."""
    for find in component_finders if _changes else ():
        if (found := find(obj)) is not None:
            return found
    return None


def limit_of(obj: Any) -> int | None:
    """Returns how many calls of a user's object may run at a time now; None without a limit."""
    found = limited_component(obj)
    return None if found is None or found.permits is None else found.permits.at_once


def has_limit(obj: Any) -> bool:
    """Returns True if a user's object has a limit now."""
    return limit_of(obj) is not None


def permit_for(component: LimitedComponent | None) -> Permit | None:
    """Returns a permit, not acquired yet, for one call of a component; None if it has no limit."""
    return None if component is None or component.permits is None else Permit(component.permits)


def permit_block(component: LimitedComponent | None) -> Permit | nullcontext[None]:
    """Returns a block (``with`` or ``async with``) that holds a permit for one call, if the component has a limit."""
    return permit_for(component) or _NO_LIMIT


class CallRecord:
    """Record of one component call in statistics and timelines, from its request to the end of the block.

    begun: time at which it began (``events.now``). A call that never begins is not counted. tokens: of a model's call,
    if its answer tells. model: its name.
    """

    __slots__ = ("_component", "_label", "_name", "_open", "_queued", "_tally", "begun", "model", "tokens")

    def __init__(self, name: str, label: str, component: LimitedComponent | None) -> None:
        self.begun: float | None = None
        self.tokens: events.Tokens | None = None
        self.model = ""
        self._queued = events.now()
        self._name, self._label = name, label
        self._component = component
        self._tally = tally(name)
        self._open = component is None or component.permits is None  # else its permits count the running calls
        self._tally.begun += self._open

    def begin(self) -> None:
        """Sets ``begun`` to now, unless it is set."""
        self.begun = events.now() if self.begun is None else self.begun

    def end(self, *, failed: bool) -> None:
        """Records the end of the call."""
        self._tally.ended += self._open
        if self.begun is not None:
            now = events.now()
            self._tally.batch(1, (self.begun - self._queued,), now - self.begun, failed=failed)
            if events.listening():
                lane = self._name, self._label, self._queued, self.begun, now
                about: dict[str, Any] = {"call": events.call(), "tokens": self.tokens, "stamp": events.stamp()}
                about["model"] = self.model
                events.report(events.Interval(*lane, origin=events.origin(), **about))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(failed=isinstance(error, Exception))


token_readers: list[Callable[[Any], events.Tokens | None]] = []
"""Functions that find the tokens of a request in what a user's model returned. Adapters append theirs at import."""


def tokens_of(result: Any) -> events.Tokens | None:
    """Returns the tokens of a request, if what a user's model returned tells them."""
    for read in token_readers:
        try:
            if (found := read(result)) is not None:
                return found
        except Exception:  # of a class of the user's
            continue
    return None


def call_component(name: str, label: str, component: LimitedComponent | None, call: Callable[[], T]) -> T:
    """Calls a component from a plain thread and returns the result of ``call()``.

    Blocks while the component has no permit left. Raises CancelledError if the call's scope is stopped meanwhile.
    """
    with CallRecord(name, label, component) as record, permit_block(component):
        record.begin()
        return call()


async def acall_component(
    name: str, label: str, component: LimitedComponent | None, call: Callable[[], Awaitable[T]]
) -> T:
    """Does the same as ``call_component``, from a coroutine."""
    with CallRecord(name, label, component) as record:
        async with permit_block(component):
            record.begin()
            return await call()


class StreamedCall(CallRecord):
    """Record of one streaming component call as a whole, with a permit for each piece.

    No permit is held between pieces: their reader may read another stream first.
    """

    __slots__ = ()

    def next(self, chunks: Iterator[T], end: T) -> T:
        """Returns the next piece, or ``end``. Blocks as ``call_component`` does."""
        with permit_block(self._component):
            self.begin()
            return next(chunks, end)

    async def anext(self, chunks: AsyncIterator[T], end: T) -> T:
        """Does the same as ``next``, from a coroutine."""
        async with permit_block(self._component):
            self.begin()
            return await anext(chunks, end)
