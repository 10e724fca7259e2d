"""The runtime of this process: its limits, its statistics, its end.

There is one runtime per process, started when it is first needed, without limits. A ``Runtime`` sets limits while it is
open.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from fineflow.runtime.loop import runtime_loop
from fineflow.runtime.queues.admission import Limits, inside, process_admission, set_limits
from fineflow.runtime.queues.waiting_line import Turn
from fineflow.runtime.statistics import Statistics, statistics

_lock = threading.Lock()
_open: Runtime | None = None


class Runtime:
    """Limits on the calls of optimized objects in this process, from ``start`` or ``with`` until it is closed.

    max_queries: calls that may be under way at once (None: any number). A call inside of another one does not count. A
    batch is a call per input where it runs so. overload: beyond that, "wait", or "raise" ``Overloaded`` at once.
    max_waiting: calls that may wait (None: any number); beyond that, ``Overloaded``. tenants: weights, by the name that
    a call gives in ``config["metadata"]["fineflow_tenant"]``; 1 for those not named. Where calls of several tenants
    wait, each gets its share of admissions, and of the engines, in proportion to its weight. Inside a tenant, calls of
    a higher ``config["metadata"]["fineflow_priority"]`` (default 0) come first; calls that wait rise, so none starves.

    Raises: ValueError or TypeError for invalid limits; RuntimeError where another one is open.
    """

    def __init__(
        self,
        *,
        max_queries: int | None = None,
        max_waiting: int | None = None,
        overload: Literal["wait", "raise"] = "wait",
        tenants: Mapping[str, float] | None = None,
    ) -> None:
        self.limits = Limits(max_queries, max_waiting, overload, dict(tenants or {}))

    def start(self) -> Self:
        """Sets the limits. Calls that are under way count."""
        global _open
        with _lock:
            if _open is not None:
                raise RuntimeError(
                    "a fineflow.Runtime is open already, and a process has one at a time; close it first"
                )
            _open = self
        set_limits(self.limits)
        return self

    def close(self, timeout: float | None = None) -> None:
        """Lifts the limits; calls that wait get ``Overloaded``; waits for those under way to end.

        A stream is under way until it is read to its end or closed. Engines stay open, and so does the thread that
        serves them: see ``shutdown``. Does nothing where it is not open.

        Raises: TimeoutError if calls are still under way after ``timeout`` seconds; RuntimeError inside a call, or on
        the thread of a running event loop where it would have to wait.
        """
        if _open is self:
            _check_thread("Runtime.close()", "await aclose()")
            self._lift()
            _wait_sync(timeout)

    async def aclose(self, timeout: float | None = None) -> None:
        """``close`` for a coroutine on any event loop."""
        if _open is self:
            _check_outside("Runtime.aclose()")
            self._lift()
            await _wait(timeout)

    def _lift(self) -> None:
        global _open
        with _lock:
            if _open is not self:
                return
            _open = None
        set_limits(None)

    def statistics(self) -> Statistics:
        """Statistics of this process: the same as ``fineflow.statistics()``."""
        return statistics()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # the error matters more than calls elsewhere that have not ended
            self._lift()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            self._lift()

    def __repr__(self) -> str:
        found = self.limits
        return (
            f"Runtime(max_queries={found.max_queries}, max_waiting={found.max_waiting}, overload={found.overload!r}, "
            f"tenants={dict(found.tenants)})"
        )


def shutdown(timeout: float | None = 5.0) -> None:
    """Closes the open ``Runtime``, waits for calls under way, and ends the runtime's thread. The next use restarts it.

    timeout: seconds to wait (None: without limit). Calls that are still under way then are left to stock, or get a
    ``BackendError`` where an engine was working for them. Engines stay open: close them by their ``aclose``.

    Raises: RuntimeError inside a call, and on the thread of a running event loop where it would have to wait.
    """
    _check_thread("fineflow.shutdown()", "await asyncio.to_thread(fineflow.shutdown)")
    found = _open
    if found is not None:
        found._lift()
    with suppress(TimeoutError):
        _wait_sync(timeout)
    runtime_loop.stop()


def _check_outside(name: str) -> None:
    if inside.get() or runtime_loop.on_engine_loop():
        raise RuntimeError(f"{name} was called inside a call of an optimized object, whose end it would wait for")


def _check_thread(name: str, instead: str) -> None:
    _check_outside(name)
    if asyncio._get_running_loop() is not None and process_admission().running:
        raise RuntimeError(f"{name} would block the event loop that runs in this thread; {instead}")


def _wait_sync(timeout: float | None) -> None:
    idle = Turn()
    process_admission().when_idle(idle.end)
    if not idle.wait_sync(timeout):
        raise _still_running(timeout)


async def _wait(timeout: float | None) -> None:
    idle = Turn()
    process_admission().when_idle(idle.end)
    try:
        async with asyncio.timeout(timeout):
            await idle.wait()
    except TimeoutError:
        raise _still_running(timeout) from None


def _still_running(timeout: float | None) -> TimeoutError:
    running = process_admission().running
    return TimeoutError(f"{running} calls are under way still after {timeout} s; the limits are lifted all the same")
