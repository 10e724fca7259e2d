"""Nodes that make no component call in most visits: the walk waits for the first call, and finds what it would have."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from contextvars import copy_context
from math import inf
from typing import Any

import pytest
from graph_cases import ask, says
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

import fineflow
from fineflow.adapters.inner_calls import run_figures
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.call.query import Call
from fineflow.runtime.queues.request_context import waiting_record
from fineflow.testing import virtual as virtual_time
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

virtual = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")


class State(TypedDict, total=False):
    texts: list[str]
    log: list[str]
    found: list[str]


@pytest.fixture(autouse=True)
def any_run_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a run without calls counts as quick."""
    monkeypatch.setattr(run_figures, "QUICK", inf)


def _graph(node: Callable[[State], State]) -> Any:
    made = StateGraph(State)
    made.add_node("node", node)
    made.add_edge(START, "node")
    made.add_edge("node", END)
    return made.compile()


def _grading(grader: Any) -> Any:
    def grade(state: State) -> State:
        return {"found": [grader.invoke({"text": each}) for each in state["texts"]]}

    return _graph(grade)


def _grader(asked: list[str] | None = None) -> Any:
    def says_and_notes(prompt: Any) -> str:
        if asked is not None:
            asked.append(str(prompt))
        return says(prompt)

    return ask("Grade DOC {text}", FakeChat(answers=says_and_notes, prefill=1.0))


def _after_quiet_visits(graph: Any, value: Any, quiet: Any, count: int = 5) -> virtual_threads.Ran[Any]:
    def run() -> Any:
        for _ in range(count):
            graph.invoke(quiet())
        return graph.invoke(value())

    return virtual_threads.run(run)


def test_visits_that_make_no_call_are_walked_through_no_more(walks: list[Any]) -> None:
    fast = fineflow.optimize(_grading(_grader()), strict=True)
    for _ in range(10):
        assert fast.invoke({"texts": []}) == {"texts": [], "found": []}
    assert len(walks) == 3


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes of which objects have been made for a call, or for a function in it."""
    found: list[str] = []
    for kind in (Call, InnerCalls):

        def noting(self: Any, *args: Any, own: Any = kind.__init__, name: str = kind.__name__, **named: Any) -> None:
            found.append(name)
            own(self, *args, **named)

        monkeypatch.setattr(kind, "__init__", noting)
    return found


def test_such_runs_prepare_nothing_for_calls_and_are_queries_all_the_same(made: list[str]) -> None:
    """Engines see id, age, tenant, priority and objective of the run in requests that its nodes make themselves."""
    seen: list[Any] = []
    grader = _grader()

    def asking(state: State) -> State:
        seen.append(waiting_record(0, Op.DECODE, 1))
        return {}

    def grade(state: State) -> State:
        return {"found": [grader.invoke({"text": each}) for each in state["texts"]]}

    graph = StateGraph(State).add_sequence([asking, grade]).add_edge(START, "asking").compile()
    fast = fineflow.optimize(graph, strict=True)
    said = {"fineflow_tenant": "guest", "fineflow_priority": 2, "fineflow_objective": "throughput"}
    for _ in range(4):
        made.clear()
        before = events.now()
        fast.invoke({"texts": []}, {"metadata": said})
    assert made == []
    last, previous = seen[-1], seen[-2]
    assert (last.tenant, last.priority, last.objective) == ("guest", 2, "throughput")
    assert last.query != previous.query and last.query.startswith("call-")
    assert before <= last.started <= events.now()
    assert fast._self_last.trace.began >= before


def test_the_first_call_of_such_a_run_has_everything_made(made: list[str]) -> None:
    fast = fineflow.optimize(_grading(ask("Grade DOC {text}", FakeChat(answers=says))), strict=True)
    for _ in range(4):
        fast.invoke({"texts": []})
    made.clear()
    assert fast.invoke({"texts": ["a", "b"]})["found"]
    assert made.count("InnerCalls") == 1 and "Call" in made


def test_what_such_a_run_leaves_behind_makes_its_calls_as_stock_does(made: list[str]) -> None:
    grader = ask("Grade DOC {text}", FakeChat(answers=says))

    class Kept:
        def __len__(self) -> int:  # the function looks at the texts
            self.context = copy_context()
            return 0

    def node(state: State) -> State:
        texts = state["texts"]
        return {"found": [grader.invoke({"text": each}) for each in texts] if len(texts) else []}

    fast, kept = fineflow.optimize(_graph(node), strict=True), Kept()
    for _ in range(5):
        fast.invoke({"texts": []})
    made.clear()
    fast.invoke({"texts": kept})
    assert "InnerCalls" not in made
    assert kept.context.run(grader.invoke, {"text": "a"}) == grader.invoke({"text": "a"})
    assert made == []


@virtual
def test_the_first_call_of_such_a_node_has_the_others_start(walks: list[Any]) -> None:
    stock, fast = _grading(_grader()), fineflow.optimize(_grading(_grader()), strict=True)

    def value() -> Any:
        return {"texts": ["a", "b", "c", "d"]}

    before, after = (_after_quiet_visits(graph, value, lambda: {"texts": []}) for graph in (stock, fast))
    assert after.value == before.value
    assert (before.seconds, after.seconds) == (4.0, 1.0)
    walks.clear()
    fast.invoke({"texts": []})
    assert len(walks) == 1  # a visit that made calls: the next ones are walked through when they begin


def test_async_calls_run_side_by_side_after_a_first_one_in_another_thread() -> None:
    first = ask("Grade DOC {text}", FakeChat(answers=says))
    grader = _grader()

    async def node(state: State) -> State:
        texts = state["texts"]
        if not texts:
            return {}
        found = [await asyncio.to_thread(first.invoke, {"text": texts[0]})]
        return {"found": found + [await grader.ainvoke({"text": each}) for each in texts]}

    fast = fineflow.optimize(_graph(node), strict=True)  # type: ignore[arg-type]

    async def visits() -> Any:
        for _ in range(5):
            await fast.ainvoke({"texts": []})
        return await fast.ainvoke({"texts": ["a", "b", "c"]})

    assert virtual_time.run(visits()).seconds == 1.0


@virtual
def test_explain_says_what_such_a_visit_takes() -> None:
    fast = fineflow.optimize(_grading(_grader()), strict=True)

    def later() -> Any:
        time.sleep(100.0)
        return {"texts": ["a", "b", "c", "d"]}

    _after_quiet_visits(fast, later, lambda: {"texts": []})
    (visit,) = (each for each in fineflow.explain(fast).visits.values() if each.runs)
    assert (visit.seconds, visit.saved) == (1.0, 3.0)


@virtual
def test_a_change_before_the_first_call_leaves_the_calls_to_stock(walks: list[Any]) -> None:
    """The walk comes when the function has made the change: it would see it twice."""

    def changing(grader: Any) -> Any:
        def grade(state: State) -> State:
            texts = state["texts"]
            if not texts:
                return {}
            state["log"] = ["graded"]
            return {"found": [grader.invoke({"text": each}) for each in texts]}

        return _graph(grade)

    def value() -> Any:
        return {"texts": ["a", "b"]}

    asked: tuple[list[str], list[str]] = ([], [])
    stock, fast = changing(_grader(asked[0])), fineflow.optimize(changing(_grader(asked[1])), strict=True)
    before, after = (_after_quiet_visits(graph, value, lambda: {"texts": []}) for graph in (stock, fast))
    assert after.value == before.value
    assert asked[0] == asked[1]
    again = virtual_threads.run(lambda: fast.invoke(value()))
    assert (after.seconds, again.seconds) == (2.0, 1.0)


@virtual
def test_a_node_that_changes_something_in_every_visit_is_walked_through_when_it_begins(walks: list[Any]) -> None:
    def logging(grader: Any) -> Any:
        def grade(state: State) -> State:
            texts = state["texts"]
            state["log"] = ["graded"]
            return {"found": [grader.invoke({"text": each}) for each in texts]}

        return _graph(grade)

    def value() -> Any:
        return {"texts": ["a", "b"]}

    stock, fast = logging(_grader()), fineflow.optimize(logging(_grader()), strict=True)
    before, after = (_after_quiet_visits(graph, value, lambda: {"texts": []}) for graph in (stock, fast))
    assert after.value == before.value
    assert (before.seconds, after.seconds) == (2.0, 1.0)


def test_visits_that_take_their_time_are_walked_through_when_they_begin(
    walks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_figures, "QUICK", 0.0)
    fast = fineflow.optimize(_grading(_grader()), strict=True)
    for _ in range(10):
        fast.invoke({"texts": []})
    assert len(walks) == 10


@pytest.mark.parametrize("texts", [[], ["a", "b"]])
def test_a_run_leaves_nothing_to_the_garbage_collector(texts: list[str]) -> None:
    """What refers to itself would keep the whole run, with its state, until Python looks for it."""
    fast = fineflow.optimize(_grading(ask("Grade DOC {text}", FakeChat(answers=says))), strict=True)
    for _ in range(3):
        fast.invoke({"texts": texts})
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            fast.invoke({"texts": texts})
        found = gc.collect()
    finally:
        gc.enable()
    assert found == 0
