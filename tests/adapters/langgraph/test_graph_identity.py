"""A run of a graph has the priority of its config at the engines, whether its nodes gain or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from one_engine import EXPECTED, URGENT, OneAtATime, order


class State(TypedDict, total=False):
    number: int
    beside: str
    answer: str


def built(node: Any) -> Any:
    workflow = StateGraph(State)
    workflow.add_node("node", node)
    workflow.add_edge(START, "node")
    workflow.add_edge("node", END)
    return workflow.compile()


def ask(engine: EmulatedLLM, text: str) -> Any:
    return ChatPromptTemplate.from_template(text) | ChatEngine(engine=engine, max_tokens=1) | StrOutputParser()


def single(engine: OneAtATime) -> Any:
    asked = ask(engine, "Request {number}.")
    return built(lambda state: {"answer": asked.invoke({"number": state["number"]})})


def gaining(engine: OneAtATime) -> Any:
    asked, other = ask(engine, "Request {number}."), ask(EmulatedLLM(lambda _: "no"), "Beside {number}.")

    def node(state: State) -> State:
        beside = other.invoke({"number": state["number"]})
        return {"beside": beside, "answer": asked.invoke({"number": state["number"]})}

    return built(node)


@pytest.mark.parametrize("build", [single, gaining])
@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
def test_the_urgent_run_of_twelve_comes_first(build: Callable[[OneAtATime], Any], entry: str) -> None:
    engine = OneAtATime()
    graph = fineflow.optimize(build(engine), strict=True)

    async def awaited(value: Any, config: Any) -> None:
        if entry == "ainvoke":
            await graph.ainvoke(value, config)
        else:
            async for _ in graph.astream(value, config):
                pass

    def call(number: int) -> None:
        value, config = {"number": number}, {"metadata": {"fineflow_priority": 5 if number == URGENT else 0}}
        if entry == "invoke":
            graph.invoke(value, config)
        elif entry == "stream":
            list(graph.stream(value, config))
        else:
            asyncio.run(awaited(value, config))

    assert order(engine, call) == EXPECTED
