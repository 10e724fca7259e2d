"""Decode stream: the output of one LLM request, read from the engine in its own task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace

from fineflow.errors import RequestError
from fineflow.protocols import Delta
from fineflow.runtime.loop.channel import Channel


class DecodeStream:
    """Deltas of one request, read from the engine one piece ahead of their reader.

    others_wait: returns True if other requests wait for the room that this one takes. Then the stream is read to its
    end without waiting for the reader: a request holds its room until its end, so a reader that is slow, or waits for
    one of the others, would block them all. The buffer holds at most the whole output, which ``max_tokens`` bounds.
    """

    def __init__(self, source: AsyncGenerator[Delta, None], others_wait: Callable[[], bool]) -> None:
        self._others_wait = others_wait
        self._channel: Channel[Delta] = Channel(1)
        self._task = asyncio.create_task(self._run(source))

    async def _run(self, source: AsyncGenerator[Delta, None]) -> None:
        try:
            async with aclosing(source) as deltas:
                async for delta in deltas:
                    self._channel.put(delta)
                    # After the last piece the engine is done, even if its iterator is not.
                    if delta.finish_reason is None:
                        self.recheck()
                        await self._channel.wait_for_room_async()
        except BaseException as error:  # the reader raises it, even a KeyboardInterrupt
            self._channel.end(error)
        else:
            self._channel.end()

    def recheck(self) -> None:
        """Calls ``others_wait`` again and adapts the buffer."""
        self._channel.resize(0 if self._others_wait() else 1)

    async def read(self) -> AsyncIterator[Delta]:
        """Yields the pieces. Raises the source's exception, the same object."""
        while await self._channel.wait_for_item_async():
            yield self._channel.take()

    async def aclose(self) -> None:
        """Closes the source and waits for its end. Raises an exception that the source raises while closing."""
        if self._task.get_loop() is not asyncio.get_running_loop():
            return  # the task's loop has ended, and the task with it
        ended = self._channel.ended
        self._task.cancel()
        await asyncio.wait([self._task])
        if not ended and isinstance(self._channel.error, Exception):
            raise self._channel.error


async def resumed(text: str, count: int, deltas: AsyncIterator[Delta], instance: str) -> AsyncGenerator[Delta, None]:
    """Yields the output of ``instance`` after the ``text`` and the ``count`` tokens that a lost instance returned.

    Raises RequestError if the output does not begin with the same text.
    """
    seen, again = 0, ""
    async for delta in deltas:
        before, again = len(again), again + delta.text
        fresh = delta.tokens[max(count - seen, 0) :]
        seen += len(delta.tokens)
        if again[: len(text)] != text[: len(again)] or (delta.finish_reason and len(again) < len(text)):
            raise RequestError(
                f"the instance that decoded was lost, and {instance!r} decodes other text: {again[:80]!r} "
                f"instead of {text[:80]!r}; call again"
            )
        if len(again) > len(text) or fresh or delta.finish_reason:
            yield replace(delta, text=delta.text[max(len(text) - before, 0) :], tokens=fresh)
