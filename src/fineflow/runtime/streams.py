"""A stream of items inside one event loop: written once, read by several readers from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    """Items as they are released, then an end or an error.

    Every reader sees all items in order; a reader that comes late reads the kept ones first. Must be used from one
    event loop only.
    """

    def __init__(self) -> None:
        self.items: list[T] = []
        self.closed = False
        self.error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []

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

    async def read(self) -> AsyncIterator[T]:
        """All items, from the first, as they come.

        Raises: what the stream was closed with.
        """
        position = 0
        while True:
            while position < len(self.items):
                position += 1
                yield self.items[position - 1]
            if self.closed:
                break
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        if self.error is not None:
            raise self.error

    async def all(self) -> list[T]:
        """The items of the finished stream. Raises: what the stream was closed with."""
        return [item async for item in self.read()]
