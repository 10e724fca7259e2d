"""Permits: a bounded number of them, a line of callers that wait for one, and a permit that is lent meanwhile.

A pool is used from any thread and event loop. Limited components have one each (``limited_components``), and so has the
process for the calls that it admits (``admission``).

Deadlocks cannot happen, by three rules. A caller takes the permit of a component last, after all else that it waits
for. It lends its permits while it waits for a call of an optimized object, and reclaims them afterwards. And a sync
call on the thread of a running event loop does not wait at all (``request_context.must_not_wait``): a holder may need
that loop to finish.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from enum import Enum
from functools import partial
from typing import Generic, Self, TypeVar

from fineflow.ir import Op
from fineflow.runtime.loop.scopes import on_stop
from fineflow.runtime.queues.policy import Policy, Waiting
from fineflow.runtime.queues.request_context import must_not_wait, waiting_record
from fineflow.runtime.queues.waiting_line import TaskTurn, ThreadTurn, Turn, Waiter, WaitingLine


class State(Enum):
    """States of a request for a permit."""

    NEW = "new"
    WAITING = "waiting"
    GRANTED = "granted"
    ENDED = "ended"  # released, withdrawn or refused


class PermitRequest(Waiter):
    """One request for a permit, from when it is made until the permit is released."""

    __slots__ = ("state", "turn")

    turn: Turn  # set where it has to wait

    def __init__(self) -> None:
        self.state = State.NEW


R = TypeVar("R", bound=PermitRequest)


class PermitPool(Generic[R]):
    """So many permits (``at_once``; None: any number), and the requests that wait for one, served by ``policy``."""

    def __init__(self, at_once: int | None, policy: Policy) -> None:
        self.at_once = at_once
        self.policy = policy
        self.running = 0  # permits that are out
        self._line: WaitingLine[R] = WaitingLine()
        self._lock = threading.RLock()  # Python may collect an abandoned stream inside, which then releases a permit

    @property
    def waiting(self) -> int:
        """Requests that wait for a permit now."""
        return len(self._line)

    async def acquire(self, request: R) -> None:
        """Waits until the request has a permit. For a coroutine on any event loop."""
        if self.try_acquire(request):
            return
        turn = TaskTurn()
        if self.enqueue(request, turn):
            try:
                await turn.wait()
            except BaseException:
                self.withdraw(request)
                raise

    def acquire_sync(self, request: R) -> None:
        """``acquire`` for a plain thread, which it blocks. Raises CancelledError when the call's scope is stopped."""
        if self.try_acquire(request):
            return
        turn = ThreadTurn()
        if self.enqueue(request, turn):
            stopped = asyncio.CancelledError("the call was stopped while it waited for a permit")
            try:
                with on_stop(partial(self.withdraw, request, stopped)):
                    turn.wait()
            except BaseException:
                self.withdraw(request)
                raise

    def try_acquire(self, request: R) -> bool:
        """Grants a permit if one is free and nobody waits; returns False if not. Does not block."""
        with self._lock:
            free = (self.at_once is None or self.running < self.at_once) and not self._line
            if free:
                self._grant(request)
        return free

    def grant(self, request: R) -> None:
        """Grants a permit, even beyond the limit."""
        with self._lock:
            self._grant(request)

    def enqueue(self, request: R, turn: Turn) -> bool:
        """Grants a permit if one is free and nobody waits, and returns False. Else the request waits until ``turn``
        ends. Does not block. Raises the refusal if the request must not wait (``_refusal``).
        """
        with self._lock:
            if self.try_acquire(request):
                return False
            request.turn = turn
            refusal = self._refusal(request)
            if refusal is None:
                request.seen = self._record(request, self._line.number())
                request.state = State.WAITING
                self._line.join(request)
                return True
            request.state = State.ENDED
        raise refusal

    def release(self, request: R) -> None:
        """Returns the permit of a request, if it has one. The next request gets it."""
        with self._lock:
            if request.state is not State.GRANTED:
                return
            self._end(request)
        self._grant_waiting()

    def withdraw(self, request: R, refusal: BaseException | None = None) -> None:
        """Ends a request that waits, or was granted a permit that it does not use.

        refusal: raised by the caller that waits. Then only a request that still waits is withdrawn.
        """
        with self._lock:
            waits = request.state is State.WAITING
            if not waits and (request.state is not State.GRANTED or refusal is not None):
                return
            self._end(request)
            self._withdrawn(request)
        if refusal is not None:
            request.turn.end(refusal)
        self._grant_waiting()

    def resize(self, at_once: int | None) -> None:
        """Changes the number of permits. Those that are out stay out."""
        self.at_once = at_once
        self._grant_waiting()

    def reset(self) -> None:
        """Forgets all requests: after a fork, callers on other threads of the parent do not exist."""
        self._lock = threading.RLock()
        self._line = WaitingLine()
        self.running = 0

    def _free(self) -> bool:
        return self.at_once is None or self.running < self.at_once

    def _grant(self, request: R) -> None:
        request.state = State.GRANTED
        self.running += 1

    def _end(self, request: R) -> None:
        if request.state is State.WAITING:
            self._line.leave(request)
        elif request.state is State.GRANTED:
            self.running = max(self.running - 1, 0)  # a forked child may release a permit of its parent
        request.state = State.ENDED

    def _grant_waiting(self) -> None:
        """Grants free permits to the requests that come next."""
        while self._line and self._free():
            granted = []
            with self._lock:
                for request in self._next() if self._line and self._free() else ():
                    # Collected streams may have changed both since the policy decided.
                    if request.state is State.WAITING and self._free():
                        self._line.serve((request, 1))
                        self._grant(request)
                        granted.append(request)
            for request in granted:
                if not request.turn.end():  # its event loop is closed
                    with self._lock:
                        self._end(request)
                        self._withdrawn(request)

    def _next(self) -> list[R]:
        """Requests that come next, at least one."""
        slots = len(self._line) if self.at_once is None else self.at_once - self.running
        return self._line.order(self.policy, slots)

    def _record(self, request: R, number: int) -> Waiting:
        """What the policy sees of a request: by default the context of the caller."""
        return waiting_record(number, Op.CALL, 1)

    def _refusal(self, request: R) -> Exception | None:
        """An exception for a request that must not wait; None if it may."""
        return None

    def _withdrawn(self, request: R) -> None:
        """Called, with the lock held, when a request has ended without the use of a permit."""


class Permit:
    """A permit for one call of a component, as a context manager for coroutines and threads. Holders may lend it."""

    def __init__(self, pool: PermitPool[PermitRequest]) -> None:
        self._pool = pool
        self._lock = threading.RLock()
        self._loans = 0
        self._request = PermitRequest()
        self.active = False
        self.outer = _active(_innermost.get())

    async def acquire(self) -> None:
        """Waits for a permit."""
        await self._obtain(self._request)
        self._acquired()

    def acquire_sync(self) -> None:
        """``acquire`` for a plain thread, which it blocks. Raises CancelledError when the call's scope is stopped."""
        self._obtain_sync(self._request)
        self._acquired()

    def release(self) -> None:
        """Returns the permit. Does nothing where it is not held."""
        with self._lock:
            held, self.active = self.active and not self._loans, False
        if held:
            self._pool.release(self._request)

    def lend(self) -> bool:
        """Returns the permit to the pool until it is reclaimed as often as it was lent. False: there is none."""
        with self._lock:
            if not self.active:
                return False
            self._loans += 1
            first = self._loans == 1
        if first:
            self._pool.release(self._request)
        return True

    async def reclaim(self) -> None:
        """Waits for a permit again. A caller that is cancelled meanwhile goes on without one."""
        if self._last_loan():
            request = PermitRequest()
            try:
                await self._obtain(request)
            except BaseException:
                self.active = False
                raise
            self._reclaimed(request)

    def reclaim_sync(self) -> None:
        """``reclaim`` for a plain thread, which it blocks."""
        if self._last_loan():
            request = PermitRequest()
            try:
                self._obtain_sync(request)
            except BaseException:
                self.active = False
                raise
            self._reclaimed(request)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def __enter__(self) -> Self:
        self.acquire_sync()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def _obtain(self, request: PermitRequest) -> None:
        if must_not_wait.get():
            self._pool.grant(request)
        else:
            await self._pool.acquire(request)

    def _obtain_sync(self, request: PermitRequest) -> None:
        if must_not_wait.get() or asyncio._get_running_loop() is not None:
            self._pool.grant(request)
        else:
            self._pool.acquire_sync(request)

    def _acquired(self) -> None:
        self.active = True
        _innermost.set(self)

    def _last_loan(self) -> bool:
        with self._lock:
            if self._loans > 1 or not self.active:
                self._loans -= 1
                return False
            return True  # counts as lent until it is back

    def _reclaimed(self, request: PermitRequest) -> None:
        with self._lock:
            self._loans -= 1
            self._request = request
            unwanted = not self.active or self._loans > 0
        if unwanted:
            self._pool.release(request)


_innermost: ContextVar[Permit | None] = ContextVar("fineflow_permit", default=None)
"""The permit that was acquired last around the current code."""


def _active(permit: Permit | None) -> Permit | None:
    while permit is not None and not permit.active:
        permit = permit.outer
    return permit


def lend_permits() -> list[Permit]:
    """Lends all permits that are held around the current code, and returns them: the caller reclaims each."""
    found, permit = [], _innermost.get()
    while permit is not None:
        if permit.lend():
            found.append(permit)
        permit = permit.outer
    return found
