"""Early prefills of arms that may not be taken: each call decides, by what they cost and when the choice is expected.

An arm that is not taken is prefilled in vain, and a prefill that is under way when the choice is made delays the arm
that is taken. So nothing is prefilled unless the engine has nothing else to do, and no other call under way has used
it. The time to spend is a share of what the choice took at least in the last calls. All arms get the same part of it,
as far as the engine computes them in that time: on an idle engine a prefill may be split anywhere. They go one after
the other; the choice ends all but its own, and any other request what is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from fineflow.adapters.core.decoding import cached, encode, settled
from fineflow.cost_model.costs import costs
from fineflow.ir import Op, Primitive
from fineflow.protocols import LLMEngine, Measured
from fineflow.runtime import events
from fineflow.runtime.call.executor import CHOSEN, Execution
from fineflow.runtime.call.trace import Warmed
from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.prompts import Prompt, least

_BEGUN = "the time goes to what it has in common with others"
_SURE = 0.8  # of the time in which the choice was made lately: engines take longer now and then


class _Wish(NamedTuple):
    """A beginning that may be prefilled for an arm. kept: tokens of it that are cached already."""

    arm: str
    prompt: Prompt
    kept: int
    answer: asyncio.Future[Warmed]


class _Choice:
    """One run of a CONDITION until it has chosen, and what may be prefilled for its arms on one engine."""

    def __init__(self, name: str, engine: LLMEngine, run: Execution) -> None:
        self._name, self._engine, self._run = name, engine, run
        self._began = events.now()
        self._chosen = ""
        self._wishes: list[_Wish] = []
        self._working: asyncio.Task[None] | None = None
        self._current: tuple[_Wish, asyncio.Future[bool]] | None = None
        run.when_chosen(name, self._chose)
        if (label := run.released.get((name, CHOSEN), "if")) and not label.startswith("if"):
            self._chosen = label
        run.ended(name, self._over)

    async def warm(self, p: Primitive, text: str) -> Warmed:
        """Prefills a beginning, or says why not."""
        request_context.uses(self._engine)
        tokens = settled(self._engine, await encode(self._engine, lambda: text))
        kept = cached(self._engine, tokens)
        prompt = Prompt(tokens, self._engine.block_size)
        wish = _Wish(p.meta["arm"], prompt, kept, self._run.call.loop.create_future())
        if len(tokens) - kept < least(self._engine) or self._over_for(wish):
            return Warmed(0, len(tokens), kept)
        self._wishes.append(wish)
        if self._working is None:
            self._working = self._run.spawn(self._work(), p)
        return await wish.answer

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # arms whose beginnings are known at the same moment come together
            while self._wishes:
                wishes, self._wishes = self._wishes, []
                why, ends = self._parts(wishes)
                for wish, end in zip(wishes, ends, strict=True):
                    gone = why or ("another arm was taken" if self._over_for(wish) else "" if end else _BEGUN)
                    done = not gone and await self._prefill(wish.prompt.tokens[:end], wish)
                    why_not = gone or ("" if done else "the engine had something else to do")
                    wish.answer.set_result(Warmed(end * done, len(wish.prompt), wish.kept, why=why_not))
        finally:
            self._working = None
            for wish in self._wishes:
                wish.answer.cancel()

    def _parts(self, wishes: Sequence[_Wish]) -> tuple[str, list[int]]:
        """Returns why nothing is prefilled ("" if something is), and where what is prefilled of each beginning ends.

        Each arm gets the same part of the time. One that begins as an earlier one does goes on where that one ends.
        """
        engine, ends = self._engine, [0] * len(wishes)
        soonest, line = costs.soonest(engine.name, self._name), costs.line(engine.name, Op.PREFILL)
        if soonest is None or not costs.measured(engine.name, Op.PREFILL):
            return "how long it takes to choose is not known yet", ends
        seconds = _SURE * (self._began + soonest - events.now())
        size, room, enough = engine.block_size, _room(engine), least(engine)
        seen = set[int]()
        for i, wish in enumerate(wishes):
            known = max(wish.kept, wish.prompt.leading(seen))
            others = len(wishes) - i
            fits = max(seconds / others - line.fixed, 0.0) / line.each if line.each else room
            new = int(min(len(wish.prompt) - known, fits, room / others)) // size * size
            if new >= enough:
                ends[i], seconds, room = known + new, seconds - line.at(new), room - new
                seen.update(wish.prompt.keys[: ends[i] // size])
        if any(ends):
            return "", ends
        return f"one of {len(wishes)} arms is chosen within {max(seconds, 0.0):.2f} s", ends

    async def _prefill(self, tokens: Sequence[int], wish: _Wish) -> bool:
        queue: LLMQueue = llm_queue_of(self._engine)
        work = asyncio.ensure_future(run_async(lambda: queue.prefill_spare(tokens)))
        self._current = wish, work
        try:
            await asyncio.wait([work])
        finally:
            self._current = None
            if work.cancel():
                await asyncio.wait([work])
        return not work.cancelled() and work.result()

    def _over_for(self, wish: _Wish) -> bool:
        return bool(self._chosen) and self._chosen != wish.arm

    def _chose(self) -> None:
        self._chosen = self._run.released[self._name, CHOSEN]
        if self._chosen.startswith("if "):
            self._chosen = ""
            self._run.when_chosen(self._name, self._chose)
            return
        costs.observe_wait(self._engine.name, self._name, events.now() - self._began)
        self._stop()

    def _over(self) -> None:
        self._chosen = self._chosen or "none of them"
        self._stop()

    def _stop(self) -> None:
        if self._current is not None and self._over_for(self._current[0]):
            self._current[1].cancel()


def _room(engine: LLMEngine) -> float:
    """Returns the tokens that may be prefilled without evicting much that is used again: half of the cache."""
    found = engine.cache_statistics() if isinstance(engine, Measured) else None
    return inf if found is None else found.total / 2


class _Choices(dict[tuple[int, str, str], _Choice]):
    """The choices of one call, by run of a graph, CONDITION and engine."""


async def warm_arm(p: Primitive, engine: LLMEngine, text: str, run: Execution) -> Warmed:
    """Prefills the beginning of a prompt in an arm of a CONDITION that has not chosen yet, if that pays in this call.

    text: of the beginning. Returns the number of tokens prefilled, or 0 and the reason.
    """
    name = p.meta["condition"]
    choices = run.call.memory(_Choices)
    found = choices.get((id(run), name, engine.name))
    if found is None:
        found = choices[id(run), name, engine.name] = _Choice(name, engine, run)
    return await found.warm(p, text)
