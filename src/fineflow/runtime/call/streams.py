"""Stream of items on one event loop: written once, read from the beginning by any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from fineflow.runtime.loop.runtime_loop import set_done

T = TypeVar("T")

AHEAD = 32
"""Most items that a writer that waits for ``room`` is ahead of the furthest reader."""


class Stream(Generic[T]):
    """Items as they are released, then an end or an error.

    Every reader sees all items in order; a late reader starts with the kept ones. A writer that waits for ``room`` is
    bounded by the furthest reader, and unbounded before there is a reader. Not thread-safe: for one event loop.
    """

    def __init__(self) -> None:
        self.items: list[T] = []
        self.closed = False
        self.error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._read: int | None = None  # items that the furthest reader has taken; None: no reader yet

    def put(self, item: T) -> None:
        self.items.append(item)
        self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """Ends the stream; readers get ``error`` after the last item."""
        if not self.closed:
            self.closed, self.error = True, error
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            set_done(future)

    async def _changed(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    @property
    def full(self) -> bool:
        """True if the stream is open and its furthest reader, running or gone, is at least ``AHEAD`` items behind."""
        return self._read is not None and len(self.items) - self._read >= AHEAD and not self.closed

    def _reached(self, position: int) -> None:
        full = self.full
        self._read = max(self._read or 0, position)
        if full and not self.full:
            self._wake()

    async def room(self) -> None:
        """Blocks the writer while the stream is ``full``."""
        while self.full:
            await self._changed()

    async def read(self) -> AsyncIterator[T]:
        """Yields all items, from the first, as they arrive. Raises the error that the stream was closed with."""
        position = 0
        while True:
            self._reached(position)
            while position < len(self.items):
                position += 1
                self._reached(position)
                yield self.items[position - 1]
            if self.closed:
                break
            await self._changed()
        if self.error is not None:
            raise self.error

    async def all(self) -> list[T]:
        """Returns all items once the stream is closed. Raises the error that it was closed with."""
        return [item async for item in self.read()]
