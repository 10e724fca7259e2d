"""What ``benchmarks.adaptive`` compares, and how one side is run in virtual time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import fineflow
from benchmarks.adaptive_world import KV_TOKENS, Dataset, Query, World, queries
from benchmarks.harness.load import poisson
from fineflow.adaptation import Configuration, Profiler
from fineflow.adaptation.langchain import ChainKnobs
from fineflow.cost_model.costs import costs
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing import virtual

GRID = (
    *(Configuration(number, "map_rerank") for number in (1, 3)),
    *(Configuration(number) for number in (1, 2, 3, 4, 6, 8)),
    *(Configuration(number, "map_reduce", length) for number in (4, 6) for length in (60, 100, 140)),
    Configuration(8, "map_reduce", 140),
)
FULL = 0.85  # share of the cache beyond which a query of several chunks finds no room
_SAMPLE = 0.5  # seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over all queries of a run.

    used: mean share of the KV cache that requests held; full: share of the time in which it was nearly full. profiled:
    seconds of the profiler; waited: those that calls waited for.
    """

    delay: float
    f1: float
    used: float = 0.0
    full: float = 0.0
    profiled: float = 0.0
    waited: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class Fixed:
    """Answers every query in one configuration."""

    def __init__(self, world: World, configuration: Configuration) -> None:
        self._chain = ChainKnobs(world.chain).configure(configuration)
        self._configuration = configuration

    async def used(self, query: str) -> Configuration:
        """Answers a query. Returns the configuration."""
        await self._chain.ainvoke(query)
        return self._configuration


class AdaptiveRag:
    """Chooses by complexity alone: for each kind of query the fixed configuration with the highest F1 of the tables."""

    def __init__(self, world: World) -> None:
        self._knobs, self._profiler = ChainKnobs(world.chain), Profiler(world.profiler)
        self._best = {kind: _best([each for each in world.asked if each.complex is kind]) for kind in (False, True)}

    async def used(self, query: str) -> Configuration:
        profile = (await self._profiler.estimate(query)).profile
        await self._knobs.configure(self._best[profile.complex]).ainvoke(query)
        return self._best[profile.complex]


class Adaptive:
    """``fineflow.adaptive``."""

    def __init__(self, world: World, *, as_stock: bool = False, **settings: Any) -> None:
        self.chain = fineflow.adaptive(world.chain, profiler=world.profiler, **settings)
        if as_stock:
            self.chain._knobs._optimize = lambda runnable: runnable

    async def used(self, query: str) -> Configuration:
        await self.chain.ainvoke(query)
        used: Configuration = self.chain.last.configuration
        return used


Make = Callable[[World], Any]


@dataclass(frozen=True, slots=True)
class Load:
    """Queries of a dataset that arrive at random, ``rate`` per second."""

    dataset: Dataset
    rate: float
    number: int
    seed: int = 0

    def times(self, factor: float) -> Load:
        """Returns the same at another rate."""
        return Load(self.dataset, self.rate * factor, self.number, self.seed)


def _best(asked: Sequence[Query]) -> Configuration:
    return max(GRID, key=lambda each: sum(query.f1(each) for query in asked))


def fixed(configuration: Configuration) -> Make:
    return lambda world: Fixed(world, configuration)


def measure(make: Make, load: Load, *, policy: str | None = None) -> Measured:
    """Runs one side."""
    costs.forget()
    asked = queries([load.dataset], load.number, load.seed)
    world = World(asked)
    if policy is not None:
        set_policy(world.serving, policy)
    side = make(world)
    held: list[float] = []

    async def sample() -> None:
        while True:
            await asyncio.sleep(_SAMPLE)
            held.append(1 - world.serving.cache_statistics().free / KV_TOKENS)

    async def one(query: Query, at: float) -> tuple[float, float]:
        await asyncio.sleep(at)
        used = await side.used(query.text)
        return asyncio.get_running_loop().time() - at, query.f1(used)

    async def together() -> list[tuple[float, float]]:
        sampling = asyncio.create_task(sample())
        arrivals = poisson(load.number, load.rate, load.seed)
        found = await asyncio.gather(*(one(*each) for each in zip(asked, arrivals, strict=True)))
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
        return found

    found = virtual.run(together()).value
    delay, f1 = (statistics.mean(values) for values in zip(*found, strict=True))
    recent = side.chain.statistics().recent if isinstance(side, Adaptive) else ()
    means = [statistics.mean(getattr(each, name) for each in recent) for name in ("profiled", "waited") if recent]
    full = statistics.mean(share > FULL for share in held)
    return Measured(delay, f1, statistics.mean(held), full, *means)


def comparable(found: Mapping[Configuration, Measured], f1: float) -> Configuration:
    """Returns the fastest fixed configuration of at least this F1; the one with the highest F1 if none has it."""
    equal = [each for each, measured in found.items() if measured.f1 >= f1]
    return min(equal, key=lambda c: found[c].delay) if equal else max(found, key=lambda c: found[c].f1)


def sustained(make: Make, most: float, load: Load, within: float = 0.1) -> float:
    """Returns the highest rate with a mean delay of at most ``most`` seconds: 1 to 3 times that of ``load``."""
    low, high = 1.0, 3.0
    if measure(make, load.times(high)).delay <= most:
        return high * load.rate
    while high - low > within:
        middle = (low + high) / 2
        if measure(make, load.times(middle)).delay <= most:
            low = middle
        else:
            high = middle
    return low * load.rate


OURS, MIDDLE = "+ joint scheduling", "the same, up to the middle of the space"
SIDES: Mapping[str, tuple[Make, str | None]] = {
    "AdaptiveRAG-like": (AdaptiveRag, None),
    "profiler only": (partial(Adaptive, scheduling=False, feedback=False, as_stock=True), "fifo"),
    "+ batching": (partial(Adaptive, scheduling=False, feedback=False), None),
    OURS: (partial(Adaptive, feedback=False), None),
    MIDDLE: (partial(Adaptive, feedback=False, reach=0.5), None),
    "+ feedback": (Adaptive, None),
}


def served(world: World, capacity: int) -> Adaptive:
    """Returns the default side on an engine that is quick enough for so many tokens in flight."""
    world.serving.latency_capacity = capacity
    return Adaptive(world, feedback=False)


BOUNDS: Mapping[str, Make] = {
    "none": partial(Adaptive, feedback=False),
    **{f"latency_capacity {tokens:,}": partial(served, capacity=tokens) for tokens in (16384, 8192)},
    "room 16,384": partial(Adaptive, feedback=False, room=16384),
    **{f"deadline {seconds} s": partial(Adaptive, feedback=False, deadline=seconds) for seconds in (10, 5, 3)},
}
"""The default side with each bound that leads to cheaper configurations."""
"""Sides with a profiler, and the policy of their engine's queue; None is the default one."""
