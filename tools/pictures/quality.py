"""The chart of F1 over delay: figures of ``python -m benchmarks.adaptive_quality --json FILE``, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tools.pictures.svg import Drawing, Palette

WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 250, 62, 52
SHORT = {"map_rerank": "rerank", "map_reduce": "reduce", "stuff": "stuff"}
CHOOSING = {
    "by complexity (AdaptiveRAG)": ("by complexity", 11, 18, ""),
    "adaptive, no summaries, middle": ("without summaries, middle", -11, -6, "end"),
    "adaptive, no summaries": ("without summaries", 11, -6, ""),
    "adaptive, calibrated": ("calibrated", -11, -6, "end"),
    "adaptive": ("adaptive", 11, -6, ""),
}
"""What chooses for each question, where the figures have it: its label, and where that is."""


def quality_chart(figures: Mapping[str, Any], palette: Palette) -> str:
    """Returns the SVG: fixed configurations with their frontier, and what chooses for each question."""
    systems = figures["systems"]
    points = {name: (each["delay_s"], each["f1"]) for name, each in systems.items()}
    choosing = {name: where for name, where in CHOOSING.items() if name in systems}
    ends = [f1 for name in choosing for f1 in systems[name]["f1_interval"]]
    place = _Scale(points, ends)
    count = sum(1 for name in systems if name.startswith(tuple(SHORT)))
    drawing = Drawing(WIDTH, HEIGHT, f"Token F1 over mean delay of {count} fixed configurations and adaptive.", palette)
    drawing.text(0, 16, "F1 over mean delay, each question answered by a small model", size=15, bold=True)
    rate, emulated = figures["settings"]["rate"], figures["settings"]["emulated"]
    pace = "one after the other" if rate is None else f"{rate:g} per second"
    about = f"Questions on the demo's corpus, {pace}{', delays emulated' * emulated}. The line: the best fixed ones."
    drawing.text(0, 36, about, size=12, colour=palette.muted)
    _axes(drawing, place)
    edge = [place(points[name]) for name in figures["frontier"]]
    drawing.line(edge, palette.muted)
    for name, point in points.items():
        if name.startswith(tuple(SHORT)):
            x, y = place(point)
            _dot(drawing, x, y, 4, palette.stock)
            if name in figures["frontier"]:
                drawing.text(x + 8, y + 14, label(name), size=11, colour=palette.muted)
    for name, (short, dx, dy, anchor) in choosing.items():
        x, y = place(points[name])
        colour = palette.muted if name.startswith("by complexity") else palette.ours
        _interval(drawing, place, systems[name], colour)
        _dot(drawing, x, y, 6, colour)
        drawing.text(x + dx, y + dy, short, size=12, colour=colour, bold=name == "adaptive", anchor=anchor)
    _legend(drawing, systems)
    return drawing.svg()


def label(name: str) -> str:
    """Returns the short name of a fixed configuration: its synthesis, chunks, and length of summaries."""
    synthesis, chunks, *summaries = name.split(", ")
    length = f"/{summaries[0].split()[2]}" if summaries else ""
    return f"{SHORT[synthesis]} {chunks.split()[0]}{length}"


class _Scale:
    """Places of points: the delay in powers, the F1 from the lowest tenth to the highest."""

    def __init__(self, points: Mapping[str, tuple[float, float]], ends: Sequence[float]) -> None:
        delays, scores = zip(*points.values(), strict=True)
        shown = [*scores, *ends]
        self.delays = (min(delays) / 1.2, max(delays) * 1.2)
        self.scores = (math.floor(min(shown) * 10) / 10, math.ceil(max(shown) * 10) / 10)

    def __call__(self, point: tuple[float, float]) -> tuple[float, float]:
        (low, high), (least, most) = self.delays, self.scores
        across = math.log(point[0] / low) / math.log(high / low)
        up = (point[1] - least) / (most - least)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def _axes(drawing: Drawing, place: _Scale) -> None:
    palette = drawing.palette
    for tenth in range(round(place.scores[0] * 10), round(place.scores[1] * 10) + 1):
        x, y = place((place.delays[0], tenth / 10))
        drawing.line([(x, y), (WIDTH - RIGHT, y)], palette.faint)
        drawing.text(x - 8, y + 4, f"{tenth / 10:.1f}", size=11, colour=palette.muted, anchor="end")
    for delay in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        if place.delays[0] <= delay <= place.delays[1]:
            x, y = place((delay, place.scores[0]))
            drawing.line([(x, TOP), (x, y)], palette.faint)
            drawing.text(x, y + 18, f"{delay:g} s", size=11, colour=palette.muted, anchor="middle")
    drawing.text(LEFT, HEIGHT - 8, "mean delay", size=12, colour=palette.muted)
    drawing.text(LEFT - 8, TOP - 10, "F1", size=12, colour=palette.muted, anchor="end")


def _interval(drawing: Drawing, place: _Scale, one: Mapping[str, Any], colour: str) -> None:
    low, high = (place((one["delay_s"], f1)) for f1 in one["f1_interval"])
    drawing.line([low, high], colour)


def _dot(drawing: Drawing, x: float, y: float, radius: float, fill: str) -> None:
    drawing.box(x - radius, y - radius, 2 * radius, 2 * radius, fill, round=radius)


def _legend(drawing: Drawing, systems: Mapping[str, Any]) -> None:
    """Says how much of the delay the profiler takes."""
    palette, x = drawing.palette, WIDTH - RIGHT + 24
    shares = systems["adaptive"]["profiler"]
    rows = [
        (palette.stock, "fixed configuration"),
        (palette.muted, "by complexity: AdaptiveRAG"),
        (palette.ours, "adaptive, with 95 % interval"),
    ]
    for line, (colour, name) in enumerate(rows):
        y = TOP + 20 * line
        _dot(drawing, x, y - 4, 5, colour)
        drawing.text(x + 14, y, name, size=12)
    y = TOP + 90
    drawing.text(x - 5, y, "Profiler's share of the delay", size=12, bold=True)
    width = RIGHT - 30
    share, critical = shares["share"], shares["critical_share"]
    drawing.box(x - 5, y + 10, width, 12, palette.faint)
    drawing.box(x - 5, y + 10, width * share, 12, palette.stock)
    drawing.box(x - 5, y + 10, width * critical, 12, palette.ours)
    drawing.text(x - 5, y + 40, f"{share:.0%}; {critical:.0%} beyond the search", size=12, colour=palette.muted)
