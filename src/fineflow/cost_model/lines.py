"""Lines: seconds of work by its size, fitted to measurements, and what is assumed until there are some."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from fineflow.ir import Op

SPLIT_PENALTY = 0.076  # of a whole prefill, for splitting it in two: the middle of 3.11-12.12 % (Ayo, Table 3)

_WINDOW = 64  # latest measurements used: engines get busier, warmer, or are replaced
ENOUGH = 3  # measurements that outweigh the prior; the first is not one of those that count


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds for work of a size: ``fixed`` once, ``each`` per unit. ``largest``: the largest size measured.

    beside: extra seconds per unit for each other request decoded in the same batch.
    """

    fixed: float
    each: float = 0.0
    largest: float = 0.0
    beside: float = 0.0

    def at(self, size: float, together: float = 1.0) -> float:
        return self.fixed + (self.each + self.beside * (together - 1)) * size


# Estimates of an operation until it is measured: for a small model on a GPU, or one behind a network.
PRIORS: Mapping[Op, Line] = {
    Op.EMBED: Line(0.010, 0.002),
    Op.RERANK: Line(0.010, 0.008),
    Op.INGEST: Line(0.010, 0.001),
    Op.PREFILL: Line(0.020, 0.0002),
    Op.PARTIAL_PREFILL: Line(0.020, 0.0002),
    Op.DECODE: Line(0.020, 0.015),
    Op.PARTIAL_DECODE: Line(0.020, 0.015),
    Op.SEARCH: Line(0.030),
    Op.TOOL: Line(0.500),
}


SIZES: Mapping[Op, float] = {  # typical sizes until some are observed
    Op.EMBED: 1,
    Op.RERANK: 16,
    Op.INGEST: 16,
    Op.PREFILL: 800,
    Op.PARTIAL_PREFILL: 400,
    Op.DECODE: 100,
    Op.PARTIAL_DECODE: 100,
    Op.MAP: 4,
}


class LatencyModel:
    """The latest measurements of one operation on one engine, and the line through them."""

    __slots__ = ("_due", "known", "line", "op", "samples", "seen")

    def __init__(self, op: Op, known: Line | None = None) -> None:
        self.op = op
        self.known = known  # from a loaded profile: counts as measured
        self.samples: deque[tuple[float, float, float]] = deque(maxlen=_WINDOW)  # size, seconds, concurrent requests
        self.seen = 0
        self.line = known or PRIORS.get(op, Line(0.0))
        self._due = ENOUGH

    def add(self, size: float, seconds: float, together: float = 1.0) -> None:
        if self.seen == 1:
            self.samples.clear()  # the first may have loaded a model, or opened a connection
        self.samples.append((size, seconds, together))
        self.seen += 1

    def fitted(self) -> Line:
        """Returns the line, refitted only when an eighth of the measurements is new: predictions are frequent."""
        if self.seen >= self._due:
            self.line = fit_together(self.samples, self.known or PRIORS.get(self.op, Line(0.0)))
            self._due = self.seen + max(1, len(self.samples) // 8)
        return self.line

    @property
    def measured(self) -> bool:
        return self.seen >= ENOUGH or self.known is not None


def fit(samples: Iterable[tuple[float, float]], prior: Line) -> Line:
    """Fits a line to (size, seconds) pairs by the Theil-Sen estimator: up to 29 % of them may be outliers.

    Returns the median if the prior is constant. If the sizes are too similar for a slope, returns the prior scaled to
    the measurements. Neither part is negative. Raises ValueError without samples.
    """
    points = list(samples)
    if not points:
        raise ValueError("fit() needs at least one measurement, it got none")
    sizes = [size for size, _ in points]
    middle, usual, largest = median(seconds for _, seconds in points), median(sizes), max(sizes)
    if not prior.each:
        return Line(middle, 0.0, largest)
    slopes = [(t - s) / (y - x) for i, (x, s) in enumerate(points) for y, t in points[i + 1 :] if x != y]
    # A third of all pairs must differ in size: with fewer, a few outliers would decide.
    if largest < 2 * min(sizes) or len(slopes) < len(points) * (len(points) - 1) / 6:
        scale = middle / prior.at(usual)
        return Line(prior.fixed * scale, prior.each * scale, largest)
    each = median(slopes)
    if each <= 0:
        return Line(middle, 0.0, largest)
    fixed = median(seconds - each * size for size, seconds in points)
    if fixed >= 0:
        return Line(fixed, each, largest)
    return Line(0.0, median(seconds / size for size, seconds in points if size), largest)


def fit_together(samples: Iterable[tuple[float, float, float]], prior: Line) -> Line:
    """Fits (size, seconds, concurrent requests) like ``fit``; ``beside`` is the slope of seconds per unit.

    That slope is the median over pairs of measurements with different concurrency; with too few of them, the prior's.
    """
    points = list(samples)
    rates = [(together, seconds / size) for size, seconds, together in points if size]
    slopes = [(t - s) / (y - x) for i, (x, s) in enumerate(rates) for y, t in rates[i + 1 :] if abs(x - y) >= 1]
    known = len(slopes) >= ENOUGH and len(slopes) >= len(rates) * (len(rates) - 1) / 6
    beside = max(median(slopes), 0.0) if known else prior.beside
    alone = [(size, max(seconds - beside * (together - 1) * size, 0.0)) for size, seconds, together in points]
    return replace(fit(alone, prior), beside=beside)
