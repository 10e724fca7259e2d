"""Claims: how a leaf of stock's takes what the graph has, and what it does where there is nothing.

Stock may ask from a plain thread, from the event loop of the call, and from a loop of its own: its sync methods run
coroutines in a new one (``use_async``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from typing import Any

from fineflow.runtime.call.claims import Entry, StockFailed, raise_stop
from fineflow.runtime.call.query import Call, LeftToStock
from fineflow.runtime.loop.bridge import Bridge
from fineflow.runtime.loop.scopes import check
from fineflow.runtime.loop.submission import Unreachable

Ahead = tuple[Sequence[Any], Callable[[], Awaitable[Sequence[Any]]]]
"""Calls of stock's that are done as one: the key of each, and what returns their results."""


class Claiming:
    """Stock's side of one call. leaves: those at which the graph may have something, or wants to be told something."""

    def __init__(self, call: Call, leaves: Set[str]) -> None:
        self.call = call
        self._leaves = leaves
        self._bridge = Bridge(call)

    def any_at(self, leaf: str) -> bool:
        """Whether the graph may have something at a leaf, or at a part of it."""
        return any(each == leaf or each.startswith(f"{leaf}/") for each in self._leaves)

    def claim(self, leaf: str, key: Any, own: Callable[[], Any]) -> Any:
        """For sync leaves: the graph's result for these arguments, or ``own()``, which the graph may then use."""
        check()
        if leaf not in self._leaves or self._bridge.here:  # which may not wait for itself
            return own()
        try:
            entry, mine = self._bridge.outcome(lambda: self._take(leaf, key))
        except Unreachable:
            check()
            return own()
        if not mine:
            raise_stop(entry.error)
            return entry.result()
        check()
        try:
            result = own()
        except BaseException:
            # Not the exception itself: its traceback holds frames of stock's, which must not end on the loop's thread.
            self._bridge.post(entry.fail, StockFailed(f"stock's own call of {leaf} failed"))
            raise
        self._bridge.post(entry.finish, result)
        return result

    async def aclaim(self, leaf: str, key: Any, own: Callable[[], Awaitable[Any]]) -> Any:
        """For async leaves, on any event loop."""
        if leaf not in self._leaves:
            return await own()
        if not self._bridge.here:
            return await self._claim_from_elsewhere(leaf, key, own)
        entry, mine = await self._take(leaf, key)
        if not mine:
            return entry.result()
        try:
            result = await self.call.for_stock(own)
        except BaseException as error:
            entry.fail(error)
            raise
        entry.finish(result)
        return result

    async def _claim_from_elsewhere(self, leaf: str, key: Any, own: Callable[[], Awaitable[Any]]) -> Any:
        taking = self._take(leaf, key)
        try:
            entry, mine = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(taking, self.call.loop))
        except RuntimeError:  # that loop is closed
            taking.close()
            return await own()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return await own()  # that loop was shut down
        if not mine:
            return entry.result()
        try:
            result = await own()
        except BaseException:
            self._bridge.post(entry.fail, StockFailed(f"stock's own call of {leaf} failed"))
            raise
        self._bridge.post(entry.finish, result)
        return result

    async def _take(self, leaf: str, key: Any) -> tuple[Entry, bool]:
        """The entry for a call that stock makes, over if it is the graph's, and whether stock has to do the work."""
        claims = self.call.claims
        entry, mine = claims.claim(leaf, key, _usable)
        if not mine:
            await entry.wait()
            own = entry.begun and not isinstance(entry.error, LeftToStock)
            if entry.error is not None and not own:  # not the component's own failure
                return claims.claim(leaf, key, _never)[0], True
        return entry, mine

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls a function on the loop of the call, in the order of such calls from one thread. From any thread."""
        if self._bridge.here:
            function(*args)
        else:
            self._bridge.post(function, *args)

    def begin(self, leaf: str, works: Sequence[Ahead]) -> None:
        """Has calls made side by side that stock is about to make one after the other. From any thread."""
        call = self.call
        self._leaves |= {leaf}

        def expect() -> None:
            for keys, work in works:
                entries = [call.claims.expect(leaf, key, shared=False)[0] for key in keys]
                for entry in entries:
                    entry.ahead = entry.begun = True
                call.task(_do(call, leaf, entries, work), 0, 0.0, leaf, None)

        with suppress(Unreachable):
            self._bridge.run(expect)

    def feed(self, leaf: str, value: Any) -> None:
        """Tells the graph what stock has got to. From any thread."""
        if leaf not in self._leaves:
            return
        if self._bridge.here:
            self.call.feed(leaf, value)
            return
        with suppress(Unreachable):
            self._bridge.run(lambda: self.call.feed(leaf, value))


async def _do(call: Call, leaf: str, entries: Sequence[Entry], work: Callable[[], Awaitable[Sequence[Any]]]) -> None:
    try:
        async with call.place():
            done = list(zip(entries, await work(), strict=True))
    except BaseException as error:
        for entry in entries:
            entry.begun = len(entries) == 1  # of several it is not known whose failure it is: stock makes each alone
            entry.fail(error)
        if isinstance(error, asyncio.CancelledError):
            raise
        return
    for entry, result in done:
        entry.finish(result)
        call.claims.forget(leaf, entry)


class _Nothing(Claiming):
    """Where nothing runs ahead: each leaf does its own."""

    def __init__(self) -> None:
        self._leaves = frozenset()


NOTHING = _Nothing()


def _usable(entry: Entry) -> bool:
    return True


def _never(entry: Entry) -> bool:
    return False
