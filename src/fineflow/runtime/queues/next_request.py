"""A moment for the next request of a query, one request of which has just ended.

The next request of a chain arrives a little later, when its code has read the answer and rendered the next prompt. If a
request of a later query took the place meanwhile, every step of the chain would wait again, though its query comes
first (Parrot, section 8.2: dependent requests re-enter the queue). So engines wait for it, for a small share of the
time that the request ran: an LLM keeps the room of that one request, a batch engine puts off its next batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from math import inf

from fineflow.runtime.loop.runtime_loop import post
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.placement import Instance
from fineflow.runtime.queues.policy import Policy, Waiting, by_start
from fineflow.runtime.queues.waiting_line import Waiter

# Seconds at most, and share of the time that the request ran: waiting costs no more throughput than this.
_ROOM_LONGEST, _ROOM_SHARE = 0.05, 0.05
_BATCH_LONGEST, _BATCH_SHARE = 0.001, 0.01

_NOTHING = (inf, 0.0)


class KeptRoom:
    """Room on instances of an LLM, kept by query. changed: called when it is no longer kept. Only on the queue's loop.

    It is kept until the query asks again, its call ends, or the moment is over.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._kept: dict[str, tuple[Instance, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, query: str, instance: Instance, *, step: float, ran: float) -> None:
        """Keeps room on an instance, for at most one step of a decode.

        step: seconds of a step. ran: seconds for which the request had the room.
        """
        if query in self._kept:
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(min(step, _ROOM_LONGEST, _ROOM_SHARE * ran), self._over, query)
        self._kept[query] = instance, timer
        request_context.when_ended(query, partial(post, loop, self._over, query))

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


class BatchPause:
    """Pause of a batch engine before its next batch. Only on the queue's loop.

    It lasts the whole moment: one batch often completes requests of several queries, and all may ask again.
    """

    def __init__(self) -> None:
        self._ended = _NOTHING  # of the query that began first: its start, and the seconds of the batch

    def ended(self, request: Waiting, ran: float) -> None:
        """Notes that a request is complete, if its query goes on. ran: seconds of its last batch."""
        if request.depth > 1:
            self._ended = min(self._ended, (request.started, ran))

    def forget(self) -> None:
        """Forgets what has ended: it is long over."""
        self._ended = _NOTHING

    def seconds(self, policy: Policy, waiting: Iterable[Waiter]) -> float:
        """Returns the seconds to wait, once for what has ended; 0 if the next request would not be the first.

        The next request often comes through a thread, which takes longer than the iterations of the loop.
        """
        (started, ran), self._ended = self._ended, _NOTHING
        later = [waiter.seen.started > started for waiter in waiting]
        return min(_BATCH_LONGEST, _BATCH_SHARE * ran) if policy is by_start and later and all(later) else 0.0
