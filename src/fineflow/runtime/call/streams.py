"""A stream of items inside one event loop: written once, read by several readers from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")

AHEAD = 32
"""How many items a writer that waits for ``room`` is ahead of the reader that has got furthest, at most."""


class Stream(Generic[T]):
    """Items as they are released, then an end or an error.

    Every reader sees all items in order; a reader that comes late reads the kept ones first. A writer that waits for
    ``room`` goes on as far as any of the readers wants it to, and freely before there is a reader. Must be used from
    one event loop only.
    """

    def __init__(self) -> None:
        self.items: list[T] = []
        self.closed = False
        self.error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._read: int | None = None  # how many items the reader that has got furthest has taken; None: no reader yet

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
            if not future.done():
                future.set_result(None)

    async def _changed(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    @property
    def full(self) -> bool:
        """Whether there were readers, and all of them are ``AHEAD`` items behind, or have left."""
        return self._read is not None and len(self.items) - self._read >= AHEAD and not self.closed

    def _reached(self, position: int) -> None:
        full = self.full
        self._read = max(self._read or 0, position)
        if full and not self.full:
            self._wake()

    async def room(self) -> None:
        """For the writer: returns when the stream is not ``full`` (any more)."""
        while self.full:
            await self._changed()

    async def read(self) -> AsyncIterator[T]:
        """All items, from the first, as they come.

        Raises: what the stream was closed with.
        """
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
        """The items of the finished stream. Raises: what the stream was closed with."""
        return [item async for item in self.read()]
