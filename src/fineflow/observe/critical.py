"""Tables and marks of where a chain spends its time: its predicted critical path, and the last call as measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fineflow.cost_model.costs import Costs, costs
from fineflow.cost_model.forecast import Forecast, predict
from fineflow.ir import Graph
from fineflow.ir.primitive import Effect
from fineflow.ir.text import Marks, duration
from fineflow.observe.sections import Section, works
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
        return cls(
            predict(p_graph, known), predict(p_graph, known, serial=True), predict(e_graph, known, written=p_graph)
        )


def marks(forecast: Forecast) -> Marks:
    """Returns the drawing marks of a forecast: predicted seconds of each measured step, and the critical ones."""
    return Marks(_measured(forecast), frozenset(forecast.names))


def _measured(forecast: Forecast) -> dict[str, float]:
    """Returns the seconds of each step that somebody has measured, also of what it consists of."""
    return {
        name: seconds
        for name, seconds in forecast.each.items()
        if not any(guess == name or guess.startswith(f"{name} > ") for guess in forecast.guessed)
    }


def measured_marks(trace: Trace) -> Marks:
    """Returns the drawing marks of a call: measured seconds of each step, and those that determined its end."""
    took = {step.name: step.ran for step in steps(trace) if _is_shown(step)}
    return Marks(took, frozenset(name for name, _ in measured_path(trace) if name in took))


def predicted(forecasts: Forecasts, entries: Sequence[str], stock: Sequence[str]) -> Section | None:
    """Returns the table of predicted critical paths, or None if nothing takes time.

    Seconds that nobody has measured are not shown: a path with such a step has a number of steps.

    entries: the methods of the plan; names of async ones begin with "a". stock: those that run as stock.
    """
    written, run = forecasts.written, forecasts.run
    if not written.seconds and not run.seconds:
        return None
    ahead = [entry for entry in entries if entry not in stock]
    shown = [written, forecasts.written_sync, *([run] if ahead else [])]
    in_seconds = all(forecast.known for forecast in shown)
    sync = [entry for entry in entries if not entry.startswith("a")]
    rows = [_row("as written", [entry for entry in entries if entry not in sync], written, in_seconds)]
    if forecasts.written_sync == written:
        rows = [_row("as written", ("any",), written, in_seconds)]
    else:
        rows.append(_row("as written", sync, forecasts.written_sync, in_seconds))
    if ahead:
        rows.append(_row("as run", ahead if stock else ("any",), run, in_seconds))
    columns = ("graph", "entered by", "length", "path")
    if in_seconds:
        return f"Predicted critical path, from measurements; {_ASSUMED}", columns, rows
    names = (
        not_measured(forecasts) if ahead else [*dict.fromkeys((*written.believed, *forecasts.written_sync.believed))]
    )
    guessed, are = ", ".join(names), "is" if len(names) == 1 else "are"
    why = f"seconds follow once {guessed} ran three times in this process" if ahead else f"{guessed} {are} not measured"
    return f"Critical path in steps; {why}", columns, rows


def not_measured(forecasts: Forecasts) -> list[str]:
    """Returns the engines of which nobody has measured how long they take."""
    shown = (forecasts.written, forecasts.written_sync, forecasts.run)
    return list(dict.fromkeys(engine for forecast in shown for engine in forecast.believed))


def gained(forecasts: Forecasts, entries: Sequence[str]) -> str:
    """Returns what calls by these methods are predicted to gain, in a sentence; "" if nothing, or not measured."""
    run = forecasts.run
    before = {
        kind: duration(forecast.seconds)
        for kind, forecast in (("sync", forecasts.written_sync), ("async", forecasts.written))
        if any(entry.startswith("a") is (kind == "async") for entry in entries) and forecast.known
    }
    after = duration(run.seconds)
    gains = {kind: seconds for kind, seconds in before.items() if seconds != after}
    if not gains or not run.known:
        return ""
    values = list(dict.fromkeys(before.values()))
    if len(values) > 1:
        values = [f"{seconds} ({kind})" for kind, seconds in gains.items()]
    same = "".join(f"; {kind} calls take that as they are" for kind in before if kind not in gains)
    return f"Predicted from measurements: {after} instead of {' or '.join(values)}{same}."


_ASSUMED = "engines are assumed idle, your own code counts once measured"


def _row(graph: str, entries: Sequence[str], forecast: Forecast, in_seconds: bool) -> tuple[str, ...]:
    path = format_path(forecast.names, _measured(forecast), forecast.repeated) or "nothing takes time"
    length = duration(forecast.seconds) if in_seconds else counted(forecast)
    return graph, ", ".join(entries), length, path


def counted(forecast: Forecast) -> str:
    """Returns the length of a path in steps."""
    return f"{forecast.steps} step{'' if forecast.steps == 1 else 's'}"


def format_path(names: Sequence[str], seconds: Mapping[str, float], repeated: Container[str] = ()) -> str:
    """Formats a path: the steps with their seconds if known, inner steps in brackets after the outer one.

    repeated: steps that stock runs once for each item.
    """
    parts: list[str] = []
    left = list(names)
    while left:
        name = left.pop(0)
        within = [inner for inner in left if inner.startswith(f"{name} > ")]
        left = [inner for inner in left if inner not in within]
        text = name.rpartition(" > ")[2] + (f" {duration(seconds[name])}" if name in seconds else "")
        text = text.replace(" ", "\u00a0")  # on one line
        text += " once per item" if name in repeated and name not in seconds else ""
        parts.append(f"{text} ({format_path(within, seconds, repeated)})" if within else text)
    return ", ".join(parts)


def measured(trace: Trace, forecasts: Forecasts | None) -> Iterator[Section]:
    """Yields the tables of a call: its critical path, and every step that took time or that stock could claim."""
    path = [(name, seconds) for name, seconds in measured_path(trace) if seconds >= _LEAST]
    believed = _measured(forecasts.run) if forecasts is not None else {}
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
    counted = Counter(step.taken or step.warmed)
    if len(counted) == 1 and step.times == 1:
        return next(iter(counted))
    return ", ".join(f"{count} {fate}" for fate, count in counted.items())
