"""What each pass and policy gains over the applications and over random pipelines: tables of ``benchmarks.passes``.

A pass is measured in both directions: alone, against a plan without passes; and all passes against all but it. The
random pipelines are those of tests/passes/timed_chains.py, on one engine for all models. A policy is measured against
the order of arrival (``fifo``): under a load of 80 % of what the busiest engine can do, and in Ayo's Figure 7.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fineflow
from benchmarks.apps import NAMES
from benchmarks.apps import app as app_of
from benchmarks.harness.experiment import rate_of
from benchmarks.harness.load import poisson, run
from benchmarks.harness.real_world import world_on
from benchmarks.harness.schemes import Scheme
from benchmarks.harness.setting import device
from benchmarks.parrot.scheduling import figure_7
from benchmarks.report import positive, table
from fineflow.cost_model.costs import costs
from fineflow.engines import LLMProfile
from fineflow.passes import PASSES, Pass
from fineflow.runtime.queues.policy import POLICIES
from fineflow.testing import virtual

LEAST = 1.03  # what a pass or a policy has to gain in one place to stay
LOAD = "80%"
BASELINES = ("fifo", "per_invocation")  # of other systems: what the others are compared with
LATENCIES = LLMProfile(iteration=0.03, prefill_token=0.00023, decode_sequence=0.0003)
PLANS: Mapping[str, tuple[Pass, ...]] = {
    "none": (),
    "all": PASSES,
    **{f"only {each.__name__}": (each,) for each in PASSES},
    **{f"without {each.__name__}": tuple(other for other in PASSES if other is not each) for each in PASSES},
}
Seconds = Mapping[str, float]
"""Virtual seconds by plan, or by policy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of these tables."""
    parser.add_argument("--app", nargs="+", default=list(NAMES), metavar="APP", help="applications (those of the page)")
    parser.add_argument("--pipelines", type=positive, default=100, help="random pipelines (100)")
    parser.add_argument("--requests", type=positive, default=16, help="requests under load (16)")
    parser.add_argument("--jobs", type=positive, default=2, help="processes (2)")


def of_app(job: tuple[str, str, int]) -> float:
    """Returns the mean seconds of a request. The job: an app, a plan or a policy, and the requests under load."""
    name, how, requests = job
    costs.forget()
    app, where = app_of(name), device("emulated")
    setting = where.setting(app.setting)
    if how in PLANS:
        scheme, arrivals = Scheme(how, True, passes=PLANS[how]), 2
    else:
        scheme, arrivals = Scheme(how, True, policy=how), poisson(requests, rate_of(app, setting, LOAD), 0)
    world = world_on(where, app, setting)
    try:
        return statistics.mean(run(app, scheme, world, arrivals, seed=0).latencies)
    finally:
        world.close()


def pipelines(count: int) -> list[tuple[Any, Any]]:
    """Returns random pipelines, the same ones in every process, each with the latencies of its engines."""
    from hypothesis import HealthCheck, given, seed, settings

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "passes"))
    from timed_chains import chains, times

    found: list[tuple[Any, Any]] = []

    @seed(5)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(chains(), times())
    def note(spec: Any, at: Any) -> None:
        found.append((spec, replace(at, models=(LATENCIES,) * 3, shared=True)))

    note()
    return found


def of_pipelines(job: tuple[int, int, int]) -> list[Seconds]:
    """Returns the seconds of a call of each pipeline. The job: their number, the first one, and the step."""
    count, first, step = job
    found = []
    made = pipelines(count)
    from timed_chains import INPUT, World, build

    for spec, at in made[first::step]:
        took = {}
        for name, passes in PLANS.items():
            costs.forget()
            chain = fineflow.optimize(build(spec, World(at)), passes=passes, strict=True, eager=True)
            took[name] = virtual.run(chain.ainvoke(dict(INPUT))).seconds
        found.append(took)
    return [took for took in found if took["none"]]


def measured(given: argparse.Namespace, shapes: Mapping[str, float], checks: dict[str, bool]) -> dict[str, Any]:
    """Prints the tables, adds what has to hold to ``checks``, and returns the seconds.

    shapes: of each pass, the time without it, relative to all, in the shape that was made for it.
    """
    apps = [name for name in given.app if app_of(name).awaits]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [(app, how, given.requests) for app in apps for how in (*PLANS, *POLICIES)]
        seconds = dict(zip(jobs, pool.map(of_app, jobs), strict=True))
        parts = pool.map(of_pipelines, [(given.pipelines, i, given.jobs) for i in range(given.jobs)])
        random = [took for part in parts for took in part]
    of_apps = {app: {how: seconds[app, how, given.requests] for how in PLANS} for app in apps}
    loaded = {app: {how: seconds[app, how, given.requests] for how in POLICIES} for app in apps}
    rows = [("pass", "places", "alone: mean", "best", ">= 3 %", "all without it: mean", "best", ">= 3 %")]
    for each in PASSES:
        name, best = each.__name__, shapes.get(each.__name__, 0.0)
        for places, all_took in (("applications", list(of_apps.values())), ("random pipelines", random)):
            alone, without = zip(*_both(name, all_took), strict=True)
            rows.append((name, f"{len(all_took)} {places}", *_shown(alone), *_shown(without)))
            best = max(best, *alone, *without)
        checks[f"{name} gains 3 % somewhere"] = best >= LEAST
    print(table(rows), end="\n\n")
    rows = [("policy", f"{len(apps)} applications at {LOAD}: mean", "best", ">= 3 %", "worst", "Ayo, Figure 7")]
    arrival = statistics.mean(figure_7("fifo"))
    for name in POLICIES:
        gains = [took["fifo"] / took[name] for took in loaded.values()]
        in_figure = arrival / statistics.mean(figure_7(name))
        rows.append((name, *_shown(gains), f"{min(gains):.3f}", f"{in_figure:.3f}"))
        if name not in BASELINES:
            checks[f"{name} gains 3 % over the order of arrival somewhere"] = max(*gains, in_figure) >= LEAST
    print(table(rows), end="\n\n")
    return {"applications": of_apps, "random": random, "policies": loaded}


def _both(name: str, places: Sequence[Seconds]) -> Iterator[tuple[float, float]]:
    """Yields what a pass gains in each place, alone and beside all others, as a ratio of seconds."""
    for took in places:
        yield took["none"] / took[f"only {name}"], took[f"without {name}"] / took["all"]


def _shown(gains: Sequence[float]) -> tuple[str, str, str]:
    return f"{statistics.geometric_mean(gains):.3f}", f"{max(gains):.3f}", f"{sum(gain >= LEAST for gain in gains)}"
