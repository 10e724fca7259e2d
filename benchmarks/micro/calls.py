"""Calls of an object with nothing to gain, on a model without latency: optimized, instrumented, and graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

import fineflow
from benchmarks.micro.measure import Found, Pair, calls_of_fineflow, in_turns, repeated
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "What is the capital of France?"}
BOUND, GRAPH_BOUND, INSTRUMENTED_BOUND = 1.05, 1.15, 1.2  # times stock
CALLS = 20  # in a row per measurement
TURNS = 6  # measurements for each run: a call takes so little that many are needed


def small() -> Runnable[Any, Any]:
    """Returns the chain with nothing to gain."""
    return (
        ChatPromptTemplate.from_template("Answer briefly: {question}") | FakeChat(default="Paris") | StrOutputParser()
    )


class State(TypedDict, total=False):
    question: str
    grades: list[str]


def graph(grader: Any) -> Any:
    """Returns a graph of two nodes; the second one may make calls, and has none to make for ``QUESTION``."""

    def first(state: State) -> State:
        return {"question": state["question"]}

    def grade(state: State) -> State:
        return {"grades": [grader.invoke({"question": each}) for each in state.get("grades", ())]} if grader else {}

    made = StateGraph(State)
    made.add_node("first", first)
    made.add_node("grade", grade)
    made.add_edge(START, "first")
    made.add_edge("first", "grade")
    made.add_edge("grade", END)
    return made.compile()


def instrumented(chain: Any, entry: str, runs: int) -> tuple[Pair, int]:
    """Measures a stock chain with its calls routed and not; returns the calls of fineflow's functions, too."""
    routing: Any = fineflow.instrument() or sys.modules["fineflow.instrumentation.instrument"].__dict__["_current"]

    def turn(*, on: bool) -> Callable[[], float]:
        def measure() -> float:
            routing.uninstall()
            if on:
                routing.hook()
            calls = repeated(getattr(chain, entry), QUESTION, CALLS)
            calls()  # looks at the functions around the call, once for each
            return calls()

        return measure

    try:
        pair = in_turns(turn(on=False), turn(on=True), runs)
        routing.uninstall()
        routing.hook()
        return pair, calls_of_fineflow(lambda: chain.invoke(QUESTION))
    finally:
        routing.uninstall()
        fineflow.uninstrument()


def measured(runs: int) -> Found:
    """Measures all entries."""
    found, turns = Found(), runs * TURNS

    def add(name: str, pair: Pair, bound: float) -> None:
        shown = f"{pair.stock * 1e6:.0f} and {pair.mine * 1e6:.0f} us"
        found.add(name, pair.ratio, "fineflow / stock", shown)
        found.aims[f"{name}: at most {bound} times stock"] = pair.ratio <= bound

    stock = small()
    mine: Any = fineflow.optimize(stock, strict=True)
    for entry in ("invoke", "ainvoke"):
        pair = in_turns(*(repeated(getattr(each, entry), QUESTION, CALLS) for each in (stock, mine)), turns)
        add(f"{entry}, nothing to gain", pair, BOUND)
    found.add("calls, nothing to gain", calls_of_fineflow(lambda: mine.invoke(QUESTION)), "calls of fineflow")
    for entry in ("invoke", "ainvoke"):
        pair, calls = instrumented(stock, entry, turns)
        add(f"{entry}, instrumented", pair, INSTRUMENTED_BOUND)
    found.add("calls, instrumented", calls, "calls of fineflow")
    for name, grader, bound in (("nothing to gain", None, BOUND), ("a function that may gain", stock, GRAPH_BOUND)):
        one, other = graph(grader), fineflow.optimize(graph(grader), strict=True)
        pair = in_turns(*(repeated(each.invoke, QUESTION, CALLS) for each in (one, other)), turns)
        add(f"graph, {name}", pair, bound)
        calls = calls_of_fineflow(lambda other=other: other.invoke(QUESTION))
        found.add(f"calls, graph, {name}", calls, "calls of fineflow")
    return found
