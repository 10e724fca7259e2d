"""Arms that may not be taken are prefilled early only where that pays: decided in each call, and never slower."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableBranch, RunnablePassthrough
from timed_routers import Router, Search, router, took

import fineflow
from fineflow.backends.emulated.profiles import LLAMA_2_7B
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.testing import virtual

BOUND = 1.02

# Among them are those in which prefilling all arms at once loses most, and those in which there is something to gain.
SEEDS = (0, 3, 7, 11, 19, 47)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_routers_are_never_slower(seed: int) -> None:
    (said, stock, _), (answered, mine, _) = (took(router(seed), optimized=on) for on in (False, True))
    assert answered == said
    assert sum(mine) <= BOUND * sum(stock), f"{sum(mine):.3f} s, stock {sum(stock):.3f} s: {router(seed)}"


LONG_DECISION = Router(0, 2, 5, 1000, False, "model", 90, False, 5, 0.0, LLAMA_2_7B)


def test_all_arms_are_prefilled_while_a_long_decision_is_written() -> None:
    _, stock, computed = took(LONG_DECISION, optimized=False)
    _, mine, more = took(LONG_DECISION, optimized=True)
    document = LLAMA_2_7B.prefill_token * 1000
    assert mine[:3] == pytest.approx(stock[:3])  # how long it takes is not known yet
    assert all(ours <= theirs - 0.9 * document for ours, theirs in zip(mine[3:], stock[3:], strict=True))
    assert more > computed


def test_what_all_arms_begin_with_is_computed_once() -> None:
    common = Router(0, 4, 5, 1000, True, "model", 40, False, 5, 0.0, LLAMA_2_7B)
    (_, stock, computed), (_, mine, more) = (took(common, optimized=on) for on in (False, True))
    assert mine[-1] < 0.95 * stock[-1] and more < 1.1 * computed


class Watched(EmulatedLLM):
    """Notes when each prefill ahead began and ended, and whether it was stopped."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.ahead: list[tuple[float, float, bool]] = []

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        began, stopped = asyncio.get_running_loop().time(), True
        try:
            await super().prefill(tokens, priority=priority)
            stopped = False
        finally:
            self.ahead.append((began, asyncio.get_running_loop().time(), stopped))


ROUTE = {"long": "first", "quick": "second", "other": "second"}
SECONDS = {"long": 2.0, "quick": 0.05, "other": 2.0}
WORDS = " ".join(f"w{i}" for i in range(1000))


def routed(engine: Any) -> Runnable[Any, Any]:
    def arm(name: str) -> Runnable[Any, Any]:
        prompt = ChatPromptTemplate.from_messages([("system", f"You are {name}. {{words}}"), ("human", "{q} {route}")])
        return prompt | ChatEngine(engine=engine, max_tokens=20) | StrOutputParser()

    search = (lambda x: x["q"]) | Search(seconds=SECONDS, route=ROUTE) | (lambda docs: docs[0].page_content)
    return RunnablePassthrough.assign(route=search) | RunnableBranch(
        (lambda x: x["route"] == "first", arm("first")), arm("second")
    )


def engine() -> Watched:
    return Watched(lambda prompt: "done", name="arms")


async def learned(chain: Any) -> None:
    for i in range(3):
        await chain.ainvoke({"q": "long", "words": f"{i} {WORDS}"})


def test_the_choice_stops_the_prefill_of_another_arm() -> None:
    """The decision is there before its time: what is under way for the other arm ends in the same moment."""
    model = engine()
    chain: Any = fineflow.optimize(routed(model), strict=True)

    async def run() -> float:
        await learned(chain)
        began = asyncio.get_running_loop().time()
        await chain.ainvoke({"q": "quick", "words": f"now {WORDS}"})
        return began

    began = virtual.run(run()).value
    assert model.ahead == [(pytest.approx(began), pytest.approx(began + 0.05), True)]


def test_another_request_stops_what_may_be_in_vain() -> None:
    model = engine()
    chain: Any = fineflow.optimize(routed(model), strict=True)
    other = ChatEngine(engine=model, max_tokens=20)

    async def run() -> tuple[float, list[Any]]:
        await learned(chain)
        call = asyncio.ensure_future(chain.ainvoke({"q": "other", "words": f"now {WORDS}"}))
        await asyncio.sleep(0.1)
        came = asyncio.get_running_loop().time()
        await other.ainvoke("something else")
        await call
        return came, model.ahead

    came, ahead = virtual.run(run()).value
    assert ahead[0][1:] == (pytest.approx(came, abs=0.001), True)
    assert len(ahead) == 1  # and the other arm is not begun while that runs


def test_nothing_is_prefilled_in_vain_while_another_call_uses_the_engine() -> None:
    model = engine()
    chain: Any = fineflow.optimize(routed(model), strict=True)
    asks: Any = fineflow.optimize(
        ChatPromptTemplate.from_template("{q}")
        | ChatEngine(engine=model, max_tokens=20)
        | StrOutputParser()
        | Search(seconds={"done": 5.0}, route={"done": "found"}),
        strict=True,
    )

    async def run() -> None:
        await learned(chain)
        call = asyncio.ensure_future(asks.ainvoke({"q": "mine"}))
        await asyncio.sleep(1)  # it has its answer, and searches; the engine is idle
        assert not llm_queue_of(model).running
        await chain.ainvoke({"q": "long", "words": f"now {WORDS}"})
        await call
        await chain.ainvoke({"q": "long", "words": f"then {WORDS}"})

    virtual.run(run())
    assert len(model.ahead) == 2 and not any(stopped for _, _, stopped in model.ahead)  # those of the last call


def test_the_last_run_says_why_an_arm_was_not_prefilled() -> None:
    model = engine()
    chain: Any = fineflow.optimize(routed(model), strict=True)
    virtual.run(chain.ainvoke({"q": "long", "words": WORDS}))
    said = str(fineflow.explain(chain, last_run=True))
    assert "how long it takes to choose is not known yet" in said


@pytest.mark.parametrize("disturbed", [False, True])
def test_the_last_run_says_whether_another_request_stopped_the_prefill_of_an_arm(disturbed: bool) -> None:
    model = engine()
    chain: Any = fineflow.optimize(routed(model), strict=True)
    other = ChatEngine(engine=model, max_tokens=20)

    async def run() -> None:
        await learned(chain)
        call = asyncio.ensure_future(chain.ainvoke({"q": "other", "words": f"now {WORDS}"}))
        await asyncio.sleep(0.1)
        if disturbed:
            await other.ainvoke("something else")
        await call

    virtual.run(run())
    said = str(fineflow.explain(chain, last_run=True))
    assert ("the engine had something else to do" in said) is disturbed
