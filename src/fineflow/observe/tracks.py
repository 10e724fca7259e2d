"""Recorded runs as timelines show them: tracks, the rows and names of their bars, and times for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fineflow.observe.critical_intervals import Segment, critical
from fineflow.runtime.events import Interval

OWN = "other code"
"""Lane of what is no component: functions of the user's own, and the framework's own code."""


@dataclass(frozen=True, slots=True)
class Track:
    """One recorded run, with its own time zero.

    ``began`` and ``ended``: ``time.perf_counter()`` seconds around the whole call; defaults: when the first interval
    was queued and the last one ended. ``against``: name of the track to compare its length with ("" = none).
    ``path``: its critical path; default: the intervals that ended when the next one began, back from the end.
    ``remark``: a sentence to show with it.
    """

    name: str
    intervals: Sequence[Interval]
    began: float | None = None
    ended: float | None = None
    against: str = ""
    path: Sequence[Segment] | None = None
    remark: str = ""

    @property
    def zero(self) -> float:
        first = min((i.queued for i in self.intervals), default=0.0 if self.ended is None else self.ended)
        return first if self.began is None else self.began

    @property
    def total(self) -> float:
        """Seconds from beginning to end."""
        last = max((i.end for i in self.intervals), default=self.zero)
        return max((last if self.ended is None else self.ended) - self.zero, 0.0)

    @property
    def critical(self) -> Sequence[Segment]:
        """The critical path, in the order of time."""
        return self.path if self.path is not None else critical(self.intervals, self.zero, self.zero + self.total)


def lanes(tracks: Iterable[Track]) -> list[str]:
    """Returns the lanes of all tracks in the order in which they are shown: by their first work; other code last."""
    found = dict.fromkeys(i.lane for track in tracks for i in sorted(track.intervals, key=lambda i: i.start))
    return sorted(found, key=lambda lane: lane == OWN)


def names(tracks: Sequence[Track]) -> list[list[str]]:
    """Returns the names that bars show, for each track in the order of its intervals: unique in a lane of a track.

    What all names of a lane end with (".search") tells nothing and is left out. Equal names are numbered by time.
    """
    told: dict[str, set[str]] = {}
    for track in tracks:
        for i in track.intervals:
            told.setdefault(i.lane, set()).add(i.label)
    endings = {lane: _ending(labels) for lane, labels in told.items()}
    return [_of_track(track, endings) for track in tracks]


def _ending(labels: set[str]) -> str:
    """Returns the operation that all of several labels end with, or ""."""
    ends = {label.rpartition(".")[2] if "." in label else "" for label in labels}
    return f".{ends.pop()}" if len(ends) == 1 and len(labels) > 1 and "" not in ends else ""


def _of_track(track: Track, endings: dict[str, str]) -> list[str]:
    short = [i.label.removesuffix(endings[i.lane]) or i.label for i in track.intervals]
    counts = Counter((i.lane, name) for i, name in zip(track.intervals, short, strict=True))
    seen: Counter[tuple[str, str]] = Counter()
    for at in sorted(range(len(short)), key=lambda at: (track.intervals[at].start, track.intervals[at].end)):
        key = track.intervals[at].lane, short[at]
        if counts[key] > 1:
            seen[key] += 1
            short[at] = f"{short[at]} {seen[key]}"
    return short


def pack(intervals: Sequence[Interval]) -> list[tuple[Interval, int]]:
    """Returns each interval with the first row in which it overlaps no other, queue time included."""
    return [(intervals[at], row) for at, row in rows(intervals, range(len(intervals)))]


def rows(intervals: Sequence[Interval], places: Iterable[int]) -> list[tuple[int, int]]:
    """Returns some places in ``intervals``, each with the first row in which it overlaps no other of them."""
    ends: list[float] = []
    packed = []
    for at in sorted(places, key=lambda at: (intervals[at].queued, intervals[at].start, intervals[at].end)):
        i = intervals[at]
        row = next((row for row, end in enumerate(ends) if end <= i.queued), len(ends))
        ends[row:] = [i.end, *ends[row + 1 :]]
        packed.append((at, row))
    return packed


def nice_step(span: float, most: int = 10) -> float:
    """Returns the smallest of 1, 2 or 5 times a power of ten that splits ``span`` seconds into at most ``most``."""
    power = 1e-6
    while True:
        for step in (power, 2 * power, 5 * power):
            if span / step <= most:
                return step
        power *= 10


def duration(seconds: float, scale: float | None = None) -> str:
    """Formats seconds in the unit that suits ``scale`` (default: the seconds themselves)."""
    size = abs(seconds if scale is None else scale)
    if size >= 1:
        return f"{seconds:.2f} s" if scale is None else f"{seconds:g} s"
    return f"{1000 * seconds:.{0 if size >= 0.1 else 1}f} ms" if scale is None else f"{round(1000 * seconds, 3):g} ms"
