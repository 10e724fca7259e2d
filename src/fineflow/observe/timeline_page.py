"""Timelines as one self-contained HTML page: lanes of bars, the critical path, details of each bar, a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from fineflow.observe.bill import billed
from fineflow.observe.timeline_style import PALETTE, STYLE
from fineflow.observe.tracks import OWN, Track, duration, lanes, names, nice_step, rows
from fineflow.observe.verdict import compared, together, verdict
from fineflow.runtime.events import Interval

_ROWS = ((10, 20, ""), (100, 14, " small"), (10**9, 7, " thin"))  # up to so many rows of a lane: height in px, class
_MANY = 40  # bars in a track from which zooming helps
_NARROW, _ROOM = 4.0, 5.0  # percent of the plot: bars below have their names behind them if so much is free there


@dataclass(frozen=True, slots=True)
class _Axis:
    """Scale from seconds since the zero of a track to percent of the plot."""

    span: float
    lanes: Sequence[str]

    def percent(self, seconds: float) -> float:
        return 100 * min(max(seconds / self.span, 0.0), 1.0)

    def colour(self, lane: str) -> str:
        return f"var(--c{len(PALETTE) if lane == OWN else self.lanes.index(lane) % len(PALETTE)})"

    def ticks(self) -> list[float]:
        step = nice_step(self.span)
        return [step * index for index in range(int(self.span / step * 1.0001) + 1)]


def timeline_html(tracks: Sequence[Track], *, title: str = "Timeline", remarks: Sequence[str] = ()) -> str:
    """Renders one self-contained page: the tracks below each other on one time axis, each with a lane per engine.

    Every track starts at its own zero; lanes have the same order and colour in all of them. A bar is work on an engine,
    the thin line before it the time in the queue; bars of the critical path are solid. Hovering, tapping or focusing a
    bar shows its name, its times, batch and number of items.
    """
    span = max([track.total for track in tracks] + [i.end - t.zero for t in tracks for i in t.intervals], default=0.0)
    axis = _Axis(span or 1.0, lanes(tracks))
    by_name = {track.name: track for track in tracks}
    several = len(compared(tracks)) > 1
    body = "".join(
        _track(track, shown, axis, by_name.get(track.against) if several else None)
        for track, shown in zip(tracks, names(tracks), strict=True)
    )
    heading, said = escape(title), together(compared(tracks))
    lead = f'<p class="lead">{escape(said)}</p>' if said else ""
    about = "".join(f"<p>{escape(remark)}</p>" for remark in remarks)
    zoom = _zoom() if any(len(track.intervals) > _MANY for track in tracks) else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{heading}</title><style>{STYLE}</style></head><body><h1>{heading}</h1>{lead}{about}{_KEYS}{zoom}{body}"
        "</body></html>"
    )


_KEYS = (
    '<div class="keys" style="--c:var(--c0)">'
    '<span class="key"><i style="background:var(--c)"></i>critical path: what determined the end</span>'
    '<span class="key"><i style="background:color-mix(in srgb,var(--c) 26%,var(--lane));box-shadow:inset 0 0 0 1px '
    'color-mix(in srgb,var(--c) 45%,var(--lane))"></i>other work</span>'
    '<span class="key"><i class="thin" style="background:var(--c)"></i>waiting in a queue</span>'
    '<span class="key"><i class="mark"></i>end of the call</span>'
    '<span class="key">point at a bar, or tap it, for details</span></div>'
)


def _zoom() -> str:
    steps = (1, 4, 16)
    inputs = "".join(
        f'<input type="radio" name="zoom" class="zoom" id="z{by}"{" checked" if by == 1 else ""}>' for by in steps
    )
    labels = "".join(f"<label for=z{by}>{by}&times;</label>" for by in steps)
    return f'{inputs}<div class="zooms">zoom&nbsp;{labels}</div>'


def _track(track: Track, shown: Sequence[str], axis: _Axis, first: Track | None) -> str:
    marks = "".join(f'<i class="grid" style="left:{axis.percent(tick):.3f}%"></i>' for tick in axis.ticks())
    marks += f'<i class="end" style="left:calc({axis.percent(track.total):.3f}% - 2px)"></i>'
    critical: dict[int, list[tuple[float, float]]] = {}
    for segment in track.critical:
        critical.setdefault(segment.at, []).append((segment.start, segment.end))
    drawn = "".join(_lane(lane, track, shown, critical, axis, marks) for lane in axis.lanes)
    drawn = drawn or f'<div class="row"><div class="lane">nothing recorded</div><div class="plot">{marks}</div></div>'
    told = duration(track.total) if first is None else escape(verdict(track, first))
    said = [*filter(None, [track.remark]), *billed(track)]
    remark = "".join(f"<p>{escape(each)}</p>" for each in said)
    return (
        f"<section><h2>{escape(track.name)} <small>{told}</small></h2>{remark}"
        f'<div class="scroll"><div class="wide">{drawn}'
        f'<div class="row"><div></div><div class="axis">{_labels(track, axis)}</div></div></div></div>'
        f"{_table(track, shown, critical)}</section>"
    )


def _labels(track: Track, axis: _Axis) -> str:
    end = axis.percent(track.total)
    near = ' class="near"' if end < 8 else ""
    clear = [tick for tick in axis.ticks()[1:] if not -3 < end - axis.percent(tick) < 15 and axis.percent(tick) < 97]
    ticks = clear if near else [0.0, *clear]
    return "".join(
        f'<span style="left:{axis.percent(tick):.3f}%">{duration(tick, axis.span)}</span>' for tick in ticks
    ) + (f'<b{near} style="left:{end:.3f}%">{duration(track.total)}</b>')


def lane_height(count: int) -> tuple[int, int, str]:
    """Returns the height in px of a lane with so many rows, that of a row, and the class of the plot."""
    height, size = next((height, size) for most, height, size in _ROWS if count <= most)
    return max(count * height, 20), height, size


def _lane(
    lane: str,
    track: Track,
    shown: Sequence[str],
    critical: dict[int, list[tuple[float, float]]],
    axis: _Axis,
    marks: str,
) -> str:
    packed = rows(track.intervals, [at for at, i in enumerate(track.intervals) if i.lane == lane])
    whole, height, size = lane_height(max((row for _, row in packed), default=0) + 1)
    behind = _behind(track, packed, axis)
    bars = "".join(
        _bar(
            track.intervals[at],
            shown[at],
            critical.get(at, ()),
            row * height,
            height - 2,
            track.zero,
            axis,
            behind.get(at),
        )
        for at, row in packed
    )
    return (
        f'<div class="row"><div class="lane">{escape(lane)}</div>'
        f'<div class="plot{size}" style="height:{whole}px;--c:{axis.colour(lane)}">{marks}{bars}</div></div>'
    )


def _behind(track: Track, packed: Sequence[tuple[int, int]], axis: _Axis) -> dict[int, tuple[float, float]]:
    """Returns where names are that have more room behind their bars than in them: left and width, in percent."""
    places: dict[int, tuple[float, float]] = {}
    next_in: dict[int, float] = {}  # by row
    whole = axis.percent(track.total)
    for at, row in reversed(packed):
        i = track.intervals[at]
        left, start, end = (axis.percent(seconds - track.zero) for seconds in (i.queued, i.start, i.end))
        room = next_in.get(row, whole if end < whole else 100.0) - end
        if end - start < _NARROW and room > _ROOM:
            places[at] = end, room
        next_in[row] = left
    return places


def _bar(
    i: Interval,
    name: str,
    critical: Sequence[tuple[float, float]],
    top: int,
    height: int,
    zero: float,
    axis: _Axis,
    behind: tuple[float, float] | None,
) -> str:
    left, start, end = (axis.percent(seconds - zero) for seconds in (i.queued, i.start, i.end))
    width = max(end - left, 0.0)
    waited = 100 * (start - left) / width if width else 0.0
    wait = f'<i class="wait" style="left:0;width:{waited:.2f}%"></i>' if waited > 0.01 else ""
    run = max(i.end - i.start, 1e-9)
    covered = sum(max(min(until, i.end) - max(since, i.start), 0.0) for since, until in critical) / run
    kind = " all" if critical and covered > 0.97 else ""
    paths = "".join(
        f'<i class="path" style="left:{axis.percent(since - zero) - left:.3f}%"></i>'
        if not width
        else f'<i class="path" style="left:{100 * (axis.percent(since - zero) - left) / width:.2f}%;'
        f'width:{100 * (axis.percent(until - zero) - axis.percent(since - zero)) / width:.2f}%"></i>'
        for since, until in critical
    )
    lines = [name, *_details(i, zero, critical=bool(critical))]
    tip = f"<b>{escape(lines[0])}</b>" + "".join(f"<span>{escape(line)}</span>" for line in lines[1:])
    after = ""
    if behind is not None:
        kind += " named"
        place = f"left:{behind[0]:.3f}%;width:{behind[1]:.3f}%;top:{top + 1}px;line-height:{height}px"
        after = f'<span class="behind" aria-hidden="true" style="{place}"><bdi>{escape(name)}</bdi></span>'
    return (
        f'<div class="bar{kind}" tabindex="0" role="img" aria-label="{escape("; ".join(lines))}" '
        f'style="left:{left:.3f}%;width:max({width:.3f}%,2px);top:{top + 1}px;height:{height}px">{wait}'
        f'<div class="run" style="left:{min(waited, 100):.2f}%;line-height:{height}px"><span><bdi>{escape(name)}</bdi>'
        f'</span></div>{paths}<div class="tip" aria-hidden="true">{tip}</div></div>{after}'
    )


def _details(i: Interval, zero: float, *, critical: bool) -> Iterator[str]:
    yield f"{i.label} on {i.lane}"
    yield f"from {duration(i.start - zero)} to {duration(i.end - zero)}" + (
        ", on the critical path" if critical else ""
    )
    yield f"ran {1000 * (i.end - i.start):.1f} ms, queued {1000 * (i.start - i.queued):.1f} ms"
    yield f"{i.items} item{'' if i.items == 1 else 's'}" + (f", batch {i.batch}" if i.batch >= 0 else "")
    if i.origin:
        yield f"caused by {i.origin}"
    if i.note:
        yield i.note


def _table(track: Track, shown: Sequence[str], critical: dict[int, list[tuple[float, float]]]) -> str:
    if not track.intervals:
        return ""
    cells = []
    for at in sorted(range(len(shown)), key=lambda at: (track.intervals[at].start, track.intervals[at].end)):
        i = track.intervals[at]
        mark = ' class="crit"' if at in critical else ""
        cells.append(
            f'<tr><td class="n">{duration(i.start - track.zero)}</td><td{mark}>{escape(shown[at])}</td>'
            f'<td class="far">{escape(i.lane)}</td><td class="n far">{duration(i.start - i.queued)}</td>'
            f'<td class="n">{duration(i.end - i.start)}</td></tr>'
        )
    head = '<tr><th class="n">began</th><th>step (bold: critical path)</th><th class="far">engine</th>'
    head += '<th class="n far">queued</th><th class="n">ran</th></tr>'
    count = "1 step" if len(cells) == 1 else f"{len(cells)} steps"
    return f"<details><summary>{count} as a table</summary><table>{head}{''.join(cells)}</table></details>"
