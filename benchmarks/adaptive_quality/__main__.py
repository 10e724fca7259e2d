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
from pathlib import Path
from typing import Any

from benchmarks.adaptive_quality import app, emulated
from benchmarks.adaptive_quality.datasets import Dataset, bundled
from benchmarks.adaptive_quality.loaders import LOADERS
from benchmarks.adaptive_quality.run import Measured, measure
from benchmarks.adaptive_quality.systems import ADAPTIVE, CALIBRATED, GRID, calibrated, systems, tuned
from benchmarks.adaptive_quality.verdict import frontier, judge
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.testing import virtual

WARM_UP = 4  # questions that each system is asked first, and that count for none


def parser() -> argparse.ArgumentParser:
    made = arguments(__doc__ or "", runs=4)
    made.add_argument("--each", type=positive, default=15, help="questions of each kind (15)")
    made.add_argument(
        "--calibration", type=positive, default=15, help="further ones of each kind, for calibration (15)"
    )
    made.add_argument("--rate", type=float, help="questions per second (default: one after the other)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--emulated", action="store_true", help="the same answers, with the delays of a larger model")
    made.add_argument("--kv-tokens", type=positive, help="size of the engine's KV cache (8192; emulated: 59392)")
    made.add_argument("--model", help="causal LM in Hugging Face format (default: the demo's)")
    made.add_argument("--dataset", choices=LOADERS, help="format of --file (default: the bundled corpus)")
    made.add_argument("--file", type=Path, help="questions and documents of a public set")
    return made


def chosen(given: argparse.Namespace) -> tuple[Dataset, int]:
    """Returns the data, and how many of its first questions are for calibration."""
    if given.dataset is None:
        return bundled(given.each + given.calibration), 4 * given.calibration
    if given.file is None:
        raise SystemExit(f"--dataset {given.dataset} needs --file: the path of its questions")
    data = LOADERS[given.dataset](given.file)
    number = min(4 * given.calibration, len(data.questions) // 2)
    return Dataset(data.name, data.about, data.documents, data.questions[: number + 4 * given.each]), number


def compare(given: argparse.Namespace) -> dict[str, Measured]:
    """Loads the models, and compares on an ordinary event loop, or in virtual time."""
    dataset, kept = chosen(given)
    load: Callable[..., Any] = emulated.load if given.emulated else app.load
    room = {} if given.kv_tokens is None else {"kv_tokens": given.kv_tokens}
    bench = load(dataset, given.model, **room)
    asking = _compare(given, bench, dataset, kept)
    return virtual.run(asking).value if given.emulated else asyncio.run(asking)


async def _compare(given: argparse.Namespace, bench: Any, dataset: Dataset, kept: int) -> dict[str, Measured]:
    pace = "one after the other" if given.rate is None else f"at {given.rate:g} per second"
    try:
        print(f"{dataset.name}: {len(dataset.documents)} documents in {bench.chunks} chunks, ", end="")
        print(f"{len(dataset.questions) - kept} questions {pace}, in {given.runs} rounds")
        if given.emulated:
            print(
                f"EMULATED delays: Llama-2-7B, {emulated.CHUNK_TOKENS} tokens per chunk, in virtual time; real answers"
            )
        best = await calibrated(bench, dataset, dataset.questions[:kept])
        print("AdaptiveRAG: " + "; ".join(f"{complexity} → {each}" for complexity, each in best.items()), flush=True)
        settings, means = await tuned(bench, dataset, dataset.questions[:kept])
        print("F1 in calibration: " + "; ".join(f"{each}: {f1:.2f}" for each, f1 in means.items()))
        print(f"adaptive, calibrated: {settings}", flush=True)
        asks = systems(bench, dataset, best, settings)
        for ask in asks.values():
            await asyncio.gather(*(ask(question.text) for question in dataset.questions[:WARM_UP]))
        asked = dataset.questions[kept:]
        pacing: dict[str, Any] = {"rate": given.rate, "rounds": given.runs, "seed": given.seed}
        show = print if sys.stderr.isatty() else (lambda text: None)
        return await measure(asks, asked, **pacing, reset=bench.forget, progress=show)
    finally:
        await asyncio.to_thread(bench.close)


def report(found: dict[str, Measured]) -> tuple[dict[str, Any], dict[str, bool]]:
    """Prints the figures; returns them, and the checks."""
    kinds = next(iter(found.values())).by_kind()
    rows = [("system", "F1", "exact", "delay s", "CPU s", *kinds)]
    figures = {name: each.as_dict() for name, each in found.items()}
    for name, one in figures.items():
        by_kind = [f"{value:.2f}" for value in one["f1_by_kind"].values()]
        rows.append(
            (name, f"{one['f1']:.3f}", f"{one['exact']:.3f}", f"{one['delay_s']:.3f}", f"{one['work_s']:.3f}", *by_kind)
        )
    print("", table(rows), "", sep="\n")
    names = [str(each) for each in GRID]
    edge = frontier({name: (found[name].mean_delay, found[name].mean_f1) for name in names})
    print("frontier of fixed configurations: " + "; ".join(edge))
    checks: dict[str, bool] = {}
    verdicts = {}
    for name in (ADAPTIVE, CALIBRATED):
        verdict = judge(found[name], [found[each] for each in names])
        verdicts[name] = verdict.as_dict()
        print(verdict)
        shares = found[name].profiler()
        print(
            "  profiler {share:.1%} of the delay ({mean_s:.3f} s; search {search_s:.3f} s), ".format(**shares), end=""
        )
        print("{critical_share:.1%} waited for after the search".format(**shares))
        checks[f"{name}: quicker than every fixed configuration of equal or better F1"] = verdict.quicker
        checks[f"{name}: F1 not below the best of similar delay by more than noise"] = verdict.as_good
        checks[f"{name}: profiler at most a tenth of the delay"] = shares["share"] <= 0.1
    return {"systems": figures, "frontier": edge, "verdicts": verdicts}, checks


def main(argv: list[str] | None = None) -> int:
    given = parser().parse_args(argv)
    if given.rate is not None and given.rate <= 0:
        raise SystemExit(f"--rate must be greater than 0, got {given.rate}")
    print(hardware())
    figures, checks = report(compare(given))
    settings = {"rate": given.rate, "seed": given.seed, "emulated": given.emulated}
    return finish({"settings": settings, **figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
