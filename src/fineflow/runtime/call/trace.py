"""What of a call took how long: a stamp per primitive, and the path that decided when the call ended.

Recorded of every call, as it costs little (about a microsecond per primitive), and kept of the last call of an object.
Times only, none of the call's values: seconds, as ``events.now()`` counts them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fineflow.ir import Graph, Primitive
from fineflow.ir.spec import bodies
from fineflow.ir.text import inside
from fineflow.runtime import events

CLAIMED, JOINED, LEFT, STOCK = "claimed", "stock was first", "not claimed", "run by stock"


class Stamp:
    """One run of one primitive: its inputs were there (``ready``), an engine began with it, it ended.

    A view of a row of ``Stamps``; one that is made by itself has a row of its own.
    """

    __slots__ = ("_of", "_place")

    def __init__(self, ready: float, taken: str = "") -> None:
        self._of, self._place = Stamps({"": 0}), 0
        self.ready, self.taken = ready, taken

    @property
    def ready(self) -> float:
        return self._of.time(self._place, _READY)

    @ready.setter
    def ready(self, seconds: float) -> None:
        self._of.note(self._place, _READY, seconds)

    @property
    def begun(self) -> float | None:
        """None: when it was ready."""
        return _known(self._of.time(self._place, _BEGUN))

    @begun.setter
    def begun(self, seconds: float | None) -> None:
        self._of.note(self._place, _BEGUN, _NEVER if seconds is None else seconds)

    @property
    def ended(self) -> float | None:
        """None: it did not."""
        return _known(self._of.time(self._place, _ENDED))

    @ended.setter
    def ended(self, seconds: float | None) -> None:
        self._of.note(self._place, _ENDED, _NEVER if seconds is None else seconds)

    @property
    def taken(self) -> str:
        """What became of it."""
        return self._of.taken(self._place)

    @taken.setter
    def taken(self, what: str) -> None:
        self._of.take(self._place, what)

    def end(self) -> None:
        """Something that was done for it has ended: the last time counts."""
        self.ended = events.now()

    @property
    def waited(self) -> float:
        """Seconds between inputs and work: in the queue of its engine, or for its turn (``max_concurrency``)."""
        return max((self.ready if self.begun is None else self.begun) - self.ready, 0.0)

    @property
    def ran(self) -> float:
        begun = self.ready if self.begun is None else self.begun
        return 0.0 if self.ended is None else max(self.ended - begun, 0.0)


class Stamps(Mapping[str, Stamp]):
    """The stamps of one run of a graph, by primitive; those of primitives that it did not get to are not there.

    Kept as plain bytes: there are some for every primitive of every call that is under way, and what Python's garbage
    collector has to look at slows down everybody.
    """

    __slots__ = ("_bytes", "_places", "graph")

    def __init__(self, places: Mapping[str, int], graph: Graph | None = None) -> None:
        self.graph = graph
        self._places = places  # number of each primitive
        self._bytes = bytearray(_EMPTY * len(places))  # for each: ready, begun, ended, what became of it

    def time(self, place: int, which: int) -> float:
        seconds: float = _DOUBLE.unpack_from(self._bytes, place * _ROW + which)[0]
        return seconds

    def note(self, place: int, which: int, seconds: float) -> None:
        _DOUBLE.pack_into(self._bytes, place * _ROW + which, seconds)

    def taken(self, place: int) -> str:
        return _TAKEN[self._bytes[place * _ROW + _FATE]]

    def take(self, place: int, what: str) -> None:
        self._bytes[place * _ROW + _FATE] = _TAKEN.index(what)

    def at(self, name: str) -> Stamp:
        """The stamp of a primitive, whether or not it was got to."""
        made = Stamp.__new__(Stamp)
        made._of, made._place = self, self._places[name]
        return made

    def ready(self, name: str) -> None:
        """Its inputs are there."""
        _DOUBLE.pack_into(self._bytes, self._places[name] * _ROW + _READY, events.now())

    def ended(self, name: str, seconds: float | None = None) -> None:
        """It has its value, or has failed, at that time, or now."""
        now = events.now() if seconds is None else seconds
        _DOUBLE.pack_into(self._bytes, self._places[name] * _ROW + _ENDED, now)

    def __getitem__(self, name: str) -> Stamp:
        if name not in self:
            raise KeyError(name)
        return self.at(name)

    def __contains__(self, name: object) -> bool:
        place = self._places.get(name)  # type: ignore[call-overload]
        return place is not None and _known(self.time(place, _READY)) is not None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._places if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_NEVER = math.nan
_TAKEN = ("", CLAIMED, JOINED, LEFT, STOCK)
_DOUBLE = struct.Struct("d")
_READY, _BEGUN, _ENDED, _FATE = (i * _DOUBLE.size for i in range(4))
_EMPTY = _DOUBLE.pack(_NEVER) * 3 + bytes(_DOUBLE.size)
_ROW = len(_EMPTY)


def _known(seconds: float) -> float | None:
    return None if seconds != seconds else seconds


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
