"""Times of a call: a stamp per primitive, and the measured critical path.

Recorded for every call, as it costs little (about a microsecond per primitive), and kept for an object's last call.
Holds times only, none of the call's values: seconds on the clock of ``events.now()``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from fineflow.ir import Graph, Primitive
from fineflow.ir.spec import bodies
from fineflow.ir.text import inside
from fineflow.runtime import events
from fineflow.runtime.call.own_time import own_seconds

CLAIMED, JOINED, LEFT, STOCK = "claimed", "stock was first", "not claimed", "run by stock"


class Warmed(int):
    """Tokens that were prefilled ahead: 0 if that was not worth a request.

    of: tokens of the beginning, in whole blocks of the cache. cached: those of them that the engine had already. busy:
    not prefilled, as other calls had work on every instance. why: any other reason why they were not.
    """

    of: int
    cached: int
    busy: bool
    why: str

    def __new__(cls, prefilled: int, of: int, cached: int, *, busy: bool = False, why: str = "") -> Warmed:
        made = super().__new__(cls, prefilled)
        made.of, made.cached, made.busy, made.why = of, cached, busy, why
        return made

    @property
    def said(self) -> str:
        """What became of the beginning, for people."""
        new = self.of - self.cached
        if self:
            return f"{new} of {self.of} tokens prefilled"
        if self.why:
            return f"{new} of {self.of} tokens left for the request: {self.why}"
        if self.busy:
            return f"{new} of {self.of} tokens left for the request: other calls kept the engine busy"
        return f"cached already: {self.cached} of {self.of} tokens" if self.cached else f"only {new} tokens"


class Stamp:
    """Times of one run of one primitive: inputs available (``ready``), work begun on an engine, ended.

    A view of a row of ``Stamps``; a stamp created by itself has its own row.
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
        """None: work began when the inputs were ready."""
        return _known(self._of.time(self._place, _BEGUN))

    @begun.setter
    def begun(self, seconds: float | None) -> None:
        self._of.note(self._place, _BEGUN, _NEVER if seconds is None else seconds)

    @property
    def ended(self) -> float | None:
        """None: not ended."""
        return _known(self._of.time(self._place, _ENDED))

    @ended.setter
    def ended(self, seconds: float | None) -> None:
        self._of.note(self._place, _ENDED, _NEVER if seconds is None else seconds)

    @property
    def taken(self) -> str:
        """Fate of the result: CLAIMED, JOINED, LEFT, STOCK or ""."""
        return self._of.taken(self._place)

    @taken.setter
    def taken(self, what: str) -> None:
        self._of.take(self._place, what)

    @property
    def run(self) -> tuple[int, int]:
        """Identity of the run of the primitive, for as long as its stamps exist."""
        return id(self._of), self._place

    def end(self) -> None:
        """Sets ``ended`` to now. May be called repeatedly: the last time counts."""
        self.ended = events.now()

    @property
    def waited(self) -> float:
        """Seconds between inputs and work: in the queue of its engine, or waiting for a slot (``max_concurrency``)."""
        return max((self.ready if self.begun is None else self.begun) - self.ready, 0.0)

    @property
    def ran(self) -> float:
        begun = self.ready if self.begun is None else self.begun
        return 0.0 if self.ended is None else max(self.ended - begun, 0.0)


class Stamps(Mapping[str, Stamp]):
    """Stamps of one run of a graph, by primitive, without those that it did not reach.

    Kept as plain bytes: there is a row for every primitive of every running call, and objects that Python's garbage
    collector must visit slow down the whole process.
    """

    __slots__ = ("_bytes", "_places", "errors", "graph", "warmed")

    def __init__(self, places: Mapping[str, int], graph: Graph | None = None) -> None:
        self.graph = graph
        self.errors: Mapping[str, str] = _NONE  # primitive -> class name of the exception that it ended with
        self.warmed: Mapping[str, Warmed] = _UNWARMED  # primitive -> what its prefill did
        self._places = places  # number of each primitive
        self._bytes = bytearray(_EMPTY * len(places))  # for each: ready, begun, ended, fate

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
        """Returns the stamp of a primitive, reached or not."""
        made = Stamp.__new__(Stamp)
        made._of, made._place = self, self._places[name]
        return made

    def ready(self, name: str) -> None:
        """Stamps the primitive's inputs as available now."""
        _DOUBLE.pack_into(self._bytes, self._places[name] * _ROW + _READY, events.now())

    def ended(self, name: str, seconds: float | None = None) -> None:
        """Stamps the end of the primitive, by value or failure: at that time, or now."""
        now = events.now() if seconds is None else seconds
        _DOUBLE.pack_into(self._bytes, self._places[name] * _ROW + _ENDED, now)

    def failed(self, name: str, error: BaseException) -> None:
        """Notes that the primitive failed by itself, or was cancelled. Keeps the class: messages may quote values."""
        self.errors = {**self.errors, name: type(error).__name__}

    def prefilled(self, name: str, tokens: Warmed) -> None:
        """Notes what a prefill ahead did."""
        self.warmed = {**self.warmed, name: tokens}

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
_NONE: Mapping[str, str] = MappingProxyType({})
_UNWARMED: Mapping[str, Warmed] = MappingProxyType({})
_TAKEN = ("", CLAIMED, JOINED, LEFT, STOCK)
_DOUBLE = struct.Struct("d")
_READY, _BEGUN, _ENDED, _FATE = (i * _DOUBLE.size for i in range(4))
_EMPTY = _DOUBLE.pack(_NEVER) * 3 + bytes(_DOUBLE.size)
_ROW = len(_EMPTY)


def _known(seconds: float) -> float | None:
    return None if seconds != seconds else seconds


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace of one call.

    entry: the method that was called. runs: first the graph of the call, then each start of a body. inside: seconds
    that component calls inside user functions had run before stock made them.
    """

    entry: str
    began: float
    ended: float
    runs: Sequence[tuple[Graph, Mapping[str, Stamp]]]
    inside: float = 0.0

    @property
    def graph(self) -> Graph:
        """The e-graph that ran."""
        return self.runs[0][0]

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def of(self, graph: Graph) -> list[Mapping[str, Stamp]]:
        """Returns the stamps of every run of this graph object."""
        return [stamps for each, stamps in self.runs if each is graph]


@dataclass(frozen=True, slots=True)
class Step:
    """All runs of one primitive of a call; more than one only in bodies.

    name: prefixed with the primitives that it is inside of. ready: seconds from the start of the call until its inputs
    were first available. waited, ran: seconds, of the longest run; ``ran`` is its own work, without waits for what it
    reads piece by piece or takes from the graph. ended: all runs ended. times: number of runs.
    taken: fate of the results that stock may claim: claimed, not claimed, stock was first, run by stock. warmed: what
    prefills ahead did.
    """

    name: str
    primitive: Primitive
    ready: float
    waited: float
    ran: float
    ended: bool
    times: int
    taken: tuple[str, ...]
    warmed: tuple[str, ...] = ()


def steps(trace: Trace) -> Iterator[Step]:
    """Yields every primitive that the call reached, in program order; bodies follow their primitive."""
    yield from _steps(trace, trace.graph, "")


def _steps(trace: Trace, graph: Graph, prefix: str) -> Iterator[Step]:
    runs = trace.of(graph)
    for p in graph:
        found = [stamps[p.name] for stamps in runs if p.name in stamps]
        if found := [stamp for stamp in found if stamp.ended is not None or stamp.taken != STOCK]:
            own = [own_seconds(p, stamps, trace.runs) for stamps in runs if p.name in stamps]
            longest = max(found, key=lambda stamp: stamp.ran)
            yield Step(
                prefix + p.name,
                p,
                min(stamp.ready for stamp in found) - trace.began,
                longest.waited,
                max(own),
                all(stamp.ended is not None for stamp in found),
                len(found),
                tuple(stamp.taken for stamp in found if stamp.taken),
                tuple(said for stamps in runs if (said := _warmed(stamps, p.name))),
            )
        for heading, body in bodies(p):
            yield from _steps(trace, body, prefix + inside(p.name, heading))


def _warmed(stamps: Mapping[str, Stamp], name: str) -> str:
    found = stamps.warmed.get(name) if isinstance(stamps, Stamps) else None
    return "" if found is None else found.said


def measured_path(trace: Trace) -> tuple[tuple[str, float], ...]:
    """Returns the measured critical path: from the output back to the start, always along the last input to arrive.

    Each primitive comes with the seconds from that input to its own end. Those in a body follow its primitive.
    """
    return tuple((name, end - start) for name, start, end in measured_spans(trace))


def measured_spans(trace: Trace) -> Iterator[tuple[str, float, float]]:
    """Yields the steps of the measured critical path with the times between which each determined the end."""
    if trace.runs:
        graph, stamps = trace.runs[0]
        yield from _path(trace, graph, stamps, "", trace.began)


def _path(
    trace: Trace, graph: Graph, stamps: Mapping[str, Stamp], prefix: str, began: float
) -> Iterator[tuple[str, float, float]]:
    ends, last = _ends(graph, stamps, began)
    path = [graph.output.name] if graph.output.name in graph else []
    while path and (before := last[path[-1]]) is not None:
        path.append(before)
    times = [began, *(ends[name] for name in reversed(path))]
    for name, (start, end) in zip(reversed(path), pairwise(times), strict=True):
        if name in stamps:
            yield prefix + name, start, max(end, start)
            yield from _inner(trace, graph[name], end, prefix)


def _ends(graph: Graph, stamps: Mapping[str, Stamp], began: float) -> tuple[dict[str, float], dict[str, str | None]]:
    """Returns the end of each primitive, and its last input. A primitive ends no earlier than its inputs."""
    ends: dict[str, float] = {}
    last: dict[str, str | None] = {}
    for p in graph:
        before = [name for name in (*(ref.name for ref in p.args.values()), *p.after) if name in ends]
        if p.by_stock and (own := stamps.get(p.name)) is not None and own.begun is not None:
            before += [name for name, end in ends.items() if began < end <= own.begun]  # stock was there before
        last[p.name] = max(before, key=lambda name: ends[name], default=None)
        start = max((ends[name] for name in before), default=began)
        stamp = stamps.get(p.name)
        ends[p.name] = max(start, stamp.ended if stamp is not None and stamp.ended is not None else start)
    return ends, last


def _inner(trace: Trace, p: Primitive, end: float, prefix: str) -> Iterator[tuple[str, float, float]]:
    """Yields the path of the body run that ended last for a primitive."""
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
