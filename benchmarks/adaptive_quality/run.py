"""Asks the same questions of each system at the same moments, in turns."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from benchmarks.adaptive_quality.datasets import Question
from benchmarks.adaptive_quality.scores import exact_match, mean_interval, token_f1
from benchmarks.adaptive_quality.systems import Ask, Reply


@dataclass
class Measured:
    """One system. Lists have an entry for each question, in the order of ``questions``."""

    name: str
    questions: list[Question] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)  # seconds from the arrival of the question to its answer
    work: list[float] = field(default_factory=list)  # seconds of processor time; 0 where questions overlap
    f1: list[float] = field(default_factory=list)

    @property
    def mean_f1(self) -> float:
        return fmean(self.f1)

    @property
    def mean_delay(self) -> float:
        return fmean(self.delays)

    def by_kind(self) -> dict[str, float]:
        """Returns the mean F1 for each kind of question."""
        kinds = dict.fromkeys(question.kind for question in self.questions)
        return {
            kind: fmean(f1 for f1, q in zip(self.f1, self.questions, strict=True) if q.kind == kind) for kind in kinds
        }

    def profiler(self) -> dict[str, float]:
        """Returns the profiler's share of the delay, and the share that calls waited for it after their search.

        hidden: share of the calls whose search took longer. hidden_share: of their delay, what they waited.
        """
        decided = [reply.decision for reply in self.replies if reply.decision is not None]
        if not decided:
            return {}
        whole = sum(self.delays)
        longer = [
            (reply.decision.waited, delay)
            for reply, delay in zip(self.replies, self.delays, strict=True)
            if reply.decision is not None and reply.decision.searched > reply.decision.profiled
        ]
        return {
            "share": sum(each.profiled for each in decided) / whole,
            "critical_share": sum(each.waited for each in decided) / whole,
            "mean_s": fmean(each.profiled for each in decided),
            "search_s": fmean(each.searched for each in decided),
            "hidden": len(longer) / len(decided),
            "hidden_share": sum(waited for waited, _ in longer) / sum(delay for _, delay in longer) if longer else 0.0,
        }

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures, as plain data."""
        decided = [reply.decision for reply in self.replies if reply.decision is not None]
        chosen = [str(each.configuration) for each in decided]
        return {
            "f1": self.mean_f1,
            "f1_interval": mean_interval(self.f1),
            "exact": fmean(exact_match(r.text, q.answers) for r, q in zip(self.replies, self.questions, strict=True)),
            "delay_s": self.mean_delay,
            "delay_interval_s": mean_interval(self.delays),
            "work_s": fmean(self.work),
            "f1_by_kind": self.by_kind(),
            "profiler": self.profiler(),
            "chosen": {each: chosen.count(each) for each in dict.fromkeys(chosen)},
        }


async def measure(
    asks: Mapping[str, Ask],
    questions: Sequence[Question],
    *,
    rate: float | None,
    rounds: int,
    seed: int,
    reset: Callable[[], None],
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Measured]:
    """Returns what each system answered, and how long it took.

    Questions arrive at random (a Poisson process of ``rate`` per second), at the same moments for each system; without
    a rate, each when the one before is answered. In each round all systems get the same part of the questions, one
    system after the other, in another order each time, so that load from elsewhere meets all of them. ``reset`` is
    called before each part.
    """
    chance = random.Random(seed)
    found = {name: Measured(name) for name in asks}
    for number in range(rounds):
        part = questions[number::rounds]
        moments = [] if rate is None else _arrivals(len(part), rate, chance)
        order = list(asks)
        chance.shuffle(order)
        for name in order:
            await asyncio.to_thread(reset)
            one = found[name]
            replies = await (_alone(asks[name], part) if rate is None else _part(asks[name], part, moments))
            for question, (reply, delay, work) in zip(part, replies, strict=True):
                one.questions.append(question)
                one.replies.append(reply)
                one.delays.append(delay)
                one.work.append(work)
                one.f1.append(token_f1(reply.text, question.answers))
            progress(f"round {number + 1} of {rounds}, {name}: mean F1 {one.mean_f1:.3f}, delay {one.mean_delay:.3f} s")
    return found


def _arrivals(number: int, rate: float, chance: random.Random) -> list[float]:
    moments, now = [], 0.0
    for _ in range(number):
        moments.append(now)
        now += chance.expovariate(rate)
    return moments


async def _part(ask: Ask, questions: Sequence[Question], moments: Sequence[float]) -> list[tuple[Reply, float, float]]:
    now = asyncio.get_running_loop().time
    start = now()

    async def one(question: Question, moment: float) -> tuple[Reply, float, float]:
        await asyncio.sleep(max(start + moment - now(), 0.0))
        reply = await ask(question.text)
        return reply, now() - start - moment, 0.0

    return list(await asyncio.gather(*map(one, questions, moments)))


async def _alone(ask: Ask, questions: Sequence[Question]) -> list[tuple[Reply, float, float]]:
    now, found = asyncio.get_running_loop().time, []
    for question in questions:
        start, worked = now(), time.process_time()
        reply = await ask(question.text)
        found.append((reply, now() - start, time.process_time() - worked))
    return found
