"""Recorded runs as timelines show them: tracks, the rows and names of their bars, and times for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fineflow.ir import Op
from fineflow.ir.text import shortened
from fineflow.observe.critical_intervals import PathSegment, critical
from fineflow.runtime.events import Interval

OWN = "other code"
"""Lane of what is no component: functions of the user's own, and the framework's own code."""


@dataclass(frozen=True, slots=True)
class Track:
    """One recorded run, with its own time zero.

    ``began`` and ``ended``: ``time.perf_counter()`` seconds around the whole call; defaults: when the first interval
    was queued and the last one ended. ``against``: name of the track to compare its length with ("" = none).
    ``path``: its critical path; default: the intervals that ended when the next one began, back from the end.
    ``remark``: a sentence to show with it. ``failed``: the call raised, so that its length is compared with none.
    """

    name: str
    intervals: Sequence[Interval]
    began: float | None = None
    ended: float | None = None
    against: str = ""
    path: Sequence[PathSegment] | None = None
    remark: str = ""
    failed: bool = False

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
    def critical(self) -> Sequence[PathSegment]:
        """The critical path, in the order of time."""
        return self.path if self.path is not None else critical(self.intervals, self.zero, self.zero + self.total)


_KINDS = frozenset(op.value for op in Op)


def kind_of(interval: Interval) -> str:
    """Returns the operation of an interval, as far as it or its label tells; else ""."""
    kind = interval.kind or interval.label.rpartition(".")[2].split(" ")[0]
    return kind if kind in _KINDS else ""


def lanes(tracks: Iterable[Track]) -> list[str]:
    """Returns the lanes of all tracks in the order in which they are shown: by their first work; other code last."""
    found = dict.fromkeys(i.lane for track in tracks for i in sorted(track.intervals, key=lambda i: i.start))
    return sorted(found, key=lambda lane: lane == OWN)


def names(tracks: Sequence[Track]) -> list[list[str]]:
    """Returns the names that bars show, for each track in the order of its intervals: unique in a lane of a track.

    The same step has the same name in every track. What tells nothing in a lane is left out: the operation and the last
    parts of the path, if all have the same ones. Names that are equal in some track are numbered by time in each.
    """
    told: dict[str, set[str]] = {}
    for track in tracks:
        for i in track.intervals:
            told.setdefault(i.lane, set()).add(i.label)
    short = {lane: _short(labels) for lane, labels in told.items()}
    shown = [[short[i.lane][i.label] for i in track.intervals] for track in tracks]
    several = set[tuple[str, str]]()
    for track, each in zip(tracks, shown, strict=True):
        counts = Counter((i.lane, name) for i, name in zip(track.intervals, each, strict=True))
        several.update(key for key, count in counts.items() if count > 1)
    return [_numbered(track, each, several) for track, each in zip(tracks, shown, strict=True)]


def _short(labels: Collection[str]) -> dict[str, str]:
    """Returns a name for each label of a lane."""
    found = {label: shortened(label) for label in labels}
    if len(set(found.values())) < len(found):
        found = {label: label for label in labels}
    for ending in (_OPERATION, _LAST, _LAST):
        parts = {label: match for label, name in found.items() if (match := ending.fullmatch(name))}
        if not parts:
            continue
        cut = {**found, **{label: match["path"] + (match["number"] or "") for label, match in parts.items()}}
        alike = len({match["end"] for match in parts.values()}) == 1
        if not alike or len(found) == 1 or len(set(cut.values())) < len(found):
            break
        found = cut
    return {label: name.replace("~", "·") for label, name in found.items()}


_OPERATION = re.compile(r"(?P<path>.+)(?P<end>\.[a-z_]+)(?P<number>~\d+)?")
_LAST = re.compile(r"(?P<path>.+)(?P<end>/[^/~]+)(?P<number>~\d+)?")


def _numbered(track: Track, names: list[str], several: Collection[tuple[str, str]]) -> list[str]:
    """Numbers names of a lane in the order of time. several: the lanes and names that are met several times."""
    seen: Counter[tuple[str, str]] = Counter()
    for at in sorted(range(len(names)), key=lambda at: (track.intervals[at].start, track.intervals[at].end)):
        key = track.intervals[at].lane, names[at]
        if key in several:
            seen[key] += 1
            names[at] = f"{names[at]} {seen[key]}"
    return names


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
