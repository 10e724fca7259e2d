"""The measured critical path of a call, as parts of its intervals: what had to be shorter for it to end earlier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fineflow.runtime.call.trace import Trace, measured_spans
from fineflow.runtime.events import Interval

_NEAR = 0.0005  # seconds within which one interval may have caused the beginning of another
_SHARE = 0.005  # the same, as a share of the call


class PathSegment(NamedTuple):
    """Part of an interval on the critical path. at: its place in the list of intervals. start, end: seconds."""

    at: int
    start: float
    end: float


_Window = tuple[float, float]


def critical(
    intervals: Sequence[Interval], began: float, ended: float, traces: Sequence[Trace] = ()
) -> tuple[PathSegment, ...]:
    """Returns the critical path of a call from its beginning to its end, in the order of time.

    traces: of the graphs that ran in it, which know what each step waited for. Elsewhere, and in stock, it goes from
    the end of the call back to what ended last before, then to what ended last before that began, and so on.
    """
    near = max(_NEAR, _SHARE * (ended - began))
    found: list[PathSegment] = []
    windows: list[_Window] = [(began, ended)]
    for trace in sorted(traces, key=lambda trace: -trace.seconds):
        told = [segment for window in windows for segment in _told(intervals, trace, window)]
        found += told
        windows = [rest for window in windows for rest in _without(window, told)]
    for window in windows:
        if window[1] - window[0] > near:
            found += _back(intervals, window, near)
    return tuple(sorted(found, key=lambda segment: (segment.start, segment.end)))


def _told(intervals: Sequence[Interval], trace: Trace, window: _Window) -> Iterator[PathSegment]:
    """Yields the segments in a window that a trace knows of."""
    at_label: dict[str, list[int]] = {}
    for at, interval in enumerate(intervals):
        at_label.setdefault(interval.label, []).append(at)
    for name, start, end in measured_spans(trace):
        start, end = max(start, window[0]), min(end, window[1])
        parts = [
            PathSegment(at, max(start, intervals[at].queued), min(end, intervals[at].end))
            for at in at_label.get(name.rpartition(" > ")[2], ())
        ]
        best = max(parts, key=lambda part: part.end - part.start, default=None)
        if best is not None and best.end > best.start:
            yield best


def _without(window: _Window, segments: Sequence[PathSegment]) -> Iterator[_Window]:
    """Yields the parts of a window that no segment covers."""
    since = window[0]
    for segment in sorted(segments, key=lambda segment: segment.start):
        if segment.end > since and segment.start < window[1]:
            if segment.start > since:
                yield since, segment.start
            since = segment.end
    if since < window[1]:
        yield since, window[1]


def _back(intervals: Sequence[Interval], window: _Window, near: float) -> Iterator[PathSegment]:
    """Yields the segments of a window from its end back to its beginning, by their times alone."""
    first, until = window
    left = set(range(len(intervals)))
    while until - first > near:
        before = [at for at in left if intervals[at].queued < until - near / 2 and intervals[at].end > first]
        done = max(
            (at for at in before if intervals[at].end <= until + near), key=lambda at: intervals[at].end, default=None
        )
        open_ = max(
            (at for at in before if intervals[at].end > until + near), key=lambda at: intervals[at].queued, default=None
        )
        if open_ is not None and (done is None or intervals[done].end < until - 4 * near):
            done = open_  # nothing ended there: what was running handed something on, or was waited for
        if done is None:
            return
        left.discard(done)
        start = max(intervals[done].queued, first)
        yield PathSegment(done, start, min(intervals[done].end, until))
        until = start
