"""Failures, retries, cancelled and abandoned runs of optimized graphs are those of stock, and leave nothing."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import pytest
from benchmarks.peers.plain import plain
from graph_cases import VALUE, App, ask, says
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.adapters.langgraph import visits
from fineflow.errors import FineflowWarning
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.leaks import left, settled

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}
SECONDS = 0.004


def optimized(graph: Any) -> Any:
    return fineflow.optimize(graph, strict=True, eager=True)


def ends(app: App, awaits: bool) -> Any:
    """Returns what a run returns or raises, and the state after it."""
    try:
        call: Any = app.graph
        found = asyncio.run(call.ainvoke(VALUE, CONFIG)) if awaits else call.invoke(VALUE, CONFIG)
    except Exception as error:
        found = type(error), str(error), plain(list(getattr(error, "__notes__", ())))
    return plain(found) if isinstance(found, dict) else found, plain(app.graph.get_state(CONFIG))


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("times", [1, 10**6])
@pytest.mark.parametrize("fails", ["Lyon", "Title", "Useful? Which", "End"])
def test_failures_and_retries_are_those_of_stock(fails: str, times: int, awaits: bool) -> None:
    """A grader is retried once, by the node's policy; the other nodes have none."""
    before = left()
    stock, mine = (App(SECONDS, awaits=awaits, fails=fails, times=times) for _ in range(2))
    mine.graph = optimized(mine.graph)
    expected, found = ends(stock, awaits), ends(mine, awaits)
    if fails == "Title":  # two concurrent tasks: which of them fails first is open in stock, too
        expected, found = expected[0][0], found[0][0]
    assert found == expected
    assert not settled(before=before)


@pytest.mark.parametrize("awaits", [False, True])
def test_a_recursion_limit_holds(awaits: bool) -> None:
    before = left()
    app = App(SECONDS, awaits=awaits)
    graph: Any = optimized(app.graph)
    limited = {**CONFIG, "recursion_limit": 2}
    with pytest.raises(GraphRecursionError):
        asyncio.run(graph.ainvoke(VALUE, limited)) if awaits else graph.invoke(VALUE, limited)
    assert not settled(before=before)


def graded(llm: Any, *, awaits: bool = False) -> Any:
    grader = ask("Grade {text} DOC", llm)

    def grade(state: dict[str, Any]) -> dict[str, Any]:
        return {"grades": [grader.invoke({"text": each}) for each in state["texts"]]}

    async def agrade(state: dict[str, Any]) -> dict[str, Any]:
        return {"grades": [await grader.ainvoke({"text": each}) for each in state["texts"]]}

    graph = StateGraph(dict)
    graph.add_node("before", lambda state: {"texts": state["texts"]})
    graph.add_node("grade", agrade if awaits else grade)
    graph.add_edge(START, "before")
    graph.add_edge("before", "grade")
    graph.add_edge("grade", END)
    return optimized(graph.compile())


TEXTS = {"texts": ["a", "b", "c", "d"]}


def test_a_cancelled_run_stops_its_calls() -> None:
    before, gate = left(), Gate()
    llm = FakeChat(answers=says, gate=gate)
    graph = graded(llm, awaits=True)

    async def main() -> None:
        running = asyncio.create_task(graph.ainvoke(TEXTS))
        while llm.meter.in_flight < 4:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert llm.meter.in_flight == 0

    asyncio.run(main())
    assert not settled(before=before)


def test_a_closed_stream_leaves_nothing() -> None:
    before = left()
    graph = graded(FakeChat(answers=says, prefill=SECONDS))
    stream = graph.stream(TEXTS, stream_mode="updates")
    assert list(next(stream)) == ["before"]
    stream.close()

    async def abandoned() -> None:
        chunks = graph.astream(TEXTS, stream_mode="updates")
        assert list(await anext(chunks)) == ["before"]
        await chunks.aclose()

    asyncio.run(abandoned())
    assert not settled(before=before)


@pytest.mark.parametrize("awaits", [False, True])
def test_a_bound_holds(awaits: bool) -> None:
    llm = FakeChat(answers=says, prefill=SECONDS)
    graph, bound = graded(llm, awaits=awaits), {"max_concurrency": 2}
    for _ in range(2):
        asyncio.run(graph.ainvoke(TEXTS, bound)) if awaits else graph.invoke(TEXTS, bound)
    assert llm.meter.peak == 2


@pytest.mark.parametrize("awaits", [False, True])
def test_a_bound_holds_for_all_inputs_of_a_batch(awaits: bool) -> None:
    llm = FakeChat(answers=says, prefill=SECONDS)
    graph, bound = graded(llm, awaits=awaits), {"max_concurrency": 2}
    for _ in range(2):
        found = asyncio.run(graph.abatch([TEXTS] * 4, bound)) if awaits else graph.batch([TEXTS] * 4, [bound] * 4)
        assert [len(each["grades"]) for each in found] == [4] * 4
    assert llm.meter.peak == 2


class Owner:
    """Owns its graph, whose nodes are its methods, as apps that are made for one request do."""

    def __init__(self, llm: Any) -> None:
        self.grader = ask("Grade {text} DOC", llm)
        graph = StateGraph(dict)
        graph.add_node("grade", self.grade)
        graph.add_node("end", self.end)
        graph.add_edge(START, "grade")
        graph.add_edge("grade", "end")
        graph.add_edge("end", END)
        self.graph = optimized(graph.compile())

    def grade(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"grades": [self.grader.invoke({"text": each}) for each in state["texts"]]}

    def end(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"count": len(state["grades"])}


def test_graphs_and_what_their_nodes_refer_to_are_not_kept() -> None:
    before, llm, alive = left(), FakeChat(answers=says), list[Any]()
    for _ in range(3):
        app = Owner(llm)
        assert app.graph.invoke(TEXTS) == {"count": 4}
        alive.append(weakref.ref(app))
        del app
    assert not settled(before=before)
    until = time.monotonic() + 5
    while any(each() is not None for each in alive) and time.monotonic() < until:  # a worker thread lets go of the last
        gc.collect()
    assert [each() for each in alive] == [None] * 3


def test_a_function_that_is_replaced_is_looked_at_again() -> None:
    llm = FakeChat(answers=says, prefill=SECONDS)
    graph = graded(llm)
    assert graph.invoke(TEXTS) == graph.invoke(TEXTS)
    graph.nodes["grade"].bound.func = lambda state: {"grades": "none"}
    assert graph.invoke(TEXTS) == {"grades": "none"}


def test_a_fault_of_ours_leaves_the_node_to_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    graph: Any = fineflow.optimize(graded(FakeChat(answers=says)).__wrapped__)
    expected = graph.__wrapped__.invoke(TEXTS)

    def broken(*args: Any, **named: Any) -> Any:
        raise ZeroDivisionError("a fault")

    visits._known.clear()
    monkeypatch.setattr(visits, "user_functions", broken)
    with pytest.warns(FineflowWarning, match="a fault"):
        assert graph.invoke(TEXTS) == expected
    monkeypatch.undo()
    visits._known.clear()
    monkeypatch.setattr(visits, "inner_calls_of", broken)
    with pytest.warns(FineflowWarning, match="a fault"):
        assert graph.invoke(TEXTS) == expected
