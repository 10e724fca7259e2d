"""Statistics of the runtime: an immutable snapshot, also as Prometheus text.

Counters take no locks: every thread adds to its own, and a snapshot sums them up. The numbers of waiting and running
requests are read from the queues at that moment.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from fineflow.protocols import CacheStatistics, Measured
from fineflow.runtime.bill import Usage, in_vain, used
from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.queues.admission import log, process_admission
from fineflow.runtime.reruns import DIFFERENT, EQUAL, UNSTEADY, VerificationStatistics, reruns

_SIZES = tuple(float(2**i) for i in range(11))
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observed values. ``counts[i]``: values in ``(bounds[i - 1], bounds[i]]``; the last count has no upper bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean value; 0 without observations."""
        return self.total / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Statistics of the engines of one name, or of one of the user's components that is not an engine.

    queued: items waiting for a batch; requests waiting for room in an LLM. running: batches, or requests to an LLM or
    component, that run now. batches: ended batches (LLM or component: requests); failed: those of them that raised.
    sizes: items per batch. waits: seconds that requests waited for their first batch, or until an LLM began with them.
    runs: seconds per batch. cache: KV caches of an LLM, in tokens; None if the engine does not report it or does not
    run.
    """

    name: str
    queued: int
    running: int
    batches: int
    failed: int
    sizes: Histogram
    waits: Histogram
    runs: Histogram
    cache: CacheStatistics | None = None


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """Calls of optimized objects. A call that goes straight to stock counts only while a ``Runtime`` is open.

    running, waiting: now. finished: returned. failed: raised. cancelled: cancelled, interrupted or left early.
    overloaded: refused with ``Overloaded``. wait_seconds, run_seconds: totals of the admitted calls.
    """

    running: int
    waiting: int
    finished: int
    failed: int
    cancelled: int
    overloaded: int
    wait_seconds: float
    run_seconds: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Snapshot of this process; figures count from its start, or from the fork that created it.

    models: tokens of the requests that plans of optimized objects know of, by model, where answers tell them.
    in_vain: requests ahead that stock never took, by model (or class of another component): all of them count, their
    tokens where answers came and told them. ``models`` has these tokens, too.
    """

    queries: QueryStatistics
    engines: Mapping[str, EngineStatistics]
    verification: VerificationStatistics = field(default_factory=VerificationStatistics)
    models: Mapping[str, Usage] = field(default_factory=dict)
    in_vain: Mapping[str, Usage] = field(default_factory=dict)

    def prometheus(self) -> str:
        """Returns the snapshot in Prometheus' text exposition format, version 0.0.4."""
        return "".join(f"{line}\n" for line in _exposition(self))

    def __str__(self) -> str:
        """Formats a table, one row per engine; seconds are means."""
        q = self.queries
        calls = f"{q.running} running, {q.waiting} waiting, {q.finished} finished, {q.failed} failed"
        rows = [("engine", "batches", "failed", "items", "wait", "run", "queued", "running")]
        for each in self.engines.values():
            wait, run = (f"{seconds * 1e3:.1f} ms" for seconds in (each.waits.mean, each.runs.mean))
            counts = (f"{each.batches}", f"{each.failed}", f"{each.sizes.mean:.1f}")
            rows.append((each.name, *counts, wait, run, f"{each.queued}", f"{each.running}"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [f"calls: {calls}, {q.cancelled} cancelled, {q.overloaded} overloaded"]
        for name, *cells in rows if len(rows) > 1 else ():
            numbers = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            lines.append(f"{name.ljust(widths[0])}  {numbers}")
        if self.verification != VerificationStatistics():
            lines.append(str(self.verification))
        lines += [usage.line(model) for model, usage in self.models.items()]
        lines += [f"in vain: {usage.line(model)}" for model, usage in self.in_vain.items()]
        return "\n".join(lines)


class Source(Protocol):
    """Queue as statistics read it: its engine, the number of waiting items, and the engine's instances."""

    @property
    def engine(self) -> Any: ...
    @property
    def waiting(self) -> int: ...
    @property
    def instances(self) -> Sequence[Any]: ...


class Observer(Protocol):
    """Gets what the counters of engines count, as it happens. Called from any thread; must not raise."""

    def __call__(self, engine: str, items: int, waits: Sequence[float], seconds: float, *, failed: bool) -> None:
        """See ``Tally.batch``."""
        ...


observers: list[Observer] = []
"""Empty unless telemetry is on."""


@dataclass(slots=True)
class Tally:
    """Counters of one engine for one thread."""

    engine: str
    begun: int = 0
    ended: int = 0
    batches: int = 0
    failed: int = 0
    sizes: _Counted = field(default_factory=lambda: _Counted(_SIZES))
    waits: _Counted = field(default_factory=lambda: _Counted(_SECONDS))
    runs: _Counted = field(default_factory=lambda: _Counted(_SECONDS))

    def batch(self, items: int, waits: Sequence[float], seconds: float, *, failed: bool) -> None:
        """Counts an ended batch. waits: seconds, of each request whose first batch it was. seconds: run time."""
        self.batches += 1
        self.failed += failed
        self.sizes.add(items)
        self.runs.add(seconds)
        for wait in waits:
            self.waits.add(wait)
        for observer in observers:
            observer(self.engine, items, waits, seconds, failed=failed)


class _Counted:
    """Mutable histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


_tallies: dict[tuple[str, int], Tally] = {}  # by engine and thread
_sources: weakref.WeakValueDictionary[int, Source] = weakref.WeakValueDictionary()
_caches: weakref.WeakKeyDictionary[Measured, str] = weakref.WeakKeyDictionary()  # cache -> name of its engine
_numbers = itertools.count()


def tally(engine: str) -> Tally:
    """Returns this thread's counters of an engine."""
    key = (engine, threading.get_ident())
    found = _tallies.get(key)
    return _tallies.setdefault(key, Tally(engine)) if found is None else found


def served(engine: str, number: int, items: int, waits: Sequence[float], seconds: float, *, failed: bool) -> None:
    """Counts and logs an ended batch or request of an engine (``Tally.batch``). number: id in timelines and logs."""
    tally(engine).batch(items, waits, seconds, failed=failed)
    if log.isEnabledFor(logging.DEBUG):
        fields = {"event": "batch", "engine": engine, "batch": number, "items": items, "ran": seconds, "failed": failed}
        log.debug("batch ended", extra={**fields, "waited": max(waits, default=0.0)})


def watch(source: Source) -> None:
    """Adds a queue and the caches of its engines to snapshots, for as long as these objects exist."""
    _sources[next(_numbers)] = source
    for instance in source.instances:
        if isinstance(instance.engine, Measured):
            _caches[instance.engine] = source.engine.name


@in_forked_children
def _forget() -> None:
    _tallies.clear()


def statistics() -> Statistics:
    """Returns a snapshot of this process."""
    found = process_admission()
    counts = found.counts
    queries = QueryStatistics(
        found.running,
        found.waiting,
        counts.finished,
        counts.failed,
        counts.cancelled,
        counts.overloaded,
        counts.waited,
        counts.ran,
    )
    tallies: dict[str, list[Tally]] = {}
    for (name, _), each in list(_tallies.items()):
        tallies.setdefault(name, []).append(each)
    queues: dict[str, list[Source]] = {}
    for ref in _sources.valuerefs():
        if (source := ref()) is not None:
            queues.setdefault(source.engine.name, []).append(source)
    caches: dict[str, list[CacheStatistics]] = {}
    for engine, name in list(_caches.items()):
        if (cache := engine.cache_statistics()) is not None:
            caches.setdefault(name, []).append(cache)
    names = sorted(tallies.keys() | queues.keys() | caches.keys())
    engines = {name: _engine(name, tallies.get(name, []), queues.get(name, []), caches.get(name, [])) for name in names}
    usage = MappingProxyType(used()), MappingProxyType(in_vain())
    return Statistics(queries, MappingProxyType(engines), reruns().statistics(), *usage)


def _engine(
    name: str, tallies: Sequence[Tally], queues: Sequence[Source], caches: Sequence[CacheStatistics]
) -> EngineStatistics:
    return EngineStatistics(
        name,
        queued=sum(queue.waiting for queue in queues),
        running=sum(instance.running for queue in queues for instance in queue.instances)
        + sum(each.begun - each.ended for each in tallies),
        batches=sum(each.batches for each in tallies),
        failed=sum(each.failed for each in tallies),
        sizes=_histogram(_SIZES, [each.sizes for each in tallies]),
        waits=_histogram(_SECONDS, [each.waits for each in tallies]),
        runs=_histogram(_SECONDS, [each.runs for each in tallies]),
        cache=_together(caches),
    )


def _together(caches: Sequence[CacheStatistics]) -> CacheStatistics | None:
    if not caches:
        return None
    return CacheStatistics(*(sum(getattr(cache, each) for cache in caches) for each in CacheStatistics.__slots__))


def _histogram(bounds: tuple[float, ...], parts: Sequence[_Counted]) -> Histogram:
    counts = [0] * (len(bounds) + 1)
    for part in parts:
        counts = [a + b for a, b in zip(counts, part.counts, strict=True)]
    return Histogram(bounds, tuple(counts), sum(part.total for part in parts))


def _exposition(found: Statistics) -> Iterator[str]:
    q, engines = found.queries, found.engines.values()
    yield from _family("queries_running", "gauge", "Running calls.", [("", q.running)])
    yield from _family("queries_waiting", "gauge", "Calls that wait to be admitted.", [("", q.waiting)])
    outcomes = ("finished", "failed", "cancelled", "overloaded")
    ended = [(_labels(outcome=name), getattr(q, name)) for name in outcomes]
    yield from _family("queries_total", "counter", "Ended calls, by outcome.", ended)
    found_again = found.verification
    compared = [(_labels(outcome=name), getattr(found_again, name)) for name in (EQUAL, DIFFERENT, UNSTEADY)]
    compared.append((_labels(outcome="skipped"), sum(found_again.skipped.values())))
    yield from _family("verified_total", "counter", "Calls chosen to be verified, by outcome.", compared)
    seconds = "Seconds that admitted calls"
    yield from _family("queries_wait_seconds_total", "counter", f"{seconds} waited.", [("", q.wait_seconds)])
    yield from _family("queries_run_seconds_total", "counter", f"{seconds} ran.", [("", q.run_seconds)])
    for name, kind, text in (
        ("queued", "gauge", "Items that wait for a batch, or requests that wait for room in an LLM."),
        ("running", "gauge", "Running batches, or requests to an LLM or component."),
        ("batches", "counter", "Batches, or requests to an LLM or component, that have ended."),
        ("failed", "counter", "Batches or requests that raised."),
    ):
        values = [(_labels(engine=engine.name), getattr(engine, name)) for engine in engines]
        yield from _family(f"engine_{name}" + ("_total" if kind == "counter" else ""), kind, text, values)
    for name, kind, text in (
        ("total", "gauge", "Capacity of the KV cache in tokens."),
        ("free", "gauge", "Tokens of the KV cache that no request holds."),
        ("queried", "counter", "Prompt tokens that were looked up in the prefix cache."),
        ("hits", "counter", "Prompt tokens that were found in the prefix cache."),
    ):
        values = [(_labels(engine=each.name), getattr(each.cache, name)) for each in engines if each.cache is not None]
        if values:
            suffix = "_total" if kind == "counter" else ""
            yield from _family(f"engine_cache_{name}_tokens{suffix}", kind, text, values)
    for name, field_, text in (
        ("batch_size", "sizes", "Items per batch."),
        ("wait_seconds", "waits", "Seconds that requests waited until an engine began with them."),
        ("run_seconds", "runs", "Seconds that batches took."),
    ):
        yield from _head(f"engine_{name}", "histogram", text)
        for engine in engines:
            yield from _buckets(f"fineflow_engine_{name}", engine.name, getattr(engine, field_))


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield from _head(name, kind, text)
    for labels, value in samples:
        yield f"fineflow_{name}{labels} {value}"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP fineflow_{name} {text}"
    yield f"# TYPE fineflow_{name} {kind}"


def _buckets(name: str, engine: str, found: Histogram) -> Iterator[str]:
    bounds = [*(f"{bound:g}" for bound in found.bounds), "+Inf"]
    for bound, count in zip(bounds, itertools.accumulate(found.counts), strict=True):
        yield f"{name}_bucket{_labels(engine=engine, le=bound)} {count}"
    yield f"{name}_sum{_labels(engine=engine)} {found.total}"
    yield f"{name}_count{_labels(engine=engine)} {found.count}"


def _labels(**labels: str) -> str:
    escaped = (
        (name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
