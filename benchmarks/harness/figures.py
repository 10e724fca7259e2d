"""Figures of a run: latencies, percentiles with bootstrap intervals, goodput."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

RESAMPLES = 400


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns a percentile, interpolated between values."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.mean,
    "p50": statistics.median,
    "p95": lambda values: percentile(values, 95),
    "p99": lambda values: percentile(values, 99),
}


def interval(runs: Sequence[Sequence[float]], of: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of a figure: whole runs are drawn, then requests of each (two stages).

    Requests of one run wait for each other, so they are no independent samples; runs are.
    """
    chosen, found = random.Random(0), []
    for _ in range(RESAMPLES):
        drawn = chosen.choices(runs, k=len(runs))
        found.append(of([value for run in drawn for value in chosen.choices(run, k=len(run))]))
    found.sort()
    return found[round(0.025 * (RESAMPLES - 1))], found[round(0.975 * (RESAMPLES - 1))]


def goodput(runs: Sequence[Sequence[float]], ends: Sequence[float], slo: float) -> float:
    """Returns the requests a second that were answered within ``slo`` seconds. ends: seconds that each run took."""
    return sum(value <= slo for run in runs for value in run) / sum(ends)
