"""The meeting point of the graph and of stock: pieces of work that one side starts and the other may take over.

An *entry* is one call of a leaf's inner method with certain arguments. The graph *expects* entries when it runs
ahead; stock *claims* them when it reaches the leaf. Whoever comes first does the work, the other joins. An entry pairs
one call of the graph with one of stock, so that two equal requests of stock stay two requests; only entries that are
``shared`` (PURE or READ work) serve any number. All methods must be called on the query's event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from fineflow.runtime.call.streams import Stream
from fineflow.runtime.call.trace import CLAIMED, Stamps, Trace

_STOPPED = "a component raised StopIteration"


class Entry:
    """One piece of work: its arguments, its result, and, when it is produced in pieces, its stream.

    There may be thousands of entries at once, so that futures are made only for those who have to wait.
    """

    __slots__ = (
        "_follower",
        "_future",
        "_loop",
        "_trace",
        "_waiters",
        "ahead",
        "begun",
        "by_graph",
        "by_stock",
        "chunked",
        "component",
        "error",
        "key",
        "number",
        "over",
        "place",
        "replay",
        "shared",
        "stamps",
        "stream",
        "value",
        "whole",
    )

    def __init__(self, key: Any, loop: asyncio.AbstractEventLoop, *, shared: bool) -> None:
        self.key = key
        self.shared = shared
        self.over = False  # whether there is a ``value`` or an ``error``
        self.value: Any = None
        self.error: BaseException | None = None
        self.begun = False  # whether the component has been called: only what it raises itself is for stock
        self.by_graph = False
        self.by_stock = False
        self.chunked = False  # whether the result is a list of pieces instead of one object
        self.stream: Stream[Any] | None = None  # the pieces while they come, when the graph made the component stream
        self.component: Any = None  # that does the work for the graph
        self.replay: Any = None  # what that reported to its run manager meanwhile; None again where it was nothing
        self.ahead = False  # whether the graph does the work
        self.whole: Any = None  # what the pieces make together, once somebody has put them together
        self.place: Any = None  # of the component's call, see query.Place
        self.stamps: Stamps | None = None  # of the graph, as long as stock has not taken the result
        self.number = 0  # of the primitive among them
        self._loop = loop
        self._trace: TracebackType | None = None
        self._future: asyncio.Future[Any] | None = None
        self._waiters: tuple[asyncio.Future[None], ...] = ()
        self._follower: tuple[Callable[[], None], contextvars.Context] | None = None

    @property
    def done(self) -> asyncio.Future[Any]:
        """The result as a future, which is not to be cancelled."""
        if self._future is None:
            self._future = self._loop.create_future()
            if self.over:
                self._settle(self._future)
        return self._future

    def finish(self, value: Any) -> None:
        """The work has a result, if it is not over already."""
        if not self.over:
            self.value = value
            self._end()

    def fail(self, error: BaseException) -> None:
        """The work has failed, if it is not over already."""
        if isinstance(error, StopIteration):  # no future can carry it
            wrapped = RuntimeError(_STOPPED)
            wrapped.__cause__ = error
            error = wrapped
        if not self.over:
            self.error, self._trace = error, error.__traceback__
            self._end()

    def _end(self) -> None:
        self.over = True
        if self.replay is not None and self.replay.empty:
            self.replay = None
        if self._future is not None:
            self._settle(self._future)
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        follower, self._follower = self._follower, None
        if follower is None:
            return
        then, context = follower
        if self.ahead:  # in the graph's own task
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
            future.exception()  # nobody may ever ask for it: stock can stop before it gets here

    async def wait(self) -> None:
        """Returns when the work is over. On the query's event loop."""
        if not self.over:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters += (waiter,)
            await waiter

    def result(self) -> Any:
        """The result of work that is over. Raises what the work raised."""
        if self.error is not None:
            raise self.error.with_traceback(self._trace)  # of each who is told, not of all together
        return self.value

    def follow(self, then: Callable[[], None], context: contextvars.Context) -> None:
        """Has ``then`` called when the work is over: at once where the graph does it, else in ``context``."""
        self._follower = then, context


class StockFailed(Exception):
    """What the graph sees of a failure that stock has seen itself."""


def raise_stop(error: BaseException | None) -> None:
    """Raises the StopIteration that the error of an entry stands for (``Entry.fail``)."""
    if isinstance(error, RuntimeError) and str(error) == _STOPPED and error.__cause__:
        raise error.__cause__


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of a call when it has ended: figures, none of its values.

    claimed: results of the graph that stock took. missed: calls of stock for which there was nothing. unclaimed:
    results of the graph that stock never asked for. surprises: what failed while running ahead, shortened. broken:
    those of them that were neither a component's failure nor a decision to leave something to stock; in a call that
    succeeded they are faults of fineflow. trace: what took how long.
    """

    claimed: int = 0
    missed: int = 0
    unclaimed: int = 0
    surprises: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    trace: Trace | None = field(default=None, compare=False, repr=False)


def equal(left: Any, right: Any) -> bool:
    """Whether two argument tuples are equal by value; anything that cannot be compared is not."""
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
        self.missed = 0  # calls of stock for which there was nothing
        self.closed = False

    def _add(self, leaf: str, key: Any, *, shared: bool) -> Entry:
        entry = Entry(key, self._loop, shared=shared)
        if not self.closed:  # what stock still does in the background after the call is nobody's but its own
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
        """The entry for work that the graph is about to do, and whether the graph has to start it."""
        for entry in self._at(leaf):
            if (shared or not entry.by_graph) and equal(entry.key, key):
                entry.by_graph = True
                if entry.over:
                    self.forget(leaf, entry)
                return entry, False
        entry = self._add(leaf, key, shared=shared)
        entry.by_graph = True
        return entry, True

    def claim(self, leaf: str, key: Any, usable: Callable[[Entry], bool]) -> tuple[Entry, bool]:
        """The entry for a call that stock makes, and whether stock has to do the work itself."""
        for entry in self._at(leaf):
            if (entry.shared or not entry.by_stock) and equal(entry.key, key) and usable(entry):
                entry.by_stock = True
                self.claimed += entry.by_graph
                if entry.stamps is not None:
                    entry.stamps.take(entry.number, CLAIMED)
                    entry.stamps = None
                if entry.over:
                    self.forget(leaf, entry)
                return entry, False
        self.missed += 1
        entry = self._add(leaf, key, shared=False)
        entry.by_stock = True
        return entry, True

    def forget(self, leaf: str, entry: Entry) -> None:
        """Lets go of an entry that is over, if nobody else can want it."""
        if entry.by_graph and entry.by_stock and not entry.shared:
            found = self._entries.get(leaf)
            if found is entry:
                del self._entries[leaf]
            elif isinstance(found, list) and entry in found:
                found.remove(entry)

    def unclaimed(self) -> list[Entry]:
        """Entries that the graph worked for and stock never asked for."""
        return [entry for entry in self._all() if entry.by_graph and not entry.by_stock]

    def close(self) -> None:
        """The call is over: whoever still waits for the graph's work is told, and the values are let go."""
        self.closed = True
        entries = list(self._all())
        self._entries = {}
        for entry in entries:
            entry.fail(asyncio.CancelledError())
            if entry.stream is not None:
                entry.stream.close(asyncio.CancelledError())
