"""``python -m benchmarks run``: experiments, one process for each, a table for each app and load, and all as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.apps import EXAMPLES, NAMES, app
from benchmarks.apps.app import App
from benchmarks.harness.experiment import ALONE, SLO, Experiment, measure
from benchmarks.harness.schemes import Scheme, scheme, schemes
from benchmarks.harness.setting import device
from benchmarks.report import hardware, positive, table

LIBRARIES = ("langchain-core", "langchain-classic", "langgraph", "llama-index-core", "transformers", "vllm", "openai")
USUAL = ("stock", "tuned", "fineflow")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of ``run``."""
    parser.add_argument(
        "--app",
        nargs="+",
        default=["all"],
        metavar="APP",
        help=f"all, examples, or some of: {', '.join(NAMES)} (python -m benchmarks lists those of examples)",
    )
    names = [each.name for each in schemes()]
    parser.add_argument(
        "--scheme", nargs="+", default=list(USUAL), metavar="SCHEME", help=f"some of: {', '.join(names)}"
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        default=[ALONE, "40%", "80%"],
        metavar="RATE",
        help="alone (one request at a time), requests a second, or a share of what the busiest engine can do (80%%)",
    )
    parser.add_argument("--device", default="emulated", help="emulated[:PROFILE,...], transformers, vllm, openai:URL")
    parser.add_argument("--time", choices=("virtual", "real"), help="virtual for emulated engines, else real")
    parser.add_argument("--requests", type=positive, default=24, help="requests of each run (24; alone: at most 3)")
    parser.add_argument("--repeats", type=positive, default=3, help="runs of each load, one seed each (3; alone: 1)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--stream", action="store_true", help="by astream, which tells the time to the first token")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes, of virtual time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, for report")


def planned(given: argparse.Namespace) -> list[Experiment]:
    """Returns the experiments. Raises ValueError for names that are unknown, and for what cannot be combined."""
    where = device(given.device)
    real = given.time == "real" or where.kind != "emulated"
    if given.time == "virtual" and where.kind != "emulated":
        raise ValueError(f"a real engine works in real time: leave out --time virtual with --device {given.device}")
    found = []
    for name in named(given.app):
        one = app(name)
        for rate in given.rates:
            for each in given.scheme:
                if lacking := _lacking(one, scheme(each)):
                    print(f"{name} has no {lacking}: it is not run by {each}", file=sys.stderr)
                    continue
                stream = given.stream and scheme(each).entry == "ainvoke" and one.streams
                requests, seeds = given.requests, range(given.seed, given.seed + given.repeats)
                if rate == ALONE:
                    requests, seeds = min(requests, 3), seeds[:1]
                found.append(Experiment(name, each, rate, where, requests, tuple(seeds), real, stream))
    return found


def named(given: Sequence[str]) -> list[str]:
    """Returns the names of applications. given: names, "all" for those of the page, "examples" for the examples."""
    groups = {"all": NAMES, "examples": EXAMPLES}
    return [name for each in given for name in groups.get(each, (each,))]


def _lacking(one: App, how: Scheme) -> str:
    """Returns what an application would need for a scheme and does not have."""
    if how.by_hand and one.tuned is None:
        return "version by hand"
    if how.entry == "invoke":
        return "" if one.sync else "sync methods"
    return "" if one.awaits else "async methods that hold no thread"


def main(given: argparse.Namespace, command: Sequence[str]) -> int:
    """Runs the experiments; returns the exit status: 1 if schemes gave different answers."""
    try:
        plan = planned(given)
    except ValueError as error:
        print(f"python -m benchmarks run: {error}", file=sys.stderr)
        return 2
    began = time.time()
    print(
        f"{len(plan)} experiments on {given.device}, {'real' if plan[0].real else 'virtual'} seconds.\n{hardware()}\n"
    )
    results = list(measured(plan, 1 if plan[0].real else given.jobs))
    differing = _shown(results, real=plan[0].device.kind != "emulated")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        told = about(given.device, named(given.app), command, began)
        given.json.write_text(json.dumps({**told, "results": results}, indent=1) + "\n")
    for text in differing:
        print(f"MISS  {text}")
    return 1 if differing else 0


def measured(plan: Sequence[Experiment], jobs: int) -> Any:
    """Yields the figures of experiments in their order, with progress on standard error."""
    if jobs == 1:
        yield from (_told(measure(each), place, plan) for place, each in enumerate(plan))
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from (_told(found, place, plan) for place, found in enumerate(pool.map(measure, plan)))


def _told(figures: dict[str, Any], place: int, plan: Sequence[Experiment]) -> dict[str, Any]:
    each, width = plan[place], 24
    text = f"{place + 1}/{len(plan)} {each.app} {each.load} {each.scheme}"
    if sys.stderr.isatty():
        done = width * (place + 1) // len(plan)
        end = "\n" if place + 1 == len(plan) else ""
        print(f"\r\033[K{'█' * done}{'░' * (width - done)} {text}", end=end, file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)
    return figures


def _shown(results: Sequence[dict[str, Any]], *, real: bool) -> list[str]:
    """Prints a table for each app and load; returns what schemes did not agree on."""
    differing = []
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in results:
        groups.setdefault((each["app"], each["load"]), []).append(each)
    for (name, load), found in groups.items():
        first = found[0]
        title = f"{name}, {load}" + (f" ({first['rate']:.2f}/s)" if "rate" in first else "")
        rows = [
            (
                title,
                "mean",
                "95 %",
                "p50",
                "p95",
                "p99",
                f"{first['scheme']} / this",
                "limit / this",
                "tokens",
                *_more(first),
            )
        ]
        rows += [_row(each, first) for each in found]
        print(table(rows))
        if not real:
            print(_limit_line(first), *(_rest_line(each) for each in found if "rest" in each), "", sep="\n", flush=True)
            if len({each["answers"] for each in found}) > 1:
                differing.append(f"{name}, {load}: the schemes gave different answers")
    return differing


def _more(each: dict[str, Any]) -> list[str]:
    return [name for name in ("first_token", "throughput", "goodput") if name in each]


def _row(each: dict[str, Any], first: dict[str, Any]) -> tuple[str, ...]:
    low, high = each["mean_interval"]
    sent = each["per_request"]
    tokens = sent["prompt_tokens"] + sent["written_tokens"]
    return (
        each["scheme"],
        f"{each['mean']:.3f}",
        f"{low:.2f} to {high:.2f}",
        *(f"{each[name]:.3f}" for name in ("p50", "p95", "p99")),
        f"{first['mean'] / each['mean']:.2f}",
        f"{each['achieved']:.3f}" if "achieved" in each else "-",
        f"{tokens:.0f}",
        *(f"{each[name]:.2f}" for name in _more(each)),
    )


def _limit_line(each: dict[str, Any]) -> str:
    parts = ", ".join(f"{engine} {seconds:.2f}" for engine, seconds in each["limit_spent"].items())
    text = (
        f"limit {each['limit']:.3f} s ({parts}); no scheme can be faster than {each['mean'] / each['bound']:.2f} times"
    )
    if each["bound"] > each["limit"] * 1.0001:
        text += f" (work bound of this load {each['bound']:.3f} s)"
    return f"{text} {each['scheme']}"


def _rest_line(each: dict[str, Any]) -> str:
    parts = ", ".join(f"{engine or 'other'} {seconds:+.3f}" for engine, seconds in each["rest"].items())
    return f"  {each['scheme']}, critical path against the limit's: {parts or 'the same'}"


def about(device_name: str, names: Sequence[str], command: Sequence[str], began: float) -> dict[str, Any]:
    """Returns what belongs to figures: command, hardware, versions, and the settings of the applications."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "command": " ".join(command),
        "hardware": hardware(),
        "python": platform.python_version(),
        "versions": versions,
        "device": device_name,
        "seconds_taken": time.time() - began,
        "slo": f"{SLO:g} times the limit",
        "settings": {name: device(device_name).setting(app(name).setting).source for name in names},
        "apps": {name: app(name).about for name in names},
    }
