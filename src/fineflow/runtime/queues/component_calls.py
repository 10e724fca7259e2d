"""Calls of components: recorded in statistics and timelines, and under a permit where the component has a limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Self, TypeVar

from fineflow.runtime import events
from fineflow.runtime.queues.limited_components import LimitedComponent
from fineflow.runtime.queues.permits import Permit
from fineflow.runtime.statistics import tally

T = TypeVar("T")

_UNLIMITED: nullcontext[None] = nullcontext()


def permit_for(component: LimitedComponent | None) -> Permit | None:
    """A permit, not acquired yet, for one call of a component; None where it has no limit."""
    return None if component is None or component.permits is None else Permit(component.permits)


def permit_block(component: LimitedComponent | None) -> Permit | nullcontext[None]:
    """A block (``with`` or ``async with``) that holds a permit for one call of a component, where it has a limit."""
    return permit_for(component) or _UNLIMITED


class CallRecord:
    """One call of a component in statistics and timelines, from when it is requested until it has ended."""

    __slots__ = ("_label", "_name", "_open", "_tally", "queued")

    def __init__(self, name: str, label: str, component: LimitedComponent | None) -> None:
        self._name = name
        self._label = label
        self._tally = tally(name)
        self._open = component is None or component.permits is None  # else its permits count the calls under way
        self._tally.begun += self._open
        self.queued = events.now()

    def end(self, begun: float | None, *, failed: bool) -> None:
        """Records the end of a call that began at ``begun`` (``events.now``; None: never, then it does not count)."""
        self._tally.ended += self._open
        if begun is None:
            return
        now = events.now()
        self._tally.batch(1, (begun - self.queued,), now - begun, failed=failed)
        if events.listening():
            events.report(events.Interval(self._name, self._label, self.queued, begun, now, origin=events.origin()))


def call_component(name: str, label: str, component: LimitedComponent | None, call: Callable[[], T]) -> T:
    """Makes one call of a component from a plain thread, and returns what ``call()`` returns.

    Blocks while the component has no permit left. Raises CancelledError when the call's scope is stopped meanwhile.
    """
    record, begun, failed = CallRecord(name, label, component), None, False
    try:
        with permit_block(component):
            begun = events.now()
            return call()
    except Exception:
        failed = True
        raise
    finally:
        record.end(begun, failed=failed)


async def acall_component(
    name: str, label: str, component: LimitedComponent | None, call: Callable[[], Awaitable[T]]
) -> T:
    """``call_component`` for a coroutine."""
    record, begun, failed = CallRecord(name, label, component), None, False
    try:
        async with permit_block(component):
            begun = events.now()
            return await call()
    except Exception:
        failed = True
        raise
    finally:
        record.end(begun, failed=failed)


class StreamedCall:
    """One call of a component that streams, as a context manager: recorded as a whole, with a permit for each piece.

    Between pieces their reader decides who works, and that may be another stream.
    """

    def __init__(self, name: str, label: str, component: LimitedComponent | None) -> None:
        self._record = CallRecord(name, label, component)
        self._component = component
        self._begun: float | None = None
        self._failed = False

    def next(self, chunks: Iterator[T], end: T) -> T:
        """The next piece, or ``end``. Blocks as ``call_component`` does."""
        try:
            with permit_block(self._component):
                self._begin()
                return next(chunks, end)
        except Exception:
            self._failed = True
            raise

    async def anext(self, chunks: AsyncIterator[T], end: T) -> T:
        """``next`` for a coroutine."""
        try:
            async with permit_block(self._component):
                self._begin()
                return await anext(chunks, end)
        except Exception:
            self._failed = True
            raise

    def _begin(self) -> None:
        self._begun = events.now() if self._begun is None else self._begun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._record.end(self._begun, failed=self._failed)
