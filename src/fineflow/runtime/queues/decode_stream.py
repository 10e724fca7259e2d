"""What an engine says, read in a task of its own: no faster than its reader wants it, unless others wait for room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace

from fineflow.errors import RequestError
from fineflow.protocols import Delta


class Reading:
    """One answer of an LLM engine on its way to one reader, read one piece ahead.

    ``hurried``: whether it is read on without its reader. A request has its room in the engine until its end, so a
    reader that is slow, or is waiting for what waits for that room, would hold up everybody. What is kept then is at
    most the whole answer, which ``max_tokens`` bounds.
    """

    def __init__(self, source: AsyncGenerator[Delta, None], hurried: Callable[[], bool]) -> None:
        self._hurried = hurried
        self._pieces: deque[Delta] = deque()
        self._more = asyncio.Event()  # for the reader
        self._wanted = asyncio.Event()  # for the task
        self._ended = False
        self._error: BaseException | None = None
        self._task = asyncio.create_task(self._run(source))

    async def _run(self, source: AsyncGenerator[Delta, None]) -> None:
        try:
            async with aclosing(source) as deltas:
                async for delta in deltas:
                    self._pieces.append(delta)
                    self._more.set()
                    # With the last piece the engine has ended, though its iterator has not.
                    while self._pieces and delta.finish_reason is None and not self._hurried():
                        self._wanted.clear()
                        await self._wanted.wait()
        except BaseException as error:  # the reader's to hear of, also a KeyboardInterrupt
            self._error = error
        finally:
            self._ended = True
            self._more.set()

    def hurry(self) -> None:
        """``hurried`` may have changed."""
        self._wanted.set()

    async def read(self) -> AsyncIterator[Delta]:
        """The pieces. Raises what the source raised, the same object."""
        while self._pieces or not self._ended:
            if self._pieces:
                piece = self._pieces.popleft()
                self._wanted.set()
                yield piece
            else:
                self._more.clear()
                await self._more.wait()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback holds this frame

    async def aclose(self) -> None:
        """Closes the source and waits for it. Raises what that raises."""
        if self._task.get_loop() is not asyncio.get_running_loop():
            return  # that loop has ended, and its tasks with it
        ended = self._ended
        self._task.cancel()
        await asyncio.wait([self._task])
        if not ended and isinstance(self._error, Exception):
            raise self._error


async def beyond(said: str, spoken: int, deltas: AsyncIterator[Delta], instance: str) -> AsyncGenerator[Delta, None]:
    """What comes behind a text that was said already, tokens included, where another ``instance`` says it again.

    Raises RequestError if it does not.
    """
    seen, text = 0, ""
    async for delta in deltas:
        before, text = len(text), text + delta.text
        fresh = delta.tokens[max(spoken - seen, 0) :]
        seen += len(delta.tokens)
        if text[: len(said)] != said[: len(text)] or (delta.finish_reason and len(text) < len(said)):
            raise RequestError(
                f"the instance that decoded was lost, and {instance!r} says something else: {text[:80]!r} "
                f"instead of {said[:80]!r}; call again"
            )
        if len(text) > len(said) or fresh or delta.finish_reason:
            yield replace(delta, text=delta.text[max(len(said) - before, 0) :], tokens=fresh)
