"""Decides the configuration of each query: profile beside the search, pruned space, best fit (RAGServe, Figure 6)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fineflow.adaptation.chooser import Choice, Situation, best_fit, middle
from fineflow.adaptation.configuration import GOLDEN, SYNTHESES, Configuration, Space, Synthesis
from fineflow.adaptation.decisions import Decision, Log
from fineflow.adaptation.feedback import Feedback
from fineflow.adaptation.mapping import FALLBACK, LARGEST, pruned
from fineflow.adaptation.memory import Memory, Need, Sizes
from fineflow.adaptation.profiler import Estimate, Profiling
from fineflow.adaptation.speed import Speed
from fineflow.runtime.events import now
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.submission import RuntimeSubmission, done_within

T = TypeVar("T")

_RECENT = 10  # queries whose spaces stand in for a profile that cannot be used (section 5)
_SHARE_OF_DEADLINE = 4  # the profiler may take one part of so many


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an adaptive object; see :func:`fineflow.adaptive`."""

    deadline: float | None = None
    patience: float = 2.0
    confidence: float = 0.9
    scheduling: bool = True
    feedback: bool = True
    most_chunks: int = LARGEST
    answer_tokens: int = 64
    fallback: Space = FALLBACK
    methods: tuple[Synthesis, ...] = SYNTHESES
    reach: float = 1.0

    def __post_init__(self) -> None:
        for name in ("deadline", "patience", "most_chunks", "answer_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"adaptive({name}=...) is {value!r}; expected a number greater than 0")
        for name, meaning in (("confidence", "0 takes every profile"), ("reach", "1 takes all of a space")):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"adaptive({name}=...) is {getattr(self, name)!r}; expected 0 to 1; {meaning}")
        if not self.methods or not {*self.methods} <= {*SYNTHESES}:
            raise ValueError(f"adaptive(methods=...) is {self.methods!r}; expected some of {', '.join(SYNTHESES)}")

    @property
    def golden(self) -> Configuration:
        """The most demanding configuration, by the highest method that may be used."""
        if GOLDEN.synthesis in self.methods:
            return GOLDEN
        return Configuration(GOLDEN.num_chunks, max(self.methods, key=SYNTHESES.index))


class Tokens(Protocol):
    """Counts the tokens of a query."""

    def overhead(self, query: str) -> int:
        """Returns the tokens of a prompt without chunks."""
        ...

    def chunks(self, found: Any) -> Sequence[int]:
        """Returns the tokens of each chunk that the search found, the nearest first."""
        ...


class Controller:
    """Profiles, prunes and chooses for one adaptive object. Usable from any thread and loop."""

    def __init__(self, profiler: Profiling, memory: Memory, speed: Speed, tokens: Tokens, settings: Settings) -> None:
        self.profiler, self.memory, self.speed, self.settings = profiler, memory, speed, settings
        self.log = Log()
        self.feedback = Feedback(profiler, self.log)
        self._tokens = tokens
        self._spaces: deque[Space] = deque(maxlen=_RECENT)

    async def decide(self, query: str, search: Callable[[], Awaitable[T]]) -> tuple[Decision, T]:
        """Returns the decision for a query, and what the search found, which runs beside the profiler.

        Raises what ``search`` raises. A profiler that fails, or takes longer than it may, is noted in the decision.
        """
        began = now()
        asking = asyncio.ensure_future(self._estimate(query))
        asking.add_done_callback(_retrieved)
        try:
            found = await search()
            searched = now() - began
            await asyncio.wait([asking], timeout=self._patience(searched))
        finally:
            asking.cancel()
        return self._decision(query, found, asking, began, searched), found

    def decide_sync(self, query: str, search: Callable[[], T]) -> tuple[Decision, T]:
        """Does the same in a thread. The profiler runs on the runtime's loop."""
        began = now()
        asking = RuntimeSubmission(lambda: self._estimate(query))
        try:
            asking.start()
            found = search()
            searched = now() - began
            patience = 0.0 if on_engine_loop() else self._patience(searched)  # which would stop the loop
            done_within(asking.outcome, patience)
        finally:
            asking.cancel()
        return self._decision(query, found, asking.outcome, began, searched), found

    def _estimate(self, query: str) -> Coroutine[Any, Any, Estimate]:
        return self.profiler.estimate(query, self.feedback.text, summaries="map_reduce" in self.settings.methods)

    def _patience(self, searched: float) -> float:
        """Returns the seconds that a call may wait for the profile after the search."""
        most = self.settings.patience
        if self.settings.deadline is not None:
            most = min(most, self.settings.deadline / _SHARE_OF_DEADLINE)
        return max(most - searched, 0.0)

    def _decision(
        self,
        query: str,
        found: Any,
        asking: Future[Estimate] | asyncio.Future[Estimate],
        began: float,
        searched: float,
    ) -> Decision:
        waited = max(now() - began - searched, 0.0)
        space, origin, estimate, problem = self._space(asking)
        choice, free = self._choice(space, query, found, now() - began)
        decision = Decision(
            query,
            choice.configuration,
            space,
            origin,
            choice.why,
            profile=None if estimate is None else estimate.profile,
            confidence=None if estimate is None else estimate.confidence,
            problem=problem[1],
            free=free,
            searched=searched,
            profiled=searched + waited if estimate is None else estimate.seconds,
            waited=waited,
            need=choice.need,
        )
        self.log.decided(decision, problem[0])
        return decision

    def _choice(self, space: Space, query: str, found: Any, spent: float) -> tuple[Choice, int | None]:
        try:
            free = self.memory.free()
            sizes = Sizes(self._tokens.overhead(query), tuple(self._tokens.chunks(found)), self.settings.answer_tokens)
            left = None if self.settings.deadline is None else self.settings.deadline - spent
            at = Situation(sizes, free, self.speed.seconds, left, self.settings.reach)
            return (best_fit if self.settings.scheduling else middle)(space, at), free
        except Exception as error:  # figures of an engine, or a tokenizer, that fail are no reason not to answer
            why = f"the choice failed ({type(error).__name__}: {error}): the middle of its space"
            need = Need.of(space.middle, Sizes(0, (), self.settings.answer_tokens))
            return Choice(space.middle, need, why), None

    def _space(
        self, asking: Future[Estimate] | asyncio.Future[Estimate]
    ) -> tuple[Space, str, Estimate | None, tuple[str, str]]:
        """Returns the space, where it came from, the estimate, and what was wrong with it, by kind and in words."""
        estimate, problem = _outcome(asking)
        if estimate is not None and self._sure(estimate):
            space = self._bounded(pruned(estimate.profile))
            self._spaces.append(space)
            return space, "profile", estimate, problem
        if estimate is not None:
            problem = "unsure", f"confidence {estimate.confidence:.2f} is below {self.settings.confidence:.2f}"
        recent = list(self._spaces)
        if recent:
            return Space.union(recent), "recent queries", estimate, problem
        return self._bounded(self.settings.fallback), "default", estimate, problem

    def _sure(self, estimate: Estimate) -> bool:
        return estimate.confidence is None or estimate.confidence >= self.settings.confidence

    def _bounded(self, space: Space) -> Space:
        return space.within(self.settings.methods, self.settings.most_chunks)

    @contextmanager
    def running(self, decision: Decision) -> Iterator[None]:
        """Holds the memory of a decision for as long as its query runs; learns how long it took if it succeeds."""
        began = now()
        with self.memory.promise(decision.need.at_once):
            yield
        took = now() - began
        self.speed.learn(decision.need, took)
        self.log.ended(decision, took + decision.searched + decision.waited)

    def learn(self, query: str, golden: Callable[[], Awaitable[str]], context: Context) -> None:
        """Counts an answered query, and learns from every 30th one in the background (``Feedback``)."""
        if (self.settings.feedback or self.profiler.learns) and self.feedback.due():
            self.feedback.learn(query, golden if self.settings.feedback else None, context)


def _outcome(asking: Future[Any] | asyncio.Future[Any]) -> tuple[Estimate | None, tuple[str, str]]:
    if not asking.done() or asking.cancelled():
        return None, ("late", "the profiler took too long")
    error = asking.exception()
    if error is None:
        return asking.result(), ("", "")
    if isinstance(error, asyncio.CancelledError):
        return None, ("late", "the profiler took too long")
    kind = "invalid" if isinstance(error, ValueError) else "failed"
    return None, (kind, f"{type(error).__name__}: {error}")


def _retrieved(asking: asyncio.Future[Any]) -> None:
    """Marks a failure that nobody waits for as retrieved, so that asyncio does not log it."""
    if not asking.cancelled():
        asking.exception()
