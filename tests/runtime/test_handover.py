"""Room of a request that has ended is kept a moment for the next request of its query."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

import fineflow
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM, LLMProfile
from fineflow.langchain import ChatEngine
from fineflow.protocols import Sampling
from fineflow.runtime import events
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.testing import virtual

PROFILE = LLMProfile(iteration=0.1, prefill_token=0.0, decode_sequence=0.0)
STEPS, WORDS = 5, 10
STEP = 0.015  # seconds, of an engine of which nothing is known yet
ALONE = STEPS * WORDS * PROFILE.iteration


@pytest.fixture(autouse=True)
def _nothing_learned() -> None:
    costs.forget()


def engine() -> EmulatedLLM:
    """An engine with room for one request."""
    return EmulatedLLM(lambda _: " ".join(["word"] * WORDS), PROFILE, capacity=1)


def chain(llm: ChatEngine) -> Runnable[Any, Any]:
    step = ChatPromptTemplate.from_template("Go on from {text}.") | llm | StrOutputParser()

    async def run(text: str) -> str:
        for _ in range(STEPS):
            text = await step.ainvoke({"text": text})
        return text

    return RunnableLambda(run)


def test_a_chain_is_not_held_up_by_later_requests() -> None:
    llm = ChatEngine(engine=engine(), max_tokens=WORDS)
    first = fineflow.optimize(chain(llm), strict=True)
    single = fineflow.optimize(ChatPromptTemplate.from_template("{text}") | llm, strict=True)

    async def main() -> tuple[float, float]:
        begun = asyncio.get_running_loop().time()
        running = asyncio.create_task(first.ainvoke("here"))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(single.ainvoke({"text": f"request {i}"})) for i in range(4)]
        await running
        ended = asyncio.get_running_loop().time()
        await asyncio.gather(*others)
        return ended - begun, asyncio.get_running_loop().time() - begun

    seconds, all_of_it = virtual.run(main()).value
    assert seconds == pytest.approx(ALONE, abs=0.01)
    # The room of a call that has ended is not kept: the rest follows without a break.
    assert all_of_it == pytest.approx(ALONE + 4 * WORDS * PROFILE.iteration, abs=0.01)


async def ask(llm: EmulatedLLM, query: str, number: int) -> float:
    if query:
        request_context.query.set(query)
        request_context.started.set(float(number))
    async for _ in llm_queue_of(llm).generate(llm.encode(f"request {number}"), Sampling(max_tokens=WORDS)):
        pass
    return events.now()


@pytest.mark.parametrize(
    ("queries", "waits"),
    [
        pytest.param(("", ""), 0.0, id="requests of no call have no successor"),
        pytest.param(("early", "late"), STEP, id="at most one step"),
        pytest.param(("early", "early"), 0.0, id="the next request is there already"),
    ],
)
def test_how_long_room_is_kept(queries: tuple[str, str], waits: float) -> None:
    llm = engine()

    async def main() -> list[float]:
        return await asyncio.gather(*(asyncio.create_task(ask(llm, query, i)) for i, query in enumerate(queries)))

    first, second = virtual.run(main()).value
    assert second - first == pytest.approx(WORDS * PROFILE.iteration + waits, abs=0.002)


def test_room_is_not_kept_from_a_query_that_comes_before() -> None:
    llm = engine()

    async def both() -> list[float]:
        late = asyncio.create_task(ask(llm, "late", 5))
        await asyncio.sleep(0.01)
        early = asyncio.create_task(ask(llm, "early", 0))
        return [await late, await early]

    first, second = virtual.run(both()).value
    assert second - first == pytest.approx(WORDS * PROFILE.iteration, abs=0.005)


def test_nothing_is_kept_when_all_has_ended() -> None:
    llm = engine()

    async def main() -> None:
        await asyncio.gather(*(asyncio.create_task(ask(llm, f"query {i}", i)) for i in range(5)))

    virtual.run(main())
    assert not llm_queue_of(llm)._handovers._kept and not request_context._at_end
