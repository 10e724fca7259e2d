"""Waiting line behind every queue: the waiting requests, their order, and the turn that a caller blocks on.

Four queues use it: of batch engines (``batch_queue``), of LLMs (``llm_queue``), of limited components
(``component_calls``) and of calls into the process (``admission``). Tenants share by weight, inside a tenant higher
priorities come first, and inside a priority a policy decides (``policy.decide``).

A line is not thread-safe: a queue uses it on the runtime's loop only, or under its own lock.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from fineflow.errors import BackendError
from fineflow.runtime.loop.runtime_loop import post, set_done
from fineflow.runtime.queues.policy import PATIENCE, FairShares, Policy, Take, Waiting, decide, fifo


class Waiter:
    """Request in a line. seen: its record for policies. joined: rounds served before it joined."""

    __slots__ = ("joined", "seen")

    joined: int
    seen: Waiting


W = TypeVar("W", bound=Waiter)


class WaitingLine(Generic[W]):
    """Waiting requests. numbers: for new requests. shares: usage of each tenant. rounds: decisions served."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.shares = FairShares()
        self.rounds = 0
        self._lanes: dict[tuple[str, int], dict[int, W]] = {}  # by tenant and rank, then by number

    def __len__(self) -> int:
        return sum(map(len, list(self._lanes.values())))

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[W]:
        """Returns an iterator over a snapshot, in the order of arrival."""
        lanes = [list(lane.values()) for lane in list(self._lanes.values())]
        if len(lanes) == 1:
            return iter(lanes[0])
        return iter(sorted(itertools.chain(*lanes), key=lambda waiter: waiter.seen.number))

    @property
    def items(self) -> int:
        """Items of all requests together."""
        return sum(waiter.seen.items for waiter in self)

    def join(self, waiter: W) -> None:
        """Adds a request at the end."""
        waiter.joined = self.rounds
        self._lanes.setdefault(_lane(waiter), {})[waiter.seen.number] = waiter

    def rejoin(self, waiter: W) -> None:
        """Puts a request back to its old position, with its current items."""
        lane = self._lanes.get(_lane(waiter), {}) | {waiter.seen.number: waiter}
        self._lanes[_lane(waiter)] = dict(sorted(lane.items()))

    def leave(self, waiter: W) -> None:
        """Removes a request. Does nothing if it is not in the line."""
        lane = self._lanes.get(_lane(waiter), {})
        if lane.pop(waiter.seen.number, None) is not None and not lane:
            del self._lanes[_lane(waiter)]

    def earliest(self, peer: W) -> W | None:
        """Returns the waiting request of the same tenant and rank that arrived first; None if none waits."""
        return next(iter(self._lanes.get(_lane(peer), {}).values()), None)

    def drain(self) -> list[W]:
        """Removes and returns all requests."""
        waiters = list(self)
        self._lanes.clear()
        return waiters

    def batch(self, policy: Policy, slots: int) -> list[tuple[W, int]]:
        """Returns the requests of the next batch, with their number of items. All stay in the line: see ``serve``.

        Raises the policy's exception, and BackendError if it does not take between 1 and ``slots`` items, each from a
        waiting request.
        """
        waiters, takes = self._decide(policy, slots)
        left = {number: waiter.seen.items for number, waiter in waiters.items()}
        total = sum(take.items for take in takes)
        if not 1 <= total <= slots or any(not 1 <= take.items <= left.pop(take.number, 0) for take in takes):
            raise BackendError(
                f"the batching policy took {[(take.number, take.items) for take in takes]} from {len(waiters)} waiting "
                f"requests with {slots} slots; it must take between 1 and {slots} items, each from a waiting request"
            )
        return [(waiters[take.number], take.items) for take in takes]

    def order(self, policy: Policy, slots: int) -> list[W]:
        """Returns the next requests as a whole, in order. All stay in the line: see ``serve``.

        Raises the policy's exception, and BackendError if it takes none of them.
        """
        waiters, takes = self._decide(policy, slots)
        found = [waiters[number] for number in dict.fromkeys(take.number for take in takes) if number in waiters]
        if waiters and not found:
            raise BackendError(f"the policy took none of {len(waiters)} waiting requests; it must take at least one")
        return found

    def serve(self, *taken: tuple[W, int]) -> None:
        """Applies one decision: charges the items to tenants, and removes requests that have none left."""
        self.rounds += 1
        for waiter, items in taken:
            self.shares.give(waiter.seen, items)
            if items < waiter.seen.items:
                waiter.seen = replace(waiter.seen, items=waiter.seen.items - items)
            else:
                self.leave(waiter)

    def _decide(self, policy: Policy, slots: int) -> tuple[dict[int, W], Sequence[Take]]:
        if slots == 1 and policy is fifo:  # takes the first of a lane; ages matter only in steps of PATIENCE
            waiters = [waiter for lane in list(self._lanes.values()) for waiter in itertools.islice(lane.values(), 1)]
            step = PATIENCE
        else:
            waiters, step = list(self), 1
        ranked = len({waiter.seen.rank for waiter in waiters}) > 1
        for waiter in waiters:
            passed = (self.rounds - waiter.joined) // step * step if ranked else 0
            if waiter.seen.passed != passed:
                waiter.seen = replace(waiter.seen, passed=passed)
        seen = [waiter.seen for waiter in waiters]
        takes = decide(policy, seen, slots, self.shares.waiting(waiting.tenant for waiting in seen))
        return {waiter.seen.number: waiter for waiter in waiters}, takes


def _lane(waiter: Waiter) -> tuple[str, int]:
    return waiter.seen.tenant, waiter.seen.rank


class Ticket:
    """Place of a caller in the line: its coroutine (on any loop) or thread waits until another thread ends the wait."""

    __slots__ = ("_blocked", "_ended", "_error")

    def __init__(self) -> None:
        loop = asyncio._get_running_loop()
        self._ended = None if loop is None else loop.create_future()
        self._blocked = threading.Lock()
        self._blocked.acquire()
        self._error: BaseException | None = None

    async def wait(self) -> None:
        """Waits until the turn ends. Raises the error that it ends with."""
        assert self._ended is not None
        await self._ended
        self._raise()

    def wait_sync(self, timeout: float | None = None) -> bool:
        """Blocks a plain thread until the turn ends. Returns False after ``timeout`` seconds. Raises like ``wait``."""
        ended = self._blocked.acquire(timeout=-1 if timeout is None else timeout)
        if ended:
            self._raise()
        return ended

    def end(self, error: BaseException | None = None) -> bool:
        """Lets the caller continue, or raise ``error``. Call it once, from any thread.

        Returns False if the event loop of a waiting coroutine is closed.
        """
        self._error = error
        self._blocked.release()
        return self._ended is None or post(self._ended.get_loop(), set_done, self._ended)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
