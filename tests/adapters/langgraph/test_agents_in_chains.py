"""Agents in chains and functions: tools start early, unless something may change what they read meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agent_cases import VALUE, Agent, both
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph._internal._runnable import RunnableCallable
from langgraph.graph import MessagesState
from test_beside import Paged, answered, one_node

import fineflow
from fineflow.testing import virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")


def as_it_is(value: Any) -> Any:
    return value


def in_a_sequence(model: Any, tools: Any) -> Any:
    return RunnableLambda(as_it_is) | create_agent(model, tools) | RunnableLambda(as_it_is)


def first_and_bound(model: Any, tools: Any) -> Any:
    return create_agent(model, tools).with_config(tags=["asked"]) | RunnableLambda(as_it_is)


def behind_a_record(model: Any, tools: Any) -> Any:
    return {"messages": lambda value: value["messages"]} | create_agent(model, tools)


def beside_what_passes_on(model: Any, tools: Any) -> Any:
    return RunnableParallel(found=create_agent(model, tools), given=RunnablePassthrough())


def by_a_lambda(model: Any, tools: Any) -> Any:
    agent = create_agent(model, tools)

    def asks(value: Any) -> Any:
        return agent.invoke(value)

    async def aasks(value: Any) -> Any:
        return await agent.ainvoke(value)

    return RunnableLambda(asks, aasks) | RunnableLambda(as_it_is)


def made_by_a_lambda(model: Any, tools: Any) -> Any:
    """A function that makes the agent anew in each call."""

    def asks(value: Any) -> Any:
        return create_agent(model, tools).invoke(value)

    async def aasks(value: Any) -> Any:
        return await create_agent(model, tools).ainvoke(value)

    return RunnableLambda(asks, aasks)


def made_by_a_node(model: Any, tools: Any) -> Any:
    def asks(state: MessagesState) -> Any:
        return {"messages": create_agent(model, tools).invoke(state)["messages"][-1:]}

    async def aasks(state: MessagesState) -> Any:
        return {"messages": (await create_agent(model, tools).ainvoke(state))["messages"][-1:]}

    return one_node(RunnableCallable(asks, aasks, name="asks"))


CHAINS = [in_a_sequence, first_and_bound, behind_a_record, beside_what_passes_on, by_a_lambda]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
@pytest.mark.parametrize("make", [*CHAINS, made_by_a_lambda, made_by_a_node])
def test_tools_start_while_the_model_writes(make: Callable[..., Any], entry: str) -> None:
    *_, stock, mine = both(entry)
    saved = stock - mine
    stock_agent, agent, before, after = both(entry, make=make)
    assert sorted(agent.called) == sorted(stock_agent.called)
    assert saved > 0.5 and before - after >= 0.95 * saved


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (in_a_sequence, "calls of look_up start when the model has written them"),
        (made_by_a_lambda, "steps inside of calls of what `create_agent` makes in it may start earlier"),
        (made_by_a_node, "steps inside of calls of what `create_agent` makes in it may start earlier"),
    ],
)
def test_explain_says_what_starts_early(make: Callable[..., Any], what: str) -> None:
    said = " ".join(str(fineflow.explain(Agent(make=make).graph)).split())
    assert what in said and "start together" not in said


def _runnable(func: Callable[..., Any]) -> Any:
    return RunnableLambda(func)


def beside_a_step(paged: Any, agent: Any) -> Any:
    return RunnableParallel(found=agent | _runnable(answered), other=_runnable(paged.write))


def beside_a_step_of_a_step(paged: Any, agent: Any) -> Any:
    asks = _runnable(lambda value: answered(agent.invoke(value)))
    return _runnable(as_it_is) | {"found": asks, "other": {"other": _runnable(paged.write)}}


def beside_itself(paged: Any, agent: Any) -> Any:
    either = _runnable(lambda value: paged.write() if value is None else answered(agent.invoke(value)))
    return _runnable(lambda value: [value, None]) | either.map()


def made_beside_others(paged: Any, agent: Any) -> Any:
    """The agent is made anew in each call, and the function lets something else run beside it."""
    model, tools = paged.model, paged.tools

    def asks(state: MessagesState) -> Any:
        with ContextThreadPoolExecutor(2) as threads:
            found, _ = threads.submit(create_agent(model, tools).invoke, state), threads.submit(paged.write)
            return answered(found.result())

    return one_node(asks)


def chain_beside_others(paged: Any, agent: Any) -> Any:
    """The function knows a chain, which knows the agent."""
    chain = _runnable(as_it_is) | agent

    def asks(state: MessagesState) -> Any:
        with ContextThreadPoolExecutor(2) as threads:
            found, _ = threads.submit(chain.invoke, state), threads.submit(paged.write)
            return answered(found.result())

    return one_node(asks)


def branches_of_a_node(paged: Any, agent: Any) -> Any:
    chain = _runnable(as_it_is) | {"found": agent, "other": _runnable(paged.write)}

    def asks(state: MessagesState) -> Any:
        return answered(chain.invoke(state)["found"])

    return one_node(asks)


def in_threads(paged: Any, agent: Any) -> Any:
    return _runnable(in_threads_of_a_function(paged, agent))


def in_threads_of_a_function(paged: Any, agent: Any) -> Any:
    def asks(value: Any) -> Any:
        with ContextThreadPoolExecutor(2) as threads:
            found, _ = threads.submit(agent.invoke, value), threads.submit(paged.write)
            return answered(found.result())

    return asks


def gathered_by_a_function(paged: Any, agent: Any) -> Any:
    async def asks(value: Any) -> Any:
        found, _ = await asyncio.gather(agent.ainvoke(value), asyncio.to_thread(paged.write))
        return answered(found)

    return asks


def task_of_a_function(paged: Any, agent: Any) -> Any:
    async def asks(value: Any) -> Any:
        beside = asyncio.create_task(asyncio.to_thread(paged.write))
        found = await agent.ainvoke(value)
        await beside
        return answered(found)

    return asks


BESIDE = [
    beside_a_step,
    beside_a_step_of_a_step,
    beside_itself,
    in_threads,
    made_beside_others,
    chain_beside_others,
    branches_of_a_node,
]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
@pytest.mark.parametrize("outer", BESIDE)
def test_tools_see_what_is_written_beside_the_agent(outer: Any, entry: str) -> None:
    _, mine, before, after = both(entry, kind=Paged, outer=outer)
    assert mine.written == 1 and "rivers" not in mine.early, "it is called before something is written"
    assert after <= 1.005 * before


@pytest.mark.parametrize("outer", [in_threads_of_a_function, gathered_by_a_function, task_of_a_function])
def test_tools_see_what_a_function_writes_beside_the_agent(outer: Any) -> None:
    def ran(*, optimized: bool) -> tuple[Any, list[str]]:
        paged = Paged(outer)
        func: Any = fineflow.optimize(paged.graph, strict=True) if optimized else paged.graph
        awaits = outer is not in_threads_of_a_function
        found = virtual_threads.run(lambda: asyncio.run(func(VALUE)) if awaits else func(VALUE))
        assert paged.written == 1
        return found.value, paged.early

    (expected, _), (found, early) = ran(optimized=False), ran(optimized=True)
    assert found == expected
    assert "rivers" not in early, "it is called while something else goes on"


def test_a_function_that_asks_an_agent_alone_gains() -> None:
    def ran(*, optimized: bool) -> tuple[Any, list[str]]:
        paged = Paged(lambda own, agent: lambda value: answered(agent.invoke(value)))
        func: Any = fineflow.optimize(paged.graph, strict=True) if optimized else paged.graph
        return virtual_threads.run(lambda: func(VALUE)).value, paged.early

    stock, mine = ran(optimized=False), ran(optimized=True)
    assert mine[0] == stock[0] and mine[1] and not stock[1]


def test_the_explanation_says_why_tools_start_late() -> None:
    said = " ".join(str(fineflow.explain(Paged(beside_a_step).graph)).split())
    assert "start when stock makes their calls: other steps may run beside it" in said
    assert "What starts earlier" not in said
