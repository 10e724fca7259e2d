"""Agents of the user's own classes inside functions: their component calls run side by side, with stock's requests."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, TypedDict

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
REQUESTS: list[str] = []


def echo(messages: list[Any]) -> str:
    REQUESTS.append(messages[-1].content)
    return f"re {messages[-1].content}"


model = FakeChat(answers=echo, prefill=1.0)


class Agent:
    def __init__(self, name: str) -> None:
        self.name = name
        self.chain = ChatPromptTemplate.from_template(f"{name} {{q}}") | model | StrOutputParser()

    def run(self, q: str) -> str:
        return self.chain.invoke({"q": q})

    async def arun(self, q: str) -> str:
        return await self.chain.ainvoke({"q": q})

    def __call__(self, q: str) -> str:
        return self.run(q)


AGENTS = {"a": Agent("a"), "b": Agent("b")}
PROVIDERS = [("a", lambda: model), ("b", lambda: model)]


def made(q: str) -> Any:
    return Agent("a").run(q), Agent("b").run(q)


async def amade(q: str) -> Any:
    return await Agent("a").arun(q), await Agent("b").arun(q)


def items(q: str) -> Any:
    return {name: each.run(q) for name, each in AGENTS.items()}


async def aitems(q: str) -> Any:
    return {name: await each.arun(q) for name, each in AGENTS.items()}


def called(q: str) -> Any:
    return [each(q) for each in AGENTS.values()]


def provided(q: str) -> Any:
    return [make().invoke(f"{name} {q}").content for name, make in PROVIDERS]


class State(TypedDict, total=False):
    q: str
    found: Any


def as_function(func: Any) -> Any:
    return func


def as_node(func: Any) -> Any:
    def node(state: State) -> State:
        return {"found": func(state["q"])}

    async def anode(state: State) -> State:
        return {"found": await func(state["q"])}

    graph = StateGraph(State)
    graph.add_node("node", anode if inspect.iscoroutinefunction(func) else node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile()


@needs_virtual_threads
@pytest.mark.parametrize("shape", [as_function, RunnableLambda, as_node])
@pytest.mark.parametrize("func", [made, amade, items, aitems, called, provided])
def test_calls_of_agents_run_side_by_side(func: Any, shape: Any) -> None:
    value: Any = {"q": "x"} if shape is as_node else "x"

    def ran(obj: Any) -> Any:
        REQUESTS.clear()
        if inspect.iscoroutinefunction(func):
            found = virtual_threads.run(lambda: asyncio.run((obj if shape is as_function else obj.ainvoke)(value)))
        else:
            found = virtual_threads.run(lambda: (obj if shape is as_function else obj.invoke)(value))
        return found.value, round(found.seconds, 1), sorted(REQUESTS)

    answer, seconds, requests = ran(shape(func))
    assert (ran(fineflow.optimize(shape(func), strict=True)), seconds) == ((answer, 1.0, requests), 2.0)
