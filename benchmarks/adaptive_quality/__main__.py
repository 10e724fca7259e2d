"""F1 and mean delay of each fixed configuration and of ``fineflow.adaptive``, in one run on a real engine.

The demo's model (4.6 million parameters) answers from its synthetic corpus, or a model of yours from a public set that
you have. Each system is asked the same questions at the same moments. Fixed configurations run optimized, on an engine
that serves older applications first (``by_start``, as Parrot does). AdaptiveRAG's complexity is mapped to the
configurations with the highest F1 on other questions.

``--emulated``: the same answers, with the delays of a Llama-2-7B with longer chunks, in virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.adaptive_quality import app, emulated
from benchmarks.adaptive_quality.calibration import Calibration, calibrated, profile_costs, service_seconds
from benchmarks.adaptive_quality.datasets import Dataset, bundled
from benchmarks.adaptive_quality.loaders import LOADERS
from benchmarks.adaptive_quality.run import Measured, measure
from benchmarks.adaptive_quality.systems import ASKING, CALIBRATED, grid, systems
from benchmarks.adaptive_quality.verdict import frontier, judge
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.adaptation import DistilledProfiler
from fineflow.testing import virtual

WARM_UP = 4  # questions that each system is asked first, and that count for none


def parser() -> argparse.ArgumentParser:
    made = arguments(__doc__ or "", runs=4)
    made.add_argument("--each", type=positive, default=15, help="questions of each kind (15)")
    made.add_argument("--calibration", type=positive, default=8, help="further ones of each kind, for calibration (8)")
    made.add_argument("--distill", type=positive, default=32, help="further ones, for the distilled profiler (32)")
    made.add_argument("--rate", type=float, help="questions per second (default: one after the other)")
    made.add_argument(
        "--load",
        type=float,
        help="questions per second as a share of those that the best fixed configuration answers one after the other",
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--emulated", action="store_true", help="the same answers, with the delays of a larger model")
    made.add_argument("--kv-tokens", type=positive, help="size of the engine's KV cache (8192; emulated: 59392)")
    made.add_argument("--chunk-tokens", type=positive, help="size of the chunks, about (default: a paragraph, 56)")
    made.add_argument("--model", help="causal LM in Hugging Face format (default: the demo's)")
    made.add_argument("--dataset", choices=LOADERS, help="format of --file (default: the bundled corpus)")
    made.add_argument("--file", type=Path, help="questions and documents of a public set")
    return made


@dataclass(frozen=True)
class Found:
    """What was measured, at which rate, and what a profile costs (nothing where it is emulated)."""

    systems: dict[str, Measured]
    rate: float | None
    profiles: dict[str, dict[str, float]]


def chosen(given: argparse.Namespace) -> tuple[Dataset, int]:
    """Returns the data, and how many of its first questions are for calibration. What is beyond ``4 * each`` more is
    for the distilled profiler.
    """
    if given.dataset is None:
        return bundled(given.each + given.calibration + given.distill), 4 * given.calibration
    if given.file is None:
        raise SystemExit(f"--dataset {given.dataset} needs --file: the path of its questions")
    data = LOADERS[given.dataset](given.file)
    number = min(4 * given.calibration, len(data.questions) // 2)
    used = data.questions[: number + 4 * (given.each + given.distill)]
    return Dataset(data.name, data.about, data.documents, used), number


def compare(given: argparse.Namespace) -> Found:
    """Loads the models, and compares on an ordinary event loop, or in virtual time."""
    dataset, kept = chosen(given)
    load: Callable[..., Any] = emulated.load if given.emulated else app.load
    sizes = {name: getattr(given, name) for name in ("kv_tokens", "chunk_tokens") if getattr(given, name) is not None}
    bench = load(dataset, given.model, **sizes)
    asking = _compare(given, bench, dataset, kept)
    return virtual.run(asking).value if given.emulated else asyncio.run(asking)


async def _compare(given: argparse.Namespace, bench: Any, dataset: Dataset, kept: int) -> Found:
    try:
        last = kept + 4 * given.each
        for_calibration, asked = dataset.questions[:kept], dataset.questions[kept:last]
        print(f"{dataset.name}: {len(dataset.documents)} documents in {bench.chunks} chunks", flush=True)
        if given.emulated:
            print(
                f"EMULATED delays: Llama-2-7B, {emulated.CHUNK_TOKENS} tokens per chunk, in virtual time; real answers"
            )
        found = await calibrated(bench, for_calibration)
        _tell(found)
        profiles = {} if given.emulated else await profile_costs(bench, for_calibration)
        texts = [question.text for question in (*for_calibration, *dataset.questions[last:])]
        distilled = await DistilledProfiler.train(bench.profiler(), bench.embed, texts)
        print(f"distilled profiler: {distilled.agreement}", flush=True)
        asks = systems(bench, found.by_complexity, found.tuned, distilled)
        for ask in asks.values():
            await asyncio.gather(*(ask(question.text) for question in for_calibration[:WARM_UP]))
        rate = given.rate
        if given.load is not None:
            alone = await service_seconds(bench, found.best, for_calibration[: 2 * WARM_UP])
            rate = given.load / alone
            print(f"{found.best} takes {alone:.3f} s alone; {given.load:g} of what it can answer so:")
        pace = "one after the other" if rate is None else f"at {rate:.2f} per second, at random (Poisson)"
        print(f"{len(asked)} questions {pace}, in {given.runs} rounds", flush=True)
        pacing: dict[str, Any] = {"rate": rate, "rounds": given.runs, "seed": given.seed}
        show = print if sys.stderr.isatty() else (lambda text: None)
        measured = await measure(asks, asked, **pacing, reset=bench.forget, progress=show)
        return Found(measured, rate, profiles)
    finally:
        await asyncio.to_thread(bench.close)


def _tell(found: Calibration) -> None:
    print("AdaptiveRAG: " + "; ".join(f"{complexity} → {each}" for complexity, each in found.by_complexity.items()))
    print("F1 in calibration: " + "; ".join(f"{each}: {f1:.2f}" for each, f1 in found.fixed.items()))
    print("of settings: " + "; ".join(f"{each}: {f1:.2f}" for each, f1 in found.settings.items()))
    print(f"adaptive, calibrated: {found.tuned}", flush=True)


def report(found: dict[str, Measured]) -> tuple[dict[str, Any], dict[str, bool]]:
    """Prints the figures; returns them, and the checks."""
    kinds = next(iter(found.values())).by_kind()
    rows = [("system", "F1 (95 %)", "exact", "delay s", "CPU s", *kinds)]
    figures = {name: each.as_dict() for name, each in found.items()}
    for name, one in figures.items():
        by_kind = [f"{value:.2f}" for value in one["f1_by_kind"].values()]
        rows.append(
            (
                name,
                _with_interval(one),
                f"{one['exact']:.3f}",
                f"{one['delay_s']:.3f}",
                f"{one['work_s']:.3f}",
                *by_kind,
            )
        )
    print("", table(rows), "", sep="\n")
    names = [str(each) for each in grid() if str(each) in found]
    edge = frontier({name: (found[name].mean_delay, found[name].mean_f1) for name in names})
    print("frontier of fixed configurations: " + "; ".join(edge))
    checks: dict[str, bool] = {}
    verdicts = {}
    for name in ASKING:
        verdict = judge(found[name], [found[each] for each in names])
        verdicts[name] = verdict.as_dict()
        print(verdict)
        shares = found[name].profiler()
        print(
            "  profiler {share:.1%} of the delay ({mean_s:.3f} s; search {search_s:.3f} s), ".format(**shares), end=""
        )
        print("{critical_share:.1%} waited for after the search, which took longer in {hidden:.0%}".format(**shares))
        checks[f"{name}: quicker than every fixed configuration of equal or better F1"] = verdict.quicker
        checks[f"{name}: F1 not below the best of similar delay by more than noise"] = verdict.as_good
        checks[f"{name}: profiler at most a tenth of the delay"] = shares["share"] <= 0.1
        hidden = f"{name}: no call whose search takes longer waits for its profile (a hundredth of its delay)"
        checks[hidden] = shares["hidden_share"] <= 0.01
    return {"systems": figures, "frontier": edge, "verdicts": verdicts}, checks


def _with_interval(figures: dict[str, Any]) -> str:
    low, high = figures["f1_interval"]
    return f"{figures['f1']:.3f} ({low:.2f} to {high:.2f})"


def main(argv: list[str] | None = None) -> int:
    given = parser().parse_args(argv)
    for name in ("rate", "load"):
        value = getattr(given, name)
        if value is not None and value <= 0:
            raise SystemExit(f"--{name} must be greater than 0, got {value}")
    if given.rate is not None and given.load is not None:
        raise SystemExit("--rate and --load say the same in two ways; give one of them")
    if given.emulated and given.chunk_tokens:
        raise SystemExit(f"--emulated chunks have {emulated.CHUNK_TOKENS} tokens; leave --chunk-tokens out")
    print(hardware())
    found = compare(given)
    figures, checks = report(found.systems)
    _tell_profiles(found)
    settings = {"rate": found.rate, "load": given.load, "seed": given.seed, "emulated": given.emulated}
    return finish({"settings": settings, **figures, "profiles": found.profiles}, checks, given.json)


def _tell_profiles(found: Found) -> None:
    if not found.profiles:
        return
    values, whole = found.profiles["values"], found.profiles["whole"]
    print(
        f"a profile alone: {values['seconds'] * 1e3:.1f} ms, {values['work_s'] * 1e3:.1f} ms of processor time, with "
        f"values alone decoded; {whole['seconds'] * 1e3:.1f} and {whole['work_s'] * 1e3:.1f} ms with the whole JSON "
        f"(medians of {values['number']}, in turns); {values['same']:.1%} of the choices are the same; "
        f"{whole['none']} whole answers and {values['none']} of values were no profile"
    )
    if found.rate is None:
        mine = found.systems[CALIBRATED]
        share = values["work_s"] / mean(mine.work)
        print(f"by processor time the profiler takes {share:.1%} of a question of {CALIBRATED}")


if __name__ == "__main__":
    sys.exit(main())
