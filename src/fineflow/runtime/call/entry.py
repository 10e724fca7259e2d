"""One piece of component work in a call: who does it, who waits for it, and how it ended."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from enum import Enum, auto
from types import TracebackType
from typing import Any, Protocol

from fineflow.runtime.call import written
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.call.trace import Stamps
from fineflow.runtime.loop.runtime_loop import set_done
from fineflow.runtime.loop.workers import STOPPED, carried
from fineflow.runtime.queues.in_vain import AheadRequest

_ASYNC_STOPPED = "async generator raised StopAsyncIteration"  # Python's words, where a graph reads a sync stream


class Reports(Protocol):
    """Callback events that a component reported while it ran ahead; replayed at the claim."""

    @property
    def empty(self) -> bool:
        """True if there is nothing to replay."""
        ...


class State(Enum):
    """State of a piece of work. Terminal states: DONE, FAILED, WITHDRAWN."""

    QUEUED = auto()  # the component has not been called yet
    RUNNING = auto()  # the component has been called: from now on an exception is the component's own failure
    DONE = auto()
    FAILED = auto()  # the component raised: stock raises the same exception when it claims the entry
    WITHDRAWN = auto()  # no result, but not because the component failed: stock calls the component itself


class Side(Enum):
    """Side that requests or does a piece of work."""

    GRAPH = auto()
    STOCK = auto()


class Entry:
    """One piece of work: its arguments, its state and result, and its stream when it is produced in pieces.

    There may be thousands of entries at once, so futures are created only for callers that have to wait.

    in_pieces: the result is a list of pieces instead of one object. stream: the pieces as they arrive, if the graph
    makes the component stream. worker: the side that does the work. component: the object that does it for the graph.
    reports: see ``Reports``; None if there are none. whole: the sum of the pieces, computed on first use.
    slot: of the component's call (``query.Slot``). request: that the work is, if it is one. stamps, number: where the
    graph's trace records a claim; stamps is None after the claim. task: does the work. held: threads of stock that wait
    for it, and tasks. left: the call has ended, and left the work to these. searches: its component searches something;
    version: of it, as of when it was called (``written``).
    """

    __slots__ = (
        "_follower",
        "_future",
        "_loop",
        "_trace",
        "_waiters",
        "component",
        "error",
        "for_graph",
        "for_stock",
        "held",
        "in_pieces",
        "key",
        "left",
        "number",
        "reports",
        "request",
        "searches",
        "shared",
        "slot",
        "stamps",
        "state",
        "stream",
        "task",
        "value",
        "version",
        "whole",
        "worker",
    )

    def __init__(self, key: Any, loop: asyncio.AbstractEventLoop, *, shared: bool) -> None:
        self.key = key
        self.shared = shared
        self.state = State.QUEUED
        self.worker: Side | None = None
        self.for_graph = False  # requested by the graph
        self.for_stock = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.in_pieces = False
        self.stream: Stream[Any] | None = None
        self.component: Any = None
        self.reports: Any = None
        self.whole: Any = None
        self.slot: Any = None
        self.request: AheadRequest | None = None
        self.stamps: Stamps | None = None
        self.number = 0
        self.searches = False
        self.version: written.Version = written.NOTHING
        self.task: asyncio.Task[Any] | None = None
        self.held = 0
        self.left = False
        self._loop = loop
        self._trace: TracebackType | None = None
        self._future: asyncio.Future[Any] | None = None
        self._waiters: tuple[asyncio.Future[None], ...] = ()
        self._follower: tuple[Callable[[], None], contextvars.Context] | None = None

    @property
    def over(self) -> bool:
        """True if the work has ended in any terminal state."""
        return self.state in _TERMINAL

    @property
    def for_claims(self) -> bool:
        """True if stock may take this outcome: a result, the component's own failure, or the end of the call.

        Stock never sees any other error: it calls the component itself.
        """
        return self.state in _CLAIMABLE or isinstance(self.error, asyncio.CancelledError)

    @property
    def done(self) -> asyncio.Future[Any]:
        """Future of the result. Must not be cancelled."""
        if self._future is None:
            self._future = self._loop.create_future()
            if self.over:
                self._settle(self._future)
        return self._future

    def running(self) -> None:
        """Marks the component as called."""
        if not self.over:
            self.looks()
            self.state = State.RUNNING
            if self.request is not None:
                self.request.sent = True

    def looks(self) -> None:
        """Marks the moment as of which the component does its work, unless that was before."""
        if self.component is not None and self.version is written.NOTHING:
            self.version = written.version(self.component, searches=self.searches)

    def finish(self, value: Any) -> None:
        """Ends the work with a result, unless it has ended already."""
        if not self.over:
            self.value = value
            if not self.for_stock:
                self.version = self.version.ended()
            self._end(State.DONE)

    def fail(self, error: BaseException, *, own: bool = True) -> None:
        """Ends the work with an exception, unless it has ended already.

        It counts as the component's failure if the component was running; never with ``own=False``.
        """
        if self.over:
            return
        error = carried(error)
        self.error, self._trace = error, error.__traceback__
        self._end(State.FAILED if own and self.state is State.RUNNING else State.WITHDRAWN)

    def disown(self) -> None:
        """Withdraws a failure: it is unclear here whether it was the component's own."""
        if self.state is not State.DONE:
            self.state = State.WITHDRAWN

    def _end(self, state: State) -> None:
        self.state = state
        if self.reports is not None and self.reports.empty:
            self.reports = None
        if self._future is not None:
            self._settle(self._future)
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            set_done(waiter)
        follower, self._follower = self._follower, None
        if follower is None:
            return
        then, context = follower
        if self.worker is Side.GRAPH:  # in the graph's own task
            then()
        else:
            self._loop.call_soon(then, context=context)

    def _settle(self, future: asyncio.Future[Any]) -> None:
        if future.done():
            return
        if self.error is None:
            future.set_result(self.value)
        else:
            future.set_exception(self.error)
            future.exception()  # mark as retrieved: stock may stop before it asks

    @property
    def cut(self) -> bool:
        """True if the component had been called when the end of the call cancelled it: stock must not call it again."""
        return self.state is State.FAILED and isinstance(self.error, asyncio.CancelledError)

    async def wait(self) -> None:
        """Returns when the work is over."""
        if not self.over:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters += (waiter,)
            await waiter

    async def wait_to_the_end(self) -> None:
        """``wait`` for stock where the work goes on after the end of the call, as in stock.

        So it is in threads, and in functions of the user's, which may be left behind by an interrupt beside them.
        """
        self.held += 1
        try:
            await self.wait()
        finally:
            self.held -= 1
            if self.left and not self.held and not self.over and self.task is not None:
                self.task.cancel()

    def result(self) -> Any:
        """Returns the result of work that is over. Raises what the work raised."""
        if self.error is not None:
            raise self.error.with_traceback(self._trace)  # each claim gets the traceback as it was at the failure
        return self.value

    def follow(self, then: Callable[[], None], context: contextvars.Context) -> None:
        """Calls ``then`` at the end of the work: directly if the graph does it, else from the loop in ``context``."""
        self._follower = then, context


_TERMINAL = frozenset({State.DONE, State.FAILED, State.WITHDRAWN})


_CLAIMABLE = frozenset({State.DONE, State.FAILED})


class StockFailed(Exception):
    """Placeholder in the graph for a failure that stock has already seen."""


def stop_in(error: BaseException | None) -> BaseException | None:
    """Returns the StopIteration or StopAsyncIteration of a sync component that ``error`` wraps; None for others."""
    wraps = isinstance(error, RuntimeError) and str(error) in (STOPPED, _ASYNC_STOPPED)
    return error.__cause__ if error is not None and wraps else None


def raise_stop(error: BaseException | None) -> None:
    """Raises the StopIteration or StopAsyncIteration of a sync component that ``error`` wraps, if it wraps one."""
    if (stop := stop_in(error)) is not None:
        raise stop
