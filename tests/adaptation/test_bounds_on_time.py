"""A deadline and the engine's ``latency_capacity`` lead to cheaper configurations, and never to slower answers."""

from __future__ import annotations

import asyncio
from statistics import mean
from typing import Any

import pytest
from adaptive_kit import HARD, SEVERAL, SINGLE, Asked, Model, chain_of

import fineflow
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM, LLMProfile
from fineflow.testing import virtual

QUERIES, GAP = 16, 0.01  # seconds between two; one alone takes about ten times as long
PROFILE = LLMProfile(iteration=0.005, prefill_token=0.001, decode_sequence=0.0001)


def answered(said: Any, *, latency_capacity: int | None = None, **settings: Any) -> tuple[float, int]:
    """Returns the mean delay of some queries, and the chunks that they read in all."""
    costs.forget()
    model = Model()
    model.engine = EmulatedLLM(model._said, PROFILE, name="bounded", latency_capacity=latency_capacity)
    model.chat = model.chat.model_copy(update={"engine": model.engine})
    chain = fineflow.adaptive(chain_of(model), profiler=Asked(said), answer_tokens=8, feedback=False, **settings)

    async def one(i: int) -> float:
        await asyncio.sleep(i * GAP)
        began = asyncio.get_running_loop().time()
        await chain.ainvoke(f"Question {i}?")
        return asyncio.get_running_loop().time() - began

    async def all_of_them() -> list[float]:
        return list(await asyncio.gather(*map(one, range(QUERIES))))

    delays = virtual.run(all_of_them()).value
    return mean(delays), sum(each.configuration.num_chunks for each in chain.statistics().recent)


@pytest.mark.parametrize("said", [SINGLE, SEVERAL, HARD], ids=["single", "several", "hard"])
@pytest.mark.parametrize(
    "bound",
    [{"room": 200}, {"deadline": 0.5}, {"deadline": 0.1}],
    ids=["room", "deadline", "short deadline"],
)
def test_a_bound_makes_no_query_slower(said: Any, bound: dict[str, Any]) -> None:
    free, chunks = answered(said)
    bounded, fewer = answered(said, **bound)
    assert bounded <= free * 1.001
    assert fewer <= chunks


@pytest.mark.parametrize("said", [SINGLE, HARD], ids=["single", "hard"])
@pytest.mark.parametrize("bound", [{"latency_capacity": 200}, {"room": 200}, {"deadline": 0.1}], ids=str)
def test_queries_of_several_requests_are_quicker_with_a_bound(said: Any, bound: dict[str, Any]) -> None:
    """The engine's queue keeps requests beyond its ``latency_capacity`` waiting; that costs less than it saves here."""
    free, chunks = answered(said)
    bounded, fewer = answered(said, **bound)
    assert bounded < 0.5 * free
    assert fewer < 0.5 * chunks
