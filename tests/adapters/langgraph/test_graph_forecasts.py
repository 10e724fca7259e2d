"""What ``explain`` predicts of each node: its run as stock and side by side, what is in the way, the picture."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from graph_cases import VALUE, App, ask, says
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode

import fineflow
from fineflow.adapters.langgraph import visits as graph_visits
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
CONFIG = {"configurable": {"thread_id": "1"}}


def _ran(graph: Any, value: Any, times: int = 1) -> Any:
    """Returns the optimized graph after calls in virtual time."""
    fast = fineflow.optimize(graph, strict=True)
    for _ in range(times):
        virtual_threads.run(lambda: fast.invoke(value, CONFIG))
    return fast


def _one(function: Any) -> Any:
    made = StateGraph(dict)
    made.add_node("node", function)
    made.add_edge(START, "node")
    made.add_edge("node", END)
    return made.compile()


def _rows(graph: Any) -> dict[str, tuple[str, ...]]:
    """Returns the rows of the table of forecasts by step."""
    tables = [rows for heading, _, rows in fineflow.explain(graph).timing if heading.startswith("What a run of each")]
    return {row[0].partition(".")[0]: tuple(row[1:]) for rows in tables for row in rows}


def _asked(seconds: float = 1.0) -> Any:
    return ask("Grade {text} DOC", FakeChat(answers=says, prefill=seconds))


@pytest.mark.parametrize("awaits", [False, True])
def test_a_forecast_is_unknown_until_a_step_has_run_and_then_exact(awaits: bool) -> None:
    app = App(1.0, awaits=awaits)
    fast: Any = fineflow.optimize(app.graph, strict=True)
    unknown = ("unknown", "unknown", "unknown", "not measured: call the optimized graph")
    rows = _rows(fast)
    assert set(rows.values()) == {unknown}
    assert {"grade/grade", "note/note", "review → useful/useful"} <= rows.keys()
    assert "finish/end" not in rows  # one call
    call = (lambda: asyncio.run(fast.ainvoke(VALUE, CONFIG))) if awaits else (lambda: fast.invoke(VALUE, CONFIG))
    virtual_threads.run(call)
    found = _rows(fast)
    assert found["grade/grade"] == ("4.00 s", "1.00 s", "3.00 s", "4 calls of grader side by side (1 run)")
    assert found["note/note"] == ("2.00 s", "1.00 s", "1.00 s", "title beside summary (2 runs)")
    assert found["review → useful/useful"] == ("2.00 s", "1.00 s", "1.00 s", "2 calls of judge side by side (1 run)")


def test_threads_that_run_a_step_first_at_the_same_time_share_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    step, both_look, gaining = App().graph.nodes["note"].bound, threading.Barrier(2), graph_visits._gaining

    def at_once(*args: Any) -> tuple[str, ...]:
        both_look.wait()
        return gaining(*args)

    monkeypatch.setattr(graph_visits, "_gaining", at_once)
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(graph_visits._known_of, [step, step])
    assert one.visits is two.visits is graph_visits._known_of(step).visits


def _in_order() -> tuple[Any, int]:
    """A node whose third call needs the second one's result, and whose last two come after a condition."""
    asked, other = _asked(), _asked(0.5)

    def node(state: dict[str, Any]) -> dict[str, Any]:
        one, two = asked.invoke({"text": "a"}), other.invoke({"text": "b"})
        three = other.invoke({"text": two + "c"})
        if one == "unheard of":
            raise ValueError(one)
        return {"all": [three, asked.invoke({"text": "d"}), asked.invoke({"text": "e"})]}

    lines, start = inspect.getsourcelines(node)
    return _one(node), start + next(number for number, line in enumerate(lines) if "raise" in line)


def test_what_is_in_the_way_has_its_file_and_line() -> None:
    graph, line = _in_order()
    fast = _ran(graph, {"x": 1})
    # 0 to 1: asked; 0 to 0.5 and 0.5 to 1: other; then the condition is known
    groups = "asked beside other, then other, then 2 calls of asked side by side (1 run)"
    assert _rows(fast) == {"node/node": ("4.00 s", "2.00 s", "2.00 s", groups)}
    said = str(fineflow.explain(fast))
    assert "In the way" in said and "@fineflow.effects" in said
    assert f"test_graph_forecasts.py:{line}" in said
    assert "may raise an exception" in said


def test_pictures_show_which_calls_run_beside_each_other() -> None:
    graph, _ = _in_order()
    fast = _ran(graph, {"x": 1})
    explained = fineflow.explain(fast)
    lines = [line.strip() for line in explained.to_mermaid().splitlines()]
    ids = {
        line.partition('["')[2].split("<br/>")[1]: line.partition("[")[0] for line in lines if line.endswith(":::flow")
    }
    one, two, three = ids["asked"], ids["other"], ids["other (2)"]
    assert f"{two} -.-> {three}" in lines  # by data
    assert f"{one} -.-> {two}" not in lines
    assert f"{one} -.-> {three}" not in lines
    both = ids["2 calls of asked side by side"]
    assert {f"{one} -.-> {both}", f"{three} -.-> {both}"} <= set(lines)
    assert "subgraph" in explained.to_mermaid()
    page = explained.to_html()
    assert "2 calls of asked side by side" in page
    assert "2 calls of asked in turn" in page  # as written


def test_nothing_is_drawn_or_promised_before_a_run() -> None:
    graph, _ = _in_order()
    explained = fineflow.explain(graph)
    assert "subgraph" not in explained.to_mermaid()
    assert "component calls of a run" not in str(explained)


def test_later_runs_count_for_more_than_the_first() -> None:
    asked = _asked()

    def node(state: dict[str, Any]) -> dict[str, Any]:
        return {"all": [asked.invoke({"text": text}) for text in state["texts"]]}

    fast = _ran(_one(node), {"texts": ["a"]})
    assert _rows(fast)["node/node"][:3] == ("1.00 s", "1.00 s", "0 ms")
    virtual_threads.run(lambda: fast.invoke({"texts": ["a", "b", "c"]}))
    assert _rows(fast)["node/node"] == ("3.00 s", "1.00 s", "2.00 s", "3 calls of asked side by side (2 runs)")
    virtual_threads.run(lambda: fast.invoke({"texts": ["a"]}))
    assert _rows(fast)["node/node"] == ("2.40 s", "1.00 s", "1.40 s", "asked (3 runs)")


def test_a_run_in_which_a_call_fails_is_not_counted() -> None:
    app = App(1.0, fails="Lyon", times=1)
    fast: Any = fineflow.optimize(app.graph, strict=True)
    virtual_threads.run(lambda: fast.invoke(VALUE, CONFIG))  # the second attempt succeeds
    assert _rows(fast)["grade/grade"][3] == "4 calls of grader side by side (1 run)"


def _tool_node() -> tuple[Any, Any, str]:
    asked = _asked()

    @tool
    def grade(texts: list[str]) -> str:
        """Grades texts."""
        return " ".join([asked.invoke({"text": each}) for each in texts])

    call = {"name": "grade", "args": {"texts": ["a", "b", "c"]}, "id": "1", "type": "tool_call"}
    return _one(ToolNode([grade])), {"messages": [AIMessage("", tool_calls=[call])]}, "node/grade"


def _tasks() -> tuple[Any, Any, str]:
    asked = _asked()

    @task
    def grade(texts: list[str]) -> list[str]:
        return [asked.invoke({"text": each}) for each in texts]

    @entrypoint()
    def app(texts: list[str]) -> list[str]:
        return grade(texts).result()

    return app, ["a", "b", "c"], "app/grade"


@pytest.mark.parametrize("case", [_tool_node, _tasks])
def test_tools_and_tasks_have_forecasts(case: Callable[[], tuple[Any, Any, str]]) -> None:
    graph, value, name = case()
    found = {key: row for key, row in _rows(_ran(graph, value)).items() if key.startswith(name)}
    assert list(found.values()) == [("3.00 s", "1.00 s", "2.00 s", "3 calls of asked side by side (1 run)")]


def test_figures_keep_no_graph_and_no_component() -> None:
    app = App(1.0)
    _ran(app.graph, VALUE)
    known = len(graph_visits._known)
    assert known
    model, graph = weakref.ref(app.llm), weakref.ref(app.graph)
    del app
    gc.collect()
    assert model() is None
    assert graph() is None
    assert len(graph_visits._known) < known
