"""Timelines of recorded intervals: a self-contained HTML file, or a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fineflow.runtime.events import Interval

_PALETTE = (  # light, dark
    ("#4338ca", "#818cf8"),
    ("#b45309", "#f59e0b"),
    ("#0f766e", "#2dd4bf"),
    ("#be185d", "#f472b6"),
    ("#1d4ed8", "#60a5fa"),
    ("#4d7c0f", "#a3e635"),
    ("#7e22ce", "#c084fc"),
    ("#475569", "#94a3b8"),
)
_LABELLED = 1.2  # minimum width of a bar with a label, in percent of the plot
_ROWS = 8  # maximum rows of a lane with labels; with more, all are drawn thin

_STYLE = (
    "*{box-sizing:border-box}:root{color-scheme:light dark;--ink:#1e293b;--dim:#64748b;--paper:#fff;--grid:#e2e8f0;"
    "--lane:#f8fafc;--end:#dc2626"
    + "".join(f";--c{i}:{light}" for i, (light, _) in enumerate(_PALETTE))
    + "}@media(prefers-color-scheme:dark){:root{--ink:#e2e8f0;--dim:#94a3b8;--paper:#0f172a;--grid:#263349;"
    "--lane:#131d33;--end:#f87171" + "".join(f";--c{i}:{dark}" for i, (_, dark) in enumerate(_PALETTE)) + "}}"
    "body{font:14px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;margin:0;padding:22px 26px;"
    "color:var(--ink);background:var(--paper)}h1{font-size:20px;margin:0 0 4px}p{margin:0 0 6px;color:var(--dim)}"
    "h2{font-size:15px;margin:22px 0 6px}h2 small{font-weight:400;color:var(--dim);margin-left:8px}"
    ".row{display:grid;grid-template-columns:150px minmax(0,1fr);column-gap:10px}"
    ".lane{font-size:12.5px;color:var(--dim);text-align:right;overflow-wrap:anywhere;padding-top:2px}"
    ".plot{position:relative;background-color:var(--lane);margin-bottom:3px}"
    ".grid{position:absolute;top:0;bottom:0;width:1px;background:var(--grid)}"
    ".end{position:absolute;top:0;bottom:-3px;width:2px;background:var(--end)}"
    ".axis{height:20px;position:relative;font-size:11.5px;color:var(--dim)}"
    ".axis span{position:absolute;transform:translateX(-50%)}.axis span:first-child{transform:none}"
    ".axis b{position:absolute;white-space:nowrap;color:var(--end);transform:translateX(-100%);padding-right:4px;"
    "background:var(--paper);z-index:1}.axis b.near{transform:none;padding-left:4px}"
    ".bar{position:absolute;outline-offset:1px}.bar:hover,.bar:focus{z-index:5}"
    ".wait,.run{position:absolute;top:0;bottom:0}"
    ".wait{top:38%;bottom:38%;opacity:.4;border-radius:2px 0 0 2px}"
    ".run{border-radius:3px;min-width:2px;overflow:hidden;white-space:nowrap;text-overflow:ellipsis;padding:0 4px;"
    "font-size:11.5px;color:var(--paper);right:0}.thin .run{font-size:0;padding:0}"
    ".bar:hover .run,.bar:focus .run{filter:brightness(1.15)}"
    ".tip{display:none;position:absolute;top:100%;left:0;margin-top:4px;z-index:9;background:var(--paper);"
    "border:1px solid var(--dim);border-radius:6px;padding:6px 10px;font-size:12.5px;white-space:pre;"
    "box-shadow:0 4px 14px #0003;pointer-events:none;text-align:left}.tip.left{left:auto;right:0}"
    ".bar:hover .tip,.bar:focus .tip{display:block}"
)


@dataclass(frozen=True, slots=True)
class Track:
    """One recorded run, with its own time zero.

    ``began`` and ``ended``: ``time.perf_counter()`` seconds around the whole call; defaults: when the first interval
    was queued and the last one ended. ``against``: name of the track to compare its length with ("" = none).
    """

    name: str
    intervals: Sequence[Interval]
    began: float | None = None
    ended: float | None = None
    against: str = ""

    @property
    def zero(self) -> float:
        first = min((i.queued for i in self.intervals), default=0.0 if self.ended is None else self.ended)
        return first if self.began is None else self.began

    @property
    def total(self) -> float:
        """Seconds from beginning to end."""
        last = max((i.end for i in self.intervals), default=self.zero)
        return max((last if self.ended is None else self.ended) - self.zero, 0.0)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Scale from seconds since the zero of a track to percent of the plot."""

    span: float
    names: tuple[str, ...]

    def percent(self, seconds: float) -> float:
        return 100 * min(max(seconds / self.span, 0.0), 1.0)

    def colour(self, lane: str) -> str:
        return f"var(--c{self.names.index(lane) % len(_PALETTE)})"

    def ticks(self) -> list[float]:
        step = nice_step(self.span)
        return [step * index for index in range(int(self.span / step * 1.0001) + 1)]


def timeline_html(rows: Sequence[Track], *, title: str = "Timeline") -> str:
    """Renders one self-contained page: the tracks below each other on one time axis, each with a lane per engine.

    Every track starts at its own zero. A bar is work on an engine, the thin line before it the time in the queue.
    Tooltips show label, times in ms, batch and number of items.
    """
    names = tuple(dict.fromkeys(i.lane for track in rows for i in sorted(track.intervals, key=lambda i: i.start)))
    span = max([track.total for track in rows] + [i.end - t.zero for t in rows for i in t.intervals], default=0.0)
    axis = _Axis(span or 1.0, names)
    by_name = {track.name: track for track in rows}
    body = "".join(_track(track, axis, by_name.get(track.against)) for track in rows)
    heading = escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{heading}</title><style>{_STYLE}</style></head><body><h1>{heading}</h1>"
        "<p>One lane per engine. A bar is work; the thin line before it is waiting in the engine's queue; "
        f"the red line is the end of the call.</p>{body}</body></html>"
    )


def _track(track: Track, axis: _Axis, first: Track | None) -> str:
    marks = "".join(f'<i class="grid" style="left:{axis.percent(tick):.3f}%"></i>' for tick in axis.ticks())
    marks += f'<i class="end" style="left:calc({axis.percent(track.total):.3f}% - 2px)"></i>'
    present = {i.lane for i in track.intervals}
    lanes = "".join(_lane(name, track, axis, marks) for name in axis.names if name in present)
    lanes = lanes or f'<div class="row"><div class="lane">nothing recorded</div><div class="plot">{marks}</div></div>'
    return (
        f"<section><h2>{escape(track.name)} <small>{duration(track.total)}{_compared(track, first)}</small></h2>"
        f'{lanes}<div class="row"><div></div><div class="axis">{_labels(track, axis)}</div></div></section>'
    )


def _compared(track: Track, first: Track | None) -> str:
    if first is None or not track.total or not first.total:
        return ""
    ratio = track.total / first.total
    gap = f"{duration(abs(first.total - track.total))} {'earlier' if ratio <= 1 else 'later'}"
    return f", {ratio:.2f} times as long as {escape(first.name.partition(':')[0])} ({gap})"


def _labels(track: Track, axis: _Axis) -> str:
    end = axis.percent(track.total)
    near = ' class="near"' if end < 8 else ""
    clear = [tick for tick in axis.ticks()[1:] if not -2 < end - axis.percent(tick) < 9 and axis.percent(tick) < 97]
    ticks = clear if near else [0.0, *clear]
    return "".join(
        f'<span style="left:{axis.percent(tick):.3f}%">{duration(tick, axis.span)}</span>' for tick in ticks
    ) + (f'<b{near} style="left:{end:.3f}%">{duration(track.total)}</b>')


def _lane(name: str, track: Track, axis: _Axis, marks: str) -> str:
    packed = pack([i for i in track.intervals if i.lane == name])
    count = max((row for _, row in packed), default=0) + 1
    height, thin = (20, "") if count <= _ROWS else (7, " thin")
    bars = "".join(_bar(i, row * height, height - 2, track.zero, axis) for i, row in packed)
    return (
        f'<div class="row"><div class="lane">{escape(name)}</div>'
        f'<div class="plot{thin}" style="height:{max(count * height, 20)}px">{marks}{bars}</div></div>'
    )


def _bar(i: Interval, top: int, height: int, zero: float, axis: _Axis) -> str:
    left, start, end = (axis.percent(seconds - zero) for seconds in (i.queued, i.start, i.end))
    width = max(end - left, 0.0)
    waited = 100 * (start - left) / width if width else 0.0
    colour = f"background:{axis.colour(i.lane)}"
    wait = f'<i class="wait" style="left:0;width:{waited:.2f}%;{colour}"></i>' if waited > 0.01 else ""
    side = " left" if left > 60 else ""
    label = escape(i.label) if end - start >= _LABELLED else ""
    return (
        f'<div class="bar" tabindex="0" style="left:{left:.3f}%;width:max({width:.3f}%,2px);top:{top + 1}px;'
        f'height:{height}px">{wait}<div class="run" style="left:{min(waited, 100):.2f}%;{colour};'
        f'line-height:{height}px">{label}</div><div class="tip{side}">{escape(_tooltip(i, zero))}</div></div>'
    )


def _tooltip(i: Interval, zero: float) -> str:
    lines = [f"{i.label}  on {i.lane}", f"from {duration(i.start - zero)} to {duration(i.end - zero)}"]
    lines.append(f"ran {1000 * (i.end - i.start):.1f} ms, queued {1000 * (i.start - i.queued):.1f} ms")
    lines.append(f"{i.items} item{'' if i.items == 1 else 's'}" + (f", batch {i.batch}" if i.batch >= 0 else ""))
    return "\n".join([*lines, f"caused by {i.origin}"] if i.origin else lines)


def pack(intervals: Sequence[Interval]) -> list[tuple[Interval, int]]:
    """Returns each interval with the first row in which it overlaps no other, queue time included."""
    ends: list[float] = []
    packed = []
    for i in sorted(intervals, key=lambda i: (i.queued, i.start, i.end)):
        row = next((row for row, end in enumerate(ends) if end <= i.queued), len(ends))
        ends[row:] = [i.end, *ends[row + 1 :]]
        packed.append((i, row))
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


def chrome_trace(rows: Sequence[Track]) -> dict[str, Any]:
    """Renders a Chrome trace (JSON object format; opens in Perfetto): a process per track, a thread per lane row.

    Times are microseconds from the zero of each track. Queueing is an event of category ``queue`` before the work.
    """
    events: list[dict[str, Any]] = []
    for pid, track in enumerate(rows, start=1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": track.name}})
        events += _threads(track, pid)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _threads(track: Track, pid: int) -> Iterator[dict[str, Any]]:
    tids: dict[tuple[str, int], int] = {}
    for lane in dict.fromkeys(i.lane for i in track.intervals):
        for i, row in pack([i for i in track.intervals if i.lane == lane]):
            if (lane, row) not in tids:
                tids[lane, row] = len(tids) + 1
                name = lane if not row else f"{lane} ({row + 1})"
                yield {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": pid,
                    "tid": tids[lane, row],
                    "args": {"name": name},
                }
            args = {"items": i.items, "batch": i.batch, "origin": i.origin}
            for name, kind, start, end in (
                (f"{i.label} (queued)", "queue", i.queued, i.start),
                (i.label, "run", i.start, i.end),
            ):
                if kind == "run" or end > start:
                    micros = {"ts": 1e6 * (start - track.zero), "dur": 1e6 * (end - start)}
                    yield {
                        "ph": "X",
                        "name": name,
                        "cat": kind,
                        "pid": pid,
                        "tid": tids[lane, row],
                        **micros,
                        "args": args,
                    }
