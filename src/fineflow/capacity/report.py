"""A plan as text, as JSON and as a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from fineflow.capacity.search import CapacityPlan, InstanceSearch, percentile
from fineflow.observe.timeline_style import STYLE
from fineflow.observe.tracks import duration, nice_step

_SHARES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)  # of the limit, at which the page shows latencies
_CALLS = 5_000  # of each of these simulations, at least
_WIDE, _HIGH, _LEFT, _BELOW = 720, 240, 64, 34  # of a plot, in px

Points = Sequence[tuple[float, float]]


def to_text(plan: CapacityPlan, about: str) -> str:
    """Renders a plan as lines of text. about: a sentence on the load."""
    return "\n".join([about, "", *_columns(_rows(plan)), "", *_verdicts(plan)])


def _rows(plan: CapacityPlan) -> list[tuple[str, ...]]:
    priced = any(each.price is not None for each in plan.engines)
    rows = [("engine", "instances", *(("price/h", "cost/h") if priced else ()), "load", "busy", "wait", "limit")]
    for each in plan.engines:
        prices = (f"{each.price:.2f}", f"{each.price * each.instances:,.2f}") if each.price is not None else ("", "")
        figures = (f"{plan.rate / each.limit:.0%}", f"{each.busy:.0%}", duration(each.wait), f"{each.limit:,.4g}/s")
        rows.append((each.name, str(each.instances), *(prices if priced else ()), *figures))
    if len(plan.engines) > 1:
        cost = "" if plan.price is None else f"{plan.price:,.2f}"
        instances = str(sum(each.instances for each in plan.engines))
        rows.append(("all", instances, *(("", cost) if priced else ()), "", "", "", f"{plan.bottleneck.limit:,.4g}/s"))
    return rows


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.rjust(w) if at else c.ljust(w) for at, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def _verdicts(plan: CapacityPlan) -> Iterator[str]:
    for objective, measured, error in plan.found:
        margin = "" if math.isnan(error) else f" ± {duration(error)}"
        state = "met" if measured <= objective.seconds else "NOT MET"
        yield f"{objective}: {duration(measured)}{margin}, {state}"
    yield f"Bottleneck: {plan.bottleneck.name}; saturated at {plan.bottleneck.limit:,.4g} calls a second."
    if plan.why:
        yield f"No plan: {plan.why}."


def to_dict(plan: CapacityPlan) -> dict[str, Any]:
    """Returns a plan as plain data; seconds, and calls a second."""
    values = plan.outcome.latencies
    return {
        "met": not plan.why,
        "why": plan.why,
        "rate": plan.rate,
        "calls": len(values),
        "saturation": plan.bottleneck.limit,
        "bottleneck": plan.bottleneck.name,
        "price": plan.price,
        "engines": [asdict(each) | {"load": plan.rate / each.limit} for each in plan.engines],
        "objectives": [
            {"objective": str(each), "seconds": measured, "error": None if math.isnan(error) else error}
            for each, measured, error in plan.found
        ],
        "latency": {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)} if values else {},
        "tries": plan.tries,
    }


def to_json(plan: CapacityPlan) -> str:
    """Returns a plan as JSON, see ``to_dict``."""
    return json.dumps(to_dict(plan), indent=1)


def to_html(plan: CapacityPlan, search: InstanceSearch, about: str) -> str:
    """Renders one self-contained page. Simulates more and less load on the instances of the plan."""
    cells = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in zip(["th", *["td"] * 99], _rows(plan), strict=False)
    )
    verdicts = "".join(f"<p>{escape(line)}</p>" for line in _verdicts(plan))
    objectives = [(each.seconds, str(each)) for each, _, _ in plan.found if not each.first]
    values = sorted(plan.outcome.latencies)
    shares = [0.5, *range(1, 100), 99.5, 99.9]
    spread = [(percentile(values, share), float(share)) for share in shares]
    curves = _over_rates(plan, search)
    plots = "<h2>Calls that take at most so long, in percent</h2>" + _plot({"calls": spread}, "s", objectives)
    plots += "<h2>Seconds of a call over calls a second</h2>" + _plot(curves, "/s", [(plan.rate, "planned")])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Capacity</title><style>{STYLE}{_STYLE}</style></head><body><h1>Capacity</h1>"
        f'<p class="lead">{escape(about)}</p>{verdicts}<h2>Instances</h2><table>{cells}</table>{plots}</body></html>'
    )


def _over_rates(plan: CapacityPlan, search: InstanceSearch) -> Mapping[str, Points]:
    counts = {each.name: each.instances for each in plan.engines}
    usual = percentile(plan.outcome.latencies, 50)
    curves: dict[str, list[tuple[float, float]]] = {"p50": [], "p95": [], "p99": []}
    for share in _SHARES:
        rate = share * plan.bottleneck.limit
        values = search.at_rate(counts, rate, max(_CALLS, round(5 * usual * rate))).latencies
        for name, points in curves.items():
            points.append((rate, percentile(values, float(name[1:]))))
    return curves


_STYLE = (
    ".plot{width:100%;max-width:760px;background:var(--lane);overflow:visible}"
    ".plot text{fill:var(--dim);font-size:11px}"
    ".plot path{fill:none;stroke-width:2}.plot line{stroke:var(--grid)}.plot .mark{stroke:var(--end);stroke-width:2}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:3px 18px 3px 0;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
)


def _plot(curves: Mapping[str, Points], unit: str, marks: Sequence[tuple[float, str]]) -> str:
    """Draws curves, with vertical lines at marks. unit: of what goes from left to right."""
    points = [point for each in curves.values() for point in each]
    right = max([x for x, _ in points] + [x for x, _ in marks]) * 1.05 or 1.0
    top = max(y for _, y in points) * 1.05 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (_WIDE - _LEFT) * x / right, (_HIGH - _BELOW) * (1 - y / top) + 4

    parts = []
    for step, most, across in ((nice_step(right), right, True), (nice_step(top, 5), top, False)):
        for number in range(int(most / step) + 1):
            x, y = place(number * step, 0) if across else place(0, number * step)
            end = (x, 4) if across else (_WIDE, y)
            at, anchor = ((x, y + 15), "middle") if across else ((x - 6, y + 4), "end")
            parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>')
            label = f"{number * step:.4g}{unit if across else ''}"
            parts.append(f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">{label}</text>')
    for seconds, name in marks:
        x, y = place(seconds, 0)
        parts.append(f'<line class="mark" x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="4"/>')
        parts.append(f'<text x="{x - 4:.1f}" y="14" text-anchor="end">{escape(name)}</text>')
    for number, (name, each) in enumerate(curves.items()):
        path = " ".join(f"{'ML'[at > 0]}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(place(*point) for point in each))
        parts.append(f'<path style="stroke:var(--c{number})" d="{path}"/>')
        parts.append(f'<text style="fill:var(--c{number})" x="{_LEFT + 8 + 44 * number}" y="18">{escape(name)}</text>')
    return f'<svg class="plot" viewBox="0 0 {_WIDE} {_HIGH}" role="img">{"".join(parts)}</svg>'
