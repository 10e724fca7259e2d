"""One call of a component: in a place where these are limited (``runtime.queues.permits``), in figures and timelines.

Whoever holds a place waits for nobody who needs one: an optimized object that is called from inside of a component has
that component's place given away until it has answered (``lend``), and then takes it back when there is one.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from fineflow.runtime import events
from fineflow.runtime.queues.permits import Component, Places, wait, wait_sync
from fineflow.runtime.statistics import tally

T = TypeVar("T")

holding: ContextVar[Hold | None] = ContextVar("fineflow_holding", default=None)
"""The place that was taken last for a component that the current code is inside of."""


class Hold:
    """A place that is held for one call of a component, and may be given away meanwhile."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lock = threading.RLock()
        self._lent = 0
        self.active = False
        self.outer = _active(holding.get())

    async def take(self) -> None:
        """Waits for a place."""
        await wait(self._places)
        self.active = True
        holding.set(self)

    def take_sync(self) -> None:
        """The same in a thread, which it blocks. CancelledError when the deadline of its call has passed."""
        wait_sync(self._places)
        self.active = True
        holding.set(self)

    def leave(self) -> None:
        """The call is over."""
        with self._lock:
            held, self.active = self.active and not self._lent, False
        if held:
            self._places.leave()

    def lend(self) -> bool:
        """Gives it away until it is taken back as often. Whether there was anything to give away."""
        with self._lock:
            if not self.active:
                return False
            self._lent += 1
            first = self._lent == 1
        if first:
            self._places.leave()
        return True

    async def back(self) -> None:
        """Takes it back. Whoever is cancelled at that goes on without it."""
        if self._last():
            try:
                await wait(self._places)
            except BaseException:
                self.active = False
                raise
            self._returned()

    def back_sync(self) -> None:
        """The same in a thread."""
        if self._last():
            try:
                wait_sync(self._places)
            except BaseException:
                self.active = False
                raise
            self._returned()

    def _last(self) -> bool:
        with self._lock:
            if self._lent > 1 or not self.active:
                self._lent -= 1
                return False
            return True  # counts as lent until it is back

    def _returned(self) -> None:
        with self._lock:
            self._lent -= 1
            unwanted = not self.active or self._lent > 0
        if unwanted:
            self._places.leave()


def _active(hold: Hold | None) -> Hold | None:
    while hold is not None and not hold.active:
        hold = hold.outer
    return hold


def lend() -> list[Hold]:
    """Gives away the places that the current code is inside of, to be taken back by the caller."""
    found, hold = [], holding.get()
    while hold is not None:
        if hold.lend():
            found.append(hold)
        hold = hold.outer
    return found


class Counted:
    """One call of a component in figures and timelines, from when it is asked for until it has ended."""

    __slots__ = ("_label", "_name", "_open", "_tally", "queued")

    def __init__(self, name: str, label: str, component: Component | None) -> None:
        self._name = name
        self._label = label
        self._tally = tally(name)
        self._open = component is None or component.places is None  # else its places know what is at work
        self._tally.begun += self._open
        self.queued = events.now()

    def ended(self, begun: float | None, *, failed: bool) -> None:
        """It has; it had ``begun`` to work at that time. None: it never did, and counts no more."""
        self._tally.ended += self._open
        if begun is None:
            return
        now = events.now()
        self._tally.batch(1, (begun - self.queued,), now - begun, failed=failed)
        if events.listening():
            events.report(events.Interval(self._name, self._label, self.queued, begun, now, origin=events.origin()))


def called(name: str, label: str, component: Component | None, call: Callable[[], T]) -> T:
    """What ``call()`` returns: one call of a component from a thread, counted, in a place where these are limited."""
    counted, hold = Counted(name, label, component), hold_of(component)
    begun, failed = None, False
    try:
        if hold is not None:
            hold.take_sync()
        begun = events.now()
        return call()
    except Exception:
        failed = True
        raise
    finally:
        counted.ended(begun, failed=failed)
        if hold is not None:
            hold.leave()


async def acalled(name: str, label: str, component: Component | None, call: Callable[[], Awaitable[T]]) -> T:
    """The same for a coroutine."""
    counted, hold = Counted(name, label, component), hold_of(component)
    begun, failed = None, False
    try:
        if hold is not None:
            await hold.take()
        begun = events.now()
        return await call()
    except Exception:
        failed = True
        raise
    finally:
        counted.ended(begun, failed=failed)
        if hold is not None:
            hold.leave()


class Pieces:
    """One call of a component that streams: counted as a whole, in a place while it makes a piece.

    Between pieces their reader decides who works, and that may be another stream.
    """

    def __init__(self, name: str, label: str, component: Component | None) -> None:
        self._counted = Counted(name, label, component)
        self._component = component
        self._begun: float | None = None
        self._failed = False

    def next(self, chunks: Iterator[T], end: T) -> T:
        """The next piece, or ``end``."""
        hold = hold_of(self._component)
        try:
            if hold is not None:
                hold.take_sync()
            self._begin()
            return next(chunks, end)
        except Exception:
            self._failed = True
            raise
        finally:
            if hold is not None:
                hold.leave()

    async def anext(self, chunks: AsyncIterator[T], end: T) -> T:
        """The same for a coroutine."""
        hold = hold_of(self._component)
        try:
            if hold is not None:
                await hold.take()
            self._begin()
            return await anext(chunks, end)
        except Exception:
            self._failed = True
            raise
        finally:
            if hold is not None:
                hold.leave()

    def _begin(self) -> None:
        self._begun = events.now() if self._begun is None else self._begun

    def ended(self) -> None:
        """It was read to its end, or closed."""
        self._counted.ended(self._begun, failed=self._failed)


@contextmanager
def ending(pieces: Pieces | None) -> Iterator[Pieces | None]:
    """Says at the end of the block that it has ended, in whatever way."""
    try:
        yield pieces
    finally:
        if pieces is not None:
            pieces.ended()


@asynccontextmanager
async def placed(component: Component | None) -> AsyncIterator[None]:
    """A place for one call of a component, for the block; none where it has no limit."""
    hold = hold_of(component)
    try:
        if hold is not None:
            await hold.take()
        yield
    finally:
        if hold is not None:
            hold.leave()


def hold_of(component: Component | None) -> Hold | None:
    """A place to be taken for a call of a component; None where it has no limit."""
    return None if component is None or component.places is None else Hold(component.places)
