"""Claims: how a leaf of stock's takes what the graph has, and what it does where there is nothing.

Stock may ask from a plain thread, from the event loop of the call, and from a loop of its own: its sync methods run
coroutines in a new one (``use_async``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from contextlib import suppress
from typing import Any

from fineflow.runtime.bridge import Bridge, Unreachable
from fineflow.runtime.claims import Entry
from fineflow.runtime.query import Call
from fineflow.runtime.scope import check


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
            entry, mine = self._bridge.outcome(self._take(leaf, key))
        except Unreachable:
            return own()
        if not mine:
            _raise_stop(entry.error)
            return entry.result()
        check()
        try:
            result = own()
        except BaseException:
            # Not the exception itself: its traceback holds frames of stock's, which must not end on the loop's thread.
            self._bridge.post(entry.fail, _Failed(f"stock's own call of {leaf} failed"))
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
            self._bridge.post(entry.fail, _Failed(f"stock's own call of {leaf} failed"))
            raise
        self._bridge.post(entry.finish, result)
        return result

    async def _take(self, leaf: str, key: Any) -> tuple[Entry, bool]:
        """The entry for a call that stock makes, over if it is the graph's, and whether stock has to do the work."""
        claims = self.call.claims
        entry, mine = claims.claim(leaf, key, _usable)
        if not mine:
            await entry.wait()
            if entry.error is not None and not entry.begun:  # not the component's own failure
                return claims.claim(leaf, key, _never)[0], True
        return entry, mine

    def feed(self, leaf: str, value: Any) -> None:
        """Tells the graph what stock has got to. From any thread."""
        if leaf not in self._leaves:
            return
        if self._bridge.here:
            self.call.feed(leaf, value)
            return
        with suppress(Unreachable):
            self._bridge.run(lambda: self.call.feed(leaf, value))


class _Failed(Exception):
    """What the graph sees of a failure that stock has seen itself."""


def _raise_stop(error: BaseException | None) -> None:
    """Raises the StopIteration that an exception stands for, as no future can carry it."""
    if isinstance(error, RuntimeError) and str(error) == "a component raised StopIteration" and error.__cause__:
        raise error.__cause__


def _usable(entry: Entry) -> bool:
    return True


def _never(entry: Entry) -> bool:
    return False
