"""How many calls may be under way at once, and which of those that wait comes next. From any thread and event loop.

Between tenants, weighted fair queueing by start times (Goyal, Vin, Cheng: Start-time Fair Queuing, SIGCOMM 1996): every
call that is admitted moves its tenant on by one over its weight, and who is furthest behind comes next. Inside a tenant
higher priorities come first, then earlier arrivals. A tenant that was away is due nothing for that time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import threading
from bisect import insort
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fineflow.errors import Overloaded
from fineflow.runtime import events
from fineflow.runtime.loop.scopes import on_stop

log = logging.getLogger("fineflow")

_REMEMBERED = 1024  # tenants that do not wait, of whom it is known what they had

NEW, WAITING, ADMITTED, OVER = "new", "waiting", "admitted", "over"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a ``Runtime`` allows. Raises ValueError for values out of range, TypeError for those of a wrong type."""

    max_queries: int | None = None
    max_waiting: int | None = None
    overload: str = "wait"
    tenants: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _count("max_queries", self.max_queries, 1)
        _count("max_waiting", self.max_waiting, 0)
        if self.overload not in ("wait", "raise"):
            raise ValueError(f"Runtime(overload=...) is 'wait' or 'raise', got {self.overload!r}")
        if self.max_waiting is not None and (self.max_queries is None or self.overload == "raise"):
            why = "without max_queries" if self.max_queries is None else "with overload='raise'"
            raise ValueError(f"Runtime(max_waiting={self.max_waiting}) says nothing {why}: no call ever waits")
        weights: Mapping[Any, Any] = self.tenants
        for tenant, weight in weights.items():
            if not isinstance(tenant, str) or isinstance(weight, bool) or not isinstance(weight, (int, float)):
                raise TypeError(f"Runtime(tenants=...) maps names to weights, got {tenant!r}: {weight!r}")
            if not 0 < weight < math.inf:
                raise ValueError(f"the weight of tenant {tenant!r} must be above 0 and finite, got {weight!r}")
        object.__setattr__(self, "tenants", MappingProxyType(dict(self.tenants)))

    def weight(self, tenant: str) -> float:
        """The share of a tenant relative to others; 1 where none is given."""
        return float(self.tenants.get(tenant, 1.0))


def _count(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Runtime({name}=...) is a whole number or None, got {value!r}")
    if value < least:
        raise ValueError(f"Runtime({name}=...) must be at least {least}, got {value}")


_numbers = itertools.count(1)


class Ticket:
    """One call at the door: whose it is, and what became of it.

    wake: called, once, when it need not wait on. refusal: what to raise then, if it was not admitted.
    """

    __slots__ = ("began", "door", "number", "priority", "queued", "refusal", "state", "tenant", "wake")

    def __init__(self, tenant: str = "", priority: int = 0) -> None:
        self.tenant = tenant
        self.priority = priority
        self.number = next(_numbers)
        self.state = NEW
        self.queued = self.began = events.now()
        self.wake: Callable[[], object] | None = None
        self.refusal: BaseException | None = None
        self.door = door()

    def __lt__(self, other: Ticket) -> bool:
        return (-self.priority, self.number) < (-other.priority, other.number)


@dataclass(slots=True)
class Counts:
    """Calls so far, by how they ended, and the seconds that they waited and ran."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    overloaded: int = 0
    waited: float = 0.0
    ran: float = 0.0


class Door:
    """Who is inside and who waits. No method blocks."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.running = 0
        self.waiting = 0
        self.counts = Counts()
        self._emptied: list[Callable[[], object]] = []  # called when nobody is inside any more
        # Python may collect an abandoned stream inside of these methods, which then ends its call.
        self._lock = threading.RLock()
        self._queues: dict[str, list[Ticket]] = {}  # of those tenants who wait, the next call first
        self._served: dict[str, float] = {}  # tenant -> what it was given by its weight
        self._now = 0.0  # what the tenant that was served last had been given before

    def ask(self, ticket: Ticket, wake: Callable[[], object], *, on_loop: bool = False) -> bool:
        """Whether the call may begin at once; if not it waits, and ``wake`` is called from any thread.

        Raises Overloaded where it may not wait. on_loop: waiting would block an event loop.
        """
        with self._lock:
            most, limits = self.limits.max_queries, self.limits
            if self._free():
                self._admit(ticket)
                return True
            assert most is not None
            ticket.wake = wake
            refusal = self._refusal(limits, most, on_loop)
            if not refusal:
                ticket.state = WAITING
                if ticket.tenant not in self._queues:
                    self._served[ticket.tenant] = max(self._served.get(ticket.tenant, 0.0), self._now)
                insort(self._queues.setdefault(ticket.tenant, []), ticket)
                self.waiting += 1
                return False
            ticket.state = OVER
            self.counts.overloaded += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("call refused", extra={"event": "overloaded", "tenant": ticket.tenant, "waiting": self.waiting})
        raise Overloaded(refusal)

    def at_once(self, ticket: Ticket) -> bool:
        """Whether the call may begin at once; if not, it is to ``ask``."""
        with self._lock:
            if free := self._free():
                self._admit(ticket)
        return free

    def _free(self) -> bool:
        most = self.limits.max_queries
        return most is None or (self.running < most and not self.waiting)

    def _refusal(self, limits: Limits, most: int, on_loop: bool) -> str:
        if limits.overload == "raise":
            return f"{self.running} calls are under way, max_queries={most}; try again later, or overload='wait'"
        if limits.max_waiting is not None and self.waiting >= limits.max_waiting:
            return (
                f"{self.running} calls are under way and {self.waiting} wait, with max_queries={most} and "
                f"max_waiting={limits.max_waiting}; try again later"
            )
        if on_loop:  # which may be the one that the others need to get on
            return (
                f"{self.running} calls are under way, max_queries={most}, and the thread of a running event loop "
                "cannot wait for them; await ainvoke(), aquery() or the like, or call from another thread"
            )
        return ""

    def _admit(self, ticket: Ticket) -> None:
        ticket.state = ADMITTED
        ticket.began = events.now()
        self.running += 1
        self.counts.waited += ticket.began - ticket.queued
        if self.limits.max_queries is not None:
            self._now = max(self._served.get(ticket.tenant, 0.0), self._now)
            self._served[ticket.tenant] = self._now + 1 / self.limits.weight(ticket.tenant)
            if len(self._served) > 2 * len(self._queues) + _REMEMBERED:  # tenants may be as many as users
                self._served = {tenant: self._served[tenant] for tenant in self._queues}

    def _drop(self, ticket: Ticket) -> None:
        """Takes a call out, wherever it is."""
        if ticket.state == WAITING:
            queue = self._queues[ticket.tenant]
            queue.remove(ticket)
            if not queue:
                del self._queues[ticket.tenant]
            self.waiting -= 1
        elif ticket.state == ADMITTED:
            self.running -= 1
        ticket.state = OVER

    def leave(self, ticket: Ticket, error: BaseException | None = None) -> None:
        """A call is over, in whatever way; the next one comes in. error: what it ended with."""
        with self._lock:
            if ticket.state != ADMITTED:
                return
            self._drop(ticket)
            counts = self.counts
            counts.ran += events.now() - ticket.began
            if error is None:
                counts.finished += 1
            elif isinstance(error, Exception):
                counts.failed += 1
            else:
                counts.cancelled += 1
            idle = not self.waiting and not self._emptied
        if not idle:
            self._fill()
        if log.isEnabledFor(logging.DEBUG):
            told = {
                "event": "call",
                "call": ticket.number,
                "tenant": ticket.tenant,
                "waited": ticket.began - ticket.queued,
                "ran": events.now() - ticket.began,
                "error": None if error is None else type(error).__name__,
            }
            log.debug("call ended", extra=told)

    def withdraw(self, ticket: Ticket, refusal: BaseException | None = None) -> None:
        """A call does not wait any more, or was let in when nobody waited. refusal: who waits for it raises it."""
        with self._lock:
            before = ticket.state
            if before not in (WAITING, ADMITTED) or (before == ADMITTED and refusal is not None):
                return
            ticket.refusal = refusal
            self._drop(ticket)
            self.counts.cancelled += 1
        if refusal is not None:
            _wake(ticket)
        self._fill()

    def _fill(self) -> None:
        """Lets in who comes next, as long as there are places."""
        while True:
            with self._lock:
                most = self.limits.max_queries
                found = self._next() if self.waiting and (most is None or self.running < most) else None
                if found is not None:
                    self._drop(found)
                    self._admit(found)
                emptied, self._emptied = ([], self._emptied) if self.running else (self._emptied, [])
            for tell in emptied:
                tell()
            if found is None:
                return
            if not _wake(found):  # its event loop has ended without it
                with self._lock:
                    self._drop(found)
                    self.counts.cancelled += 1

    def _next(self) -> Ticket:
        heads = [queue[0] for queue in self._queues.values()]
        return min(heads, key=lambda ticket: (self._served.get(ticket.tenant, 0.0), ticket.number))

    def change(self, limits: Limits) -> None:
        """Other limits hold from now on. Calls that wait are let in or wait on, as the new ones say."""
        with self._lock:
            self.limits = limits
            self._served.clear()
            self._now = 0.0
        self._fill()

    def when_empty(self, tell: Callable[[], object]) -> None:
        """Calls ``tell``, from any thread, when nobody is inside: now, if that is so."""
        with self._lock:
            self._emptied.append(tell)
        self._fill()

    def turn_away(self) -> None:
        """Wakes all who wait; they find that they were not admitted."""
        while True:
            with self._lock:
                found = self._next() if self.waiting else None
                if found is None:
                    return
                self._drop(found)
                found.refusal = Overloaded("the runtime was closed while this call waited for its turn")
                self.counts.overloaded += 1
            _wake(found)


def _wake(ticket: Ticket) -> bool:
    wake, ticket.wake = ticket.wake, None
    try:
        if wake is not None:
            wake()
    except RuntimeError:  # the loop is closed
        return False
    return True


_door = Door()
_governed = False

inside: ContextVar[bool] = ContextVar("fineflow_inside", default=False)
"""Whether the current code runs inside of a call that was admitted: calls that it makes need no place of their own."""


def door() -> Door:
    """The door of this process."""
    return _door


def govern(limits: Limits | None) -> None:
    """These limits hold from now on; None: no limits, and who waits is turned away."""
    global _governed
    _governed = limits is not None
    if limits is None:
        _door.turn_away()
    _door.change(limits or Limits())


def governed() -> bool:
    """Whether somebody has set limits, so that all calls are to be admitted and counted."""
    return _governed


def _forget() -> None:
    # In a forked child the calls of other threads do not exist, nor do those who hold the lock.
    global _door
    _door = Door(_door.limits)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def enter_sync(ticket: Ticket) -> None:
    """Waits in this thread until the call may begin. Raises Overloaded; CancelledError when its scope is stopped."""
    found, turn = ticket.door, threading.Lock()
    turn.acquire()
    if found.ask(ticket, turn.release, on_loop=asyncio._get_running_loop() is not None):
        return
    try:
        with on_stop(lambda: found.withdraw(ticket, asyncio.CancelledError())):
            turn.acquire()
    except BaseException:
        found.withdraw(ticket)
        raise
    if ticket.refusal is not None:
        raise ticket.refusal


async def enter(ticket: Ticket) -> None:
    """The same for a coroutine on any event loop."""
    if ticket.door.at_once(ticket):
        return
    await _turn(ticket)


async def _turn(ticket: Ticket) -> None:
    found, loop = ticket.door, asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    if found.ask(ticket, lambda: loop.call_soon_threadsafe(settle, turn)):
        return
    try:
        await turn
    except BaseException:
        found.withdraw(ticket)
        raise
    if ticket.refusal is not None:
        raise ticket.refusal


def settle(turn: asyncio.Future[None]) -> None:
    """Has whoever awaits it go on."""
    if not turn.done():
        turn.set_result(None)
