"""Walks that cost more than they save are made seldom; those that pay, and eager ones, always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.adapters.inner_calls import walk_costs
from fineflow.adapters.inner_calls.walk_costs import learn, skips
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat


@pytest.fixture(autouse=True)
def a_quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is ten times as fast."""
    monkeypatch.setattr(walk_costs, "_LITTLE", 0.0003)


def function(llm: Any, loops: int) -> Callable[[str], list[str]]:
    def ask(text: str) -> list[str]:
        total = 0
        for number in range(loops):
            total += number
        return [llm.invoke(f"{text} {i}").content for i in range(3)]

    return ask


def test_long_loops_are_walked_less_and_less_often(walks: list[Any]) -> None:
    """The loop takes all of a walk's budget, so that no walk gets to the calls."""
    fast = fineflow.optimize(RunnableLambda(function(FakeChat(), 100_000)), strict=True)
    for _ in range(40):
        assert fast.invoke("a") == ["ok"] * 3
    assert 3 <= len(walks) <= 9  # three, then one after 1, 2, 4, 8, and 16 runs without
    before = len(walks)
    for _ in range(64):
        fast.invoke("a")
    assert len(walks) - before <= 3


def test_nodes_of_graphs_are_walked_less_and_less_often_too(walks: list[Any]) -> None:
    ask = function(FakeChat(), 100_000)

    def node(state: dict[str, Any]) -> dict[str, Any]:
        return {"found": ask(state["text"])}

    graph = StateGraph(dict)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    fast: Any = fineflow.optimize(graph.compile(), strict=True)
    for _ in range(40):
        assert fast.invoke({"text": "a"}) == {"found": ["ok"] * 3}
    assert 3 <= len(walks) <= 9
    assert {each.__name__ for each in walks} == {"node"}


def test_eager_walks_are_always_made(walks: list[Any]) -> None:
    fast = fineflow.optimize(RunnableLambda(function(FakeChat(), 100_000)), strict=True, eager=True)
    for _ in range(12):
        fast.invoke("a")
    assert len(walks) >= 12


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
def test_walks_that_pay_are_always_made() -> None:
    """A walk takes milliseconds, and saves two of three seconds."""
    fast = fineflow.optimize(RunnableLambda(function(FakeChat(prefill=1.0), 600)), strict=True)
    for _ in range(8):
        assert virtual_threads.run(lambda: fast.invoke("a")).seconds == 1.0
    assert not walk_costs._losses


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
def test_a_function_that_begins_to_pay_is_found_again() -> None:
    llm = FakeChat()
    fast = fineflow.optimize(RunnableLambda(function(llm, 1500)), strict=True)
    for _ in range(10):  # in virtual time: beside other work, real calls may seem to have saved something
        virtual_threads.run(lambda: fast.invoke("a"))
    assert walk_costs._losses
    llm.prefill = 1.0
    seconds = [virtual_threads.run(lambda: fast.invoke("a")).seconds for _ in range(64 + 8)]
    assert seconds[-1] == 1.0
    assert not walk_costs._losses


def test_profit_is_counted_by_function() -> None:
    def one() -> None: ...

    def other() -> None: ...

    for _ in range(3):
        assert not skips(one)
        learn(one, walked=0.01, saved=0.005)
    assert [skips(one), skips(one), skips(other)] == [True, False, False]
    learn(one, walked=0.01, saved=0.0)
    assert [skips(one) for _ in range(3)] == [True, True, False]
    for _ in range(20):
        learn(one, walked=0.01, saved=0.0)
    assert sum(skips(one) for _ in range(200)) == 64
    learn(one, walked=0.01, saved=0.02)
    assert not skips(one)
    for _ in range(9):
        learn(one, walked=0.0001, saved=0.0)  # too little to matter
        learn(str, walked=1.0, saved=0.0)  # has no code
    assert not skips(one) and not skips(str)
