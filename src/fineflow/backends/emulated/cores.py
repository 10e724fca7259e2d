"""Cores of one processor that several emulated engines share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_DONE = 1e-9  # seconds of work that count as none: sums of shares are not exact


@dataclass(eq=False, slots=True)
class _Work:
    left: float
    done: asyncio.Future[None]


class SharedCores:
    """Processor sharing: of n pieces of work at the same time each gets an n-th of the processor.

    So two engines on the same cores, both of which use all of them, slow each other down by two. One object serves one
    event loop.
    """

    device = "cpu"

    def __init__(self) -> None:
        self._works: list[_Work] = []
        self._at = 0.0  # time up to which the work is counted
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"SharedCores({len(self._works)} at work)"

    async def work(self, seconds: float) -> None:
        """Returns when work is done that takes ``seconds`` on the whole processor. Cancelling it gives up its share."""
        loop = asyncio.get_running_loop()
        mine = _Work(seconds, loop.create_future())
        self._count(loop)
        self._works.append(mine)
        self._wake(loop)
        try:
            await mine.done
        finally:
            if mine in self._works:
                self._count(loop)
                self._works.remove(mine)
                self._wake(loop)

    def _count(self, loop: asyncio.AbstractEventLoop) -> None:
        """Subtracts what was done since the last change."""
        now = loop.time()
        for each in self._works:
            each.left -= (now - self._at) / len(self._works)
        self._at = now

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the timer to the next end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._works:
            soonest = max(min(each.left for each in self._works), 0.0)
            self._timer = loop.call_later(soonest * len(self._works), self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._count(loop)
        for each in [each for each in self._works if each.left <= _DONE]:
            self._works.remove(each)
            if not each.done.done():
                each.done.set_result(None)
        self._wake(loop)
