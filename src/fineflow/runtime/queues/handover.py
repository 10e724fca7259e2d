"""Room of a request that has ended, kept a moment for the next request of its query.

The next request of a chain arrives a few milliseconds after the last one has ended, when its code has rendered the next
prompt. If a request of a later query took the room meanwhile, every step of the chain would wait for room again, though
its query comes first (Parrot, section 8.2: dependent requests re-enter the queue).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.placement import Instance

_LONGEST = 0.05  # seconds
_SHARE = 0.05  # of the time that the request ran: idle room costs no more throughput than this


class Handovers:
    """Kept room of one queue, by query. changed: called when room is no longer kept. Only on the queue's loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._kept: dict[str, tuple[Instance, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, query: str, instance: Instance, *, step: float, ran: float) -> None:
        """Keeps room on an instance until the query asks again, its call ends, or one step of a decode is over.

        step: seconds of a step. ran: seconds for which the request had the room.
        """
        if query in self._kept:
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(min(step, _LONGEST, _SHARE * ran), self._over, query)
        self._kept[query] = instance, timer
        request_context.when_ended(query, partial(_soon, loop, partial(self._over, query)))

    def taken(self, query: str) -> None:
        """Notes that the query has asked again."""
        found = self._kept.pop(query, None)
        if found is not None:
            found[1].cancel()
            request_context.forget_end(query)

    def keeps(self, instance: Instance) -> bool:
        """Returns True if room on the instance is kept."""
        return bool(self._kept) and any(kept is instance for kept, _ in self._kept.values())

    def clear(self) -> None:
        """Forgets all: their event loop has ended."""
        for query in self._kept:
            request_context.forget_end(query)
        self._kept.clear()

    def _over(self, query: str) -> None:
        if query in self._kept:
            self.taken(query)
            self._changed()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Calls on the loop, from any thread; never if it is closed."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        pass
