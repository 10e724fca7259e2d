"""Meeting point of the graph and of stock (the framework's own code): work that one side starts and the other joins.

An *entry* is one call of a component's inner method with certain arguments. The graph *expects* entries when it runs
ahead; stock *claims* them when it reaches the component. The first side to arrive does the work, the other one joins.
An entry pairs one call of the graph with one call of stock, so two equal requests of stock stay two requests. Only
``shared`` entries (PURE or READ work) serve any number of calls. All methods must be called on the query's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fineflow.runtime.call.entry import Entry, Side, State, StockFailed
from fineflow.runtime.call.trace import CLAIMED, JOINED, Trace


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
