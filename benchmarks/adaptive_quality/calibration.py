"""What is chosen before the comparison, on questions that are not part of it: settings, and AdaptiveRAG's mapping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.adaptive_quality.datasets import Question
from benchmarks.adaptive_quality.scores import token_f1
from benchmarks.adaptive_quality.systems import MOST_CHUNKS, TUNED, Tuned, adaptive, grid
from fineflow.adaptation import Configuration, Profile
from fineflow.adaptation.mapping import FALLBACK, pruned

TOGETHER = 8  # questions at a time
ALIKE = 0.01  # F1 within it is the same: the cheaper settings are taken
SURE = 0.9  # confidence from which a profile is used


@dataclass(frozen=True)
class Calibration:
    """What was found. by_complexity: AdaptiveRAG's configurations; tuned: settings of ``adaptive``. fixed, settings:
    mean F1 of each.
    """

    by_complexity: Mapping[str, Configuration]
    tuned: Tuned
    fixed: Mapping[Configuration, float]
    settings: Mapping[Tuned, float]

    @property
    def best(self) -> Configuration:
        """The fixed configuration with the highest F1, the first of equal ones."""
        return max(self.fixed, key=self.fixed.__getitem__)


class Scores:
    """F1 of questions by configuration. The model is greedy, so each pair is asked once."""

    def __init__(self, bench: Any) -> None:
        self._made = adaptive(bench, Tuned())
        self._room = asyncio.Semaphore(TOGETHER)
        self._found: dict[tuple[str, Configuration], asyncio.Task[float]] = {}

    async def mean(self, chosen: Sequence[tuple[Question, Configuration]]) -> float:
        """Returns the mean F1 of questions, each in a configuration; 0 without any."""
        for question, configuration in chosen:
            key = question.text, configuration
            if key not in self._found:
                self._found[key] = asyncio.ensure_future(self._score(question, configuration))
        return fmean(await asyncio.gather(*(self._found[q.text, each] for q, each in chosen))) if chosen else 0.0

    async def _score(self, question: Question, configuration: Configuration) -> float:
        async with self._room:
            return token_f1(await self._made.configured(configuration).ainvoke(question.text), question.answers)


async def calibrated(bench: Any, questions: Sequence[Question]) -> Calibration:
    """Returns the cheapest settings whose mean F1 is as high as any, and the best configuration of each complexity.

    A query of each settings gets the configuration that it gets while all memory is free.
    """
    scores, profiler = Scores(bench), bench.profiler()
    profiles, configurations = {}, grid(bench.most)
    for question in questions:
        profiles[question.text] = await _sure_profile(profiler, question)
    fixed = {each: await scores.mean([(question, each) for question in questions]) for each in configurations}
    by_complexity = {}
    for name, high in (("low", False), ("high", True)):
        mine = [each for each in questions if (kept := profiles[each.text]) is not None and kept.complex is high]
        means = {each: await scores.mean([(question, each) for question in mine]) for each in configurations}
        by_complexity[name] = max(configurations, key=means.__getitem__)
    settings = {
        each: await scores.mean(
            [(question, choice(profiles[question.text], each, bench.most)) for question in questions]
        )
        for each in TUNED
    }
    return Calibration(by_complexity, cheapest(settings), fixed, settings)


def choice(profile: Profile | None, settings: Tuned, most: int = MOST_CHUNKS) -> Configuration:
    """Returns the configuration of a query while all memory is free; without a profile, of the fallback.

    most: chunks that may be chosen.
    """
    space = (FALLBACK if profile is None else pruned(profile)).within(settings.methods, most)
    return next(iter(space.up_to(settings.reach)))


def cheapest(means: Mapping[Tuned, float]) -> Tuned:
    """Returns the first settings whose mean is within ``ALIKE`` of the highest."""
    most = max(means.values())
    return next(each for each in TUNED if means[each] >= most - ALIKE)


async def service_seconds(bench: Any, configuration: Configuration, questions: Sequence[Question]) -> float:
    """Returns the mean seconds of a question in a configuration, when nothing else runs."""
    chain = adaptive(bench, Tuned()).configured(configuration)
    taken = []
    for question in questions:
        start = asyncio.get_running_loop().time()
        await chain.ainvoke(question.text)
        taken.append(asyncio.get_running_loop().time() - start)
    return fmean(taken)


async def profile_costs(bench: Any, questions: Sequence[Question]) -> dict[str, dict[str, float]]:
    """Returns what profiles cost, whose values alone, or whose whole JSON is decoded, asked for in turns.

    seconds, work_s: medians, of the clock and of processor time. none: profiles that were no profile. same: of the
    profiles that both gave, the share that led to the same choice.
    """
    sides = {"values": bench.profiler(), "whole": bench.profiler(values=False)}
    for profiler in sides.values():
        await _profile(profiler, questions[0])
    found: dict[str, list[tuple[Profile | None, float, float]]] = {name: [] for name in sides}
    for number, question in enumerate(questions):
        for name in sorted(sides, reverse=bool(number % 2)):
            clock, work = time.perf_counter(), time.process_time()
            profile = await _profile(sides[name], question)
            found[name].append((profile, time.perf_counter() - clock, time.process_time() - work))
    both = [(v[0], w[0]) for v, w in zip(*found.values(), strict=True) if v[0] is not None and w[0] is not None]
    same = [choice(values, each) == choice(whole, each) for values, whole in both for each in TUNED]
    return {
        name: {
            "seconds": _median(clock for _, clock, _ in rows),
            "work_s": _median(work for _, _, work in rows),
            "none": sum(profile is None for profile, _, _ in rows),
            "same": fmean(same) if same else 0.0,
            "number": len(rows),
        }
        for name, rows in found.items()
    }


async def _profile(profiler: Any, question: Question) -> Profile | None:
    try:
        found: Profile = (await profiler.estimate(question.text, keep=False)).profile
    except ValueError:
        return None
    return found


async def _sure_profile(profiler: Any, question: Question) -> Profile | None:
    try:
        found = await profiler.estimate(question.text)
    except ValueError:
        return None
    return None if (found.confidence or 1.0) < SURE else found.profile


def _median(values: Any) -> float:
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2])
