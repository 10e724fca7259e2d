"""Graphs as their authors wrote them take what the data of each node require; others go straight to the user's."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from benchmarks.public import langgraph_apps
from graph_cases import VALUE, App, ask, says
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnablePassthrough, chain
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode

import fineflow
from fineflow.adapters.core.claiming import under_way
from fineflow.ir.text import duration
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

pytest.importorskip("langchain_openai")

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
CONFIG = {"configurable": {"thread_id": "1"}}


@pytest.mark.parametrize(
    ("case", "entry"),
    [pytest.param(case, e, id=f"{case.graph}-{case.value}-{e}") for case in langgraph_apps.CASES for e in case.entries],
)
def test_an_example_takes_what_its_nodes_require(case: langgraph_apps.Case, entry: str) -> None:
    expected, stock = langgraph_apps.seconds(case, entry, optimized=False)
    found, mine = langgraph_apps.seconds(case, entry, optimized=True)
    assert found == expected
    assert stock == pytest.approx(case.stock, rel=0.02)
    assert mine <= 1.02 * case.path


def test_every_example_is_measured_and_in_the_list() -> None:
    found = {path.stem for path in langgraph_apps.FOLDER.glob("*.py")} - {"graph_services", "graph_parts"}
    assert found == {case.graph for case in langgraph_apps.CASES}
    listed = (langgraph_apps.FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert all(f"](langgraph/{name}.py)" in listed for name in found)


@pytest.mark.parametrize("awaits", [False, True])
def test_loops_routers_and_tasks_gain(awaits: bool) -> None:
    """4 grades in a loop, 2 calls in each of the ``Send`` tasks, 2 calls in a router."""

    def run(app: App) -> Any:
        graph: Any = app.graph
        return graph.invoke(VALUE, CONFIG) if not awaits else asyncio.run(graph.ainvoke(VALUE, CONFIG))

    stock, mine = App(1.0, awaits=awaits), App(1.0, awaits=awaits)
    mine.graph = fineflow.optimize(mine.graph, strict=True)
    before, after = (virtual_threads.run(lambda app=app: run(app)) for app in (stock, mine))
    assert after.value == before.value
    assert (before.seconds, after.seconds) == (10.0, 5.0)
    assert mine.asked == stock.asked


def _grader() -> Any:
    return ask("Grade {text} DOC", FakeChat(answers=says, prefill=1.0))


def _node_of(function: Any, value: Any) -> Any:
    graph = StateGraph(dict)
    graph.add_node("node", function)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile(), value


class Grader:
    def __init__(self) -> None:
        self.grader = _grader()

    def grade(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"grades": [self.grader.invoke({"text": each}) for each in state["texts"]]}


def _method() -> Any:
    return _node_of(Grader().grade, {"texts": ["a", "b", "c"]})


def _chain() -> Any:
    grader = _grader()

    @chain
    def grade(state: dict[str, Any]) -> dict[str, Any]:
        return {"grades": [grader.invoke({"text": each}) for each in state["texts"]]}

    return _node_of(grade, {"texts": ["a", "b", "c"]})


def _bound() -> Any:
    """The node's function is the chain's own ``invoke``."""
    steps = [RunnablePassthrough.assign(**{name: _grader()}) for name in "abc"]
    return _node_of((steps[0] | steps[1] | steps[2]).invoke, {"text": "a"})


def _optimized() -> Any:
    """The chain was optimized before the graph was."""
    grader = fineflow.optimize(_grader())

    def grade(state: dict[str, Any]) -> dict[str, Any]:
        return {"grades": [grader.invoke({"text": each}) for each in state["texts"]]}

    return _node_of(grade, {"texts": ["a", "b", "c"]})


def _tool() -> Any:
    grader = _grader()

    @tool
    def grade(texts: list[str]) -> str:
        """Grades texts."""
        return " ".join([grader.invoke({"text": each}) for each in texts])

    call = {"name": "grade", "args": {"texts": ["a", "b", "c"]}, "id": "1", "type": "tool_call"}
    return _node_of(ToolNode([grade]), {"messages": [AIMessage("", tool_calls=[call])]})


def _functional() -> Any:
    grader = _grader()

    @task
    def grade(texts: list[str]) -> list[str]:
        return [grader.invoke({"text": each}) for each in texts]

    @entrypoint()
    def app(texts: list[str]) -> list[str]:
        return grade(texts).result()

    return app, ["a", "b", "c"]


def _entrypoint() -> Any:
    grader = _grader()

    @entrypoint()
    def app(texts: list[str]) -> list[str]:
        return [grader.invoke({"text": each}) for each in texts]

    return app, ["a", "b", "c"]


def _nameless() -> Any:
    """A task that is a partial, which has no name."""
    grader = _grader()

    def grade(word: str, texts: list[str]) -> list[str]:
        return [grader.invoke({"text": each + word}) for each in texts]

    graded = task(partial(grade, "!"))

    @entrypoint()
    def app(texts: list[str]) -> list[str]:
        own = [grader.invoke({"text": each}) for each in texts]
        more: list[str] = graded(texts).result()
        return [*own, *more]

    return app, ["a", "b", "c"]


def test_tasks_without_a_name_are_planned() -> None:
    app, value = _nameless()
    before = virtual_threads.run(lambda: app.invoke(value))
    after = virtual_threads.run(lambda: fineflow.optimize(app, strict=True).invoke(value))
    assert after.value == before.value
    assert (before.seconds, after.seconds) == (6.0, 2.0)


class Called(Grader):
    def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
        return self.grade(state)


def _object() -> Any:
    return _node_of(Called(), {"texts": ["a", "b", "c"]})


def _partial() -> Any:
    """As supervisors make nodes of their agents: ``partial(agent_node, agent=agent, name="Researcher")``."""

    def grade(state: dict[str, Any], grader: Any, word: str) -> dict[str, Any]:
        return {"grades": [grader.invoke({"text": each + word}) for each in state["texts"]]}

    return _node_of(partial(grade, grader=_grader(), word="!"), {"texts": ["a", "b", "c"]})


def _helper() -> Any:
    """Each call is made by a helper, which calls the component in one place."""
    grader = _grader()

    def graded(text: str) -> str:
        found: str = grader.invoke({"text": text})
        return found.strip()

    def grade(state: dict[str, Any]) -> dict[str, Any]:
        a, b, c = state["texts"]
        return {"grades": [graded(a), graded(b), graded(c)]}

    return _node_of(grade, {"texts": ["a", "b", "c"]})


FUNCTIONS = [_method, _optimized, _chain, _bound, _tool, _functional, _entrypoint, _object, _partial, _helper]


@pytest.mark.parametrize("made", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:The 'config' parameter should be typed")  # LangGraph's, of LangChain's own method
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_functions_of_every_kind_gain(made: Any, entry: str) -> None:
    app, value = made()

    def run(graph: Any) -> Any:
        return graph.invoke(value) if entry == "invoke" else asyncio.run(graph.ainvoke(value))

    before = virtual_threads.run(lambda: run(app))
    after = virtual_threads.run(lambda: run(fineflow.optimize(app, strict=True)))
    assert repr(after.value) == repr(before.value)
    assert (before.seconds, after.seconds) == (3.0, 1.0)


class Awaiting(Grader):
    async def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"grades": [await self.grader.ainvoke({"text": each}) for each in state["texts"]]}


async def _awaiting(state: dict[str, Any], called: Awaiting) -> dict[str, Any]:
    return await called(state)


@pytest.mark.parametrize("made", [Awaiting, lambda: partial(_awaiting, called=Awaiting())], ids=["object", "partial"])
def test_objects_and_partials_that_are_awaited_gain(made: Any) -> None:
    app, value = _node_of(made(), {"texts": ["a", "b", "c"]})
    before = virtual_threads.run(lambda: asyncio.run(app.ainvoke(value)))
    after = virtual_threads.run(lambda: asyncio.run(fineflow.optimize(app, strict=True).ainvoke(value)))
    assert after.value == before.value
    assert (before.seconds, after.seconds) == (3.0, 1.0)


@pytest.mark.parametrize("routes", ["object", "partial"])
def test_routers_that_are_objects_or_partials_gain(routes: str) -> None:
    grader = _grader()

    def route(state: dict[str, Any], asked: Any) -> str:
        return END if asked.invoke({"text": "a"}) == asked.invoke({"text": "b"}) else "end"

    class Router:
        def __call__(self, state: dict[str, Any]) -> str:
            return route(state, grader)

    graph = StateGraph(dict)
    graph.add_node("node", lambda state: {"seen": True})
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", Router() if routes == "object" else partial(route, asked=grader), [END])
    app = graph.compile()
    before = virtual_threads.run(lambda: app.invoke({}))
    after = virtual_threads.run(lambda: fineflow.optimize(app, strict=True).invoke({}))
    assert after.value == before.value
    assert (before.seconds, after.seconds) == (2.0, 1.0)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_tasks_gain_where_the_entrypoint_calls_components_itself(entry: str) -> None:
    grader = _grader()

    @task
    def grade(texts: list[str]) -> list[str]:
        return [grader.invoke({"text": each}) for each in texts]

    @entrypoint()
    def app(texts: list[str]) -> list[str]:
        grades = grade(texts).result()
        return [*grades, grader.invoke({"text": "d"}), grader.invoke({"text": "e"})]

    def run(graph: Any) -> Any:
        return graph.invoke(["a", "b", "c"]) if entry == "invoke" else asyncio.run(graph.ainvoke(["a", "b", "c"]))

    before = virtual_threads.run(lambda: run(app))
    after = virtual_threads.run(lambda: run(fineflow.optimize(app, strict=True)))
    assert after.value == before.value
    assert (before.seconds, after.seconds) == (5.0, 3.0)  # what comes after a task is stock's


@pytest.mark.parametrize("made", [_method, _optimized, _tool])
def test_a_graph_gains_that_a_node_with_calls_of_its_own_invokes(made: Any) -> None:
    inner, value = made()
    grader = _grader()

    def node(state: dict[str, Any]) -> dict[str, Any]:
        first = [grader.invoke({"text": each}) for each in ("d", "e")]
        return {"found": repr(inner.invoke(value, debug=False)), "first": first}

    app, _ = _node_of(node, None)
    before = virtual_threads.run(lambda: app.invoke({"a": 1}))
    after = virtual_threads.run(lambda: fineflow.optimize(app, strict=True).invoke({"a": 1}))
    assert after.value == before.value
    assert (before.seconds, after.seconds) == (5.0, 2.0)


def test_copies_gain_and_have_what_is_put_into_them() -> None:
    app, value = _method()
    saver = InMemorySaver()
    made = fineflow.optimize(app, strict=True).copy(update={"checkpointer": saver})
    assert made.checkpointer is saver
    assert app.checkpointer is None
    assert virtual_threads.run(lambda: made.invoke(value, CONFIG)).seconds == 1.0


def test_a_graph_without_gain_goes_straight_to_the_users() -> None:
    seen: list[Any] = []

    def node(state: dict[str, Any]) -> dict[str, Any]:
        seen.append(under_way.get())
        return {"done": True}

    app, _ = _node_of(node, None)
    fast = fineflow.optimize(app, strict=True)
    assert fast.invoke({"a": 1}) == app.invoke({"a": 1})
    assert seen == [None, None]


def test_explain_says_what_goes_ahead_in_each_node() -> None:
    said = str(fineflow.explain(App().graph, graphs=True))
    assert "calls of `grader` in it that need nothing from each other start together" in said
    assert "calls of `title`, `summary` in it" in " ".join(said.split())
    assert "review → useful" in said
    assert "finish/end" in said
    assert "graph_cases.py" in said
    assert "makes no two component calls" in said
    assert "@fineflow.pure" not in said


def test_explain_of_the_last_run_says_what_ran_ahead_inside_the_steps_of_a_graph() -> None:
    app, value = _method()
    fast = fineflow.optimize(app, strict=True)
    with pytest.raises(ValueError, match="no call of this one has ended in which anything ran ahead"):
        fineflow.explain(fast, last_run=True)
    _, seconds = virtual_threads.run(lambda: fast.invoke(value))
    said = " ".join(str(fineflow.explain(fast, last_run=True)).split())
    ahead = fast._self_last.trace.inside
    assert ahead > 0
    assert f"The last call (invoke) took {duration(seconds)}; component calls inside functions had run" in said
    assert f"for {duration(ahead)} before stock made them" in said
