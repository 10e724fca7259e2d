"""Calls as recorders see them: their ends, the intervals and the traces of each, and the runs that stock reported.

Costs nothing while no recorder is open: whoever makes calls asks ``recorders`` first. A call that began inside another
one belongs to that one.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fineflow.ir import Graph
from fineflow.ir.text import name_of
from fineflow.runtime import events
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.trace import Trace
from fineflow.runtime.loop.iteration import END, aanswer, answer

MOST = 10_000
"""Intervals and runs that are kept of one call."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A graph that ran ahead, or a call without one inside a recorded call.

    name: of its object. written: its p-graph.
    """

    name: str
    written: Graph
    summary: Summary


@dataclass(eq=False, slots=True)
class RecordedCall:
    """One outermost call. Seconds on the clock of ``events.now()``. It holds no inputs and outputs.

    number: of the call in this process. name: of its object. entry: the method, "" if stock did not say. optimized: of
    an object that ``optimize`` returned. obj: the user's own object. ended: None while it is under way. error: class of
    the exception that it ended with. intervals: what engines and components did for it. graphs: those of the calls in
    it that followed a plan, the outermost last. runs: outermost runs that stock reported. hidden: intervals that were
    too many to keep. finished: called with the call at its end.
    """

    number: int
    name: str
    entry: str
    optimized: bool
    obj: Callable[[], Any]
    began: float
    ended: float | None = None
    error: type[BaseException] | None = None
    intervals: list[events.Interval] = field(default_factory=list)
    graphs: list[Ended] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)
    hidden: int = 0
    finished: list[Callable[[RecordedCall], None]] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """True if it raised; a stream that its reader leaves has not failed."""
        return self.error is not None and self.error is not GeneratorExit

    @property
    def traces(self) -> list[Trace]:
        """Traces of the graphs that ran ahead, the outermost last."""
        found = [each.summary.trace for each in self.graphs]
        return [trace for trace in found if trace is not None and trace.runs]


recorders: list[Callable[[RecordedCall], None]] = []
"""Open recorders: each is called when a call begins. Empty: nothing is recorded. Change it by ``opened`` only."""

_under_way: dict[int, RecordedCall] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


@contextmanager
def opened(recorder: Callable[[RecordedCall], None]) -> Iterator[None]:
    """Adds a recorder for the length of the block."""
    with _lock:
        if not recorders:
            events.listen(_keep)
        recorders.append(recorder)
    try:
        yield
    finally:
        with _lock:
            recorders.remove(recorder)
            if not recorders:
                events.unlisten(_keep)
                _under_way.clear()


def _keep(interval: events.Interval) -> None:
    call = _under_way.get(interval.call)
    if call is None:  # outside of calls, or of a call that has ended
        return
    if len(call.intervals) < MOST:
        call.intervals.append(interval)
    else:
        call.hidden += 1


def current() -> RecordedCall | None:
    """Returns the recorded call that the current context belongs to."""
    return _under_way.get(events.call())


def begin(obj: Any, entry: str, *, optimized: bool, name: str = "") -> RecordedCall:
    """Begins a call. Its context has to be marked with its number (``events.mark_call``)."""
    made = RecordedCall(next(_numbers), name or name_of(obj), entry, optimized, weakly(obj), began=events.now())
    _under_way[made.number] = made
    for recorder in tuple(recorders):
        recorder(made)
    return made


def end(call: RecordedCall, error: type[BaseException] | None) -> None:
    """Ends a call. error: class of the exception that it ended with."""
    call.ended, call.error = events.now(), error
    _under_way.pop(call.number, None)
    for told in call.finished:
        told(call)


def ended(obj: Any, written: Graph, summary: Summary) -> None:
    """Adds a call that followed a plan, and has ended, to the recorded call that it is part of."""
    call = current()
    if call is not None:
        call.graphs.append(Ended(name_of(obj), written, summary))


def weakly(obj: Any) -> Callable[[], Any]:
    """Returns a weak reference; for None, and an object that has none, a function that returns None."""
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: None


run_here: ContextVar[Any] = ContextVar("fineflow_recorded_run", default=None)
"""The run that stock reported last in this context."""


def taken() -> None:
    """Notes that stock took a result of the graph in the current run: the run's time is none of its component's."""
    run = run_here.get()
    if run is not None:
        run.taken = True


def due() -> bool:
    """Returns True if a call that begins now is to be recorded: a recorder is open, and no call is around it."""
    return bool(recorders) and current() is None


@contextmanager
def call(obj: Any, entry: str) -> Iterator[None]:
    """Records the block as a call of an optimized object. Calls in it are part of it."""
    made = begin(obj, entry, optimized=True)
    token = events.mark_call(made.number)
    with _ending(made):
        try:
            yield
        finally:
            events.unmark_call(token)


@contextmanager
def _ending(made: RecordedCall) -> Iterator[None]:
    """Ends a recorded call with the block, by what that raises."""
    error: type[BaseException] | None = None
    try:
        yield
    except BaseException as raised:
        error = type(raised)
        raise
    finally:
        end(made, error)


class _Stream:
    """The call of a stream. The reader's code between two pieces is not part of it."""

    def __init__(self, obj: Any, entry: str) -> None:
        self.call = begin(obj, entry, optimized=True)

    def __enter__(self) -> None:
        self._token: Token[int] = events.mark_call(self.call.number)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # closed in another context
            events.unmark_call(self._token)


def stream(obj: Any, entry: str, start: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yields what ``start()`` yields, recorded as a call from the first piece to the end."""
    recorded, pieces = _Stream(obj, entry), None
    with _ending(recorded.call):
        try:
            with recorded:
                pieces = start()
            step = partial(answer, pieces)
            while True:
                with recorded:
                    piece = step()
                if piece is END:
                    break
                try:
                    step = partial(answer, pieces, (yield piece))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = partial(answer, pieces, error=error)
        finally:
            if pieces is not None and hasattr(pieces, "close"):
                with recorded:
                    pieces.close()


async def astream(obj: Any, entry: str, start: Callable[[], AsyncIterator[Any]]) -> AsyncIterator[Any]:
    """Does the same as ``stream``, for a coroutine."""
    recorded, pieces = _Stream(obj, entry), None
    with _ending(recorded.call):
        try:
            with recorded:
                pieces = start()
            step = partial(aanswer, pieces)
            while True:
                with recorded:
                    piece = await step()
                if piece is END:
                    break
                try:
                    step = partial(aanswer, pieces, (yield piece))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = partial(aanswer, pieces, error=error)
        finally:
            if pieces is not None and hasattr(pieces, "aclose"):
                with recorded:
                    await pieces.aclose()
