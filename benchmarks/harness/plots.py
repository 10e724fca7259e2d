"""Charts of what ``run`` and ``suite`` have measured, as SVG in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.pictures.svg import PALETTES, Drawing, Palette

from benchmarks.harness.experiment import ALONE

WIDTH, LEFT, TOP, ROW, BAR = 860, 210, 64, 44, 10
SHOWN = ("stock", "tuned", "fineflow")
ENGINES = ("llm", "small", "embedder", "reranker", "search", "")
NAMES = {"llm": "core LLM", "small": "small LLM", "embedder": "embedding", "reranker": "reranker", "": "other"}
TINTS = {
    "light": ("#0b7a75", "#63b3ae", "#b5651d", "#e0a458", "#8a6fb0", "#d8dee4"),
    "dark": ("#35c2b6", "#1f6f69", "#e39b54", "#8f5a24", "#b79be0", "#30363d"),
}

Results = Sequence[Mapping[str, Any]]


def colour(scheme: str, palette: Palette) -> str:
    """Returns the colour of a scheme."""
    known = {"stock": palette.stock, "tuned": palette.muted, "bound": palette.ink}
    return known.get(scheme, palette.ours)


def at(results: Results, **wanted: str) -> list[Mapping[str, Any]]:
    """Returns the results with these entries."""
    return [each for each in results if all(each[name] == value for name, value in wanted.items())]


def names(results: Results) -> list[str]:
    return list(dict.fromkeys(each["app"] for each in results))


def _legend(drawing: Drawing, entries: Sequence[tuple[str, str]], x: float = LEFT, y: float = 50) -> None:
    for name, fill in entries:
        drawing.box(x, y - 9, 10, 10, fill, round=2)
        drawing.text(x + 15, y, name, size=11)
        x += 32 + 7 * len(name)


def achieved(results: Results, palette: Palette) -> str:
    """Limit ÷ achieved of each app, one call at a time."""
    alone = [each for each in results if each["load"] == ALONE and each["scheme"] in SHOWN]
    apps = names(alone)
    drawing = Drawing(WIDTH, TOP + ROW * len(apps) + 30, "Share of the limit that each scheme reaches", palette)
    drawing.text(0, 18, "How near the limit: one call at a time", size=15, bold=True)
    about = "Limit: critical path on idle devices with every legal rewrite. 100 % cannot be exceeded."
    drawing.text(0, 34, about, size=12, colour=palette.muted)
    _legend(drawing, [(name, colour(name, palette)) for name in SHOWN])
    full = WIDTH - LEFT - 70
    for place, app in enumerate(apps):
        y = TOP + place * ROW
        drawing.text(LEFT - 12, y + 20, app, size=12, anchor="end")
        for row, scheme in enumerate(SHOWN):
            for each in at(alone, app=app, scheme=scheme):
                top = y + row * (BAR + 2)
                drawing.box(LEFT, top, each["achieved"] * full, BAR, colour(scheme, palette), round=2)
                label = f"{100 * each['achieved']:.1f} %  ({each['mean']:.2f} s)"
                ink = palette.ink if scheme == "stock" else palette.on_ours if scheme == "fineflow" else palette.surface
                drawing.text(LEFT + each["achieved"] * full - 6, top + 9, label, size=9, anchor="end", colour=ink)
    end = TOP + ROW * len(apps)
    drawing.line([(LEFT + full, TOP - 6), (LEFT + full, end)], palette.ink, dashed=True)
    drawing.text(LEFT + full, end + 16, "limit", size=11, anchor="middle", colour=palette.muted)
    return drawing.svg()


def loads(results: Results, palette: Palette) -> str:
    """Mean latency over the load, one panel for each app."""
    loaded = [each for each in results if each["load"] != ALONE and each["scheme"] in SHOWN]
    apps = names(loaded)
    across, wide, high = 3, 280, 190
    rows = -(-len(apps) // across)
    drawing = Drawing(WIDTH, TOP + rows * high + 10, "Mean latency over load of each app", palette)
    drawing.text(0, 18, "Mean latency over load", size=15, bold=True)
    about = "Seconds, over requests a second; dashed: no schedule has a lower mean at this load."
    drawing.text(0, 34, about, size=12, colour=palette.muted)
    _legend(drawing, [*((name, colour(name, palette)) for name in SHOWN), ("bound", palette.ink)], x=0)
    for place, app in enumerate(apps):
        x, y = (place % across) * wide, TOP + (place // across) * high + 14
        _panel(drawing, at(results, app=app), app, (x + 34, y, wide - 56, high - 62), palette)
    return drawing.svg()


def _panel(
    drawing: Drawing, results: Results, title: str, area: tuple[float, float, float, float], palette: Palette
) -> None:
    x, y, wide, high = area
    shown = [each for each in results if each["scheme"] in SHOWN]
    most = max(each["mean"] for each in shown) * 1.1
    fastest = max(each.get("rate", 0.0) for each in shown) * 1.05 or 1.0

    def place(rate: float, seconds: float) -> tuple[float, float]:
        return x + wide * rate / fastest, y + high * (1 - seconds / most)

    drawing.text(x, y - 4, title, size=12, bold=True)
    drawing.line([(x, y), (x, y + high), (x + wide, y + high)], palette.faint)
    for seconds in (most / 1.1, most / 2.2):
        drawing.text(x - 4, place(0, seconds)[1] + 4, f"{seconds:.1f}", size=9, anchor="end", colour=palette.muted)
    for scheme in (*SHOWN, "bound"):
        key = "mean" if scheme != "bound" else "bound"
        mine = [each for each in shown if each["scheme"] == ("fineflow" if scheme == "bound" else scheme)]
        points = sorted(place(each.get("rate", 0.0), each[key]) for each in mine)
        if len(points) > 1:
            drawing.line(points, colour(scheme, palette), dashed=scheme == "bound")
    for each in {each["rate"]: each for each in shown if "rate" in each}.values():
        drawing.text(
            place(each["rate"], 0)[0],
            y + high + 13,
            f"{each['rate']:.2g}",
            size=9,
            anchor="middle",
            colour=palette.muted,
        )


def ablation(results: Results, palette: Palette) -> str:
    """What each app takes without one pass, relative to all passes."""
    return _relative(results, palette, "fineflow-without-", "Without one pass", "Time without the pass ÷ with all.")


def policies(results: Results, palette: Palette) -> str:
    """What each app takes under each policy, relative to the default."""
    found = [each for each in results if not each["scheme"].startswith("fineflow-without-")]
    found = [each for each in found if each["load"] != ALONE and each["scheme"] != "fineflow-sync"]
    return _relative(found, palette, "fineflow-", "Policies under load", "Mean latency with the policy ÷ by default.")


def _relative(results: Results, palette: Palette, prefix: str, title: str, about: str) -> str:
    rows = []
    for each in results:
        if each["scheme"].startswith(prefix):
            (base,) = at(results, app=each["app"], load=each["load"], scheme="fineflow")
            load = "" if each["load"] == ALONE else f", {each['load']}"
            name = f"{each['app']}{load}: {each['scheme'].removeprefix(prefix)}"
            rows.append((name, each["mean"] / base["mean"]))
    rows = [row for row in rows if abs(row[1] - 1) >= 0.005]
    height, left = TOP + 20 * len(rows) + 16, 330
    drawing = Drawing(WIDTH, height, title, palette)
    drawing.text(0, 18, title, size=15, bold=True)
    drawing.text(0, 34, f"{about} Differences below 0.5 % are left out.", size=12, colour=palette.muted)
    scale = (WIDTH - left - 60) / max([1.2, *(ratio for _, ratio in rows)])
    for place, (name, ratio) in enumerate(rows):
        y = TOP + 20 * place
        drawing.text(left - 10, y + 10, name, size=11, anchor="end")
        drawing.box(left, y, ratio * scale, 12, palette.ours if ratio > 1 else palette.stock, round=2)
        drawing.text(left + ratio * scale + 6, y + 10, f"{ratio:.2f}", size=11, colour=palette.muted)
    drawing.line([(left + scale, TOP - 8), (left + scale, height - 10)], palette.ink, dashed=True)
    return drawing.svg()


def breakdown(results: Results, palette: Palette) -> str:
    """Seconds on the critical path by engine, waiting for it included: the limit, fineflow, stock."""
    alone = [each for each in results if each["load"] == ALONE and each["scheme"] in ("stock", "fineflow")]
    apps = names(alone)
    drawing = Drawing(WIDTH, TOP + ROW * len(apps) + 16, "Critical paths by engine", palette)
    drawing.text(0, 18, "Where the time goes: critical path of one call", size=15, bold=True)
    about = "Seconds by engine, waiting for it included."
    drawing.text(0, 34, about, size=12, colour=palette.muted)
    tints = dict(zip(ENGINES, TINTS[palette.name], strict=True))
    _legend(drawing, [(NAMES.get(name, name), tint) for name, tint in tints.items()])
    for place, app in enumerate(apps):
        rows = [(each["limit_spent"], each["limit"], "limit") for each in at(alone, app=app, scheme="fineflow")]
        rows += [
            (each["spent"], each["mean"], name)
            for name in ("fineflow", "stock")
            for each in at(alone, app=app, scheme=name)
            if each["spent"]
        ]
        most = max((seconds for _, seconds, _ in rows), default=1.0)
        y = TOP + place * ROW
        drawing.text(LEFT - 12, y + 20, app, size=12, anchor="end")
        for row, (spent, seconds, name) in enumerate(rows):
            x, scale = float(LEFT), (WIDTH - LEFT - 100) / most
            for engine, part in _parts(spent):
                drawing.box(x, y + row * (BAR + 2), part * scale, BAR, tints[engine], round=0)
                x += part * scale
            drawing.text(x + 6, y + row * (BAR + 2) + 9, f"{seconds:.2f} s, {name}", size=10, colour=palette.muted)
    return drawing.svg()


def _parts(spent: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns the seconds of each engine that has some."""
    found = dict.fromkeys(ENGINES, 0.0)
    for name, seconds in spent.items():
        found[name] += max(seconds, 0.0)
    return [(name, seconds) for name, seconds in found.items() if seconds > 0.0005]


CHARTS = {"achieved": achieved, "loads": loads, "passes": ablation, "policies": policies, "breakdown": breakdown}


def drawings(results: Results) -> dict[str, str]:
    """Returns the SVG of each chart for which something was measured, by file name."""
    found = {}
    for name, chart in CHARTS.items():
        if name in ("achieved", "breakdown") and not at(results, load=ALONE):
            continue
        if name == "loads" and all(each["load"] == ALONE for each in results):
            continue
        prefix = {"passes": "fineflow-without-", "policies": "fineflow-by_"}.get(name)
        if prefix and not any(each["scheme"].startswith(prefix) for each in results):
            continue
        for palette in PALETTES:
            found[f"{name}-{palette.name}.svg"] = chart(results, palette)
    return found
