"""The seconds that a call saved, computed from its trace: against what stock then takes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough

import fineflow
from fineflow.observe.gain import saved_seconds
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs the states of threads")


def _ask(seconds: float) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=seconds)


def two_steps() -> Runnable[Any, Any]:
    return RunnablePassthrough.assign(first=_ask(2.0)) | RunnablePassthrough.assign(second=_ask(3.0))


def beside() -> Runnable[Any, Any]:
    """Stock runs the branches side by side: only what follows them can start earlier."""
    return RunnablePassthrough.assign(both=RunnableParallel(a=_ask(2.0), b=_ask(1.0))) | RunnablePassthrough.assign(
        last=_ask(1.5)
    )


def inside_a_function() -> Runnable[Any, Any]:
    chains = [_ask(1.0), _ask(2.0), _ask(0.5)]

    def ask_all(value: dict[str, str]) -> list[Any]:
        return [chain.invoke(value).content for chain in chains]

    return RunnableLambda(ask_all)


@pytest.mark.parametrize("make", [two_steps, beside, inside_a_function])
@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
def test_it_is_what_stock_takes_longer(make: Callable[[], Runnable[Any, Any]], awaits: bool) -> None:
    def seconds(app: Any) -> float:
        value = {"question": "who?"}
        call = (lambda: asyncio.run(app.ainvoke(value))) if awaits else (lambda: app.invoke(value))
        virtual_threads.run(call)  # plans, and learns what calls take
        return virtual_threads.run(call).seconds

    stock, fast = seconds(make()), fineflow.optimize(make(), strict=True)
    ours: Any = fast
    took = seconds(fast)
    trace = ours._self_last.trace
    [written] = [plan.p_graph for plan in ours._self_plans.values() if plan is not None and plan.e_graph is trace.graph]
    assert saved_seconds(written, trace) == pytest.approx(stock - took, abs=0.01)
    assert stock - took > 0.9
