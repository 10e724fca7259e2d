"""Charts of ``python -m benchmarks.adaptive --json FILE``: F1 over delay, and what each part of adaptive adds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.adaptive_quality.verdict import frontier
from tools.pictures.quality import label
from tools.pictures.svg import Drawing, Palette

WIDTH, PANEL, HEIGHT, TOP, INSET = 860, 425, 250, 76, 44
PARTS = ("profiler only", "+ batching", "+ joint scheduling", "the same, up to the middle of the space", "+ feedback")
OURS, LIKE, MIDDLE = "+ joint scheduling", "AdaptiveRAG-like", "the same, up to the middle of the space"
MARKED = {OURS: "adaptive", MIDDLE: "adaptive, reach 0.5", LIKE: "AdaptiveRAG-like"}
NOTE = "Emulated: Llama-2-7B, 48 GiB, virtual time; F1 of tables that nobody has measured."


def frontier_chart(datasets: Mapping[str, Any], palette: Palette) -> str:
    """Returns the SVG: a panel for each dataset with its fixed configurations, their frontier, and adaptive."""
    height = TOP + HEIGHT * math.ceil(len(datasets) / 2)
    drawing = Drawing(WIDTH, height, f"F1 over mean delay on {len(datasets)} emulated datasets.", palette)
    drawing.text(0, 16, "F1 over mean delay of fixed configurations and of adaptive", size=15, bold=True)
    drawing.text(0, 36, f"{NOTE} The line: the best fixed ones.", size=12, colour=palette.muted)
    for place, (name, found) in enumerate(datasets.items()):
        _panel(drawing, (place % 2) * PANEL, TOP + (place // 2) * HEIGHT, name, found)
    return drawing.svg()


def _panel(drawing: Drawing, left: float, top: float, name: str, found: Mapping[str, Any]) -> None:
    palette = drawing.palette
    fixed = {each: (one["delay"], one["f1"]) for each, one in found["fixed"].items()}
    marked = {each: (found["sides"][each]["delay"], found["sides"][each]["f1"]) for each in MARKED}
    points = [*fixed.values(), *marked.values()]
    low, high = min(delay for delay, _ in points) / 1.2, max(delay for delay, _ in points) * 1.4
    least, most = 0.4, 0.92

    def at(point: tuple[float, float]) -> tuple[float, float]:
        across = math.log(point[0] / low) / math.log(high / low)
        up = (point[1] - least) / (most - least)
        return left + INSET + across * (PANEL - INSET - 30), top + 20 + (1 - up) * (HEIGHT - 70)

    drawing.text(left + INSET, top + 6, f"{name}, {found['rate']:g} queries per second", size=12, bold=True)
    for tenth in range(4, 10):
        x, y = at((low, tenth / 10))
        drawing.line([(x, y), (left + PANEL - 30, y)], palette.faint)
        drawing.text(x - 6, y + 4, f"{tenth / 10:.1f}", size=10, colour=palette.muted, anchor="end")
    for delay in (0.5, 1, 2, 5, 10, 20, 50, 100):
        if low <= delay <= high:
            drawing.text(at((delay, least))[0], top + HEIGHT - 34, f"{delay:g} s", size=10, colour=palette.muted)
    edge = frontier(fixed)
    drawing.line([at(fixed[each]) for each in edge], palette.muted)
    for point in fixed.values():
        _dot(drawing, at(point), 3, palette.stock)
    other = found["judged"][OURS]["comparable"]
    x, y = at(fixed[other])
    drawing.text(x, y + 16, label(other), size=10, colour=palette.muted, anchor="middle")
    for each, short in MARKED.items():
        x, y = at(marked[each])
        colour = palette.muted if each == LIKE else palette.ours
        _dot(drawing, (x, y), 5, colour)
        drawing.text(x, y - 8 if each != MIDDLE else y + 18, short, size=11, colour=colour, bold=each == OURS)


def _dot(drawing: Drawing, centre: tuple[float, float], radius: float, fill: str) -> None:
    x, y = centre
    drawing.box(x - radius, y - radius, 2 * radius, 2 * radius, fill, round=radius)


ROW, LEFT, BAR = 20, 250, 400


def ablation_chart(datasets: Mapping[str, Any], palette: Palette) -> str:
    """Returns the SVG: delay and F1 with each part of adaptive more, and the profiler's share of the delay."""
    height = TOP + sum(ROW * (len(PARTS) + 1) + 34 for _ in datasets)
    drawing = Drawing(WIDTH, height, "Mean delay and F1 with each part of adaptive more.", palette)
    drawing.text(0, 16, "What each part adds: mean delay, F1, and the profiler's share", size=15, bold=True)
    drawing.text(0, 36, NOTE, size=12, colour=palette.muted)
    y: float = TOP
    for name, found in datasets.items():
        other = found["judged"][OURS]["comparable"]
        rows = [(f"fixed: {label(other)}", found["fixed"][other], palette.stock)]
        rows += [(part, found["sides"][part], palette.ours) for part in PARTS]
        scale = BAR / max(one["delay"] for _, one, _ in rows)
        drawing.text(0, y, f"{name}, {found['rate']:g} queries per second", size=12, bold=True)
        for title, one, colour in rows:
            y += ROW
            drawing.text(LEFT - 10, y, title, size=12, anchor="end")
            drawing.box(LEFT, y - 10, one["delay"] * scale, 12, colour, round=2)
            drawing.box(LEFT, y - 10, one["profiled"] * scale, 12, palette.muted, round=2)
            said = f"{one['delay']:.2f} s, F1 {one['f1']:.2f}"
            said += f", profiler {one['profiled'] / one['delay']:.0%}" if one["profiled"] else ""
            drawing.text(LEFT + one["delay"] * scale + 8, y, said, size=11, colour=palette.muted)
        y += 34
    return drawing.svg()
