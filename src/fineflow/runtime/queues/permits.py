"""Pools of permits: a bounded number of permits, a line of waiting callers, and permits that holders lend.

Each limited component has a pool (``component_calls``), and so has the process for admitted calls (``admission``).
Pools are thread-safe and serve callers on any event loop.

Three rules prevent deadlocks. A caller acquires the permit of a component last, after everything else that it waits
for. It lends its permits while it waits for a call of an optimized object, and reclaims them afterwards. And code that
blocks an event loop does not wait for a permit of a component: a holder may need that loop to finish.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

from fineflow.ir import Op
from fineflow.runtime.loop.scopes import on_stop
from fineflow.runtime.queues.policy import Policy, Waiting
from fineflow.runtime.queues.request_context import must_not_wait, waiting_record
from fineflow.runtime.queues.waiting_line import Ticket, Waiter, WaitingLine


class State(Enum):
    """State of a request for a permit. IDLE: not submitted yet; or released, withdrawn or refused."""

    IDLE = "idle"
    WAITING = "waiting"
    GRANTED = "granted"


class PermitRequest(Waiter):
    """Request for a permit, until the permit is released. turn: of the caller, if it waits."""

    __slots__ = ("state", "turn")

    turn: Ticket

    def __init__(self) -> None:
        self.state = State.IDLE


R = TypeVar("R", bound=PermitRequest)


class PermitPool(Generic[R]):
    """Pool of ``at_once`` permits (None: any number), and the requests that wait for one, served by ``policy``."""

    def __init__(self, at_once: int | None, policy: Policy) -> None:
        self.at_once = at_once
        self.policy = policy
        self.running = 0  # granted permits
        self._line: WaitingLine[R] = WaitingLine()
        self._lock = threading.RLock()  # reentrant: an abandoned stream may be collected inside and release a permit

    @property
    def waiting(self) -> int:
        """Requests that wait for a permit now."""
        return len(self._line)

    async def acquire(self, request: R) -> None:
        """Waits for a permit, in a coroutine on any event loop."""
        if self.enqueue(request):
            try:
                await request.turn.wait()
            except BaseException:
                self.withdraw(request)
                raise

    def acquire_sync(self, request: R) -> None:
        """Blocks a plain thread for a permit. Raises CancelledError if the call's scope is stopped."""
        if self.enqueue(request, blocks_loop=asyncio._get_running_loop() is not None):
            stopped = asyncio.CancelledError("the call was stopped while it waited for a permit")
            try:
                with on_stop(partial(self.withdraw, request, stopped)):
                    request.turn.wait_sync()
            except BaseException:
                self.withdraw(request)
                raise

    def enqueue(self, request: R, *, blocks_loop: bool = False) -> bool:
        """Grants a permit if one is free and the line is empty; else returns True: the caller waits for the turn.

        blocks_loop: the caller is the thread of a running event loop. Does not block.
        """
        with self._lock:
            free = (self.at_once is None or self.running < self.at_once) and not self._line
            if free or not self._must_wait(request, blocks_loop):
                self._grant(request)
                return False
            request.seen, request.turn = self._record(request, next(self._line.numbers)), Ticket()
            request.state = State.WAITING
            self._line.join(request)
            return True

    def release(self, request: R) -> None:
        """Returns the permit of a request, if it has one, to the pool. The next request gets it."""
        with self._lock:
            if request.state is State.GRANTED:
                self._end(request)
        self._grant_waiting()

    def withdraw(self, request: R, refusal: BaseException | None = None) -> None:
        """Ends a request that waits, or that was granted a permit and does not use it.

        refusal: raised in the waiting caller. With it, only a request that still waits is withdrawn.
        """
        with self._lock:
            waits = request.state is State.WAITING
            if waits or (request.state is State.GRANTED and refusal is None):
                self._end(request, used=False)
        if waits and refusal is not None:
            request.turn.end(refusal)
        self._grant_waiting()

    def resize(self, at_once: int | None) -> None:
        """Changes the number of permits. Granted permits stay granted."""
        self.at_once = at_once
        self._grant_waiting()

    def _must_wait(self, request: R, blocks_loop: bool) -> bool:
        """Returns True if a request has to wait; else it gets a permit beyond the limit. May raise a refusal."""
        return not blocks_loop and not must_not_wait.get()

    def _record(self, request: R, number: int) -> Waiting:
        """Returns the record of a request that the policy sees."""
        return waiting_record(number, Op.CALL, 1)

    def _grant(self, request: R) -> None:
        request.state = State.GRANTED
        self.running += 1

    def _end(self, request: R, *, used: bool = True) -> None:
        if request.state is State.GRANTED:
            self.running = max(self.running - 1, 0)  # a forked child may release a permit of its parent
        else:
            self._line.leave(request)
        request.state = State.IDLE

    def _grant_waiting(self) -> None:
        """Grants free permits to the next requests."""
        while self._line and self._free() > 0:
            granted: list[R] = []
            with self._lock:
                for request in self._order(self._free()) if self._line and self._free() > 0 else ():
                    if request.state is State.WAITING and self._free() > 0:  # collected streams may have changed both
                        self._line.serve((request, 1))
                        self._grant(request)
                        granted.append(request)
            for request in granted:
                if not request.turn.end():  # its event loop is closed
                    with self._lock:
                        self._end(request, used=False)

    def _free(self) -> int:
        return len(self._line) + 1 if self.at_once is None else self.at_once - self.running

    def _order(self, free: int) -> list[R]:
        return self._line.order(self.policy, free)


class Permit:
    """Permit for one call of a component, as a block (``with`` or ``async with``). Its holder may lend it."""

    def __init__(self, pool: PermitPool[PermitRequest]) -> None:
        self.active = False
        self.outer = _innermost.get()
        while self.outer is not None and not self.outer.active:
            self.outer = self.outer.outer
        self._pool = pool
        self._request = PermitRequest()
        self._loans = 0
        self._lock = threading.RLock()

    async def acquire(self) -> None:
        """Waits for a permit."""
        await self._pool.acquire(self._request)
        self._acquired()

    def acquire_sync(self) -> None:
        """Blocks a plain thread for a permit. Raises CancelledError if the call's scope is stopped."""
        self._pool.acquire_sync(self._request)
        self._acquired()

    def release(self, *_: object) -> None:
        """Returns the permit to the pool. Does nothing if it is not held."""
        with self._lock:
            held, self.active = self.active and not self._loans, False
        if held:
            self._pool.release(self._request)

    __aenter__, __enter__, __exit__ = acquire, acquire_sync, release

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def lend(self) -> bool:
        """Lends the permit to the pool until it is reclaimed as often as it was lent. Returns False if none is held."""
        with self._lock:
            held = self.active
            self._loans += held
            first = held and self._loans == 1
        if first:
            self._pool.release(self._request)
        return held

    async def reclaim(self) -> None:
        """Waits for a permit again. A caller that is cancelled meanwhile goes on without one."""
        with self._reclaiming() as request:
            if request is not None:
                await self._pool.acquire(request)

    def reclaim_sync(self) -> None:
        """Does the same as ``reclaim``, blocking a plain thread."""
        with self._reclaiming() as request:
            if request is not None:
                self._pool.acquire_sync(request)

    def _acquired(self) -> None:
        self.active = True
        _innermost.set(self)

    @contextmanager
    def _reclaiming(self) -> Iterator[PermitRequest | None]:
        """Yields the request that the block must acquire; None if the permit stays lent, or is no longer needed."""
        with self._lock:
            last = self._loans == 1 and self.active  # counts as lent until it is reclaimed
            self._loans -= not last
        if not last:
            yield None
            return
        request = PermitRequest()
        try:
            yield request
        except BaseException:
            self.active = False
            raise
        with self._lock:
            self._loans -= 1
            self._request = request
            needed = self.active and not self._loans
        if not needed:
            self._pool.release(request)


_innermost: ContextVar[Permit | None] = ContextVar("fineflow_permit", default=None)
"""Permit that was acquired last around the current code."""


def lend_permits() -> list[Permit]:
    """Lends all permits that are held around the current code, and returns them: the caller reclaims each."""
    found, permit = [], _innermost.get()
    while permit is not None:
        if permit.lend():
            found.append(permit)
        permit = permit.outer
    return found
