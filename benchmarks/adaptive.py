"""RAGServe: configurations chosen for each query against fixed ones, on emulated engines in virtual time.

One LLM of 7B with the KV cache of a GPU with 48 GiB, queries like those of four datasets (RAGServe, Table 1) in equal
shares, Poisson arrivals. The delays are those of the emulation; the quality of answers comes from tables
(``benchmarks/adaptive_world.py``), which nobody has measured.

The comparable fixed configuration is the fastest one whose F1 is not below; where none reaches it, the best one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import fineflow
from benchmarks.adaptive_world import DATASETS, ROOM, Query, World, queries
from benchmarks.report import arguments, finish, hardware, positive, table
from benchmarks.under_load import poisson
from fineflow.adaptation import Configuration, Profiler
from fineflow.adaptation.langchain import ChainKnobs
from fineflow.cost_model.costs import costs
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing import virtual

GRID = (
    *(Configuration(number, "map_rerank") for number in (1, 3, 6)),
    *(Configuration(number) for number in (2, 3, 4, 6, 8, 12)),
    *(Configuration(number, "map_reduce", length) for number in (2, 3, 4, 6, 8) for length in (60, 100, 140)),
)
DELAY, THROUGHPUT = 1.64, 1.8  # the paper's least gains
STEP = 0.05


class Measured(NamedTuple):
    """Means over all queries of a run. profiled: seconds of the profiler; waited: those that calls waited for."""

    delay: float
    f1: float
    profiled: float = 0.0
    waited: float = 0.0


class Fixed:
    """Answers every query in one configuration."""

    def __init__(self, world: World, configuration: Configuration, *, as_stock: bool = False) -> None:
        optimize: Any = (lambda runnable: runnable) if as_stock else None
        self._chain = ChainKnobs(world.chain, optimize=optimize).configure(configuration)
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

    def __init__(self, world: World, *, room: int = ROOM, as_stock: bool = False, **settings: Any) -> None:
        self.chain = fineflow.adaptive(world.chain, profiler=world.profiler, room=room, **settings)
        if as_stock:
            self.chain._knobs._optimize = lambda runnable: runnable

    async def used(self, query: str) -> Configuration:
        await self.chain.ainvoke(query)
        used: Configuration = self.chain.last.configuration
        return used


Make = Callable[[World], Any]


def _best(asked: Sequence[Query]) -> Configuration:
    return max(GRID, key=lambda each: sum(query.f1(each) for query in asked))


def measure(make: Make, rate: float, number: int, seed: int, *, policy: str | None = None) -> Measured:
    """Runs one side at a rate (queries per second)."""
    costs.forget()
    asked = queries(DATASETS, number, seed)
    world = World(asked)
    if policy is not None:
        set_policy(world.serving, policy)
    side = make(world)

    async def one(query: Query, at: float) -> tuple[float, float]:
        await asyncio.sleep(at)
        used = await side.used(query.text)
        return asyncio.get_running_loop().time() - at, query.f1(used)

    async def together() -> list[tuple[float, float]]:
        arrivals = poisson(number, rate, seed)
        return await asyncio.gather(*(one(*each) for each in zip(asked, arrivals, strict=True)))

    found = virtual.run(together()).value
    delay, f1 = (statistics.mean(values) for values in zip(*found, strict=True))
    recent = side.chain.statistics().recent if isinstance(side, Adaptive) else ()
    means = [statistics.mean(getattr(each, name) for each in recent) for name in ("profiled", "waited") if recent]
    return Measured(delay, f1, *means)


def fixed(configuration: Configuration) -> Make:
    return lambda world: Fixed(world, configuration)


def comparable(found: dict[Configuration, Measured], f1: float) -> Configuration:
    """Returns the fastest fixed configuration of at least this F1; the one with the highest F1 if none has it."""
    equal = [each for each, measured in found.items() if measured.f1 >= f1]
    return min(equal, key=lambda c: found[c].delay) if equal else max(found, key=lambda c: found[c].f1)


def sustained(make: Make, most: float, rate: float, number: int, seed: int) -> float:
    """Returns the highest rate with a mean delay of at most ``most`` seconds, within 5 % of ``rate``; from 1 to 3 x."""
    low, high = 1.0, 3.0
    while high - low > STEP:
        middle = (low + high) / 2
        if measure(make, middle * rate, number, seed).delay <= most:
            low = middle
        else:
            high = middle
    return low * rate


ABLATION: tuple[tuple[str, dict[str, Any], str | None], ...] = (
    ("profiler only", {"scheduling": False, "feedback": False, "as_stock": True}, "fifo"),
    ("+ batching", {"scheduling": False, "feedback": False}, None),
    ("+ joint scheduling", {"feedback": False}, None),
    ("+ feedback", {}, None),
)


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--queries", type=positive, default=80, help="queries of each run (80)")
    parser.add_argument("--rate", type=float, default=0.6, help="queries per second (0.6)")
    parser.add_argument("--room", type=positive, default=ROOM, help=f"tokens that adaptive queries take ({ROOM})")
    given = parser.parse_args(argv)
    rate, number, seed = given.rate, given.queries, 0
    print(f"RAGServe, emulated: {number} queries at {rate:g}/s, virtual seconds, F1 of tables.\n{hardware()}\n")
    grid = {each: measure(fixed(each), rate, number, seed) for each in GRID}
    rows = [("fixed, app-centric scheduling", "delay", "F1")]
    rows += [(str(each), f"{found.delay:.2f}", f"{found.f1:.3f}") for each, found in grid.items()]
    print(table(rows) + "\n", flush=True)

    sides = {"AdaptiveRAG-like": measure(AdaptiveRag, rate, number, seed)}
    for name, settings, policy in ABLATION:
        sides[name] = measure(partial(Adaptive, room=given.room, **settings), rate, number, seed, policy=policy)
    rows = [("side", "delay", "F1", "comparable fixed one", "its delay", "its F1", "ratio", "profiler", "waited for")]
    for name, found in sides.items():
        other = comparable(grid, found.f1)
        ratio = f"{grid[other].delay / found.delay:.2f}"
        shares = tuple(f"{part / found.delay:.1%}" if found.profiled else "" for part in found[2:])
        figures = (f"{found.delay:.2f}", f"{found.f1:.3f}", str(other))
        rows.append((name, *figures, f"{grid[other].delay:.2f}", f"{grid[other].f1:.3f}", ratio, *shares))
    print(table(rows) + "\n", flush=True)

    ours = sides["+ feedback"]
    other = comparable(grid, ours.f1)
    most = grid[other].delay
    most_rate = sustained(partial(Adaptive, room=given.room), most, rate, number, seed)
    print(f"highest rate with a mean delay of {most:.2f} s: {other}: {rate:g}/s, adaptive: {most_rate:.2f}/s\n")
    checks = {
        f"delay at least {DELAY} x as low as that of the comparable fixed one": most / ours.delay >= DELAY,
        f"at least {THROUGHPUT} x its throughput at equal delay": most_rate >= THROUGHPUT * rate,
        "the profiler takes at most a tenth of the delay": ours.profiled <= ours.delay / 10,
        "delay below AdaptiveRAG-like, or F1 above": (
            ours.delay < sides["AdaptiveRAG-like"].delay or ours.f1 > sides["AdaptiveRAG-like"].f1
        ),
    }
    figures = {
        "fixed": {str(each): found._asdict() for each, found in grid.items()},
        "sides": {name: found._asdict() for name, found in sides.items()},
        "rates": [rate, most_rate],
    }
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
