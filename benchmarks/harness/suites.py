"""``python -m benchmarks suite``: all that ``docs/benchmarks.md`` shows of one device, into one file of results."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.apps import EXAMPLES, NAMES, app
from benchmarks.harness import interleaved
from benchmarks.harness.contention import together
from benchmarks.harness.experiment import ALONE, Experiment
from benchmarks.harness.program import about, measured, named
from benchmarks.harness.schemes import scheme
from benchmarks.harness.setting import Device, device
from benchmarks.report import positive, table
from fineflow.passes import PASSES
from fineflow.runtime.queues.policy import POLICIES

FOLDER = Path("benchmarks/results")
FILES = tuple(FOLDER / f"{name}.json" for name in ("emulated", "transformers", "vllm"))
OFF = tuple(each.__name__ for each in PASSES)
ABLATED = ("advanced_rag", "advanced_rag_llamaindex", "repository_advanced", "conversational_rag", "rag_fusion")
UNDER = tuple(f"fineflow-{name}" for name in POLICIES)


@dataclass(frozen=True)
class Part:
    """Applications under schemes at loads; requests and repeats as for ``run``."""

    apps: Sequence[str]
    schemes: Sequence[str]
    loads: Sequence[str] = (ALONE,)
    requests: int = 3
    repeats: int = 1


EMULATED = (
    Part(NAMES, ("stock", "stock-sync", "tuned", "fineflow", "fineflow-sync")),
    Part(NAMES, ("stock", "tuned", "fineflow"), ("40%", "80%"), 12, 2),
    Part(EXAMPLES, ("stock-sync", "fineflow-sync", *(f"fineflow-sync-without-{name}" for name in OFF))),
    Part(ABLATED, tuple(f"fineflow-without-{name}" for name in OFF)),
    Part(("advanced_rag", "colocated"), UNDER, ("80%",), 12, 2),
)


def planned(parts: Sequence[Part], where: Device, names: Sequence[str]) -> list[Experiment]:
    """Returns the experiments of these applications that their code has the methods for, each once."""
    found = []
    for part in parts:
        for name in (each for each in part.apps if each in names):
            one = app(name)
            for load in part.loads:
                for how in map(scheme, part.schemes):
                    if (how.by_hand and one.tuned is None) or not (one.sync if how.entry == "invoke" else one.awaits):
                        continue
                    seeds = tuple(range(part.repeats))
                    found.append(Experiment(name, how.name, load, where, part.requests, seeds))
    return list(dict.fromkeys(found))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of ``suite``."""
    parser.add_argument(
        "device", help="emulated, transformers, transformers:8b (weights at random), vllm or openai:URL"
    )
    parser.add_argument("--app", nargs="+", metavar="APP", help="some of its applications (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default {FOLDER}/DEVICE.json")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes, of virtual time")
    parser.add_argument("--rounds", type=positive, default=8, help="calls of each scheme on real engines, at most (8)")
    parser.add_argument("--at-once", type=positive, default=1, help="concurrent calls of a scheme on real engines (1)")
    parser.add_argument("--seconds", type=float, default=330.0, help="for the applications on real engines (330)")


def main(given: argparse.Namespace, command: Sequence[str]) -> int:
    """Measures and writes the file; returns the exit status: 1 if one failed or schemes gave different answers."""
    began = time.time()
    try:
        where = device(given.device)
        names = named(given.app or (["all", "examples"] if where.kind == "emulated" else interleaved.APPS))
        for name in names:
            app(name)
    except ValueError as error:
        print(f"python -m benchmarks suite: {error}", file=sys.stderr)
        return 2
    figures = _emulated(where, names, given.jobs) if where.kind == "emulated" else _real(where, names, given)
    path = given.json or FOLDER / f"{where.kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written({**about(given.device, names, command, began), **figures}), encoding="utf-8")
    print(f"{path}: {len(figures['results'])} results in {time.time() - began:.0f} s")
    differing = [f"{name} raised an exception" for name in figures.get("failed", ())] + differences(figures["results"])
    for text in differing:
        print(f"MISS  {text}")
    return 1 if differing else 0


def _emulated(where: Device, names: Sequence[str], jobs: int) -> dict[str, Any]:
    from benchmarks.public.community_apps import PATHS, seconds

    results = list(measured(planned(EMULATED, where, names), jobs))
    community = {}
    for name, path in PATHS.items():
        if f"example_{name}" in names:
            stock, mine = (round(seconds(name, optimized=each, awaits=False)[1], 3) for each in (False, True))
            community[f"{name}, invoke"] = {"path": path, "stock": stock, "fineflow": mine}
    return {"results": results, "community": community}


def _real(where: Device, names: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    threads = (0, 1) if where == Device("transformers") else (0,)
    found = interleaved.measure(
        names,
        where,
        rounds=given.rounds,
        seconds=given.seconds,
        threads=() if given.at_once > 1 else threads,
        at_once=given.at_once,
    )
    print(table(real_rows(found["results"])))
    if found["contention"]:
        print()
        print(table(contention_rows(found["contention"])))
    return dict(found)


def real_rows(results: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Returns a table of applications on real engines, with its heading."""
    rows: list[tuple[str, ...]] = [
        ("application", "rounds", "stock", "tuned", "fineflow", "stock ÷ fineflow", "tuned ÷ fineflow")
    ]
    for name in dict.fromkeys(each["app"] for each in results):
        took = {each["scheme"]: each["seconds"] for each in results if each["app"] == name}
        ratios = [interleaved.ratio(took[scheme], took["fineflow"]) for scheme in ("stock", "tuned")]
        means = (f"{sum(took[each]) / len(took[each]):.2f}" for each in interleaved.SCHEMES)
        shown = (f"{ratio:.2f} ({low:.2f} to {high:.2f})" for ratio, low, high in ratios)
        rows.append((name, str(len(took["fineflow"])), *means, *shown))
    return rows


def contention_rows(found: Sequence[dict[str, float]]) -> list[tuple[str, ...]]:
    """Returns a table of contention, with its heading: a column for each number of threads."""
    rows: list[tuple[str, ...]] = [("", *(f"{each['threads']:.0f} threads each" for each in found))]
    kinds = (
        ("decoding alone, seconds", lambda each: f"{each['decode']:.2f}"),
        ("embedding alone, seconds", lambda each: f"{each['embed']:.2f}"),
        ("both at once, seconds", lambda each: f"{each['both']:.2f}"),
        ("decoding while embedding ÷ alone", lambda each: f"{each['decode_while_embedding'] / each['decode']:.2f}"),
        ("embedding while decoding ÷ alone", lambda each: f"{each['embed_while_decoding'] / each['embed']:.2f}"),
        ("in turn ÷ at once (2.00 at best)", lambda each: f"{together(each):.2f}"),
        ("four texts at once ÷ one text", lambda each: f"{each['decode_beside'] / each['decode']:.2f}"),
    )
    return rows + [(name, *map(of, found)) for name, of in kinds]


def written(figures: dict[str, Any]) -> str:
    """Returns the text of a file of results: one result a line, so that changes can be read."""
    results = figures.pop("results")
    head = json.dumps(_rounded(figures), indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(_rounded(each), ensure_ascii=False)}" for each in results)
    return f'{head},\n "results": [\n{lines}\n ]\n}}\n'


def _rounded(value: Any) -> Any:
    """Returns a value with its floats rounded to microseconds."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def differences(results: Sequence[dict[str, Any]]) -> list[str]:
    """Returns what schemes did not agree on."""
    groups: dict[tuple[str, str], set[str]] = {}
    for each in results:
        groups.setdefault((each["app"], each["load"]), set()).add(str(each.get("answers", each.get("same_answer"))))
    return [
        f"{name}, {load}: the schemes gave different answers"
        for (name, load), answers in groups.items()
        if len(answers) > 1
    ]
