"""What of a call took how long: a stamp per primitive, and the path that decided when the call ended.

Recorded of every call, as it costs little (half a microsecond per primitive), and kept of the last call of an object.
Times only, none of the call's values: seconds, as ``events.now()`` counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fineflow.ir import Graph, Primitive
from fineflow.ir.spec import bodies
from fineflow.ir.text import inside
from fineflow.runtime import events

CLAIMED, JOINED, LEFT, STOCK = "claimed", "stock was first", "not claimed", "run by stock"


class Stamp:
    """One run of one primitive: its inputs were there (``ready``), an engine began with it, it ended."""

    __slots__ = ("begun", "ended", "entry", "ready", "taken")

    def __init__(self, ready: float, taken: str = "") -> None:
        self.ready = ready
        self.begun: float | None = None  # None: when it was ready
        self.ended: float | None = None  # None: it did not
        self.entry: Any = None  # what stock may claim of it; let go of at the end of the call
        self.taken = taken  # what became of it

    def works(self, entry: Any, mine: bool) -> None:
        """Stock may claim it. mine: the graph does the work, and not stock, which was there before."""
        self.entry, self.taken = entry, "" if mine else JOINED

    def end(self) -> None:
        """Something that was done for it has ended: the last time counts."""
        self.ended = events.now()

    def settle(self) -> None:
        """The call is over: keeps whether stock took the result, and nothing else of it."""
        entry, self.entry = self.entry, None
        if entry is not None and not self.taken:
            self.taken = CLAIMED if entry.by_stock else LEFT

    @property
    def waited(self) -> float:
        """Seconds between inputs and work: in the queue of its engine, or for its turn (``max_concurrency``)."""
        return max((self.ready if self.begun is None else self.begun) - self.ready, 0.0)

    @property
    def ran(self) -> float:
        begun = self.ready if self.begun is None else self.begun
        return 0.0 if self.ended is None else max(self.ended - begun, 0.0)


class Stamps(dict[str, Stamp]):
    """The stamps of one run of a graph, by primitive; one that is asked for and not there is made."""

    def __missing__(self, name: str) -> Stamp:
        stamp = self[name] = Stamp(events.now())
        return stamp


@dataclass(frozen=True, slots=True)
class Trace:
    """One call. ``entry``: the method it came in by. ``runs``: the graph of the call first, then of bodies, a row each
    time that one was started.
    """

    entry: str
    began: float
    ended: float
    runs: Sequence[tuple[Graph, Mapping[str, Stamp]]]

    @property
    def graph(self) -> Graph:
        """The e-graph that ran."""
        return self.runs[0][0]

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def of(self, graph: Graph) -> list[Mapping[str, Stamp]]:
        """The stamps of every time that this very graph was run."""
        return [stamps for each, stamps in self.runs if each is graph]


@dataclass(frozen=True, slots=True)
class Step:
    """A primitive of a call: all of its runs together, which are several only in bodies.

    name: with what it is inside of. ready: seconds from the start of the call to the first time that its inputs were
    there. waited, ran: of the run that took longest. ended: whether all did. times: how many runs. taken: what became
    of those whose result stock may claim: claimed, not claimed, stock was first, run by stock.
    """

    name: str
    primitive: Primitive
    ready: float
    waited: float
    ran: float
    ended: bool
    times: int
    taken: tuple[str, ...]


def steps(trace: Trace) -> Iterator[Step]:
    """Every primitive that the call got to, in program order, bodies behind the primitive that has them."""
    yield from _steps(trace, trace.graph, "")


def _steps(trace: Trace, graph: Graph, prefix: str) -> Iterator[Step]:
    runs = trace.of(graph)
    for p in graph:
        found = [stamps[p.name] for stamps in runs if p.name in stamps]
        if found := [stamp for stamp in found if stamp.ended is not None or stamp.taken != STOCK]:
            longest = max(found, key=lambda stamp: stamp.ran)
            yield Step(
                prefix + p.name,
                p,
                min(stamp.ready for stamp in found) - trace.began,
                longest.waited,
                longest.ran,
                all(stamp.ended is not None for stamp in found),
                len(found),
                tuple(stamp.taken for stamp in found if stamp.taken),
            )
        for heading, body in bodies(p):
            yield from _steps(trace, body, prefix + inside(p.name, heading))


def measured_path(trace: Trace) -> tuple[tuple[str, float], ...]:
    """The measured critical path: from the end of the call's graph back to the start, always to the input that came
    last. With each primitive the seconds from that input to its own end; those in a body come behind its primitive.
    """
    if not trace.runs:
        return ()
    graph, stamps = trace.runs[0]
    return tuple(_path(trace, graph, stamps, "", trace.began))


def _path(
    trace: Trace, graph: Graph, stamps: Mapping[str, Stamp], prefix: str, began: float
) -> Iterator[tuple[str, float]]:
    ends, last = _ends(graph, stamps, began)
    path = [graph.output.name] if graph.output.name in graph else []
    while path and (before := last[path[-1]]) is not None:
        path.append(before)
    times = [began, *(ends[name] for name in reversed(path))]
    for name, (start, end) in zip(reversed(path), pairwise(times), strict=True):
        if name in stamps:
            yield prefix + name, max(end - start, 0.0)
            yield from _inner(trace, graph[name], end, prefix)


def _ends(graph: Graph, stamps: Mapping[str, Stamp], began: float) -> tuple[dict[str, float], dict[str, str | None]]:
    """When each primitive had ended, and which of its inputs was the last. What streams ends with what it reads."""
    ends: dict[str, float] = {}
    last: dict[str, str | None] = {}
    for p in graph:
        before = [name for name in (*(ref.name for ref in p.args.values()), *p.after) if name in ends]
        last[p.name] = max(before, key=lambda name: ends[name], default=None)
        start = max((ends[name] for name in before), default=began)
        stamp = stamps.get(p.name)
        ends[p.name] = max(start, stamp.ended if stamp is not None and stamp.ended is not None else start)
    return ends, last


def _inner(trace: Trace, p: Primitive, end: float, prefix: str) -> Iterator[tuple[str, float]]:
    """Of the bodies that ran for a primitive, the path of the one that ended last."""
    ran = [
        (heading, body, stamps)
        for heading, body in bodies(p)
        for stamps in trace.of(body)
        if any(stamp.ended is not None and stamp.ended <= end for stamp in stamps.values())
    ]
    if ran:
        heading, body, stamps = max(ran, key=lambda run: max(s.ended or 0.0 for s in run[2].values()))
        first = min(stamp.ready for stamp in stamps.values())
        yield from _path(trace, body, stamps, prefix + inside(p.name, heading), first)
