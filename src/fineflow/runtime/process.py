"""The runtime of this process: its limits, its statistics, its end.

There is one runtime per process, started on first use, without limits. A ``Runtime`` sets limits while it is open.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from fineflow.runtime.loop import runtime_loop
from fineflow.runtime.queues.admission import Limits, inside, process_admission, set_limits
from fineflow.runtime.queues.waiting_line import Ticket
from fineflow.runtime.statistics import Statistics, statistics

if TYPE_CHECKING:
    from fineflow.runtime.cluster.connection import Cluster

_lock = threading.Lock()
_open: Runtime | None = None


class Runtime:
    """Limits on the calls of optimized objects in this process, from ``start`` or ``with`` until it is closed.

    max_queries: most calls that run concurrently (None: any number). A call inside another one does not count. A batch
    that runs its inputs separately counts as one call per input. overload: beyond that, "wait", or "raise"
    ``Overloaded`` at once. max_waiting: most calls that may wait (None: any number); beyond that, ``Overloaded``.
    tenants: weights, by the name that a call sets in ``config["metadata"]["fineflow_tenant"]``; 1 for all others. If
    calls of several tenants wait, each tenant gets admissions and engine time in proportion to its weight. Inside a
    tenant, calls of a higher ``config["metadata"]["fineflow_priority"]`` (default 0) go first; waiting calls rise, so
    none starves. share_prefixes: True lets requests of different tenants use the same cached prefixes of prompts. By
    default they do not, so that no tenant can find out by timing what another one has asked; what all tenants' prompts
    begin with is then computed once for each of them.

    cluster: engines that processes share, on Ray (``engine``): "local" for those of this machine, on an instance that
    the first process starts, the others join, and that ends after the last one; "auto" or an address for a cluster that
    runs. It is connected to by ``start``, in each process that uses it: not before a fork.

    Raises: ValueError or TypeError for invalid limits; RuntimeError if another one is open; BackendError from ``start``
    if the cluster cannot be reached, ImportError without the extra ``ray``.
    """

    def __init__(
        self,
        *,
        max_queries: int | None = None,
        max_waiting: int | None = None,
        overload: Literal["wait", "raise"] = "wait",
        tenants: Mapping[str, float] | None = None,
        share_prefixes: bool = False,
        cluster: str | None = None,
    ) -> None:
        self.limits = Limits(max_queries, max_waiting, overload, dict(tenants or {}), share_prefixes)
        given: Any = cluster
        if given is not None and (not isinstance(given, str) or not given):
            raise TypeError(f'Runtime(cluster=...) is "local", "auto" or the address of a Ray cluster; got {cluster!r}')
        self.cluster = cluster
        self._connection: Cluster | None = None

    def start(self) -> Self:
        """Sets the limits, and connects to the cluster if there is one. Calls that already run count."""
        global _open
        with _lock:
            if _open is not None:
                raise RuntimeError(
                    "a fineflow.Runtime is open already, and a process has one at a time; close it first"
                )
            _open = self
        if self.cluster is not None:
            try:
                self._connect(self.cluster)
            except BaseException:
                _open = None
                raise
        set_limits(self.limits)
        return self

    def _connect(self, cluster: str) -> None:
        from fineflow.runtime.cluster.connection import Cluster

        self._connection = Cluster(cluster)

    def engine(
        self,
        name: str,
        factory: str | Callable[[], Any],
        *,
        instances: int = 1,
        resources: Mapping[str, float] | None = None,
        **group: Any,
    ) -> Any:
        """Returns the engine of a name on the cluster, for components; makes it if there is none yet.

        All processes that ask for the name get the same engine: their requests meet in one queue, with tenants,
        priorities and objectives. It stays when they leave, until ``remove_engine`` or the end of the cluster.

        name: in plans and timelines, too. factory: makes the engine in the process that will hold it: the name of a
        function, "module:function", or a function that cloudpickle can send. instances: actors that hold one each.
        resources: of each, as Ray counts them: ``num_cpus`` and ``num_gpus`` (0), ``memory`` (bytes), your own by name.
        group: ``affinity``, ``deduction`` and ``patience`` of ``fineflow.engines.instances``.

        Blocks until the models are loaded; on an event loop: ``await asyncio.to_thread(runtime.engine, ...)``.

        Raises: RuntimeError without a cluster; BackendError with the cause if the engine cannot be started; ValueError
        if the cluster has one of that name with other settings; TypeError or ValueError for invalid settings.
        """
        return self._connected("engine").engine(name, factory, instances, dict(resources or {}), group)

    def remove_engine(self, name: str) -> None:
        """Ends an engine of the cluster for all processes; their requests raise BackendError.

        Raises: RuntimeError without a cluster; BackendError if there is no such engine.
        """
        self._connected("remove_engine").remove(name)

    def _connected(self, method: str) -> Cluster:
        if self._connection is None:
            raise RuntimeError(f"Runtime.{method}() needs an open Runtime(cluster=...); this is {self!r}")
        return self._connection

    def close(self, timeout: float | None = None) -> None:
        """Lifts the limits; waiting calls get ``Overloaded``; waits for running calls to end.

        A stream runs until it is read to its end or closed. Engines stay open, and so does the thread that serves
        them: see ``shutdown``. Does nothing if this runtime is not open.

        Raises: TimeoutError if calls still run after ``timeout`` seconds; RuntimeError inside a call, or if it would
        block the thread of a running event loop.
        """
        if _open is self:
            _check_thread("Runtime.close()", "await aclose()")
            self._lift()
            try:
                _wait_sync(timeout)
            finally:
                self._disconnect()

    async def aclose(self, timeout: float | None = None) -> None:
        """Does the same as ``close``, from a coroutine on any event loop."""
        if _open is self:
            _check_outside("Runtime.aclose()")
            self._lift()
            try:
                await _wait(timeout)
            finally:
                await asyncio.to_thread(self._disconnect)

    def _lift(self) -> None:
        global _open
        with _lock:
            if _open is not self:
                return
            _open = None
        set_limits(None)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def statistics(self) -> Statistics:
        """Returns the statistics of this process, as ``fineflow.statistics()``."""
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
            self._disconnect()

    async def __aenter__(self) -> Self:
        return self.start() if self.cluster is None else await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            self._lift()
            await asyncio.to_thread(self._disconnect)

    def __repr__(self) -> str:
        found = self.limits
        return (
            f"Runtime(max_queries={found.max_queries}, max_waiting={found.max_waiting}, overload={found.overload!r}, "
            f"tenants={dict(found.tenants)}, share_prefixes={found.share_prefixes}, cluster={self.cluster!r})"
        )


def shutdown(timeout: float | None = 5.0) -> None:
    """Closes the open ``Runtime``, waits for running calls, and ends the runtime's thread. The next use restarts it.

    timeout: seconds to wait (None: without limit). Calls that still run then are left to stock (the framework's own
    code), or get a ``BackendError`` if an engine is working for them. Engines stay open: close them with ``aclose``.

    Raises: RuntimeError inside a call, or if it would block the thread of a running event loop.
    """
    _check_thread("fineflow.shutdown()", "await asyncio.to_thread(fineflow.shutdown)")
    found = _open
    if found is not None:
        found._lift()
    with suppress(TimeoutError):
        _wait_sync(timeout)
    if found is not None:
        found._disconnect()
    runtime_loop.stop()


def _check_outside(name: str) -> None:
    if inside.get() or runtime_loop.on_runtime_thread():
        raise RuntimeError(f"{name} was called inside a call of an optimized object, whose end it would wait for")


def _check_thread(name: str, instead: str) -> None:
    _check_outside(name)
    if asyncio._get_running_loop() is not None and process_admission().running:
        raise RuntimeError(f"{name} would block the event loop that runs in this thread; {instead}")


def _wait_sync(timeout: float | None) -> None:
    idle = Ticket()
    process_admission().when_idle(idle.end)
    if not idle.wait_sync(timeout):
        raise _still_running(timeout)


async def _wait(timeout: float | None) -> None:
    idle = Ticket()
    process_admission().when_idle(idle.end)
    try:
        async with asyncio.timeout(timeout):
            await idle.wait()
    except TimeoutError:
        raise _still_running(timeout) from None


def _still_running(timeout: float | None) -> TimeoutError:
    running = process_admission().running
    return TimeoutError(f"{running} calls are still running after {timeout} s; the limits are lifted all the same")
