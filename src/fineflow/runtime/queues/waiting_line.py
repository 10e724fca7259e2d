"""The waiting line behind every queue: who waits, who comes next, and how a caller blocks until its turn.

Four queues use it: of batch engines (``batch_queue``), of LLMs (``llm_queue``), of limited components
(``limited_components``) and of calls into the process (``admission``). Tenants share by weight, inside a tenant higher
priorities come first, and inside a priority a policy decides (``policy.decide``).

A line is not thread-safe: a queue uses it on the runtime's loop only, or under a lock of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from fineflow.errors import BackendError
from fineflow.runtime.queues.policy import PATIENCE, FairShares, Policy, Take, Waiting, decide, fifo


class Waiter:
    """One request in a line. seen: what policies see of it. joined: how many rounds were served before it came."""

    __slots__ = ("joined", "seen")

    joined: int
    seen: Waiting


W = TypeVar("W", bound=Waiter)


class WaitingLine(Generic[W]):
    """Requests that wait, in the order of their arrival, and what each tenant was given so far.

    rounds: how many decisions were carried out. A request ages by one with each of them.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self._lanes: dict[tuple[str, int], dict[int, W]] = {}  # by tenant and priority, then by number
        self._shares = FairShares()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, list(self._lanes.values())))

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[W]:
        """A snapshot, in the order of arrival."""
        lanes = [list(lane.values()) for lane in list(self._lanes.values())]
        if len(lanes) == 1:
            return iter(lanes[0])
        return iter(sorted(itertools.chain.from_iterable(lanes), key=_number))

    @property
    def items(self) -> int:
        """Items of all requests together."""
        return sum(waiter.seen.items for waiter in self)

    def number(self) -> int:
        """The number of the next request: unique, and increasing."""
        return next(self._numbers)

    def join(self, waiter: W) -> None:
        """Adds a request at the end."""
        waiter.joined = self.rounds
        self._lanes.setdefault(_lane(waiter), {})[waiter.seen.number] = waiter

    def rejoin(self, waiter: W) -> None:
        """Puts a request back where it was, with the items that it has now."""
        lane = self._lanes.get(_lane(waiter), {})
        self._lanes[_lane(waiter)] = dict(sorted({**lane, waiter.seen.number: waiter}.items()))

    def leave(self, waiter: W) -> None:
        """Removes a request. Does nothing if it is not in the line."""
        lane = self._lanes.get(_lane(waiter), {})
        if lane.pop(waiter.seen.number, None) is not None and not lane:
            del self._lanes[_lane(waiter)]

    def drain(self) -> list[W]:
        """Removes all requests, and returns them."""
        waiters = list(self)
        self._lanes.clear()
        return waiters

    def batch(self, policy: Policy, slots: int) -> list[tuple[W, int]]:
        """The requests of the next batch, and how many items of each. Nobody leaves the line yet: see ``serve``.

        Raises what the policy raises, and BackendError if it does not take between 1 and ``slots`` items, each from a
        request that waits.
        """
        waiters, takes = self._decide(policy, slots)
        left = {number: waiter.seen.items for number, waiter in waiters.items()}
        total = sum(take.items for take in takes)
        if not 1 <= total <= slots or any(not 1 <= take.items <= left.pop(take.number, 0) for take in takes):
            raise BackendError(
                f"the batching policy took {[(take.number, take.items) for take in takes]} from {len(waiters)} waiting "
                f"requests with {slots} slots; it must take between 1 and {slots} items, each from a request that waits"
            )
        return [(waiters[take.number], take.items) for take in takes]

    def order(self, policy: Policy, slots: int) -> list[W]:
        """The requests that come next, each as a whole, first the first. Nobody leaves the line yet: see ``serve``.

        Raises what the policy raises, and BackendError if it takes none of them.
        """
        waiters, takes = self._decide(policy, slots)
        found = [waiters[number] for number in dict.fromkeys(take.number for take in takes) if number in waiters]
        if not found:
            raise BackendError(f"the policy took none of {len(waiters)} waiting requests; it must take at least one")
        return found

    def serve(self, *taken: tuple[W, int]) -> None:
        """Carries out one decision: charges tenants for the items, and removes requests that have none left."""
        self.rounds += 1
        for waiter, items in taken:
            self._shares.give(waiter.seen, items)
            if items < waiter.seen.items:
                waiter.seen = replace(waiter.seen, items=waiter.seen.items - items)
            else:
                self.leave(waiter)

    def reset_shares(self) -> None:
        """Forgets what tenants were given so far."""
        self._shares = FairShares()

    def _decide(self, policy: Policy, slots: int) -> tuple[dict[int, W], Sequence[Take]]:
        lanes = list(self._lanes)
        ranked = len({priority for _, priority in lanes}) > 1
        if slots == 1 and policy is fifo:  # needs the first of each lane only, and not the exact age
            waiters = [waiter for lane in list(self._lanes.values()) for waiter in itertools.islice(lane.values(), 1)]
            self._age(waiters, ranked, PATIENCE)
        else:
            waiters = list(self)
            self._age(waiters, ranked, 1)
        used = self._shares.waiting(tenant for tenant, _ in lanes)
        takes = decide(policy, [waiter.seen for waiter in waiters], slots, used)
        return {waiter.seen.number: waiter for waiter in waiters}, takes

    def _age(self, waiters: Sequence[W], ranked: bool, step: int) -> None:
        """Sets ``passed``, in whole steps, where priorities differ (``ranked``); to 0 where they do not."""
        for waiter in waiters:
            passed = (self.rounds - waiter.joined) // step * step if ranked else 0
            if waiter.seen.passed != passed:
                waiter.seen = replace(waiter.seen, passed=passed)


def _lane(waiter: Waiter) -> tuple[str, int]:
    return waiter.seen.tenant, waiter.seen.priority


def _number(waiter: Waiter) -> int:
    return waiter.seen.number


class Turn:
    """Blocks one caller until another thread ends the wait: ``TaskTurn`` a coroutine, ``ThreadTurn`` a plain thread."""

    __slots__ = ("_error",)

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> bool:
        """Lets the caller continue, or raise ``error``. Call it once, from any thread.

        Returns False if nobody can continue, because the caller's event loop is closed.
        """
        self._error = error
        return self._wake()

    def _wake(self) -> bool:
        raise NotImplementedError

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


class TaskTurn(Turn):
    """The turn of a coroutine on whatever event loop it runs."""

    __slots__ = ("_ended", "_loop")

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        """Waits until the turn ends. Raises the error that it ends with."""
        await self._ended
        self._raise()

    def _wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            return False
        return True

    def _settle(self) -> None:
        if not self._ended.done():  # the caller may have been cancelled
            self._ended.set_result(None)


class ThreadTurn(Turn):
    """The turn of a plain thread, which it blocks."""

    __slots__ = ("_blocked",)

    def __init__(self) -> None:
        super().__init__()
        self._blocked = threading.Lock()
        self._blocked.acquire()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the turn ends, for at most ``timeout`` seconds; returns False if it has not ended by then.

        Raises the error that it ends with.
        """
        ended = self._blocked.acquire(timeout=-1 if timeout is None else timeout)
        if ended:
            self._raise()
        return ended

    def _wake(self) -> bool:
        self._blocked.release()
        return True
