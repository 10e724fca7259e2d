"""Tables and marks of where a chain spends its time: its predicted critical path, and the last call as measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fineflow.cost_model.costs import Costs, costs
from fineflow.cost_model.forecast import Forecast, predict
from fineflow.ir import Graph
from fineflow.ir.primitive import Effect
from fineflow.ir.text import Marks, duration
from fineflow.observe.plan_page import Section, works
from fineflow.runtime.call.trace import Step, Trace, measured_path, steps

_LEAST = 0.0005  # minimum seconds of a plumbing step in the tables


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Predicted critical paths of one plan: of the graph as written (called async and sync), and as run."""

    written: Forecast = field(default_factory=Forecast)
    written_sync: Forecast = field(default_factory=Forecast)
    run: Forecast = field(default_factory=Forecast)

    @classmethod
    def of(cls, p_graph: Graph, e_graph: Graph, known: Costs = costs) -> Forecasts:
        return cls(predict(p_graph, known), predict(p_graph, known, serial=True), predict(e_graph, known))


def marks(forecast: Forecast) -> Marks:
    """Returns the drawing marks of a forecast: predicted seconds of each step, and the critical ones."""
    return Marks(forecast.each, frozenset(forecast.names))


def measured_marks(trace: Trace) -> Marks:
    """Returns the drawing marks of a call: measured seconds of each step, and those that determined its end."""
    took = {step.name: step.ran for step in steps(trace) if _is_shown(step)}
    return Marks(took, frozenset(name for name, _ in measured_path(trace) if name in took))


def predicted(forecasts: Forecasts, entries: Sequence[str], stock: Sequence[str]) -> Section | None:
    """Returns the table of predicted critical paths, or None if nothing takes time.

    entries: the methods of the plan; names of async ones begin with "a". stock: those that run as stock.
    """
    written, run = forecasts.written, forecasts.run
    if not written.seconds and not run.seconds:
        return None
    sync = [entry for entry in entries if not entry.startswith("a")]
    rows = [_row("as written", [entry for entry in entries if entry not in sync], written)]
    if forecasts.written_sync == written:
        rows = [_row("as written", ("any",), written)]
    else:
        rows.append(_row("as written", sync, forecasts.written_sync))
    if ahead := [entry for entry in entries if entry not in stock]:
        rows.append(_row("as run", ahead if stock else ("any",), run))
    basis = run.basis if ahead else written.basis
    heading = f"Predicted critical path, {basis}; engines are assumed idle, your own code counts once measured"
    return heading, ("graph", "entered by", "length", "path"), rows


def _row(graph: str, entries: Sequence[str], forecast: Forecast) -> tuple[str, ...]:
    path = format_path(forecast.names, forecast.each) or "nothing takes time"
    return graph, ", ".join(entries), duration(forecast.seconds), path


def format_path(names: Sequence[str], seconds: Mapping[str, float]) -> str:
    """Formats a path: the steps with their seconds, inner steps in brackets after the outer one."""
    parts: list[str] = []
    left = list(names)
    while left:
        name = left.pop(0)
        within = [inner for inner in left if inner.startswith(f"{name} > ")]
        left = [inner for inner in left if inner not in within]
        text = f"{name.rpartition(' > ')[2]} {duration(seconds[name])}".replace(" ", "\u00a0")  # on one line
        parts.append(f"{text} ({format_path(within, seconds)})" if within else text)
    return ", ".join(parts)


def measured(trace: Trace, forecasts: Forecasts | None) -> Iterator[Section]:
    """Yields the tables of a call: its critical path, and every step that took time or that stock could claim."""
    path = [(name, seconds) for name, seconds in measured_path(trace) if seconds >= _LEAST]
    believed = forecasts.run.each if forecasts is not None else {}
    yield (
        f"Last run: {trace.entry} took {duration(trace.seconds)}; its critical path, as measured",
        ("measured", "predicted", "step"),
        [
            (duration(seconds), duration(believed[name]) if name in believed else "", name)
            for name, seconds in path or [(trace.graph.output.name, 0.0)]
        ],
    )
    yield (
        "Last run: when the inputs of each step were ready, how long it waited for its engine, and ran",
        ("inputs at", "waited", "ran", "for stock", "step"),
        [
            (
                duration(max(step.ready, 0.0)),
                duration(step.waited),
                duration(step.ran) if step.ended else "did not end",
                _fate(step),
                step.name + (f", {step.times} times (the longest)" if step.times > 1 else ""),
            )
            for step in steps(trace)
            if _is_shown(step)
        ],
    )


def _is_shown(step: Step) -> bool:
    opaque = step.primitive.effects.kind is Effect.OPAQUE
    return bool(step.taken) or works(step.primitive) or opaque or step.ran >= _LEAST


def _fate(step: Step) -> str:
    counted = Counter(step.taken)
    if len(counted) == 1 and step.times == 1:
        return step.taken[0]
    return ", ".join(f"{count} {fate}" for fate, count in counted.items())
