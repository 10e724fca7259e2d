"""What is compared: every fixed configuration of a grid, a choice by complexity alone, and ``fineflow.adaptive``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import fineflow
from benchmarks.adaptive_quality.app import SUMMARY
from benchmarks.adaptive_quality.datasets import Dataset, Question
from benchmarks.adaptive_quality.scores import token_f1
from fineflow.adaptation import Configuration, Decision, Profiler
from fineflow.adaptation.configuration import SYNTHESES, Synthesis

CHUNKS, RERANKED, REDUCED, LENGTHS = (1, 2, 3, 4, 6, 8, 12), (2, 4, 8), (4, 8), (24, 48)
MOST_CHUNKS = max(CHUNKS)  # more do not fit into the 1,000 tokens that the bundled model was trained on
TOGETHER = 8  # questions at a time in calibration

GRID = (
    *(Configuration(number, "stuff") for number in CHUNKS),
    *(Configuration(number, "map_rerank") for number in RERANKED),
    *(Configuration(number, "map_reduce", length) for number in REDUCED for length in LENGTHS),
)
"""Fixed configurations. With one chunk, ``map_rerank`` is ``stuff``."""

Ask = Callable[[str], Awaitable["Reply"]]
ADAPTIVE, CALIBRATED = "adaptive", "adaptive, calibrated"
BY_COMPLEXITY = "by complexity (AdaptiveRAG)"
"""``adaptive`` with its defaults, and with the settings that did best on the questions for calibration."""
ALIKE = 0.01  # F1 within it is the same: the cheaper settings are taken


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and what was decided for it, if anything was."""

    text: str
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Tuned:
    """Settings of ``fineflow.adaptive`` that depend on the model."""

    methods: tuple[Synthesis, ...] = SYNTHESES
    reach: float = 0.5

    def __str__(self) -> str:
        return f"{' or '.join(self.methods)}, reach {self.reach:g}"


TUNED = tuple(
    Tuned(methods, reach)
    for reach in (0.0, 0.5, 1.0)
    for methods in (("stuff",), ("map_rerank", "stuff"), ("stuff", "map_reduce"), SYNTHESES)
)
"""Settings to choose from in calibration, the cheapest first."""


def systems(bench: Any, dataset: Dataset, best: Mapping[str, Configuration], tuned: Tuned) -> dict[str, Ask]:
    """Returns everything that is compared, by name. best: configuration for each complexity; tuned: calibrated."""
    made = _adaptive(bench, dataset, Tuned())
    found = {str(each): _fixed(made, each) for each in GRID}
    found[BY_COMPLEXITY] = _by_complexity(bench, made, best)
    found[CALIBRATED] = _deciding(_adaptive(bench, dataset, tuned))
    found[ADAPTIVE] = _deciding(made)
    return found


async def tuned(bench: Any, dataset: Dataset, questions: Sequence[Question]) -> tuple[Tuned, dict[Tuned, float]]:
    """Returns the cheapest settings whose mean F1 is as high as any, of questions that nothing else uses; all F1."""
    room = asyncio.Semaphore(TOGETHER)

    async def score(ask: Ask, question: Question) -> float:
        async with room:
            return token_f1((await ask(question.text)).text, question.answers)

    means = {}
    for each in TUNED:
        ask = _deciding(_adaptive(bench, dataset, each))
        means[each] = fmean(await asyncio.gather(*(score(ask, question) for question in questions)))
    most = max(means.values())
    return next(each for each in TUNED if means[each] >= most - ALIKE), means


async def calibrated(bench: Any, dataset: Dataset, questions: Sequence[Question]) -> dict[str, Configuration]:
    """Returns the configuration with the highest mean F1 for each complexity, of questions that nothing else uses."""
    made = _adaptive(bench, dataset, Tuned())
    room = asyncio.Semaphore(TOGETHER)

    async def score(question: Question, configuration: Configuration) -> float:
        async with room:
            return token_f1(await made.configured(configuration).ainvoke(question.text), question.answers)

    complexity = [await _complexity(bench, question.text) for question in questions]
    best = {}
    for kind in ("low", "high"):
        mine = [question for question, found in zip(questions, complexity, strict=True) if found == kind]
        means = {
            each: fmean(await asyncio.gather(*(score(question, each) for question in mine))) if mine else 0.0
            for each in GRID
        }
        best[kind] = max(GRID, key=means.__getitem__)
    return best


def _adaptive(bench: Any, dataset: Dataset, tuned: Tuned) -> Any:
    ask = bench.profiler if "map_reduce" in tuned.methods else bench.profiler.plain
    return fineflow.adaptive(
        bench.chain,
        profiler=Profiler(ask, dataset.about, prompt="{question}"),
        summary_prompt=SUMMARY,
        most_chunks=MOST_CHUNKS,
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

    async def ask(question: str) -> Reply:
        return Reply(await made.configured(best[await _complexity(bench, question)]).ainvoke(question))

    return ask


async def _complexity(bench: Any, question: str) -> str:
    return str(json.loads(str((await bench.profiler(question)).content))["complexity"])
