"""Meeting point of the graph and of stock (the framework's own code): work that one side starts and the other joins.

An *entry* is one call of a component's inner method with certain arguments. The graph *expects* entries when it runs
ahead; stock *claims* them when it reaches the component. The first side to arrive does the work, the other one joins.
An entry pairs one call of the graph with one call of stock, so two equal requests of stock stay two requests. Only
``shared`` entries (PURE or READ work) serve any number of calls. All methods must be called on the query's event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Any, Protocol

from fineflow.runtime.call import written
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.call.trace import CLAIMED, JOINED, Stamps, Trace
from fineflow.runtime.loop.runtime_loop import set_done
from fineflow.runtime.loop.workers import STOPPED, carried
from fineflow.runtime.queues.in_vain import AheadRequest

_ASYNC_STOPPED = "async generator raised StopAsyncIteration"  # Python's words, where a graph reads a sync stream


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


class Reports(Protocol):
    """Callback events that a component reported while it ran ahead; replayed at the claim."""

    @property
    def empty(self) -> bool:
        """True if there is nothing to replay."""
        ...


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


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a call that has ended, without any of its values.

    claimed: results of the graph that stock took. missed: calls of stock without a matching entry. unclaimed:
    results of the graph that stock never took. surprises: failures while running ahead, shortened. broken: those of
    them that were neither a component's failure nor a decision to leave something to stock; if the call succeeded
    they are bugs of fineflow. trace: times of each step. in_vain: number of requests that were sent ahead and that
    stock did not take, by model; of outermost calls. error: name of the kind of error with which these ended.
    """

    claimed: int = 0
    missed: int = 0
    unclaimed: int = 0
    surprises: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    trace: Trace | None = field(default=None, compare=False, repr=False)
    in_vain: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


def equal(left: Any, right: Any) -> bool:
    """Compares two arguments by value. Returns False if the comparison raises."""
    try:
        return bool(left == right)
    except Exception:
        return False


class Claims:
    """The entries of one query, by leaf."""

    __slots__ = ("_entries", "_loop", "claimed", "closed", "missed")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entries: dict[str, Entry | list[Entry]] = {}  # mostly one at a time
        self.claimed = 0  # results of the graph that stock took
        self.missed = 0  # calls of stock without a matching entry
        self.closed = False

    def _add(self, leaf: str, key: Any, *, shared: bool) -> Entry:
        entry = Entry(key, self._loop, shared=shared)
        if not self.closed:  # after the call only background work of stock gets here: nothing else can match it
            found = self._entries.get(leaf)
            if found is None:
                self._entries[leaf] = entry
            elif isinstance(found, list):
                found.append(entry)
            else:
                self._entries[leaf] = [found, entry]
        return entry

    def _at(self, leaf: str) -> Sequence[Entry]:
        found = self._entries.get(leaf, ())
        return (found,) if isinstance(found, Entry) else found

    def _all(self) -> Iterator[Entry]:
        for leaf in self._entries:
            yield from self._at(leaf)

    def expect(self, leaf: str, key: Any, *, shared: bool) -> tuple[Entry, bool]:
        """Returns the entry for work that the graph is about to do, and True if the graph has to start it."""
        for entry in self._at(leaf):
            if (shared or not entry.for_graph) and equal(entry.key, key):
                entry.for_graph = True
                if entry.over:
                    self.forget(leaf, entry)
                return entry, False
        entry = self._add(leaf, key, shared=shared)
        entry.for_graph = True
        return entry, True

    def claim(self, leaf: str, key: Any, usable: Callable[[Entry], bool]) -> tuple[Entry, bool]:
        """Returns the entry for a call that stock makes, and True if stock has to do the work itself."""
        for entry in self._at(leaf):
            again = entry.for_stock and (not entry.shared or entry.error is not None)  # a retry calls the component
            if not again and equal(entry.key, key) and usable(entry) and entry.version.holds():
                entry.for_stock = True
                if entry.request is not None:
                    if entry.request.held:
                        return self._instead(leaf, entry), True
                    entry.request.take()
                if entry.slot is not None and entry.slot.ahead is not None:
                    entry.slot.ahead.want()
                self.claimed += entry.for_graph
                if entry.stamps is not None:
                    entry.stamps.take(entry.number, CLAIMED)
                    entry.stamps = None
                if entry.over:
                    self.forget(leaf, entry)
                return entry, False
        self.missed += 1
        return self.own(leaf, key), True

    def _instead(self, leaf: str, held: Entry) -> Entry:
        """Returns an entry for stock's own work, which gets to it before the graph may begin."""
        assert held.request is not None
        held.request.vain()
        self.missed += 1
        if held.stream is not None:  # its readers in the graph would wait for pieces
            held.fail(StockFailed("stock made the request"), own=False)
            held.stream.close(StockFailed("stock made the request"))
            return self.own(leaf, held.key)
        if held.stamps is not None:
            held.stamps.take(held.number, JOINED)
        held.stamps, held.component, held.worker, held.shared = None, None, Side.STOCK, False
        held.running()
        return held

    def own(self, leaf: str, key: Any) -> Entry:
        """Returns a new entry for work that stock does itself. The graph may join it."""
        entry = self._add(leaf, key, shared=False)
        entry.for_stock, entry.worker = True, Side.STOCK
        entry.running()
        return entry

    def forget(self, leaf: str, entry: Entry) -> None:
        """Drops an entry that is over, if no further call can match it."""
        if entry.for_graph and entry.for_stock and not entry.shared:
            found = self._entries.get(leaf)
            if found is entry:
                del self._entries[leaf]
            elif isinstance(found, list) and entry in found:
                found.remove(entry)

    def unclaimed(self) -> list[Entry]:
        """Returns the entries that the graph requested and stock never claimed."""
        return [entry for entry in self._all() if entry.for_graph and not entry.for_stock] if self._entries else []

    def settle(self) -> None:
        """Counts the requests that stock has not taken by the end of the call."""
        for entry in list(self._all()):
            if entry.request is not None and not entry.for_stock:
                entry.request.vain()

    def close(self, *, stopped: bool = False) -> set[asyncio.Task[Any]]:
        """Ends the call: cancels all waits for the graph's work, and drops the values.

        Returns the tasks of work that goes on, as in stock: a thread waits for it, which nothing ends until its
        component has returned, or a task that stock has left behind. stopped: by a deadline or the caller; then only
        the user's functions go on, which nothing can interrupt.
        """
        self.closed = True
        if not self._entries:
            return set()
        self.settle()
        entries = list(self._all())
        self._entries = {}
        going_on = set[asyncio.Task[Any]]()
        for entry in entries:
            waited_for = entry.held and entry.task is not None and entry.state is State.RUNNING and entry.stream is None
            if waited_for and not (stopped and entry.component is not None):
                assert entry.task is not None
                entry.left = True
                going_on.add(entry.task)
                continue
            entry.fail(asyncio.CancelledError())
            if entry.stream is not None:
                entry.stream.close(asyncio.CancelledError())
        return going_on
