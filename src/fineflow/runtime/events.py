"""What engines and graph schedulers report while they work, for whoever listens.

Costs nothing when nobody listens. Times are those of ``now()``: ``time.perf_counter()`` seconds but in virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Interval:
    """One piece of work on one engine (or of one primitive that runs on no engine).

    lane: engine name. label: what it was, for people. queued/start/end: seconds. items: batch size of the request.
    batch: number of the engine batch it was part of, of an LLM: of the step with which it began (-1 where there are no
    batches). origin: label set by
    ``labelled()`` around the call that caused it ("" outside).
    """

    lane: str
    label: str
    queued: float
    start: float
    end: float
    items: int = 1
    batch: int = -1
    origin: str = ""


class Meter(Protocol):
    """Learns from measurements what work costs (``cost_model.costs``). Called from any thread, for every piece
    of work.
    """

    def observe(self, engine: str, op: Any, size: float | None, seconds: float, *, together: float = 1.0) -> None:
        """The engine took so long for work of this size, time in queues not included.

        op: an ``Op``. together: how many requests it decoded in the same steps, on average, this one included.
        """
        ...

    def observe_size(self, engine: str, op: Any, name: str, size: float) -> None:
        """The primitive ``name`` gave the engine work of this size."""
        ...


meters: list[Meter] = []
"""Who is told by ``measured`` and ``sized``. Whoever appends one leaves it there."""

_clocks = False  # asked many times in every call
_listeners: list[Callable[[Interval], None]] = []
_origin: contextvars.ContextVar[str] = contextvars.ContextVar("fineflow_origin", default="")


_subject: contextvars.ContextVar[str] = contextvars.ContextVar("fineflow_subject", default="")
_stamp: contextvars.ContextVar[Any] = contextvars.ContextVar("fineflow_stamp", default=None)


def now() -> float:
    """Seconds on the clock of the intervals: that of the running event loop where it has one of its own."""
    if not _clocks:
        return perf_counter()
    loop = asyncio._get_running_loop()
    return loop.time() if loop is not None and getattr(loop, "virtual", False) else perf_counter()


def own_clock() -> None:
    """From now on there are event loops with a clock of their own, whose attribute ``virtual`` says so."""
    global _clocks
    _clocks = True


def listening() -> bool:
    return bool(_listeners)


def report(interval: Interval) -> None:
    """Hands an interval to every listener. Called from any thread."""
    for listener in tuple(_listeners):
        listener(interval)


def measured(engine: str, op: Any, size: float | None, seconds: float, *, together: float = 1.0) -> None:
    """Tells the meters what work of this size took, for engines below the layer that knows them."""
    for meter in meters:
        meter.observe(engine, op, size, seconds, together=together)


def sized(engine: str, op: Any, size: float, name: str | None = None) -> None:
    """Tells the meters how large the work of a primitive was: of the current task's where no name is given."""
    for meter in meters:
        meter.observe_size(engine, op, _subject.get() if name is None else name, size)


def origin() -> str:
    """The label that ``labelled()`` set around the current call."""
    return _origin.get()


def subject(otherwise: str) -> str:
    """The name of the primitive that the current task works for, or ``otherwise`` outside of a graph."""
    return _subject.get() or otherwise


def about(name: str, stamp: Any = None) -> None:
    """Says what the current context works for, until the end of its task. stamp: of that run
    (``runtime.call.trace``).
    """
    _subject.set(name)
    _stamp.set(stamp)


def began(ago: float) -> None:
    """An engine began so many seconds ago to work for the current task; the first time counts."""
    stamp = _stamp.get()
    if stamp is not None:
        start = now() - ago
        stamp.begun = start if stamp.begun is None else min(stamp.begun, start)


class Service:
    """A request to an LLM engine, as the queue in front of it knows it, and what the engine tells of it.

    number: in that queue. lane: of the instance that it is with. queued: since when it waits. begun, batch: when the
    engine began with it, and with which of its steps, or else ``number``. told: whether the engine has reported it.
    """

    __slots__ = ("batch", "begun", "lane", "number", "queued", "told")

    def __init__(self, number: int, queued: float) -> None:
        self.number = number
        self.lane = ""
        self.queued = queued
        self.begun: float | None = None
        self.batch = -1
        self.told = False


_service: contextvars.ContextVar[Service | None] = contextvars.ContextVar("fineflow_service", default=None)


@contextmanager
def serving(service: Service) -> Iterator[None]:
    """Marks the enclosed use of an engine as being for one request of a queue."""
    token = _service.set(service)
    try:
        yield
    finally:
        _service.reset(token)


def ended(lane: str, label: str, queued: float, begun: float | None, batch: int) -> None:
    """For LLM engines: the request that the current task works for has ended; reports it.

    label: what it was, outside of a graph. queued: when the engine got it; where it came through a queue, the time in
    that queue counts as well. begun: when the engine began with it (None: never); batch: the number of the step, of all
    its steps, with which it did (-1: not known).
    """
    service = _service.get()
    if service is not None:
        lane, queued, service.told = service.lane or lane, service.queued, True
        batch = service.number if batch < 0 and begun is not None else batch
        service.begun, service.batch = begun, batch
    if listening():
        end = now()
        start = end if begun is None else begun
        report(Interval(lane, subject(label), queued, start, end, batch=batch, origin=origin()))


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Marks everything that happens because of the enclosed calls."""
    token = _origin.set(label)
    try:
        yield
    finally:
        _origin.reset(token)


@contextmanager
def record() -> Iterator[list[Interval]]:
    """Collects the intervals of everything that runs meanwhile, from all threads."""
    found: list[Interval] = []
    _listeners.append(found.append)
    try:
        yield found
    finally:
        _listeners.remove(found.append)
