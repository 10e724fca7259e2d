"""Cost model: latency models in seconds, learned online, for passes, placement and ``explain``.

One model per engine and operation: ``seconds = fixed + each * size`` where the time grows with the input, a constant
for the rest. Ayo (section 4.3) profiles engines ahead of time; here the profile is learned from the batches and calls
that run anyway, and can be saved (``to_json``, ``load``). Sizes: texts of a batch (EMBED, RERANK, INGEST),
computed tokens (PREFILL, PARTIAL_PREFILL), steps (DECODE, PARTIAL_DECODE). An LLM step takes longer for each other
sequence that is decoded in it: ``fixed + steps * (each + beside * (sequences - 1))`` seconds.

``fineflow.costs.load(Path("profile.json"))`` starts a process with the measurements of an earlier one, or of
``fineflow profile``. Call it before the first pipeline call.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from math import ceil, isfinite
from pathlib import Path
from typing import Any, TypeVar, cast

from fineflow.cost_model.lines import ENOUGH, PRIORS, SIZES, SPLIT_PENALTY, LatencyModel, Line
from fineflow.ir import Op
from fineflow.runtime import events

_EFFICIENT = 0.9  # share of the best throughput beyond which a larger batch is not worth its latency
_STALLED = 3.0  # a call is counted as at most this many times the mean
_REMEMBERED = 4096  # primitives whose sizes are known
_LATELY = 8  # decisions whose waits are known
_SMOOTH = 32  # calls averaged for a typical size

# Whole and partial work of one kind share a model: the engine runs the same code.
_SAME: Mapping[Op, Op] = {Op.PARTIAL_PREFILL: Op.PREFILL, Op.PARTIAL_DECODE: Op.DECODE}

Means = dict[tuple[str, Op, str], tuple[int, float]]
"""By engine, operation and place: number of values (up to ``_SMOOTH``), and their mean."""

Asked = dict[tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], Any]
"""Questions to a cost model, as (method, arguments, named arguments), and the answers."""

_asked: ContextVar[Asked | None] = ContextVar("fineflow_asked", default=None)
M = TypeVar("M", bound=Callable[..., Any])


@contextmanager
def consulted() -> Iterator[Asked]:
    """Collects what is asked of cost models in the block."""
    token = _asked.set({})
    try:
        yield cast(Asked, _asked.get())
    finally:
        _asked.reset(token)


def _noted(method: M) -> M:
    """Makes a method of ``Costs`` one whose answers are collected; not those that it asks for itself."""

    @wraps(method)
    def asked(*args: Any, **named: Any) -> Any:
        known = _asked.get()
        if known is None:
            return method(*args, **named)
        token = _asked.set(None)
        try:
            answer = method(*args, **named)
        finally:
            _asked.reset(token)
        known[method.__name__, args[1:], tuple(named.items())] = answer
        return answer

    return cast(M, asked)


class Costs:
    """Latency models of engines, by name, and the typical sizes of the work that primitives give them. Thread-safe.

    Engines are identified by name: two engines of one name count as instances of the same.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: GC inside may collect an abandoned stream, which reports its end
        self._models: dict[tuple[str, Op], LatencyModel] = {}
        self._sizes: Means = {}  # (count, mean); "" is the whole engine
        self._took: Means = {}  # seconds, of work of unknown size
        self._waits: dict[tuple[str, str], deque[float]] = {}  # seconds, by engine and CONDITION
        self._whole: Means = {}  # seconds, of the slowest item of a MAP ("item"), and of what is left ("tail")

    def observe(
        self, engine: str, op: Op, size: float | None, seconds: float, name: str = "", *, together: float = 1.0
    ) -> None:
        """Records a duration. Takes about a microsecond.

        size None: unknown; counts as typical of the operation, and the duration is also averaged under ``name``. User
        code (CALL) is recorded by name only, because it says nothing about other code. together: mean number of
        requests decoded in the same steps, this one included.
        """
        key = engine, _SAME.get(op, op)
        with self._lock:
            if size is None:
                size = SIZES.get(op, 1)
                if name:
                    _learn_seconds(self._took, (*key, place(name)), seconds)
            if op is Op.CALL:
                return
            model = self._models.get(key)
            if model is None:
                model = self._models[key] = LatencyModel(key[1])
            model.add(size, seconds, together)

    def observe_tail(self, op: Op, name: str, seconds: float) -> None:
        """Records how long the primitive ``name``, which begins on parts of its input, took from its last part on."""
        with self._lock:
            _learn_seconds(self._whole, ("tail", op, place(name)), seconds)

    def tail(self, op: Op, name: str) -> float | None:
        """Returns the mean of these seconds; None before there are two of them."""
        return _twice(self._whole, ("tail", op, place(name)))

    def observe_slowest(self, name: str, seconds: float) -> None:
        """Records how long the slowest item of the MAP ``name`` took."""
        with self._lock:
            _learn_seconds(self._whole, ("item", Op.MAP, place(name)), seconds)

    def slowest(self, name: str) -> float | None:
        """Returns the mean of these seconds; None before there are two of them."""
        return _twice(self._whole, ("item", Op.MAP, place(name)))

    def observe_wait(self, engine: str, name: str, seconds: float) -> None:
        """Records how long the CONDITION ``name`` took to choose, once arms of it could be prefilled on an engine."""
        with self._lock:
            if len(self._waits) < _REMEMBERED or (engine, name) in self._waits:
                self._waits.setdefault((engine, name), deque(maxlen=_LATELY)).append(seconds)

    def soonest(self, engine: str, name: str) -> float | None:
        """Returns the shortest of the last of these seconds; None before there are three of them.

        The shortest, because what begins in vain delays what was waited for.
        """
        with self._lock:
            found = self._waits.get((engine, name), ())
            return min(found) if len(found) >= ENOUGH else None

    def observe_size(self, engine: str, op: Op, name: str, size: float) -> None:
        """Records the size of work of the primitive ``name`` ("" if it is not known)."""
        op = Op.DECODE if op is Op.PARTIAL_DECODE else op  # PARTIAL_PREFILL keeps sizes of its own
        with self._lock:
            learn(self._sizes, (engine, op, ""), size)
            if name:
                learn(self._sizes, (engine, op, place(name)), size)

    def know(self, engine: str, op: Op, line: Line) -> None:
        """Takes a line as measured, until three new measurements replace it."""
        with self._lock:
            self._models[engine, _SAME.get(op, op)] = LatencyModel(_SAME.get(op, op), line)

    @_noted
    def size(self, engine: str | None, op: Op, name: str = "") -> float:
        """Returns the typical size of a primitive's work: of its own, of others on its engine, or the prior."""
        op = Op.DECODE if op is Op.PARTIAL_DECODE else op
        for key in ((engine or "", op, place(name)), (engine or "", op, "")):
            if found := self._sizes.get(key):
                return found[1]
        return SIZES.get(op, 1)

    @_noted
    def line(self, engine: str | None, op: Op) -> Line:
        """Returns the model in use: fitted, from a loaded profile, or the operation's prior."""
        op = _SAME.get(op, op)
        with self._lock:
            model = self._models.get((engine or "", op))
            return model.fitted() if model is not None else PRIORS.get(op, Line(0.0))

    @_noted
    def predict(
        self, engine: str | None, op: Op, *, size: float | None = None, name: str = "", together: float = 1.0
    ) -> float:
        """Predicts the seconds of work of this size; None means the typical size of the primitive ``name``.

        together: number of requests decoded in the same steps, this one included.
        """
        took = self._took.get((engine or "", _SAME.get(op, op), place(name))) if size is None and name else None
        if took is not None and self.measured(engine, op, name):
            return took[1]
        return self.line(engine, op).at(self.size(engine, op, name) if size is None else size, together)

    @_noted
    def measured(self, engine: str | None, op: Op, name: str = "") -> bool:
        """Returns True if ``predict`` uses measurements (at least three, or a loaded profile) instead of a prior.

        For user code (CALL): if the primitive ``name`` was measured twice, as the first time may have imported modules.
        """
        if op is Op.CALL:
            return self._took.get((engine or "", op, place(name)), (0, 0.0))[0] > 1
        model = self._models.get((engine or "", _SAME.get(op, op)))
        return model is not None and model.measured

    @_noted
    def efficient_batch(self, engine: str, op: Op) -> int | None:
        """Returns the batch size, a power of two, that reaches 90 % of the best throughput; None if not measured.

        Limited to about twice the largest batch seen, because anything beyond is extrapolation.
        """
        line = self.line(engine, op)
        if not self.measured(engine, op) or line.largest < 2:
            return None
        wanted = _EFFICIENT / (1 - _EFFICIENT) * line.fixed / line.each if line.each else line.largest
        return 1 << (max(1, ceil(min(wanted, 2 * line.largest))) - 1).bit_length()

    @_noted
    def split_penalty(self, engine: str | None, tokens: float) -> float:
        """Returns the extra seconds of a prefill of ``tokens`` in two parts instead of one.

        If measured, the fixed costs of a prefill, which fall due twice; before that, a share of it (Ayo, Table 3).
        """
        line = self.line(engine, Op.PREFILL)
        return line.fixed if self.measured(engine, Op.PREFILL) else SPLIT_PENALTY * line.at(tokens)

    def forget(self) -> None:
        """Forgets everything: back to the priors."""
        with self._lock:
            self._models.clear()
            self._sizes.clear()
            self._took.clear()
            self._whole.clear()
            self._waits.clear()

    def to_json(self) -> str:
        """Returns what was learned as JSON, to start the next process with or to ship as a profile."""
        with self._lock:
            lines = [
                {"engine": engine, "op": op.value, **_plain(model.fitted())}
                for (engine, op), model in sorted(self._models.items())
                if model.measured
            ]
            means = {"sizes": _rows(self._sizes), "took": _rows(self._took)}
        return json.dumps({"version": 1, "lines": lines, **means}, indent=1)

    def load(self, profile: str | Path) -> None:
        """Loads the output of ``to_json`` or ``fineflow profile``, replacing what is known of the same engines.

        They count as measured. profile: the JSON text, or the path of a file. Raises ValueError if it is not a profile,
        OSError if the file cannot be read.
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
                models[str(row["engine"]), op] = LatencyModel(op, Line(**parts))
            sizes, took = (
                {
                    (str(row["engine"]), Op(row["op"]), str(row["name"])): (ENOUGH, _number(row["mean"]))
                    for row in data[part]
                }
                for part in ("sizes", "took")
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"expected a cost profile as Costs.to_json() writes it (version 1): {error!r}") from error
        with self._lock:
            self._models.update(models)
            self._sizes.update(sizes)
            self._took.update(took)


def learn(means: Means, key: tuple[str, Op, str], value: float) -> None:
    """Updates a running mean."""
    count, mean = means.get(key, (0, 0.0))
    if count or len(means) < _REMEMBERED:
        count = min(count + 1, _SMOOTH)
        means[key] = count, mean + (value - mean) / count


def _learn_seconds(means: Means, key: tuple[str, Op, str], seconds: float) -> None:
    """Updates a mean of durations. The second one replaces the first, which may have imported or connected."""
    count, mean = means.get(key, (0, 0.0))
    if count == 1:
        means[key] = 2, seconds
    else:
        learn(means, key, min(seconds, _STALLED * mean) if count >= ENOUGH and mean else seconds)


def _twice(means: Means, key: tuple[str, Op, str]) -> float | None:
    count, mean = means.get(key, (0, 0.0))
    return mean if count > 1 else None


def _rows(means: Means) -> list[dict[str, Any]]:
    return [
        {"engine": engine, "op": op.value, "name": name, "mean": mean}
        for (engine, op, name), (_, mean) in sorted(means.items())
    ]


def place(name: str) -> str:
    """Returns the common name of the primitives of one user step: a primitive's name without the operation."""
    return name.rpartition(".")[0] or name


def _plain(line: Line) -> dict[str, float]:
    return {"fixed": line.fixed, "each": line.each, "largest": line.largest, "beside": line.beside}


def _number(value: Any) -> float:
    number = float(value)
    if not isfinite(number) or number < 0:
        raise ValueError(f"expected a number of at least 0, got {value!r}")
    return number


costs = Costs()
"""The process's cost model; every measured piece of work updates it."""

events.meters.append(costs)
