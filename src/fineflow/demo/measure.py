"""Runs a stock app and its optimized counterpart on the same inputs, times them, and compares their results.

Every run starts from the same state of the engines (``reset``). The order of the runs is reversed from one round to
the next, so neither side always goes first. Times are wall-clock seconds of one call, without the start of an event
loop; the figure of a kind of run is the median of its rounds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from fineflow.demo.frameworks import Framework
from fineflow.runtime import events
from fineflow.runtime.call.trace import Trace

STOCK, FINEFLOW = "stock", "fineflow"
SIDES = (STOCK, FINEFLOW)

Kind = tuple[str, str]  # side, entry point


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a call, or the exception that it raised."""

    value: Mapping[str, Any] | None = None
    error: Exception | None = None

    def differences(self, other: Outcome) -> list[str]:
        """Returns the keys whose values differ; ``["exception"]`` if the calls did not fail in the same way."""
        if self.error is not None or other.error is not None:
            alike = type(self.error) is type(other.error) and str(self.error) == str(other.error)
            return [] if alike else ["exception"]
        mine, theirs = self.value or {}, other.value or {}
        # The order of the keys counts, too: a printed record shows it.
        keys = list(dict.fromkeys([*mine, *theirs]))
        found = [key for key in keys if key not in mine or key not in theirs or mine[key] != theirs[key]]
        return found or ([] if list(mine) == list(theirs) else ["order of keys"])


@dataclass(frozen=True, slots=True)
class Run:
    """One timed call: its duration and its start in seconds, and the intervals that engines reported meanwhile.

    traces: of the graph that ran ahead, if any.
    """

    seconds: float
    outcome: Outcome
    start: float
    intervals: Sequence[events.Interval]
    traces: Sequence[Trace] = ()


@dataclass(slots=True)
class Measured:
    """All runs for one question. The reference is the first sync call of stock; every run is compared with it.

    entries: names of the sync and the async entry method.
    """

    question: str
    reference: Outcome
    entries: tuple[str, str]
    runs: dict[Kind, list[Run]] = field(init=False)
    differences: dict[Kind, list[str]] = field(init=False)
    deviant: dict[Kind, Outcome] = field(default_factory=dict)  # the first outcome of a kind that differed

    def __post_init__(self) -> None:
        self.runs = {kind: [] for kind in kinds(self.entries)}
        self.differences = {kind: [] for kind in kinds(self.entries)}

    @property
    def equal(self) -> bool:
        """True if every run of both sides returned (or raised) the same."""
        return not any(self.differences.values())

    def seconds(self, side: str, entry: str) -> float:
        """Returns the median time of the runs of one kind."""
        return median(run.seconds for run in self.runs[side, entry])

    def ratio(self, entry: str) -> float:
        """Returns stock's time divided by fineflow's: above 1, fineflow is faster."""
        return self.seconds(STOCK, entry) / self.seconds(FINEFLOW, entry)

    def typical(self, side: str, entry: str) -> Run:
        """Returns the run with the median time."""
        runs = sorted(self.runs[side, entry], key=lambda run: run.seconds)
        return runs[(len(runs) - 1) // 2]

    def note(self, kind: Kind, outcome: Outcome) -> None:
        """Compares an outcome with the reference."""
        found = outcome.differences(self.reference)
        self.differences[kind] += [key for key in found if key not in self.differences[kind]]
        if found:
            self.deviant.setdefault(kind, outcome)


def kinds(entries: tuple[str, str]) -> tuple[Kind, ...]:
    """Returns all kinds of runs: both sides by each method."""
    return tuple((side, entry) for entry in entries for side in SIDES)


def measure(
    apps: Mapping[str, Any],
    question: str,
    framework: Framework,
    *,
    reset: Callable[[], None],
    repeat: int,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Measured:
    """Runs both apps (keys ``SIDES``) on a question: one untimed round, then ``repeat`` timed ones.

    ``reset`` puts the engines into the same state before every run. ``progress`` wraps the rounds. Exceptions of an app
    are outcomes; KeyboardInterrupt and other BaseExceptions propagate.
    """
    measured: Measured | None = None
    every = kinds(framework.entries)
    with asyncio.Runner() as runner:
        for round_ in progress(range(repeat + 1)):
            for kind in every if round_ % 2 or not round_ else reversed(every):
                reset()
                run = _run(runner, apps[kind[0]], framework, kind[1], question, label=" ".join(kind))
                if measured is None:
                    measured = Measured(question, run.outcome, framework.entries)
                measured.note(kind, run.outcome)
                if round_:  # the first round warms up both sides: plans, threads, allocators
                    measured.runs[kind].append(run)
    assert measured is not None
    return measured


def _run(runner: asyncio.Runner, app: Any, framework: Framework, entry: str, question: str, label: str) -> Run:
    async def timed() -> tuple[float, float, Outcome]:
        start = time.perf_counter()
        try:
            outcome = Outcome(await framework.aask(app, question))
        except Exception as error:
            outcome = Outcome(error=error)
        return start, time.perf_counter() - start, outcome

    with events.record() as intervals, events.labelled(label):
        if entry == framework.entries[1]:
            start, seconds, outcome = runner.run(timed())
        else:
            start = time.perf_counter()
            try:
                outcome = Outcome(framework.ask(app, question))
            except Exception as error:
                outcome = Outcome(error=error)
            seconds = time.perf_counter() - start
    last = getattr(app, "_self_last", None)  # of an optimized object
    traces = [last.trace] if last is not None and last.trace is not None and last.trace.began >= start else []
    return Run(seconds, outcome, start, intervals, traces)
