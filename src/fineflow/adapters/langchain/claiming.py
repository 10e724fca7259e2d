"""Claims: how a leaf of stock's takes what the graph has, and what it does where there is nothing.

Shadows are shared by calls, so a leaf looks for the call that it is asked in: by a context variable, which LangChain
hands on to its tasks and threads. Where none is found, the leaf is the user's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from fineflow.adapters.langchain.arguments import Arguments
from fineflow.runtime.call.claims import Entry, StockFailed, raise_stop
from fineflow.runtime.call.executor import Call
from fineflow.runtime.loop.bridge import Bridge, Unreachable
from fineflow.runtime.loop.scopes import check
from fineflow.runtime.queues.component_calls import StreamedCall

T = TypeVar("T")

CHANGED = "changed in place"
"""Key of ``Call.tables``: a step that changed what it was given, so that the graph works with what was there."""

_END: Any = object()

Usable = Callable[[Entry], bool]


class Claiming:
    """Stock's side of one call.

    shadows: those that stock runs in it. outer: the call in which this one is made, if any.
    """

    __slots__ = ("_bridge", "call", "outer", "shadows", "waiting")

    def __init__(self, call: Call, shadows: object = None, outer: Claiming | None = None) -> None:
        self.call = call
        self.shadows = shadows
        self.outer = outer
        self.waiting: Callable[[], None] | None = None  # starts the graph, which waits for ``opened``
        self._bridge: Bridge | None = None

    def opened(self) -> None:
        """Stock has opened the outermost run, and is about to call what is inside of it, in the current context."""
        start, self.waiting = self.waiting, None
        if start is not None:
            start()

    @property
    def bridge(self) -> Bridge:
        """The way from stock's threads to the loop of the call."""
        if self._bridge is None:
            self._bridge = Bridge(self.call)
        return self._bridge

    async def aclaim(self, leaf: str, key: Any, own: Callable[[], Awaitable[Any]], usable: Usable) -> tuple[Entry, Any]:
        """For async leaves: the graph's result for these arguments, or ``own()``, which the graph may then use."""
        entry, mine = self.call.claims.claim(leaf, Arguments(key), usable)
        if not mine:
            await entry.wait()
            # Asked again: it may have turned out only now that it is not.
            if isinstance(entry.error, asyncio.CancelledError) or (usable(entry) and (entry.begun or not entry.error)):
                return entry, entry.result()
            entry = self.own_entry(leaf, key)
        try:
            result = await self.call.for_stock(own)
        except BaseException as error:
            entry.fail(error)
            raise
        entry.finish(result)
        return entry, result

    def claim(self, leaf: str, key: Any, own: Callable[[], T], usable: Usable) -> tuple[Entry, T]:
        """For sync leaves: the same from a thread that is not the event loop's."""

        async def take() -> tuple[Entry, bool]:
            entry, mine = self.call.claims.claim(leaf, Arguments(key), usable)
            if not mine:
                await entry.wait()
                if not usable(entry) or (entry.error is not None and not entry.begun):
                    return self.own_entry(leaf, key), True
            return entry, mine

        check()
        if self.bridge.here:  # may not wait for itself
            return self.nobodys_entry(), own()
        entry: Entry | None = None
        mine = True
        with suppress(Unreachable):
            entry, mine = self.bridge.outcome(take())
        if mine:  # the wait may have ended because the call was stopped
            check()
        if entry is None:  # what the component raises has nothing to do with that
            return self.nobodys_entry(), own()
        if not mine:
            raise_stop(entry.error)
            return entry, cast(T, entry.result())
        try:
            with self.bridge.place():
                result = own()
        except BaseException:
            # Not the exception itself: its traceback holds frames of stock's, which must not end on the loop's thread.
            self.bridge.post(entry.fail, StockFailed(f"stock's own call of {leaf} failed"))
            raise
        self.bridge.post(entry.finish, result)
        return entry, result

    def claim_stream(self, leaf: str, key: Any, usable: Usable) -> tuple[Entry, bool]:
        """For sync leaves that stream: the entry, and whether stock has to do the work."""
        if self.bridge.here:  # what the graph gets could not come while this thread waits for it
            return self.nobodys_entry(), True
        try:
            return self.bridge.run(lambda: self.aclaim_stream(leaf, key, usable))
        except Unreachable:
            return self.nobodys_entry(), True

    def aclaim_stream(self, leaf: str, key: Any, usable: Usable) -> tuple[Entry, bool]:
        """The same on the event loop of the call."""
        return self.call.claims.claim(leaf, Arguments(key), usable)

    def paced(self, chunks: Iterator[T], pieces: StreamedCall | None = None) -> Iterator[T]:
        """Pieces of what stock streams itself, where it may be bounded how many components work at a time.

        pieces: of a component that has a limit of its own.
        """
        # A place for each piece: between them the reader decides who works, and that may be another stream.
        chunks = iter(chunks)
        while True:
            check()
            with self.bridge.place():
                chunk = next(chunks, _END) if pieces is None else pieces.next(chunks, _END)
            if chunk is _END:
                return
            yield cast(T, chunk)

    async def apaced(self, chunks: AsyncIterator[T], pieces: StreamedCall | None = None) -> AsyncGenerator[T, None]:
        """The same for async leaves. To be closed, which closes what it reads."""
        chunks, take = aiter(chunks), anext if pieces is None else pieces.anext
        try:
            while True:
                check()
                chunk = await self.call.for_stock(lambda: take(chunks, _END))
                if chunk is _END:
                    return
                yield cast(T, chunk)
        finally:
            if hasattr(chunks, "aclose"):
                await chunks.aclose()

    def own_entry(self, leaf: str, key: Any) -> Entry:
        """An entry for work that stock does itself, whatever the graph has. On the query's event loop."""
        return self.call.claims.claim(leaf, Arguments(key), _never)[0]

    def nobodys_entry(self) -> Entry:
        """An entry for work that stock does itself, and that the graph will not hear of."""
        return Entry(None, self.call.loop, shared=False)

    def begins(self, leaf: str) -> None:
        """Stock is about to run the opaque step ``leaf``. Raises CancelledError where the deadline has passed."""
        self.call.begins(leaf)

    def changed(self, leaf: str) -> None:
        """The step ``leaf`` has changed in place what it was given: what others read of it, too."""
        self.call.tables[CHANGED] = leaf

    def feed(self, leaf: str, value: Any) -> None:
        """Feeds the graph from another thread than the event loop's.

        Waits until the graph has dispatched what it can, so that it reaches the next leaf before stock does.
        """
        with suppress(Unreachable):
            self.bridge.run(lambda: self.call.feed(leaf, value))


under_way: ContextVar[Claiming | None] = ContextVar("fineflow_claiming", default=None)
"""The innermost call that stock is in here."""


def nobodys() -> Entry:
    """An entry for what is done for no call."""
    return Entry(None, cast(Any, None), shared=False)


def _never(entry: Entry) -> bool:
    return False
