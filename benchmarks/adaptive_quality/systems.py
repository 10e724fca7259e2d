"""What is compared: every fixed configuration of a grid, a choice by complexity alone, and ``fineflow.adaptive``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fineflow
from benchmarks.adaptive_quality.app import MOST_CHUNKS, SUMMARY
from fineflow.adaptation import Configuration, Decision, DistilledProfiler
from fineflow.adaptation.configuration import SYNTHESES, Synthesis

CHUNKS, RERANKED, REDUCED, LENGTHS = (1, 2, 3, 4, 6, 8, 12), (2, 4, 8), (4,), (24, 48)


def grid(most: int = MOST_CHUNKS) -> tuple[Configuration, ...]:
    """Returns the fixed configurations. most: chunks that a prompt has room for.

    With one chunk, ``map_rerank`` is ``stuff``. Summaries of more than four chunks are left out: with the bundled
    model, those of eight take twice as long as those of four, for a lower F1.
    """
    return (
        *(Configuration(number, "stuff") for number in CHUNKS if number <= most),
        *(Configuration(number, "map_rerank") for number in RERANKED),
        *(Configuration(number, "map_reduce", length) for number in REDUCED for length in LENGTHS),
    )


Ask = Callable[[str], Awaitable["Reply"]]
ADAPTIVE, CALIBRATED, DISTILLED = ASKING = "adaptive", "adaptive, calibrated", "adaptive, distilled"
BY_COMPLEXITY = "by complexity (AdaptiveRAG)"
"""``adaptive`` with its defaults; with the settings that did best on the questions for calibration; and with these
settings and a distilled profiler."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and what was decided for it, if anything was."""

    text: str
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Tuned:
    """Settings of ``fineflow.adaptive`` that depend on the model."""

    methods: tuple[Synthesis, ...] = SYNTHESES
    reach: float = 1.0

    def __str__(self) -> str:
        return f"{' or '.join(self.methods)}, reach {self.reach:g}"


TUNED = tuple(
    Tuned(methods, reach)
    for reach in (0.0, 0.5, 1.0)
    for methods in (("stuff",), ("map_rerank", "stuff"), ("stuff", "map_reduce"), SYNTHESES)
)
"""Settings to choose from in calibration, the cheapest first."""


def systems(
    bench: Any, best: Mapping[str, Configuration], tuned: Tuned, distilled: DistilledProfiler
) -> dict[str, Ask]:
    """Returns everything that is compared, by name. best: configuration for each complexity; tuned: calibrated."""
    made = adaptive(bench, Tuned())
    found = {str(each): _fixed(made, each) for each in grid(bench.most)}
    found[BY_COMPLEXITY] = _by_complexity(bench, made, best)
    found[CALIBRATED] = _deciding(adaptive(bench, tuned))
    found[DISTILLED] = _deciding(adaptive(bench, tuned, distilled))
    found[ADAPTIVE] = _deciding(made)
    return found


def adaptive(bench: Any, tuned: Tuned, profiler: Any = None) -> Any:
    """Returns the chain of a bench as ``fineflow.adaptive`` makes it; by default its profiler has seen no question."""
    return fineflow.adaptive(
        bench.chain,
        profiler=bench.profiler() if profiler is None else profiler,
        summary_prompt=SUMMARY,
        most_chunks=bench.most,
        feedback=False,  # the golden answers of this model are no better than others
        methods=tuned.methods,
        reach=tuned.reach,
    )


def _deciding(made: Any) -> Ask:
    async def ask(question: str) -> Reply:
        text = await made.ainvoke(question)
        return Reply(text, made.last)

    return ask


def _fixed(made: Any, configuration: Configuration) -> Ask:
    chain = made.configured(configuration)

    async def ask(question: str) -> Reply:
        return Reply(await chain.ainvoke(question))

    return ask


def _by_complexity(bench: Any, made: Any, best: Mapping[str, Configuration]) -> Ask:
    """AdaptiveRAG: a model says how complex the question is, and the configuration follows from that alone."""

    profiler = bench.profiler()

    async def ask(question: str) -> Reply:
        try:
            complex_ = (await profiler.estimate(question, summaries=False)).profile.complex
        except ValueError:  # the model did not say
            complex_ = True
        return Reply(await made.configured(best["high" if complex_ else "low"]).ainvoke(question))

    return ask
