"""What work costs: latency models in seconds, learned online, which passes, placement and ``explain`` ask.

One model per engine and operation: ``seconds = fixed + each * size`` for what grows with its input, a constant for
the rest (Ayo, section 4.3, profiles engines ahead of time; here the profile is learned from the batches and calls that
run anyway, and a file of it can be kept: ``to_json``, ``from_json``). Sizes: texts of a batch (EMBED, RERANK,
INGEST), tokens that are computed (PREFILL, PARTIAL_PREFILL), steps (DECODE, PARTIAL_DECODE). A step of an LLM takes
longer for each sequence that is decoded in it besides: ``fixed + steps * (each + beside * (sequences - 1))`` seconds.

A process starts with what an earlier one, or ``fineflow profile``, has measured by
``fineflow.costs.load(Path("profile.json"))``, before its first call.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, isfinite
from pathlib import Path
from statistics import median
from typing import Any

from fineflow.ir import Op
from fineflow.runtime import events

SPLIT_PENALTY = 0.076  # of a whole prefill, for doing it in two parts: the middle of 3.11-12.12 % (Ayo, Table 3)

_WINDOW = 64  # measurements that count: engines get busier, warmer, or are replaced
_ENOUGH = 3  # measurements from which on they count more than the prior: the first may have loaded the model
_EFFICIENT = 0.9  # share of the best throughput at which a larger batch is not worth its latency
_STALLED = 3.0  # times what calls usually take, from which on a longer one counts as no longer
_REMEMBERED = 4096  # primitives whose sizes are known
_SMOOTH = 32  # calls over which a typical size is a mean


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds for work of a size: ``fixed`` once, ``each`` per unit. ``largest``: the largest size it rests on.

    beside: seconds per unit more for each other request that is decoded together with it.
    """

    fixed: float
    each: float = 0.0
    largest: float = 0.0
    beside: float = 0.0

    def at(self, size: float, together: float = 1.0) -> float:
        return self.fixed + (self.each + self.beside * (together - 1)) * size


# What is believed of an operation as long as nothing was measured: a small model on a GPU, or one behind a network.
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
SIZES: Mapping[Op, float] = {  # typical ones, as long as none was seen
    Op.EMBED: 1,
    Op.RERANK: 16,
    Op.INGEST: 16,
    Op.PREFILL: 800,
    Op.PARTIAL_PREFILL: 400,
    Op.DECODE: 100,
    Op.PARTIAL_DECODE: 100,
    Op.MAP: 4,
}
# Whole and partial work of one kind is one model: it is the same code of the engine.
_SAME: Mapping[Op, Op] = {Op.PARTIAL_PREFILL: Op.PREFILL, Op.PARTIAL_DECODE: Op.DECODE}


_Means = dict[tuple[str, Op, str], tuple[int, float]]
"""By engine, operation and place: how many values (up to ``_SMOOTH``), and their mean."""


class _Model:
    """The latest measurements of one operation on one engine, and the line through them."""

    __slots__ = ("_due", "known", "line", "op", "samples", "seen")

    def __init__(self, op: Op, known: Line | None = None) -> None:
        self.op = op
        self.known = known  # of a profile that was loaded: counts as measured
        self.samples: deque[tuple[float, float, float]] = deque(maxlen=_WINDOW)  # size, seconds, how many together
        self.seen = 0
        self.line = known or PRIORS.get(op, Line(0.0))
        self._due = _ENOUGH

    def add(self, size: float, seconds: float, together: float = 1.0) -> None:
        self.samples.append((size, seconds, together))
        self.seen += 1

    def fitted(self) -> Line:
        """The line, fitted anew when an eighth of the measurements is new: prediction may be asked for often."""
        if self.seen >= self._due:
            self.line = fit_together(self.samples, self.known or PRIORS.get(self.op, Line(0.0)))
            self._due = self.seen + max(1, len(self.samples) // 8)
        return self.line

    @property
    def measured(self) -> bool:
        return self.seen >= _ENOUGH or self.known is not None


def fit(samples: Iterable[tuple[float, float]], prior: Line) -> Line:
    """The line through (size, seconds) pairs by the method of Theil and Sen: up to 29 % of them may be outliers.

    Where the prior is constant, the median. Where the sizes are too much alike for a slope, the prior's shape, scaled
    to what was measured. Neither part is negative. Raises ValueError without samples.
    """
    points = list(samples)
    if not points:
        raise ValueError("fit() needs at least one measurement, it got none")
    sizes = [size for size, _ in points]
    middle, usual, largest = median(seconds for _, seconds in points), median(sizes), max(sizes)
    if not prior.each:
        return Line(middle, 0.0, largest)
    slopes = [(t - s) / (y - x) for i, (x, s) in enumerate(points) for y, t in points[i + 1 :] if x != y]
    # A third of all pairs: with fewer of different size, a few outliers would decide.
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
    """``fit`` of (size, seconds, how many were decoded together), whose ``beside`` is the slope of seconds per unit.

    That slope is the median of those between measurements of different company; with too few of them, the prior's.
    """
    points = list(samples)
    rates = [(together, seconds / size) for size, seconds, together in points if size]
    slopes = [(t - s) / (y - x) for i, (x, s) in enumerate(rates) for y, t in rates[i + 1 :] if abs(x - y) >= 1]
    known = len(slopes) >= _ENOUGH and len(slopes) >= len(rates) * (len(rates) - 1) / 6
    beside = max(median(slopes), 0.0) if known else prior.beside
    alone = [(size, max(seconds - beside * (together - 1) * size, 0.0)) for size, seconds, together in points]
    return replace(fit(alone, prior), beside=beside)


class Costs:
    """Latency models of engines, by name, and the typical sizes of what primitives give them. Thread-safe.

    Engines are told apart by name: two of one name are taken for instances of the same.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # Python may collect an abandoned stream inside, whose end is measured, too
        self._models: dict[tuple[str, Op], _Model] = {}
        self._sizes: _Means = {}  # (how many, mean); "" is all of the engine
        self._took: _Means = {}  # seconds, of work whose size nobody knows

    def observe(
        self, engine: str, op: Op, size: float | None, seconds: float, name: str = "", *, together: float = 1.0
    ) -> None:
        """Something took so long. About a microsecond.

        size None: as large as the work of the primitive ``name`` usually is, where nobody knows how large. Own code
        (CALL) says nothing of other code: it is known by name only. together: how many requests the engine decoded
        in the same steps, on average, this one included.
        """
        key = engine, _SAME.get(op, op)
        with self._lock:
            if size is None:
                size = SIZES.get(op, 1)
                if name:
                    count, mean = self._took.get(at := (*key, place(name)), (0, 0.0))
                    _learn(self._took, at, min(seconds, _STALLED * mean) if count >= _ENOUGH and mean else seconds)
            if op is Op.CALL:
                return
            model = self._models.get(key)
            if model is None:
                model = self._models[key] = _Model(key[1])
            model.add(size, seconds, together)

    def observe_size(self, engine: str, op: Op, name: str, size: float) -> None:
        """The primitive ``name`` ("" where nobody knows which) had work of this size."""
        op = Op.DECODE if op is Op.PARTIAL_DECODE else op  # but how much is prefilled early is a size of its own
        with self._lock:
            _learn(self._sizes, (engine, op, ""), size)
            if name:
                _learn(self._sizes, (engine, op, place(name)), size)

    def know(self, engine: str, op: Op, line: Line) -> None:
        """Takes a line as measured, until three new measurements say otherwise."""
        with self._lock:
            self._models[engine, _SAME.get(op, op)] = _Model(_SAME.get(op, op), line)

    def size(self, engine: str | None, op: Op, name: str = "") -> float:
        """The typical size of the work of a primitive: what was seen of it, of others on its engine, or the prior."""
        op = Op.DECODE if op is Op.PARTIAL_DECODE else op
        for key in ((engine or "", op, place(name)), (engine or "", op, "")):
            if found := self._sizes.get(key):
                return found[1]
        return SIZES.get(op, 1)

    def line(self, engine: str | None, op: Op) -> Line:
        """The model in use: fitted, or of a loaded profile, or the operation's prior."""
        op = _SAME.get(op, op)
        with self._lock:
            model = self._models.get((engine or "", op))
            return model.fitted() if model is not None else PRIORS.get(op, Line(0.0))

    def predict(
        self, engine: str | None, op: Op, *, size: float | None = None, name: str = "", together: float = 1.0
    ) -> float:
        """Seconds that work of this size would take; of the typical size of the primitive ``name`` where None.

        together: how many requests are decoded in the same steps, this one included.
        """
        took = self._took.get((engine or "", _SAME.get(op, op), place(name))) if size is None and name else None
        if took is not None and self.measured(engine, op, name):
            return took[1]
        return self.line(engine, op).at(self.size(engine, op, name) if size is None else size, together)

    def measured(self, engine: str | None, op: Op, name: str = "") -> bool:
        """Whether ``predict`` rests on measurements (three at least, or a loaded profile) instead of a prior.

        Of own code, whether the primitive ``name`` was ever measured.
        """
        if op is Op.CALL:
            return (engine or "", op, place(name)) in self._took
        model = self._models.get((engine or "", _SAME.get(op, op)))
        return model is not None and model.measured

    def efficient_batch(self, engine: str, op: Op) -> int | None:
        """The batch size at which 90 % of the best throughput is reached, a power of two; None where not measured.

        At most twice the largest batch seen: what lies beyond is a guess.
        """
        line = self.line(engine, op)
        if not self.measured(engine, op) or line.largest < 2:
            return None
        wanted = _EFFICIENT / (1 - _EFFICIENT) * line.fixed / line.each if line.each else line.largest
        return 1 << (max(1, ceil(min(wanted, 2 * line.largest))) - 1).bit_length()

    def split_penalty(self, engine: str | None, tokens: float) -> float:
        """Seconds that a prefill of ``tokens`` costs more in two parts than in one.

        As measured: the second time that a prefill's fixed costs fall due. Before: a share of it (Ayo, Table 3).
        """
        line = self.line(engine, Op.PREFILL)
        return line.fixed if self.measured(engine, Op.PREFILL) else SPLIT_PENALTY * line.at(tokens)

    def forget(self) -> None:
        """Back to the priors."""
        with self._lock:
            self._models.clear()
            self._sizes.clear()
            self._took.clear()

    def to_json(self) -> str:
        """What was learned, to be kept for the next process or shipped as a profile."""
        with self._lock:
            lines = [
                {"engine": engine, "op": op.value, **_plain(model.fitted())}
                for (engine, op), model in sorted(self._models.items())
                if model.measured
            ]
            means = {"sizes": _rows(self._sizes), "took": _rows(self._took)}
        return json.dumps({"version": 1, "lines": lines, **means}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Costs:
        """What ``to_json`` wrote; counts as measured, until three new measurements say otherwise. ValueError else."""
        made = cls()
        made.load(text)
        return made

    def load(self, profile: str | Path) -> None:
        """Takes over what ``to_json`` or ``fineflow profile`` wrote, in place of what is known of the same engines.

        profile: the JSON text, or the path of a file with it. Raises ValueError if it is not such a profile, OSError
        if the file cannot be read.
        """
        text = profile.read_text(encoding="utf-8") if isinstance(profile, Path) else profile
        try:
            data = json.loads(text)
            if data["version"] != 1:
                raise ValueError(f"version {data['version']!r}")
            models = {}
            for row in data["lines"]:
                op = Op(row["op"])
                parts = {part: _number(row[part]) for part in _plain(Line(0.0)) if part in row or part != "beside"}
                models[str(row["engine"]), op] = _Model(op, Line(**parts))
            sizes, took = (
                {(str(row["engine"]), Op(row["op"]), str(row["name"])): (1, _number(row["mean"])) for row in data[part]}
                for part in ("sizes", "took")
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"expected a cost profile as Costs.to_json() writes it (version 1): {error!r}") from error
        with self._lock:
            self._models.update(models)
            self._sizes.update(sizes)
            self._took.update(took)


def _learn(means: _Means, key: tuple[str, Op, str], value: float) -> None:
    """Takes a value into a running mean."""
    count, mean = means.get(key, (0, 0.0))
    if count or len(means) < _REMEMBERED:
        count = min(count + 1, _SMOOTH)
        means[key] = count, mean + (value - mean) / count


def _rows(means: _Means) -> list[dict[str, Any]]:
    return [
        {"engine": engine, "op": op.value, "name": name, "mean": mean}
        for (engine, op, name), (_, mean) in sorted(means.items())
    ]


def place(name: str) -> str:
    """What the primitives of one step of the user's have in common: their names without the operation."""
    return name.rpartition(".")[0] or name


def _plain(line: Line) -> dict[str, float]:
    return {"fixed": line.fixed, "each": line.each, "largest": line.largest, "beside": line.beside}


def _number(value: Any) -> float:
    number = float(value)
    if not isfinite(number) or number < 0:
        raise ValueError(f"expected a number of at least 0, got {value!r}")
    return number


costs = Costs()
"""What this process knows; everything that runs teaches it."""

events.meters.append(costs)
