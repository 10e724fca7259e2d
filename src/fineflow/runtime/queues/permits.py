"""How many calls of one component may be at work at once, over all queries, threads and event loops of the process.

For what has no queue of batches in front of it: stores, retrievers, tools and functions that are called as they are.
Who waits comes next by the policies that engines have (``runtime.queues.policy``).

Nobody waits while he holds a place, so no two can wait for each other (``runtime.queues.component_calls``). A
sync call on the thread
of a running event loop does not wait at all (``hurried``): whoever holds a place may need that loop to get on.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from fineflow.errors import FineflowWarning
from fineflow.ir import Op
from fineflow.runtime.loop.scopes import on_stop
from fineflow.runtime.queues.admission import settle
from fineflow.runtime.queues.policy import Policy, Shares, Waiting, by_depth, decide, fifo
from fineflow.runtime.queues.registry import one_queue
from fineflow.runtime.queues.request_context import asks
from fineflow.runtime.statistics import watch

hurried: ContextVar[bool] = ContextVar("fineflow_hurried", default=False)
"""Whether an event loop stands still until the current code has ended, which therefore must not wait for others."""


in_use = False
"""Whether any component was ever limited in this process."""

_changes = 0


class Component:
    """What stands for a component of the user's in figures and queues: its name, and how often it may be at work."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: Places | None = None  # None: no limit
        self.keeps: Any = None  # what it stands for, where that is not the object itself

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.places or 'no limit'}>"

    def limit(self, at_once: int | None) -> None:
        """So many calls at once from now on; None: any number. Those that are under way go on."""
        global _changes, in_use
        places = self.places
        _changes += (places is None) is not (at_once is None)
        if at_once is not None:
            in_use = True
            places = self.places = one_queue(Places, self)
        elif places is not None:
            self.places = None
        if places is not None:
            places.change(at_once)


def changes() -> int:
    """How often a component was given a limit, or had it lifted: plans that are older do not know of the last time."""
    return _changes


finders: list[Callable[[Any], Component | None]] = []
"""Who is asked what stands for an object of the user's, if anything does. Whoever appends one leaves it there."""


def component_of(obj: Any) -> Component | None:
    """What stands for an object of the user's, if anything was ever limited, and it may be that."""
    for find in finders if in_use else ():
        if (found := find(obj)) is not None:
            return found
    return None


def limited(obj: Any) -> bool:
    """Whether an object of the user's has a limit now."""
    found = component_of(obj)
    return found is not None and found.places is not None


class _Waiter:
    """A call that waits for a place."""

    __slots__ = ("admitted", "before", "seen", "wake")

    def __init__(self, seen: Waiting, wake: Callable[[], object], before: int) -> None:
        self.seen = seen
        self.wake = wake
        self.before = before  # how many had been admitted when it came
        self.admitted = False


class Places:
    """The places of one component, and who waits for one. No method blocks but those that say so."""

    def __init__(self, engine: Component, policy: Policy = by_depth) -> None:
        self.engine = engine
        self.policy = policy
        self.at_once: int | None = None
        self.running = 0
        self.instances = (self,)
        self._lock = threading.RLock()  # Python may collect an abandoned stream inside, which then gives a place back
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiter] = {}
        self._shares = Shares()
        self._admitted = 0
        self._warned = False
        watch(self)
        _all.add(self)

    def __repr__(self) -> str:
        return f"{self.running} of {self.at_once} places taken, {self.waiting} waiting"

    @property
    def waiting(self) -> int:
        """How many calls wait for a place now."""
        return len(self._waiting)

    def change(self, at_once: int | None) -> None:
        """Another number of places, from now on."""
        self.at_once = at_once
        self._fill()

    def take(self, wake: Callable[[], object], *, wait: bool = True) -> _Waiter | None:
        """None: a place was free, or the call does not ``wait``. Else ``wake`` is called when it has one."""
        with self._lock:
            if not wait or (self._free() > 0 and not self._waiting):
                self.running += 1
                return None
            waiter = _Waiter(asks(next(self._numbers), Op.CALL, 1), wake, self._admitted)
            self._waiting[waiter.seen.number] = waiter
            return waiter

    def leave(self) -> None:
        """A place is free again."""
        with self._lock:
            self.running = max(self.running - 1, 0)  # of a parent process that has forked inside of a call
        self._fill()

    def withdraw(self, waiter: _Waiter) -> None:
        """A call does not wait any more, or had just got its place."""
        with self._lock:
            waiting = self._waiting.pop(waiter.seen.number, None) is not None
        if not waiting and waiter.admitted:
            self.leave()

    def _free(self) -> int:
        return len(self._waiting) + 1 if self.at_once is None else self.at_once - self.running

    def _fill(self) -> None:
        """Lets in who comes next, as long as there are places."""
        while True:
            with self._lock:
                found = self._next() if self._waiting and self._free() > 0 else []
                for waiter in found:
                    del self._waiting[waiter.seen.number]
                    waiter.admitted = True
                    self._shares.give(waiter.seen, 1)
                self.running += len(found)
                self._admitted += len(found)
            if not found:
                return
            for waiter in found:
                try:
                    waiter.wake()
                except RuntimeError:  # its event loop has ended without it
                    with self._lock:
                        waiter.admitted = False
                        self.running -= 1

    def _next(self) -> list[_Waiter]:
        waiting = self._seen()
        used = self._shares.waiting(each.tenant for each in waiting)
        try:
            takes = decide(self.policy, waiting, self._free(), used)
        except Exception as error:  # of a user's function: the answer does not depend on who comes first
            self._warn(f"raised {type(error).__name__}: {error}")
            takes = []
        numbers = list(dict.fromkeys(take.number for take in takes if take.number in self._waiting))[: self._free()]
        if not numbers:
            self._warn(f"took nobody of {len(waiting)} calls that wait")
            numbers = [fifo(waiting, 1)[0].number]
        return [self._waiting[number] for number in numbers]

    def _seen(self) -> list[Waiting]:
        waiters = self._waiting.values()
        if len({waiter.seen.priority for waiter in waiters}) > 1:
            return [replace(waiter.seen, passed=self._admitted - waiter.before) for waiter in waiters]
        return [waiter.seen for waiter in waiters]

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            text = f"the policy of {self.engine.name!r} {what}; calls are served in the order of their arrival instead"
            warnings.warn(text, FineflowWarning, stacklevel=2)

    def forget(self) -> None:
        """In a forked child the calls of other threads do not exist, nor do those who hold the lock."""
        self._lock = threading.RLock()
        self._waiting.clear()
        self.running = 0


_all: weakref.WeakSet[Places] = weakref.WeakSet()


def _forget() -> None:
    for places in tuple(_all):
        places.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


async def wait(places: Places) -> None:
    """Waits for a place, and takes it."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    waiter = places.take(lambda: loop.call_soon_threadsafe(settle, turn), wait=not hurried.get())
    if waiter is not None:
        try:
            await turn
        except BaseException:
            places.withdraw(waiter)
            raise


def wait_sync(places: Places) -> None:
    """The same in a thread, which it blocks. CancelledError when the deadline of its call has passed."""
    turn = threading.Lock()
    turn.acquire()
    stopped: list[bool] = []

    def go_on() -> None:
        with suppress(RuntimeError):  # it is both its turn, and too late
            turn.release()

    def stop() -> None:
        stopped.append(True)
        go_on()

    waiter = places.take(go_on, wait=not hurried.get() and asyncio._get_running_loop() is None)
    if waiter is None:
        return
    try:
        with on_stop(stop):
            turn.acquire()
        if stopped:
            raise asyncio.CancelledError("the call was stopped while it waited for a place")
    except BaseException:
        places.withdraw(waiter)
        raise
