"""Events that engines and graph schedulers report to listeners while they work.

Costs nothing without listeners. Times are those of ``now()``: ``time.perf_counter()`` seconds except in virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one request to an LLM: of its prompt, those of them that were cached, and those that it decoded.

    told: the answer says how many were cached, so its provider has a cache. written: of the prompt, to that cache.
    reasoning: of those that it decoded.
    """

    prompt: int = 0
    cached: int = 0
    decoded: int = 0
    told: bool = field(default=False, compare=False)
    written: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """One piece of work on one engine (or of one primitive that runs on no engine).

    lane: engine name. label: display name of the work. queued/start/end: seconds. items: batch size of the request.
    batch: number of the engine batch it was part of; for an LLM, of the step in which it began (-1: no batches).
    origin: label set by ``labelled()`` around the call that caused it ("" outside). call: number of the recorded call
    that it was for (``runtime.recording``; 0: none). kind: operation (an ``Op``'s value), "" if the label tells it.
    note: anything else that is worth showing. together: items of the whole batch. tokens: of an LLM's request, if
    known. stamp: of the run of a primitive that it was for (``runtime.call.trace``; None: stock's own). model: name of
    the model that the tokens are of, if it is not that of the engine.
    """

    lane: str
    label: str
    queued: float
    start: float
    end: float
    items: int = 1
    batch: int = -1
    origin: str = ""
    call: int = 0
    kind: str = ""
    note: str = ""
    together: int = 1
    tokens: Tokens | None = None
    stamp: Any = None
    model: str = ""


class Meter(Protocol):
    """Learns costs from measurements (``cost_model.costs``). Called from any thread, for every piece of work."""

    def observe(self, engine: str, op: Any, size: float | None, seconds: float, *, together: float = 1.0) -> None:
        """Records that the engine took ``seconds`` for work of this size, without time in queues.

        op: an ``Op``. together: mean number of requests decoded in the same steps, this one included.
        """
        ...

    def observe_size(self, engine: str, op: Any, name: str, size: float) -> None:
        """Records that the primitive ``name`` gave the engine work of this size."""
        ...


meters: list[Meter] = []
"""Receivers of ``measured`` and ``sized``. Append only."""

_clocks = False  # a plain flag, as it is read many times in every call
_listeners: list[Callable[[Interval], None]] = []
_origin: contextvars.ContextVar[str] = contextvars.ContextVar("fineflow_origin", default="")
_call: contextvars.ContextVar[int] = contextvars.ContextVar("fineflow_recorded_call", default=0)
_subject: contextvars.ContextVar[str] = contextvars.ContextVar("fineflow_subject", default="")
_stamp: contextvars.ContextVar[Any] = contextvars.ContextVar("fineflow_stamp", default=None)


def now() -> float:
    """Returns seconds on the clock of the intervals: the running event loop's own clock if it is virtual."""
    if not _clocks:
        return perf_counter()
    loop = asyncio._get_running_loop()
    return loop.time() if loop is not None and getattr(loop, "virtual", False) else perf_counter()


def processor_time() -> float:
    """Returns the processor seconds of this process: 0 in virtual time, where computing takes none."""
    if _clocks and getattr(asyncio._get_running_loop(), "virtual", False):
        return 0.0
    return process_time()


def own_clock() -> None:
    """Enables event loops with their own clock, marked by an attribute ``virtual``."""
    global _clocks
    _clocks = True


def listening() -> bool:
    return bool(_listeners)


def listen(listener: Callable[[Interval], None]) -> None:
    """Adds a listener, which is called from any thread."""
    _listeners.append(listener)


def unlisten(listener: Callable[[Interval], None]) -> None:
    """Removes a listener."""
    _listeners.remove(listener)


def report(interval: Interval) -> None:
    """Passes an interval to every listener. Thread-safe."""
    for listener in tuple(_listeners):
        listener(interval)


def measured(engine: str, op: Any, size: float | None, seconds: float, *, together: float = 1.0) -> None:
    """Reports the cost of work of this size to the meters; for engines, which may not import the cost model."""
    for meter in meters:
        meter.observe(engine, op, size, seconds, together=together)


def sized(engine: str, op: Any, size: float, name: str | None = None) -> None:
    """Reports the size of a primitive's work to the meters. name: default is the current task's primitive."""
    for meter in meters:
        meter.observe_size(engine, op, _subject.get() if name is None else name, size)


def origin() -> str:
    """Returns the label that ``labelled()`` set around the current call."""
    return _origin.get()


def call() -> int:
    """Returns the number of the recorded call around the current code; 0 outside."""
    return _call.get()


def mark_call(number: int) -> contextvars.Token[int]:
    """Marks the current context as that of a recorded call."""
    return _call.set(number)


def unmark_call(token: contextvars.Token[int]) -> None:
    """Undoes ``mark_call``."""
    _call.reset(token)


def subject(otherwise: str) -> str:
    """Returns the name of the primitive that the current task works for, or ``otherwise`` outside of a graph."""
    return _subject.get() or otherwise


def stamp() -> Any:
    """Returns the stamp of the primitive's run that the current task works for; None outside of a graph."""
    return _stamp.get()


def about(name: str, stamp: Any = None) -> None:
    """Sets the primitive that the current task works for. stamp: of that run (``runtime.call.trace``)."""
    _subject.set(name)
    _stamp.set(stamp)


def began(ago: float) -> None:
    """Records that an engine began ``ago`` seconds ago to work for the current task. The first time counts."""
    stamp = _stamp.get()
    if stamp is not None:
        start = now() - ago
        stamp.begun = start if stamp.begun is None else min(stamp.begun, start)


class Service:
    """Request to an LLM engine: the view of the queue in front of it, and the times that the engine reports.

    number: in that queue. lane: of the instance that serves it. queued: start of its wait. begun, batch: time and
    number of the engine step in which it began; batch is ``number`` if the step is not known. reported: the engine has
    reported it. prompt, cached, decoded: tokens so far, as the engine's pieces say.
    """

    __slots__ = ("batch", "begun", "cached", "decoded", "lane", "number", "prompt", "queued", "reported")

    def __init__(self, number: int, queued: float) -> None:
        self.number = number
        self.lane = ""
        self.queued = queued
        self.begun: float | None = None
        self.batch = -1
        self.reported = False
        self.prompt = self.cached = self.decoded = 0

    @property
    def tokens(self) -> Tokens | None:
        return Tokens(self.prompt, self.cached, self.decoded) if self.prompt or self.decoded else None


_service: contextvars.ContextVar[Service | None] = contextvars.ContextVar("fineflow_service", default=None)


@contextmanager
def serving(service: Service) -> Iterator[None]:
    """Marks the enclosed use of an engine as work for one request of a queue."""
    token = _service.set(service)
    try:
        yield
    finally:
        _service.reset(token)


def ended(
    lane: str, label: str, queued: float, begun: float | None, batch: int, prefilled: Tokens | None = None
) -> None:
    """Reports, for an LLM engine, that the request of the current task has ended.

    label: display name outside of a graph. queued: time at which the engine got it; for a request from a queue, the
    time in that queue counts too. begun: time at which the engine began with it (None: never). batch: number of the
    engine step in which it did (-1: not known). prefilled: tokens of a prefill, which returns no pieces.
    """
    service = _service.get()
    if service is not None:
        lane, queued, service.reported = service.lane or lane, service.queued, True
        batch = service.number if batch < 0 and begun is not None else batch
        service.begun, service.batch = begun, batch
    if listening():
        end = now()
        start = end if begun is None else begun
        tokens = service.tokens if service is not None and prefilled is None else prefilled
        about: dict[str, Any] = {"origin": origin(), "call": call(), "tokens": tokens, "stamp": stamp()}
        report(Interval(lane, subject(label), queued, start, end, batch=batch, **about))


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Labels everything that the enclosed calls cause (``Interval.origin``)."""
    token = _origin.set(label)
    try:
        yield
    finally:
        _origin.reset(token)


@contextmanager
def record() -> Iterator[list[Interval]]:
    """Collects the intervals of everything that runs inside the block, on all threads."""
    found: list[Interval] = []
    listener = found.append
    listen(listener)
    try:
        yield found
    finally:
        unlisten(listener)
