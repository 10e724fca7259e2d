"""Virtual time for threads and all event loops of the process: for frameworks whose sync methods start both.

``time.sleep``, the timers of every event loop made meanwhile, including the runtime's own, and measurements
(``events.now``) follow one clock. It jumps to the next alarm when no thread of the process is running any more: when
each is blocked, and none has been on a CPU for a while in which it could have been. Computation takes no virtual time,
however loaded the machine is, so measurements contain only the latencies.

The state of threads is read from /proc, hence Linux only. A thread that waits with its own timeout
(``Event.wait(0.1)``), or for something outside the process, counts as blocked.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

from fineflow.runtime import events
from fineflow.runtime.loop.runtime_loop import stop
from fineflow.testing.virtual import DeadlockError, Ran

T = TypeVar("T")

_NANOSECONDS = 10**9
_QUIET_SECONDS = 0.0001  # real, in which a thread that can go on has been seen to run
_PATIENCE_SECONDS = 20.0  # real, in which no thread runs and none sleeps
_THREADS = "/proc/self/task"
_active = threading.Lock()

available = os.path.exists(f"{_THREADS}/{threading.get_native_id()}/schedstat")
"""True if the kernel tells what a process's threads do. Sandboxes that count no switches do not have this file."""


class Clock:
    """Clock of one run. Starts at 0; whole nanoseconds."""

    def __init__(self) -> None:
        self._now = 0
        self._lock = threading.Lock()
        self._alarms: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._sleep = time.sleep  # the real one

    def time(self) -> float:
        """Returns the virtual seconds since the run began."""
        return self._now / _NANOSECONDS

    def sleep(self, seconds: float) -> None:
        """Replaces ``time.sleep``: sleeps in virtual time, from any thread."""
        woken = threading.Event()
        self.alarm(seconds, woken.set)
        woken.wait()

    def alarm(self, seconds: float, wake: Callable[[], object]) -> tuple[int, int, Callable[[], object]]:
        """Calls ``wake`` after that many virtual seconds; returns the alarm for ``silence``."""
        with self._lock:
            made = (self._now + max(0, round(seconds * _NANOSECONDS)), next(self._numbers), wake)
            heapq.heappush(self._alarms, made)
        return made

    def silence(self, alarm: tuple[int, int, Callable[[], object]]) -> None:
        """Cancels an alarm that has not gone off."""
        with self._lock, suppress(ValueError):
            self._alarms.remove(alarm)
            heapq.heapify(self._alarms)

    def advance(self) -> bool:
        """Jumps to the next alarm; returns False if there is none."""
        with self._lock:
            if not self._alarms:
                return False
            self._now, due = self._alarms[0][0], []
            while self._alarms and self._alarms[0][0] == self._now:
                due.append(heapq.heappop(self._alarms)[2])
        for wake in due:
            wake()
        return True

    def run(self, ended: Callable[[], bool]) -> None:
        """Advances the clock whenever no other thread is running, until ``ended``. Raises DeadlockError."""
        moved = time.monotonic()
        while not ended():
            before = _switches()
            self._sleep(_QUIET_SECONDS)
            if before != _switches() or not _blocked() or before != _switches() or self.advance():
                moved = time.monotonic()
            elif time.monotonic() - moved > _PATIENCE_SECONDS:
                raise DeadlockError(f"no thread is running after {self.time():g} virtual seconds, and none sleeps")


def _switches() -> int:
    """Returns how often other threads have left a CPU: what all of them do is one call, as reading /proc is not."""
    import resource  # Windows has none, and imports this module

    own, of_all = resource.getrusage(resource.RUSAGE_THREAD), resource.getrusage(resource.RUSAGE_SELF)
    return of_all.ru_nvcsw + of_all.ru_nivcsw - own.ru_nvcsw - own.ru_nivcsw


def _blocked() -> bool:
    """Returns True if no other thread runs, waits for a CPU or a disk, or has just ended."""
    own = str(threading.get_native_id())
    return all(name == own or _state(f"{_THREADS}/{name}/stat") == b"S" for name in os.listdir(_THREADS))


def _state(path: str) -> bytes:
    try:
        number = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.read(number, 1024).rpartition(b")")[2].split()[0]
    except ProcessLookupError:
        return b""
    finally:
        os.close(number)


class _Loop(asyncio.SelectorEventLoop):
    virtual = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(_Selector(clock, self._awake))

    def time(self) -> float:
        return self._clock.time()

    def _awake(self) -> None:
        with suppress(OSError, AttributeError):  # it has been closed meanwhile
            self._write_to_self()  # type: ignore[attr-defined]


class _Selector(selectors.DefaultSelector):
    """Waits on the clock, and for wake-ups by other threads."""

    def __init__(self, clock: Clock, awake: Callable[[], None]) -> None:
        super().__init__()
        self._clock, self._awake = clock, awake

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return super().select(None)
        found = super().select(0)
        if found or timeout <= 0:
            return found
        alarm = self._clock.alarm(timeout, self._awake)
        try:
            return super().select(None)
        finally:
            self._clock.silence(alarm)


class _Policy(asyncio.DefaultEventLoopPolicy):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop(self._clock)


@contextmanager
def _in_force(clock: Clock) -> Iterator[None]:
    """Runs the process by the clock inside the block; fineflow's runtime restarts with it, and ends with it."""
    policy, real, measured = asyncio.get_event_loop_policy(), time.sleep, events.__dict__["perf_counter"]
    process_time = events.__dict__["process_time"]
    stop()
    events.own_clock()
    asyncio.set_event_loop_policy(_Policy(clock))
    time.__dict__["sleep"], events.__dict__["perf_counter"] = clock.sleep, clock.time
    events.__dict__["process_time"] = float  # computing takes no virtual time
    try:
        yield
    finally:
        time.__dict__["sleep"], events.__dict__["perf_counter"] = real, measured
        events.__dict__["process_time"] = process_time
        asyncio.set_event_loop_policy(policy)
        stop()
        while clock.advance():  # a function that nobody waits for any more: its sleep ends, as time goes on
            pass


def run(call: Callable[[], T]) -> Ran[T]:
    """Returns the result of a function, run in its own thread, and the virtual seconds that it took.

    One run at a time per process; other threads of the process must not need real time. Raises what the function
    raises; DeadlockError if no thread can go on; RuntimeError on a machine without the needed /proc (``available``).
    """
    if not available:
        raise RuntimeError("virtual time for threads needs the thread statistics of /proc; this machine has none")
    clock, outcome = Clock(), list[Any]()

    def work() -> None:
        try:
            value = call()
        except BaseException as error:
            outcome.append((None, error, clock.time()))
        else:
            outcome.append((value, None, clock.time()))

    with _active, _in_force(clock):
        context = copy_context()
        thread = threading.Thread(target=context.run, args=(work,), name="virtual time", daemon=True)
        thread.start()
        clock.run(lambda: bool(outcome))
        # Leftovers of the call may still sleep on the clock, and must end before the clock does.
        ending = threading.Thread(target=stop, name="virtual time ends", daemon=True)
        ending.start()
        clock.run(lambda: not ending.is_alive())
    value, error, seconds = outcome[0]
    if error is not None:
        raise error
    return Ran(value, seconds)
