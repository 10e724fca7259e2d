"""The last of several chains that began together is not left alone on an engine with room for more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.cost_model.costs import costs
from fineflow.ir import Op
from fineflow.protocols import Sampling
from fineflow.runtime import events
from fineflow.runtime.queues import llm_admissions, request_context
from fineflow.runtime.queues.engine_queue import SETTLE_ITERATIONS
from fineflow.runtime.queues.llm_queue import LLMQueue
from fineflow.runtime.queues.llm_request import earliest_first
from fineflow.runtime.queues.policy import PATIENCE, Policy, Waiting, app_fifo, by_start
from fineflow.testing import virtual

PROFILE = LLMProfile(iteration=0.1, prefill_token=0.001, decode_sequence=0.001, blocks=4096)
STEPS, PROMPT, OUTPUT = 20, 60, 10
ROOM = 3 * (PROMPT + OUTPUT + 16)  # for three requests at once


def ends(chains: int, policy: Policy, apart: float = 0.0) -> list[float]:
    """Returns the seconds until each of several chains has made its steps. apart: seconds between their starts."""
    costs.forget()
    engine = EmulatedLLM(lambda prompt: "word " * OUTPUT, PROFILE, capacity=ROOM, can_prefill=False)
    queue = LLMQueue(engine, policy)

    async def chain(number: int) -> float:
        await asyncio.sleep(number * apart)
        request_context.query.set(f"call-{number}")
        request_context.started.set(events.now() + number * 1e-6)
        for step in range(STEPS):
            prompt = engine.encode(f"chain {number} step {step} " + "own " * (PROMPT - 4))
            async for _ in queue.generate(prompt, Sampling(max_tokens=OUTPUT)):
                pass
            for _ in range(2 * SETTLE_ITERATIONS):  # its code reads the answer and makes the next prompt
                await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    async def together() -> list[float]:
        return await asyncio.gather(*(asyncio.create_task(chain(i)) for i in range(chains)))

    return virtual.run(together()).value


@pytest.mark.parametrize("apart", [0.0, 0.35])  # all steps end together, or one after the other
def test_the_last_chain_has_made_steps_before_it_is_alone(monkeypatch: pytest.MonkeyPatch, apart: float) -> None:
    ours = ends(7, by_start, apart)
    monkeypatch.setattr(llm_admissions, "IN_A_ROW", 10**6)
    alone = ends(7, by_start, apart)
    assert max(ours) <= 0.98 * max(alone)
    assert sum(ours) <= 1.01 * sum(alone)


def test_the_first_chains_wait_for_nobody_while_many_wait() -> None:
    assert ends(9, by_start)[:3] == pytest.approx(ends(3, by_start), rel=0.01)


def test_a_policy_that_was_chosen_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ends(4, app_fifo)
    monkeypatch.setattr(llm_admissions, "IN_A_ROW", 10**6)
    assert chosen == ends(4, app_fifo)


def request(number: int, *, passed: int = 0, **seen: Any) -> Any:
    return SimpleNamespace(seen=Waiting(number, f"call-{number}", 0, Op.DECODE, 10, **seen), passed=passed)


def numbers(line: list[Any], few: int) -> list[int]:
    return [each.seen.number for each in earliest_first(line, few)]


def test_who_goes_first() -> None:
    assert numbers([request(5), request(6), request(2), request(3)], 5) == [2, 5, 6, 3]
    assert numbers([request(5), request(2), request(3)], 3) == [5, 2, 3]  # too many wait
    assert numbers([request(5), request(6, passed=PATIENCE), request(2)], 4) == [5, 6, 2]  # it lets no more pass
    assert numbers([request(5), request(2, priority=-1), request(3)], 4) == [3, 5, 2]
    assert numbers([request(5), request(2, tenant="other"), request(3)], 4) == [3, 5, 2]
    assert numbers([], 4) == []
