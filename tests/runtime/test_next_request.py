"""The next request of a query, one of which has just ended, finds its room on an LLM, and a place in the next batch."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

import fineflow
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedEmbedding, EmulatedLLM, LLMProfile
from fineflow.ir import Op
from fineflow.langchain import ChatEngine
from fineflow.protocols import Sampling
from fineflow.runtime import events
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.batch_queue import BatchQueue
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.policy import Policy, by_start, fifo
from fineflow.testing import virtual

PROFILE = LLMProfile(iteration=0.1, prefill_token=0.0, decode_sequence=0.0)
STEPS, WORDS = 5, 10
STEP = 0.015  # seconds, of an engine of which nothing is known yet
ALONE = STEPS * WORDS * PROFILE.iteration

BATCH = 0.45  # seconds of 16 texts
NAMES = itertools.count()


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
    assert not llm_queue_of(llm)._kept_room._kept and not request_context._at_end


async def embed(queue: BatchQueue, query: str, began: float, items: int, depth: int = 3) -> None:
    request_context.query.set(query)
    request_context.started.set(began)
    request_context.depth.set(depth)
    await queue.submit(Op.EMBED, [("query", f"{query} {i}") for i in range(items)])


def second_ends(*, pause: float, depth: int = 3, policy: Policy = by_start, others: float = 1.0) -> float:
    """Returns when the second request of a query has ended, which it makes ``pause`` seconds after its first one.

    64 items of another query, which began at ``others``, wait meanwhile. depth: of the first request.
    """

    async def two(queue: BatchQueue) -> float:
        await embed(queue, "two", 0.5, 16, depth)
        await asyncio.sleep(pause)
        await embed(queue, "two", 0.5, 16)
        return asyncio.get_running_loop().time()

    async def main() -> float:
        engine: Any = EmulatedEmbedding(name=f"next-{next(NAMES)}")
        queue = BatchQueue(engine, policy)
        task = asyncio.create_task(two(queue))
        await asyncio.sleep(0.1)
        bulk = asyncio.create_task(embed(queue, "others", others, 64))
        ended = await task
        await bulk
        return ended

    return virtual.run(main()).value


def test_it_goes_first_also_a_moment_later() -> None:
    assert second_ends(pause=0.0005) == pytest.approx(2 * BATCH, abs=0.005)


@pytest.mark.parametrize(
    "given",
    [
        {"pause": 0.01},  # the engine waits 1 ms at most
        {"pause": 0.0005, "depth": 1},  # the query has no next request
        {"pause": 0.0005, "policy": fifo},
    ],
)
def test_otherwise_the_engine_goes_on_at_once(given: dict[str, object]) -> None:
    assert second_ends(**given) >= 3 * BATCH  # type: ignore[arg-type]


def test_it_does_not_hold_up_older_queries() -> None:
    ended = second_ends(pause=0.0005, others=0.0)
    assert ended == pytest.approx(6 * BATCH + 0.001, abs=1e-6)  # one wait: for these, when they have ended


def test_an_idle_engine_begins_at_once() -> None:
    async def main() -> float:
        engine: Any = EmulatedEmbedding(name=f"next-{next(NAMES)}")
        queue = BatchQueue(engine)
        await asyncio.create_task(embed(queue, "one", 0.0, 16))
        await asyncio.sleep(1.0)
        await asyncio.create_task(embed(queue, "other", 1.0, 16))
        return asyncio.get_running_loop().time()

    assert virtual.run(main()).value == pytest.approx(1.0 + 2 * BATCH, abs=1e-6)
