"""Admission of calls into the process: a bounded number of concurrent calls, from any thread and event loop.

Calls wait in a ``waiting_line`` like all requests: weighted fair queueing between tenants; inside a tenant higher
priorities first, then earlier arrivals. A waiting call rises with time, so none starves.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from fineflow.errors import Overloaded
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.queues.permits import PermitPool, PermitRequest, State
from fineflow.runtime.queues.policy import FairShares, Waiting, fifo

log = logging.getLogger("fineflow")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a ``Runtime``. Raises ValueError for values out of range, TypeError for values of a wrong type."""

    max_queries: int | None = None
    max_waiting: int | None = None
    overload: str = "wait"
    tenants: Mapping[str, float] = field(default_factory=dict)
    share_prefixes: bool = False

    def __post_init__(self) -> None:
        _count("max_queries", self.max_queries, 1)
        _count("max_waiting", self.max_waiting, 0)
        if self.overload not in ("wait", "raise"):
            raise ValueError(f"Runtime(overload=...) is 'wait' or 'raise', got {self.overload!r}")
        if self.max_waiting is not None and (self.max_queries is None or self.overload == "raise"):
            why = "without max_queries" if self.max_queries is None else "with overload='raise'"
            raise ValueError(f"Runtime(max_waiting={self.max_waiting}) has no effect {why}: no call ever waits")
        weights: Mapping[Any, Any] = self.tenants
        for tenant, weight in weights.items():
            if not isinstance(tenant, str) or isinstance(weight, bool) or not isinstance(weight, (int, float)):
                raise TypeError(f"Runtime(tenants=...) maps names to weights, got {tenant!r}: {weight!r}")
            if not 0 < weight < math.inf:
                raise ValueError(f"the weight of tenant {tenant!r} must be above 0 and finite, got {weight!r}")
        if not isinstance(self.share_prefixes, bool):
            raise TypeError(f"Runtime(share_prefixes=...) is True or False, got {self.share_prefixes!r}")
        object.__setattr__(self, "tenants", MappingProxyType(dict(self.tenants)))

    def weight(self, tenant: str) -> float:
        """Returns the weight of a tenant relative to others; 1 by default."""
        return float(self.tenants.get(tenant, 1.0))


def _count(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Runtime({name}=...) is a whole number or None, got {value!r}")
    if value < least:
        raise ValueError(f"Runtime({name}=...) must be at least {least}, got {value}")


_numbers = itertools.count(1)


class AdmissionRequest(PermitRequest):
    """Request to admit one call. number: id in logs. queued, began: times of ``events.now``."""

    __slots__ = ("admission", "began", "number", "priority", "queued", "tenant")

    def __init__(self, tenant: str = "", priority: int = 0) -> None:
        self.state = State.IDLE  # as in the base class, without a call: one is made in each call
        self.tenant = tenant
        self.priority = priority
        self.number = next(_numbers)
        self.queued = self.began = events.now()
        self.admission = process_admission()


@dataclass(slots=True)
class Counts:
    """Ended calls by outcome, and the seconds that calls waited and ran."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    overloaded: int = 0
    waited: float = 0.0
    ran: float = 0.0


class ProcessAdmission(PermitPool[AdmissionRequest]):
    """Permits for ``max_queries`` concurrent calls; running calls hold one, others wait for one."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        super().__init__(self.limits.max_queries, fifo)
        self.counts = Counts()
        self._on_idle: list[Callable[[], object]] = []

    def release(self, request: AdmissionRequest, error: BaseException | None = None) -> None:
        """Ends an admitted call and admits the next one. error: the error that it ended with."""
        with self._lock:
            if request.state is not State.GRANTED:
                return
            counts, ran = self.counts, events.now() - request.began
            counts.ran += ran
            if error is None:
                counts.finished += 1
            elif isinstance(error, Exception):
                counts.failed += 1
            else:
                counts.cancelled += 1
            self._end(request)
        if self._line or self._on_idle:
            self._grant_waiting()
        if log.isEnabledFor(logging.DEBUG):
            fields = {
                "event": "call",
                "call": request.number,
                "tenant": request.tenant,
                "waited": request.began - request.queued,
                "ran": ran,
                "error": None if error is None else type(error).__name__,
            }
            log.debug("call ended", extra=fields)

    def change(self, limits: Limits) -> None:
        """Applies new limits, to waiting calls too."""
        with self._lock:
            self.limits = limits
            self._line.shares = FairShares()
            for request in self._line:
                request.seen = replace(request.seen, weight=limits.weight(request.tenant))
        self.resize(limits.max_queries)

    def refuse_waiting(self) -> None:
        """Refuses all waiting calls: they raise Overloaded."""
        with self._lock:
            waiting = list(self._line)
            for request in waiting:
                super()._end(request)
            self.counts.overloaded += len(waiting)
        for request in waiting:
            request.turn.end(Overloaded("the runtime was closed while this call waited for its turn"))

    def when_idle(self, call: Callable[[], object]) -> None:
        """Calls ``call``, on any thread, as soon as no call is running: now, if none is."""
        with self._lock:
            self._on_idle.append(call)
        self._grant_waiting()

    def _record(self, request: AdmissionRequest, number: int) -> Waiting:
        weight = self.limits.weight(request.tenant)
        return Waiting(number, "", 0, Op.CALL, 1, tenant=request.tenant, weight=weight, priority=request.priority)

    def _grant(self, request: AdmissionRequest) -> None:
        if request.state is State.WAITING:
            request.began = events.now()
            self.counts.waited += request.began - request.queued
        super()._grant(request)

    def _end(self, request: AdmissionRequest, *, used: bool = True) -> None:
        super()._end(request)
        self.counts.cancelled += not used

    def _grant_waiting(self) -> None:
        super()._grant_waiting()
        if not self._on_idle:
            return
        with self._lock:
            idle, self._on_idle = ([], self._on_idle) if self.running else (self._on_idle, [])
        for call in idle:
            call()

    def _must_wait(self, request: AdmissionRequest, blocks_loop: bool) -> bool:
        limits, running = self.limits, f"{self.running} calls are running"
        if limits.overload == "raise":
            why = f"{running}, max_queries={limits.max_queries}; try again later, or overload='wait'"
        elif limits.max_waiting is not None and self.waiting >= limits.max_waiting:
            why = (
                f"{running} and {self.waiting} wait, with max_queries={limits.max_queries} and "
                f"max_waiting={limits.max_waiting}; try again later"
            )
        elif blocks_loop:
            why = (  # running calls may need that loop to finish
                f"{running}, max_queries={limits.max_queries}, and the thread of a running event loop cannot wait for "
                "them; await ainvoke(), aquery() or the like, or call from another thread"
            )
        else:
            return True
        self.counts.overloaded += 1
        if log.isEnabledFor(logging.DEBUG):
            fields = {"event": "overloaded", "tenant": request.tenant, "waiting": self.waiting}
            log.debug("call refused", extra=fields)
        raise Overloaded(why)


_admission = ProcessAdmission()
_in_force = False

inside: ContextVar[bool] = ContextVar("fineflow_inside", default=False)
"""True inside an admitted call: nested calls are part of it and need no admission."""


def process_admission() -> ProcessAdmission:
    """Returns the admission of this process."""
    return _admission


def set_limits(limits: Limits | None) -> None:
    """Applies limits from now on. None: lifts them; waiting calls raise Overloaded."""
    global _in_force
    _in_force = limits is not None
    if limits is None:
        _admission.refuse_waiting()
    _admission.change(limits or Limits())


def limits_in_force() -> bool:
    """Returns True while limits are set: then all calls are admitted and counted."""
    return _in_force


@in_forked_children
def _reset() -> None:
    # A forked child has neither the calls of other threads nor a thread that holds the lock.
    global _admission
    _admission = ProcessAdmission(_admission.limits)
