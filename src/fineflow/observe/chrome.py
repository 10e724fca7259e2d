"""Timelines as Chrome traces, for Perfetto and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from fineflow.observe.tracks import Track, lanes, names, rows


def chrome_trace(tracks: Sequence[Track]) -> dict[str, Any]:
    """Renders a Chrome trace (JSON object format; opens in Perfetto): a process per track, a thread per lane row.

    Times are microseconds from the zero of each track. Queueing is an event of category ``queue`` before the work.
    Arrows connect the work on the critical path, whose ``args`` say so.
    """
    events: list[dict[str, Any]] = []
    order, shown = lanes(tracks), names(tracks)
    for pid, (track, labels) in enumerate(zip(tracks, shown, strict=True), start=1):
        events += [
            _about("process_name", pid, 0, name=track.name),
            _about("process_sort_index", pid, 0, sort_index=pid),
        ]
        events += _work(track, labels, pid, order)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _about(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _work(track: Track, labels: Sequence[str], pid: int, order: Sequence[str]) -> Iterator[dict[str, Any]]:
    critical = track.critical
    on_path = {segment.at for segment in critical}
    thread: dict[int, int] = {}
    tids: dict[tuple[str, int], int] = {}
    for lane in order:
        places = [at for at, i in enumerate(track.intervals) if i.lane == lane]
        for at, row in rows(track.intervals, places):
            if (lane, row) not in tids:
                tids[lane, row] = tid = len(tids) + 1
                yield _about("thread_name", pid, tid, name=lane if not row else f"{lane} ({row + 1})")
                yield _about("thread_sort_index", pid, tid, sort_index=tid)
            thread[at] = tids[lane, row]
            yield from _bar(track, at, labels[at], pid, thread[at], critical=at in on_path)
    for number, (one, other) in enumerate(pairwise(critical)):
        flow = {"cat": "critical path", "name": "then", "id": 1000 * pid + number, "pid": pid}
        yield {**flow, "ph": "s", "tid": thread[one.at], "ts": _micros(min(one.end, other.start), track)}
        yield {**flow, "ph": "f", "bp": "e", "tid": thread[other.at], "ts": _micros(other.start, track)}


def _micros(seconds: float, track: Track) -> float:
    return 1e6 * (seconds - track.zero)


def _bar(track: Track, at: int, label: str, pid: int, tid: int, *, critical: bool) -> Iterator[dict[str, Any]]:
    i = track.intervals[at]
    args = {"step": i.label, "items": i.items, "batch": i.batch, "origin": i.origin, "critical": critical}
    if i.note:
        args["note"] = i.note
    parts = ((f"{label} (queued)", "queue", i.queued, i.start), (label, "run", i.start, i.end))
    for name, kind, start, end in parts:
        if kind == "run" or end > start:
            times = {"ts": _micros(start, track), "dur": 1e6 * (end - start)}
            yield {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, **times, "args": args}
