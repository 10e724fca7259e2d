"""Search for the least instances that meet objectives, by simulation; the same arrivals are used for every try."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev

from fineflow.backends.emulated import BatchProfile
from fineflow.capacity.simulation import Arrival, Simulation, SimulationOutcome
from fineflow.capacity.workload import CallShape, Workload, longest_path
from fineflow.errors import UsageError
from fineflow.observe.tracks import duration

_SLO = re.compile(r"(?P<ttft>ttft[.:])?p(?P<percent>\d{1,2}(\.\d+)?)=(?P<seconds>\d+(\.\d*)?|\.\d+)(?P<unit>ms|s)?")
_WARM = 0.1  # share of the load, from its beginning, whose calls do not count: they find idle instances
_TRIED = 30_000  # calls of a try at most; what is found is simulated with all of them
_DOUBLINGS = 6
_SHAPES = 200  # of a load, where not all are needed
_PARTS = 10  # of a load, for standard errors
_MEASURED = 4  # instances of an engine whose limit is measured: it grows with their number
_OVERLOAD, _OVERLOADED = 1.3, 3_000  # times what an engine serves at best; calls of that measurement at least


@dataclass(frozen=True, slots=True)
class Objective:
    """At least ``percent`` of calls take at most so many seconds; first: to their first token."""

    percent: float
    seconds: float
    first: bool = False

    def __str__(self) -> str:
        return f"{'ttft ' * self.first}p{self.percent:g} ≤ {self.seconds:g} s"

    def misses(self, latency: float, first: float) -> bool:
        """Returns True if a call takes longer."""
        return (first if self.first else latency) > self.seconds

    def of(self, outcome: SimulationOutcome) -> tuple[float, float]:
        """Returns the measured percentile in seconds, and its standard error, from equal parts of the load."""
        values = outcome.first if self.first else outcome.latencies
        size = len(values) // _PARTS
        parts = [percentile(values[i * size : (i + 1) * size], self.percent) for i in range(_PARTS)] if size else []
        error = stdev(parts) / math.sqrt(_PARTS) if parts else math.nan
        return percentile(values, self.percent), error


def objective(text: str) -> Objective:
    """Reads ``p99=2.5``, ``p95=800ms`` or ``ttft.p99=0.5``. Raises UsageError."""
    found = _SLO.fullmatch(text.strip().lower())
    if found is None or not float(found["percent"]) or not float(found["seconds"]):
        raise UsageError(f"--slo {text}: expected a percentile and seconds, such as p99=2.5, p50=800ms or ttft.p99=0.5")
    seconds = float(found["seconds"]) / (1000 if found["unit"] == "ms" else 1)
    return Objective(float(found["percent"]), seconds, bool(found["ttft"]))


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the least value that at least so many percent do not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else math.nan


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What was found for one engine.

    instances, price: of an hour of each (None: not given). limit: calls a second at which all of them work without a
    break. busy: share of the time in which they work at all. wait: mean seconds of a request in its queue.
    """

    name: str
    instances: int
    price: float | None
    limit: float
    busy: float
    wait: float


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The least instances that were found, and what calls take with them.

    rate: calls a second. found: of each objective the measured seconds, and their standard error. why: what bounds the
    objectives; "" if they are met. tries: simulations. outcome: that of all calls.
    """

    rate: float
    engines: tuple[EnginePlan, ...]
    found: tuple[tuple[Objective, float, float], ...]
    why: str
    tries: int
    outcome: SimulationOutcome

    @property
    def bottleneck(self) -> EnginePlan:
        """The engine that reaches its limit first; its limit is that of the app."""
        return min(self.engines, key=lambda each: each.limit)

    @property
    def price(self) -> float | None:
        """Price of an hour of all instances; None if that of some is not known."""
        prices = [each.instances * each.price for each in self.engines if each.price is not None]
        return sum(prices) if len(prices) == len(self.engines) else None


class InstanceSearch:
    """Simulates a load on any numbers of instances.

    arrivals: at least two, in the order of time. fixed: instances of engines whose number is given. prices: of an hour
    of an instance, by engine; all cost the same without. say: is told of each try.
    """

    def __init__(
        self,
        work: Workload,
        arrivals: Sequence[Arrival],
        objectives: Sequence[Objective],
        *,
        fixed: Mapping[str, int] | None = None,
        prices: Mapping[str, float] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.work, self.arrivals, self.objectives = work, arrivals, objectives
        self.fixed, self.prices, self._say = dict(fixed or {}), dict(prices or {}), say
        self.rate = _rate(arrivals)
        self._sample = _busiest(arrivals, _TRIED)
        self._seen: dict[tuple[int, ...], bool] = {}
        self._limits: dict[str, float] = {}  # of one instance

    def plan(self) -> CapacityPlan:
        """Returns the least instances that meet the objectives, or why none do.

        The costliest engine gets the fewest instances with which the objectives can be met, then the next one. In the
        end none of them can spare an instance.
        """
        least = {name: math.floor(self.rate / self.limit(name, 1)) + 1 for name in self.work.profiles}
        counts = least | self.fixed
        if why := self._impossible():
            return self._planned(counts, why)
        for _ in range(_DOUBLINGS):
            if self._meets(counts):
                break
            counts = {name: self.fixed.get(name, 2 * count) for name, count in counts.items()}
        else:
            return self._planned(counts, self._bound(counts))
        price = {name: self.prices.get(name, 1.0) * count for name, count in least.items()}
        for name in sorted(counts.keys() - self.fixed.keys(), key=lambda name: (-price[name], name)):
            low, high = min(least[name], counts[name]) - 1, counts[name]
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self._meets(counts | {name: middle}) else (middle, high)
            counts[name] = high
        made = self._planned(counts, "")
        while made.why and counts.keys() - self.fixed.keys():  # the sample was kinder than the whole load
            tightest = min((each for each in made.engines if each.name not in self.fixed), key=lambda each: each.limit)
            counts[tightest.name] += max(tightest.instances // 50, 1)
            made = self._planned(counts, "")
        return made

    def _meets(self, counts: Mapping[str, int]) -> bool:
        key = tuple(counts[name] for name in sorted(counts))
        if key not in self._seen:
            outcome = self.simulated(counts, self._sample, early=True)
            self._seen[key] = not outcome.stopped
            shown = ", ".join(f"{name} {count}" for name, count in counts.items())
            self._say(f"{shown}: {'enough' if self._seen[key] else 'not enough'}")
        return self._seen[key]

    def simulated(
        self, counts: Mapping[str, int], arrivals: Sequence[Arrival], *, early: bool = False
    ) -> SimulationOutcome:
        """Simulates arrivals. early: stops as soon as an objective is missed for certain."""
        warm = arrivals[0][0] + _WARM * (arrivals[-1][0] - arrivals[0][0])
        counted = sum(1 for at, _ in arrivals if at >= warm)
        late = [(each.misses, math.floor(counted * (1 - each.percent / 100) + 1e-9)) for each in self.objectives]
        sim = Simulation(self.work.profiles, counts, by_arrival=self.work.stock)
        return sim.run(arrivals, late if early else (), warm=warm)

    def _planned(self, counts: Mapping[str, int], why: str) -> CapacityPlan:
        outcome = self.simulated(counts, self.arrivals)
        found = tuple((each, *each.of(outcome)) for each in self.objectives)
        if not why and any(not measured <= each.seconds for each, measured, _ in found):
            why = self._bound(counts)
        engines = tuple(
            EnginePlan(
                name,
                counts[name],
                self.prices.get(name),
                self.limit(name, count),
                outcome.busy[name],
                outcome.waits[name],
            )
            for name, count in counts.items()
        )
        return CapacityPlan(self.rate, engines, found, why, len(self._seen), outcome)

    def limit(self, name: str, count: int) -> float:
        """Returns the calls a second that so many instances of an engine serve, while all else takes no time."""
        demand = self.work.demand()[name]
        if not demand:
            return math.inf
        if name in self._limits:
            return self._limits[name] * count
        rate = _OVERLOAD * _MEASURED / demand
        shapes = [_only(shape, name) for shape in self._shapes()]
        alone = max(sum(seconds for _, seconds in longest_path(shape, self.work.profiles)) for shape in shapes)
        profile = self.work.profiles[name]
        batch = profile.seconds(profile.max_batch) if isinstance(profile, BatchProfile) else 0.0
        seconds = max(_OVERLOADED / rate, 10 * alone, 30 * batch)
        arrivals = ((number / rate, shapes[number % len(shapes)]) for number in range(math.ceil(rate * seconds)))
        sim = Simulation(self.work.profiles, {**dict.fromkeys(self.work.profiles, 1), name: _MEASURED})
        ends = sim.run(arrivals, until=seconds).ends
        self._limits[name] = sum(end > seconds / 2 for end in ends) / (seconds / 2) / _MEASURED
        return self._limits[name] * count

    def _shapes(self) -> list[CallShape]:
        """Returns up to so many shapes of the load."""
        return [shape for _, shape in self.arrivals[:: max(len(self.arrivals) // _SHAPES, 1)]]

    def at_rate(self, counts: Mapping[str, int], rate: float, calls: int) -> SimulationOutcome:
        """Simulates the first calls of the load, faster or slower."""
        first, stretch = self.arrivals[0][0], self.rate / rate
        return self.simulated(counts, [((at - first) * stretch, shape) for at, shape in self.arrivals[:calls]])

    def _impossible(self) -> str:
        """Returns what bounds an objective that calls miss on idle engines; "" if they meet all."""
        shapes = self._shapes()
        apart = [(1e6 * number, shape) for number, shape in enumerate(shapes)]
        alone = Simulation(self.work.profiles, dict.fromkeys(self.work.profiles, 1)).run(apart)
        for each in self.objectives:
            measured, _ = each.of(alone)
            if each.first and not alone.first:
                return f"{each} cannot be met: no call ends with the answer of an LLM, so none has a first token"
            if measured > each.seconds:
                path = max((longest_path(s, self.work.profiles) for s in shapes), key=lambda p: sum(t for _, t in p))
                parts = ", ".join(f"{step.name} {duration(seconds)}" for step, seconds in path)
                return (
                    f"{each} cannot be met by any number of instances: on idle ones it is {duration(measured)}. "
                    f"The longest path of a call: {parts}"
                )
        return ""

    def _bound(self, counts: Mapping[str, int]) -> str:
        over = [name for name in self.fixed if self.limit(name, counts[name]) < self.rate]
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        because = f"; {', '.join(over)} cannot serve {self.rate:.3g} calls a second" if over else ""
        return f"the objectives are not met with {shown}{because}"


def _only(shape: CallShape, name: str) -> CallShape:
    """Returns a call in which only the steps on one engine take time."""
    kept = (step if step.engine == name else replace(step, engine="", seconds=0.0, gap=0.0) for step in shape.steps)
    return CallShape(tuple(kept))


def _rate(arrivals: Sequence[Arrival]) -> float:
    span = arrivals[-1][0] - arrivals[0][0]
    return (len(arrivals) - 1) / span if span else 1.0


def _busiest(arrivals: Sequence[Arrival], calls: int) -> Sequence[Arrival]:
    """Returns the calls of the shortest time in which so many come."""
    last = len(arrivals) - calls
    first = min(range(max(last, 1)), key=lambda at: arrivals[at + calls - 1][0] - arrivals[at][0]) if last > 0 else 0
    return arrivals[first : first + calls]
