"""Calls of the next nodes start when the state that they need is known; the rest is stock's."""

from __future__ import annotations

from typing import Any

import pytest
from across_cases import CASES, SECONDS, Parts, optimized, ran
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

import fineflow
from fineflow.adapters.langgraph.early_nodes import early
from fineflow.adapters.langgraph.node_facts import facts_of
from fineflow.testing import virtual_threads


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
@pytest.mark.parametrize("asked_for", [None, True])
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_graph_takes_what_its_data_require(name: str, awaits: bool, asked_for: bool | None) -> None:
    stock, mine = Parts(awaits=awaits), Parts(awaits=awaits)
    graphs: list[Any] = [CASES[name](stock).compile(), optimized(CASES[name](mine).compile(), across_nodes=asked_for)]
    before, after = (
        virtual_threads.run(lambda graph=graph, parts=parts: ran(graph, parts))
        for graph, parts in zip(graphs, (stock, mine), strict=True)
    )
    assert after.value == before.value
    assert (before.seconds, after.seconds) == pytest.approx(SECONDS[name], rel=0.005)
    assert mine.asked == stock.asked


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
def test_nothing_starts_across_nodes_where_it_is_off() -> None:
    parts = Parts()
    graph = optimized(CASES["siblings"](parts).compile(), across_nodes=False)
    assert virtual_threads.run(lambda: ran(graph, parts)).seconds == pytest.approx(2.4, rel=0.005)


AHEAD = {
    "siblings": {"do_after_fast", "do_after_slow"},
    "support": {"do_policy", "do_risk"},
    "line": {"do_policy", "do_risk"},
    "chaining": set(),
    "routed": {"do_policy", "do_draft", "do_review"},
}


@pytest.mark.parametrize("name", CASES)
def test_which_nodes_are_free_of_one_before_them(name: str) -> None:
    graph = CASES[name](Parts()).compile()
    assert early(graph, facts_of(graph)) == AHEAD[name]
    assert {each.partition("/")[0] for each in fineflow.explain(graph).gains} == AHEAD[name]


def test_a_graph_without_such_a_node_goes_straight_to_stock() -> None:
    graph = fineflow.optimize(CASES["chaining"](Parts()).compile(), strict=True)
    assert not fineflow.explain(graph).gains
    graph.invoke({"question": "why?"})
    assert not graph._self_plans[True].follows


class Text(TypedDict, total=False):
    question: str
    kind: str
    answer: str


def ends_with(node: Any) -> frozenset[str]:
    """Returns which nodes are free in a line of a given one and one that reads the question."""
    graph = StateGraph(Text).add_node("first", node).add_node("then", parts_node("answer"))
    compiled = graph.add_edge(START, "first").add_edge("first", "then").compile()
    return early(compiled, facts_of(compiled))


def parts_node(name: str) -> Any:
    return Parts().node(name, 0.1, "question")


chain = Parts().chain("kind", 0.1)


def in_a_variable(state: Text) -> Any:
    made = {"kind": ""}
    made["kind"] = chain.invoke({"text": state["question"]})
    return made


def perhaps(state: Text) -> Any:
    found = chain.invoke({"text": state["question"]})
    return {"kind": found} if found else None


def changes_the_question(state: Text) -> Any:
    return {"question": chain.invoke({"text": state["question"]})}


def changes_it_later(state: Text) -> Any:
    made = {"kind": chain.invoke({"text": state["question"]})}
    made.update(question="another")
    return made


def goes(state: Text) -> Any:
    return Command(update={"kind": chain.invoke({"text": state["question"]})}, goto="then")


def asks(state: Text) -> Any:
    return {"kind": chain.invoke({"text": interrupt("?")})}


def passes_all_on(state: Text) -> Any:
    return {**state, "kind": chain.invoke({"text": state["question"]})}


@pytest.mark.parametrize("node", [in_a_variable, perhaps])
def test_a_node_that_writes_something_else_is_in_nobodys_way(node: Any) -> None:
    assert ends_with(node) == {"then"}


@pytest.mark.parametrize("node", [changes_the_question, changes_it_later, goes, asks, passes_all_on, lambda state: {}])
def test_a_node_is_needed_where_it_may_write_what_is_read_or_decide(node: Any) -> None:
    assert ends_with(node) == set()
