"""Gates and meters: tests use them to assert that two calls are in flight at once, without sleeping.

A fake component waits at a ``Gate`` that the test holds; the test waits until enough calls have arrived, makes its
checks, and opens the gate. Both sides may be threads or coroutines, on any event loop. A ``Meter`` counts a component's
work. Every wait has a timeout, so a wrong test fails instead of hanging.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from fineflow.runtime.events import now
from fineflow.runtime.loop.runtime_loop import post, set_done
from fineflow.runtime.loop.submission import run_sync


class _Signal:
    """Condition variable for threads and coroutines. ``lock`` guards the state of its owner."""

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self._futures: list[asyncio.Future[None]] = []

    def changed(self) -> None:
        """Makes all waiters check the state again. Called with the lock held."""
        self.lock.notify_all()
        futures, self._futures = self._futures, []
        for future in futures:
            post(future.get_loop(), set_done, future)

    def wait_sync(self, ready: Callable[[], bool], timeout: float, what: Callable[[], str]) -> None:
        with self.lock:
            if not self.lock.wait_for(ready, timeout):
                raise TimeoutError(f"{what()}, after {timeout} s")

    async def wait(self, ready: Callable[[], bool], timeout: float, what: Callable[[], str]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    with self.lock:
                        if ready():
                            return
                        future: asyncio.Future[None] = loop.create_future()
                        self._futures.append(future)
                    await future
        except TimeoutError:
            raise TimeoutError(f"{what()}, after {timeout} s") from None


class Gate:
    """A door, initially closed. ``arrivals``: number of calls that have reached it so far, waiting or passed."""

    def __init__(self, *, opened: bool = False) -> None:
        self._signal = _Signal()
        self._open = opened
        self._permits = 0
        self.arrivals = 0

    def open(self) -> None:
        """Lets all calls pass, now and later."""
        with self._signal.lock:
            self._open = True
            self._signal.changed()

    def let(self, n: int = 1) -> None:
        """Lets ``n`` calls pass that are waiting or arrive later."""
        with self._signal.lock:
            self._permits += n
            self._signal.changed()

    def close(self) -> None:
        """Makes later calls wait. Unused permits are void."""
        with self._signal.lock:
            self._open = False
            self._permits = 0

    def wait_sync(self, timeout: float = 10.0) -> None:
        """Arrives and blocks this thread until the gate lets it pass. Raises TimeoutError."""
        self._arrive()
        self._signal.wait_sync(self._pass, timeout, lambda: "the gate stayed closed")

    async def wait(self, timeout: float = 10.0) -> None:
        """Arrives and waits in the running event loop. Raises TimeoutError."""
        self._arrive()
        await self._signal.wait(self._pass, timeout, lambda: "the gate stayed closed")

    def wait_arrived(self, n: int = 1, timeout: float = 10.0) -> None:
        """Blocks until ``n`` calls have arrived in all. Raises TimeoutError."""
        self._signal.wait_sync(lambda: self.arrivals >= n, timeout, lambda: self._missing(n))

    async def arrived(self, n: int = 1, timeout: float = 10.0) -> None:
        """Waits in the running event loop until ``n`` calls have arrived in all. Raises TimeoutError."""
        await self._signal.wait(lambda: self.arrivals >= n, timeout, lambda: self._missing(n))

    def _arrive(self) -> None:
        with self._signal.lock:
            self.arrivals += 1
            self._signal.changed()

    def _pass(self) -> bool:
        if not self._open and self._permits > 0:
            self._permits -= 1
            return True
        return self._open

    def _missing(self, n: int) -> str:
        return f"expected {n} to arrive at the gate, {self.arrivals} did"

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # copies of a component share the test's gate

    def __repr__(self) -> str:
        return f"Gate({'open' if self._open else 'closed'}, arrivals={self.arrivals})"


def wait(gate: Gate | None, seconds: float = 0.0) -> None:
    """Waits at the gate, then for the latency."""
    if gate is not None:
        gate.wait_sync()
    if seconds > 0:
        time.sleep(seconds)


async def await_(gate: Gate | None, seconds: float = 0.0) -> None:
    """Async version of ``wait``."""
    if gate is not None:
        await gate.wait()
    if seconds > 0:
        await asyncio.sleep(seconds)


def wait_until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Polls until ``condition`` holds, on the runtime's loop, where its queues change. For all other threads.

    For state without a signal, such as the length of a queue. Raises TimeoutError.
    """

    async def look() -> None:
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(0)

    run_sync(look)


async def until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Polls until ``condition`` holds, in the running event loop, turn by turn. Async version of ``wait_until``.

    Raises TimeoutError. Schedules no timer, which ``fineflow.testing.leaks`` would count.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition did not hold within {timeout} s")
        await asyncio.sleep(0)


class Trap(Gate):
    """A gate that is open except for its ``at``-th caller, who meets ``error``, or waits if there is none.

    A fake component raises ``error`` itself, the same object, or hangs until the trap is opened; it then raises
    ``error`` if that has been set meanwhile. ``disarm`` lets all later calls pass.
    """

    def __init__(self, error: BaseException | None = None, *, at: int = 1) -> None:
        super().__init__()
        self.error = error
        self.at = at

    def disarm(self) -> None:
        """Turns it into an open gate."""
        self.at = 0
        self.open()

    def wait_sync(self, timeout: float = 10.0) -> None:
        """Arrives; raises ``error``, or blocks this thread until the trap is opened. Raises TimeoutError."""
        if self._caught():
            self._signal.wait_sync(self._pass, timeout, lambda: "the trap stayed closed")
            self._raise()

    async def wait(self, timeout: float = 10.0) -> None:
        """Async version of ``wait_sync``, in the running event loop."""
        if self._caught():
            await self._signal.wait(self._pass, timeout, lambda: "the trap stayed closed")
            self._raise()

    def _caught(self) -> bool:
        with self._signal.lock:
            self._arrive()
            caught = self.arrivals == self.at
        if caught:
            self._raise()
        return caught

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def __repr__(self) -> str:
        return f"Trap({self.error!r}, at={self.at}, arrivals={self.arrivals})"


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work. Times are ``time.perf_counter()`` seconds, or virtual ones."""

    label: str
    start: float
    end: float


class Meter:
    """Work of a component, counted from all threads.

    calls: number of calls started. in_flight: number running now. peak: maximum number running at once. labels: of the
    calls started, in order. spans: of the calls ended (in whatever way), in the order of ending.
    """

    def __init__(self) -> None:
        self._signal = _Signal()
        self.calls = 0
        self.in_flight = 0
        self.peak = 0
        self.labels: list[str] = []
        self.spans: list[Span] = []

    @contextmanager
    def work(self, label: str = "") -> Iterator[None]:
        """Counts the enclosed block as one piece of work."""
        with self._signal.lock:
            self.calls += 1
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
            self.labels.append(label)
        start = now()
        try:
            yield
        finally:
            with self._signal.lock:
                self.in_flight -= 1
                self.spans.append(Span(label, start, now()))
                self._signal.changed()

    def wait_idle(self, timeout: float = 10.0) -> None:
        """Blocks until nothing is running. Raises TimeoutError."""
        self._signal.wait_sync(lambda: self.in_flight == 0, timeout, self._busy)

    async def idle(self, timeout: float = 10.0) -> None:
        """Waits in the running event loop until nothing is running. Raises TimeoutError."""
        await self._signal.wait(lambda: self.in_flight == 0, timeout, self._busy)

    async def ended(self, n: int, timeout: float = 10.0) -> None:
        """Waits in the running event loop until ``n`` pieces of work have ended in all. Raises TimeoutError."""
        await self._signal.wait(lambda: len(self.spans) >= n, timeout, lambda: self._unfinished(n))

    def _unfinished(self, n: int) -> str:
        return f"expected {n} pieces of work to end, {len(self.spans)} have"

    def _busy(self) -> str:
        return f"expected the component to become idle, {self.in_flight} calls are still running"

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __repr__(self) -> str:
        return f"Meter(calls={self.calls}, in_flight={self.in_flight}, peak={self.peak})"
