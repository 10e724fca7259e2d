"""An experiment: one application under one scheme at one load, repeated with several seeds, beside its limit."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fineflow
from benchmarks.apps import app as app_of
from benchmarks.apps.app import App
from benchmarks.harness.figures import FIGURES, goodput, interval
from benchmarks.harness.limits import Path, bound
from benchmarks.harness.load import Run, poisson, run
from benchmarks.harness.real_world import world_on
from benchmarks.harness.schemes import scheme as scheme_of
from benchmarks.harness.setting import Device, Setting

ALONE = "alone"
SLO = 2.0  # a request is in time if it takes at most so many times its limit
ENGINES = ("llm", "small", "embedder", "reranker")


@dataclass(frozen=True)
class Experiment:
    """What is run. load: "alone", requests a second, or "60%". requests: of each run. seeds: one run for each.

    real: by the clock on the wall. stream: by ``astream``, which tells the time to the first token.
    """

    app: str
    scheme: str
    load: str
    device: Device
    requests: int
    seeds: tuple[int, ...]
    real: bool = False
    stream: bool = False


def rate_of(app: App, setting: Setting, load: str) -> float:
    """Returns requests a second. load: a number, or a share as "60%" of the rate at which a device never idles."""
    if not load.endswith("%"):
        return float(load)
    busy: dict[str, float] = {}
    asked = [app.asked(number, 0) for number in range(4)]
    for given in asked:
        for engine, seconds in app.path(setting, given).work().items():
            busy[engine] = busy.get(engine, 0.0) + seconds / len(asked)
    return float(load.removesuffix("%")) / 100 / max(busy.values())


def measure(given: Experiment) -> dict[str, Any]:
    """Runs an experiment; returns its figures, in seconds, and a digest of its answers."""
    app, scheme = app_of(given.app), scheme_of(given.scheme)
    setting = given.device.setting(app.setting)
    rate = None if given.load == ALONE else rate_of(app, setting, given.load)
    runs, ends, bounds, paths, spent = list[Run](), list[float](), list[float](), list[Path](), list[dict[str, float]]()
    for seed in given.seeds:
        arrivals = given.requests if rate is None else poisson(given.requests, rate, seed)
        world = world_on(given.device, app, setting)
        with fineflow.record(calls=given.requests) as recorder:
            found = run(app, scheme, world, arrivals, seed=seed, real=given.real, stream=given.stream)
        world.close()
        runs.append(found)
        tracks = recorder.timeline().tracks
        if _whole(tracks, found.latencies):
            spent += map(critical_seconds, tracks)
        if not isinstance(arrivals, int):
            ends.append(max(at + took for at, took in zip(arrivals, found.latencies, strict=True)))
        if given.device.kind != "emulated":
            continue  # of these no profile is known, so no limit either
        mine = [app.path(setting, app.asked(number, seed)) for number in range(given.requests)]
        paths += mine
        bounds.append(
            statistics.mean(path.limit for path in mine) if isinstance(arrivals, int) else bound(arrivals, mine)
        )
    figures = _of_all(given, runs, spent)
    if rate is not None:
        figures |= {"rate": rate, "throughput": given.requests * len(runs) / sum(ends)}
    if paths:
        limit = statistics.mean(path.limit for path in paths)
        figures |= {
            "limit": limit,
            "bound": statistics.mean(bounds),
            "limit_spent": mean_of([p.spent() for p in paths]),
        }
        if figures["spent"]:
            figures["rest"] = rest_of(figures["spent"], figures["limit_spent"])
        figures |= {"achieved": figures["bound"] / figures["mean"], "slo": SLO * limit}
        figures["first_token_limit"] = statistics.mean(path.first_token for path in paths)
        if rate is not None:
            figures["goodput"] = goodput([found.latencies for found in runs], ends, SLO * limit)
    return figures


def _of_all(given: Experiment, runs: Sequence[Run], spent: Sequence[dict[str, float]]) -> dict[str, Any]:
    latencies = [found.latencies for found in runs]
    everything = [value for each in latencies for value in each]
    sent = {name: sum(found.sent[name] for found in runs) / len(everything) for name in runs[0].sent}
    answers = "".join(str(answer) for found in runs for answer in found.answers)
    figures: dict[str, Any] = {
        "app": given.app,
        "scheme": given.scheme,
        "load": given.load,
        **{name: of(everything) for name, of in FIGURES.items()},
        "mean_interval": interval(latencies, statistics.mean),
        "per_request": sent,
        "spent": mean_of(spent),
        "answers": hashlib.sha256(answers.encode()).hexdigest()[:16],
    }
    if given.stream:
        figures["first_token"] = statistics.mean(value for found in runs for value in found.first)
    return figures


def _whole(tracks: Sequence[Any], latencies: Sequence[float]) -> bool:
    """Returns True if what was recorded are the requests; of code by hand, its parts may be calls of their own."""
    totals = sorted(track.total for track in tracks)
    return len(totals) == len(latencies) and all(
        abs(one - other) < 0.01 * other for one, other in zip(totals, sorted(latencies), strict=True)
    )


def critical_seconds(track: Any) -> dict[str, float]:
    """Returns the seconds of a recorded call's critical path by engine, waiting for it included.

    search: of stores (which embed the query) and tools, too. "" is what nothing explains: the framework, and functions.
    """
    found: dict[str, float] = {"": track.total}
    for segment in track.critical:
        interval = track.intervals[segment.at]
        lane = interval.lane.split("[")[0]
        if lane not in ENGINES:
            lane = "search"
        seconds = segment.end - segment.start
        found[lane] = found.get(lane, 0.0) + seconds
        found[""] -= seconds
    return found


def rest_of(spent: Mapping[str, float], limit: Mapping[str, float]) -> dict[str, float]:
    """Returns what more than the limit was spent on, by engine; the vector of a query counts as part of its search."""
    found = {name: spent.get(name, 0.0) - limit.get(name, 0.0) for name in dict.fromkeys((*spent, *limit))}
    if found.get("embedder", 0.0) < 0:
        found["search"] = found.get("search", 0.0) + found.pop("embedder")
    return {name: seconds for name, seconds in found.items() if abs(seconds) >= 0.001}


def mean_of(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the mean of each entry; what is missing counts as 0."""
    names = dict.fromkeys(name for each in found for name in each)
    return {name: sum(each.get(name, 0.0) for each in found) / len(found) for name in names}
