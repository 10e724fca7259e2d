"""What runs ahead on an engine that other calls wait for: prompts that would hold these up let them finish."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from timed_retrieval import Slow, joined

import fineflow
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.testing import virtual

LONG = " ".join(f"rule-{i}" for i in range(1500))


class Timed(EmulatedLLM):
    """Notes when requests whose prompt contains a word got to the engine."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda prompt: "word " * 40, name=name)
        self.begun: list[tuple[float, int]] = []

    async def generate(self, tokens: Any, sampling: Any, *, priority: int = 0) -> Any:
        self.begun.append((asyncio.get_running_loop().time(), len(tokens)))
        async for delta in super().generate(tokens, sampling, priority=priority):
            yield delta


def searched(engine: Any, seconds: float, text: str) -> Runnable[Any, Any]:
    """A search, and a model's text that does not depend on it: fineflow starts both at once."""
    context = (lambda x: x["q"]) | Slow(seconds=seconds) | joined
    prompt = ChatPromptTemplate.from_messages([("system", text), ("human", "{q}")])
    model = ChatEngine(engine=engine, max_tokens=60)
    return RunnablePassthrough.assign(context=context) | RunnablePassthrough.assign(
        said=prompt | model | StrOutputParser()
    )


def run(text: str, seconds: float, *, beside: bool) -> tuple[float, float, list[tuple[float, int]]]:
    """Seconds of a request of somebody else, when the long prompt began after that, and all requests."""
    engine = Timed("busy")
    chain: Any = fineflow.optimize(searched(engine, seconds, text), strict=True)
    other = ChatEngine(engine=engine, max_tokens=60)

    async def both() -> float:
        ask = asyncio.ensure_future(other.ainvoke("short"))
        await asyncio.sleep(0.2)
        call = asyncio.ensure_future(chain.ainvoke({"q": "why"})) if beside else None
        await ask
        took = asyncio.get_running_loop().time()
        if call is not None:
            await call
        return took

    took = virtual.run(both()).value
    return took, engine.begun[-1][0], engine.begun


def test_a_long_prompt_ahead_lets_others_finish() -> None:
    alone, _, _ = run(LONG, 5.0, beside=False)
    took, began, _ = run(LONG, 5.0, beside=True)
    assert took == pytest.approx(alone) and began == pytest.approx(alone, abs=0.001)


def test_it_begins_when_stock_gets_there() -> None:
    _, began, _ = run(LONG, 0.3, beside=True)
    assert began == pytest.approx(0.5, abs=0.001)


def test_a_short_prompt_ahead_begins_at_once() -> None:
    _, began, _ = run("be brief", 5.0, beside=True)
    assert began == pytest.approx(0.2, abs=0.001)


def test_what_nobody_waits_for_holds_up_nobody() -> None:
    """Two calls whose requests are both ahead of stock: neither waits for the other."""
    engine = Timed("both ahead")
    chains: list[Any] = [fineflow.optimize(searched(engine, 5.0, f"{i} {LONG}"), strict=True) for i in range(2)]

    async def both() -> None:
        await asyncio.gather(*(chain.ainvoke({"q": "why"}) for chain in chains))

    virtual.run(both())
    assert [at for at, _ in engine.begun] == [pytest.approx(0.0, abs=0.001)] * 2


def test_a_call_that_is_cancelled_while_its_request_yields_leaves_nothing() -> None:
    engine = Timed("cancelled")
    chain: Any = fineflow.optimize(searched(engine, 5.0, LONG), strict=True)
    other = ChatEngine(engine=engine, max_tokens=60)

    async def both() -> int:
        ask = asyncio.ensure_future(other.ainvoke("short"))
        await asyncio.sleep(0.2)
        call = asyncio.ensure_future(chain.ainvoke({"q": "why"}))
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.wait([call])
        yielding = len(llm_queue_of(engine)._yielding)
        await ask
        return yielding

    assert virtual.run(both()).value == 0 and len(engine.begun) == 1
