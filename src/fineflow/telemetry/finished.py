"""An ended call as telemetry tells it: its steps, each with what engines did for it, as a tree."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fineflow.errors import Overloaded
from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.spec import bodies
from fineflow.observe.gain import saved_seconds
from fineflow.runtime.call.own_time import own_seconds
from fineflow.runtime.call.trace import CLAIMED, JOINED, LEFT, STOCK, Stamp, Stamps, Trace
from fineflow.runtime.events import Interval, Tokens
from fineflow.runtime.recording import Ended, RecordedCall

MOST = 1_000
"""Steps that are told of one call."""

_LEAST = 0.005  # seconds from which a function is told
_COMPUTING = frozenset({Op.RENDER, Op.PREFILL, Op.PARSE, Op.PICK, Op.RECORD, Op.AGGREGATE})
_FUNCTIONS = frozenset({Op.CALL, Op.PARTIAL_PREFILL})  # a prefill may turn out to be of no use
_CANCELLED = "CancelledError"
_OPS = {op.value: op for op in Op}
_RESULTS = {CLAIMED: "claimed", LEFT: "unclaimed", JOINED: "joined", STOCK: "stock"}


@dataclass(slots=True)
class FinishedStep:
    """One run of a primitive, or work of an engine that no primitive asked for. Seconds on ``events.now()``'s clock.

    op: None if the engine does not say. start: its inputs were there. waited: seconds until the work began. ran:
    seconds of its own work. result: fate of what it returned. error: class name of the exception that it raised.
    cancelled: it had not ended when the call did. work: what engines report of it.
    """

    name: str
    op: Op | None
    start: float
    end: float
    waited: float
    ran: float
    engine: str = ""
    primitive: Primitive | None = None
    result: str = ""
    error: str = ""
    cancelled: bool = False
    work: list[Interval] = field(default_factory=list)
    steps: list[FinishedStep] = field(default_factory=list)

    @property
    def tokens(self) -> Tokens | None:
        """Tokens of all its requests, if engines told them."""
        found = [each.tokens for each in self.work if each.tokens is not None]
        if not found:
            return None
        return Tokens(*(sum(getattr(each, name) for each in found) for name in Tokens.__slots__))

    def everything(self) -> Iterator[FinishedStep]:
        """Yields the step, and those inside it."""
        yield self
        for step in self.steps:
            yield from step.everything()


@dataclass(frozen=True, slots=True)
class FinishedPart:
    """A graph that ran ahead: of the call, of one inside it, or of one input of a batch."""

    graph: Ended
    trace: Trace
    steps: Sequence[FinishedStep]

    @property
    def saved(self) -> float:
        """Seconds of waiting that it saved, about."""
        return saved_seconds(self.graph.written, self.trace)


class FinishedCall:
    """A recorded call, and once it has ended, what it did. Made when it begins."""

    def __init__(self, call: RecordedCall) -> None:
        self.call = call
        # Once for each call: the clocks drift apart in the long run.
        self._epoch = time.time_ns() - int(call.began * 1e9)

    def nanoseconds(self, seconds: float) -> int:
        """Returns a time on the clock of ``events.now()`` in nanoseconds since the epoch."""
        return self._epoch + int(seconds * 1e9)

    @property
    def ended(self) -> float:
        return self.call.began if self.call.ended is None else self.call.ended

    @property
    def outcome(self) -> str:
        """Its end: finished, failed, cancelled (also a stream that its reader left) or overloaded."""
        error = self.call.error
        if error is None:
            return "finished"
        if issubclass(error, Overloaded):
            return "overloaded"
        return "failed" if issubclass(error, Exception) else "cancelled"

    @property
    def ahead(self) -> bool:
        """True if steps of it could run ahead; else it ran as stock."""
        return any(each.summary.trace is not None and each.summary.trace.runs for each in self.call.graphs)

    @property
    def claims(self) -> Mapping[str, int]:
        """Results of the graph that stock took, and that it left; calls of stock for which there was none."""
        found = [each.summary for each in self.call.graphs]
        return {
            "claimed": sum(each.claimed for each in found),
            "unclaimed": sum(each.unclaimed for each in found),
            "missed": sum(each.missed for each in found),
        }

    @cached_property
    def saved(self) -> float:
        """Seconds of waiting that it saved, about. Of a batch: those of the input that saved most."""
        if self._outermost is None:
            return max((part.saved for part in self.parts), default=0.0)
        return self._outermost.saved

    @cached_property
    def _read(self) -> tuple[list[FinishedPart], list[FinishedStep]]:
        """The graphs that ran ahead, the outermost last, and work of engines for none of their steps."""
        work: dict[tuple[int, int], list[Interval]] = {}
        for interval in self.call.intervals:
            work.setdefault((0, 0) if interval.stamp is None else interval.stamp.run, []).append(interval)
        traces = [(each, each.summary.trace) for each in self.call.graphs]
        parts = [_Reader(trace, work).part(each) for each, trace in traces if trace is not None and trace.runs]
        return parts, [_by_itself(interval) for found in work.values() for interval in found]

    @property
    def _outermost(self) -> FinishedPart | None:
        """The graph of the call itself; None for a batch of several, and if nothing could run ahead."""
        parts = self._read[0]
        return parts[-1] if len(parts) == 1 or (parts and not self.call.entry.endswith("batch")) else None

    @property
    def steps(self) -> Sequence[FinishedStep]:
        """Steps of the outermost object, and work of engines that stock asked for."""
        outermost, own = self._outermost, self._read[1]
        return own if outermost is None else [*outermost.steps, *own]

    @property
    def parts(self) -> Sequence[FinishedPart]:
        """Graphs of the calls inside it, or of the inputs of a batch."""
        return [part for part in self._read[0] if part is not self._outermost]

    def everything(self) -> Iterator[FinishedStep]:
        """Yields all steps."""
        for found in (self.steps, *(part.steps for part in self.parts)):
            for step in found:
                yield from step.everything()


def _by_itself(interval: Interval) -> FinishedStep:
    waited, ran = interval.start - interval.queued, interval.end - interval.start
    op = _OPS.get(interval.label)
    return FinishedStep(
        interval.label, op, interval.queued, interval.end, waited, ran, interval.lane, result="stock", work=[interval]
    )


class _Reader:
    """Reads the trace of one graph as steps. Takes the work that belongs to them out of ``work``."""

    def __init__(self, trace: Trace, work: dict[tuple[int, int], list[Interval]]) -> None:
        self._trace = trace
        self._work = work
        self._left = list(self._trace.runs[1:])  # runs of bodies that no step has taken yet

    def part(self, ended: Ended) -> FinishedPart:
        graph, stamps = self._trace.runs[0]
        steps = list(self._steps(graph, stamps))
        for body, inner in self._left:  # of a step that is not told
            steps += self._steps(body, inner)
        return FinishedPart(ended, self._trace, steps)

    def _steps(self, graph: Graph, stamps: Mapping[str, Stamp]) -> Iterator[FinishedStep]:
        errors = stamps.errors if isinstance(stamps, Stamps) else {}
        for p in graph:
            stamp = None if p.op in _COMPUTING and p.name not in errors else stamps.get(p.name)
            if stamp is None:
                continue
            inner = [step for body, each in self._runs(p, stamp) for step in self._steps(body, each)]
            work = self._work.pop(stamp.run, [])
            ended, error = stamp.ended, errors.get(p.name, "")
            cancelled = error == _CANCELLED or ended is None
            if p.by_stock and (stamp.begun is None or ended is None):
                yield from inner
                continue
            own = own_seconds(p, stamps, self._trace.runs)
            if p.op in _FUNCTIONS and own < _LEAST and not work and not inner and not error:
                continue
            begun = min((each.start for each in work), default=stamp.ready + stamp.waited)
            until = max(self._trace.ended if ended is None else ended, stamp.ready)
            yield FinishedStep(
                p.name,
                p.op,
                stamp.ready,
                until,
                max(begun - stamp.ready, 0.0),
                min(own, max(until - begun, 0.0)) if work else own,
                p.engine or "",
                p,
                _RESULTS.get(stamp.taken, ""),
                "" if cancelled else error,
                cancelled,
                work,
                inner,
            )

    def _runs(self, p: Primitive, stamp: Stamp) -> Iterator[tuple[Graph, Mapping[str, Stamp]]]:
        """Yields the runs of the bodies of a step."""
        end = self._trace.ended if stamp.ended is None else stamp.ended
        for _, body in bodies(p):
            for run in [run for run in self._left if run[0] is body]:
                first = min((inner.ready for inner in run[1].values()), default=stamp.ready)
                if stamp.ready <= first <= end:
                    self._left.remove(run)
                    yield run
