"""No request waits behind later ones beyond the bound that the documentation names, in random loads."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.cost_model.costs import costs
from fineflow.protocols import Sampling
from fineflow.runtime import events
from fineflow.runtime.queues import llm_queue, llm_request, request_context
from fineflow.runtime.queues.instances import instances
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.policy import PATIENCE
from fineflow.testing import virtual

LOADS = 300
SLOW = LLMProfile(iteration=0.5, prefill_token=0.005, decode_sequence=0.01, blocks=4096)


class Load:
    """Random requests of single calls and chains, with one of a few long prefixes or none, to one or several engines.

    passed: for each request, how many others were admitted while it waited whose call began later.
    """

    def __init__(self, seed: int) -> None:
        self.chosen = chosen = random.Random(seed)
        count, room = chosen.choice((1, 1, 2, 3)), chosen.choice((100, 300, 800))
        engines = [
            EmulatedLLM(lambda prompt: " ".join(["word"] * 4), SLOW, name=f"engine {seed} {i}", capacity=room)
            for i in range(count)
        ]
        engine: Any = engines[0] if count == 1 else instances(engines)
        self.encode = engines[0].encode
        self.queue: LLMQueue = llm_queue_of(engine)
        self.prefixes = [f"app {i} " + "word " * 62 for i in range(chosen.choice((1, 2, 3)))] + [""]
        self.passed: dict[int, int] = {}
        self.ended = 0
        begin = self.queue._begin

        def begun(request: Any, instance: Any) -> None:
            begin(request, instance)
            for other in self.queue._line:
                if other.seen.started < request.seen.started and not other.room.done():
                    self.passed[other.seen.number] = self.passed.get(other.seen.number, 0) + 1

        self.queue._begin = begun  # type: ignore[method-assign]

    async def call(self, number: int, at: float, steps: int) -> None:
        await asyncio.sleep(at)
        request_context.query.set(f"call-{number}")
        request_context.started.set(events.now() + number * 1e-6)
        prefix = self.chosen.choice(self.prefixes)
        for step in range(steps):
            own = f"call {number} step {step} " + "own " * self.chosen.randint(1, 40)
            sampling = Sampling(max_tokens=self.chosen.choice((1, 2, 4)))
            async for _ in self.queue.generate(self.encode(prefix + own), sampling):
                pass
        self.ended += 1

    def run(self) -> int:
        """Returns the most requests that passed one."""
        costs.forget()
        calls, spread = self.chosen.randint(18, 30), self.chosen.choice((0.0, 2.0, 10.0))

        async def together() -> None:
            made = [(self.chosen.uniform(0, spread), self.chosen.choice((1, 1, 1, 4))) for _ in range(calls)]
            await asyncio.gather(*(asyncio.create_task(self.call(i, *each)) for i, each in enumerate(made)))

        virtual.run(together())
        assert self.ended == calls and not self.queue.waiting and not self.queue.running
        return max(self.passed.values(), default=0)


def most_passed(seeds: range) -> int:
    return max(Load(seed).run() for seed in seeds)


def test_no_request_is_passed_by_more_than_the_bound() -> None:
    assert most_passed(range(LOADS)) <= PATIENCE


def test_the_loads_would_exceed_the_bound_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (llm_queue, llm_request):
        monkeypatch.setattr(module, "PATIENCE", 1000)
    assert most_passed(range(40)) > PATIENCE
