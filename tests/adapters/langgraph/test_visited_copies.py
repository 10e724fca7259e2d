"""What runs in place of a node is made once: concurrent visits, recursion, errors and changes are those of stock."""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
import weakref
from typing import Annotated, Any

import pytest
from graph_cases import ask, says
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send
from typing_extensions import TypedDict

import fineflow
from fineflow.adapters.langgraph import visits
from fineflow.runtime.loop import runtime_loop
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat


class State(TypedDict, total=False):
    text: str
    depth: int
    found: Annotated[list[str], operator.add]


def _asked(seconds: float = 0.0) -> Any:
    return ask("Grade DOC {text}", FakeChat(answers=says, prefill=seconds))


def _wired(node: Any, spread: Any = None, **settings: Any) -> Any:
    made = StateGraph(State)
    made.add_node("node", node, **settings)
    if spread is None:
        made.add_edge(START, "node")
    else:
        made.add_conditional_edges(START, spread, ["node"])
    made.add_edge("node", END)
    return made.compile()


def _copies(fast: Any) -> dict[int, Any]:
    """Returns what the optimized graph has kept, by the id of the step."""
    shadows = [each for plan in fast._self_plans.values() for each in plan.shadows.values()]
    return {key: copy for each in shadows for key, copy in each.copies.items()}


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the list of the steps of which copies are made from now on."""
    made: list[Any] = []
    own = visits._made
    monkeypatch.setattr(visits, "_made", lambda step, kept: made.append(step) or own(step, kept))
    return made


@pytest.mark.parametrize("awaits", [False, True])
def test_visits_at_the_same_time_share_one_copy(awaits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are inside the function before any of them goes on."""
    asked, count = _asked(), 4
    barrier, inside, all_in = threading.Barrier(count), [0], [asyncio.Event()]

    def both(state: State) -> list[str]:
        return [asked.invoke({"text": f"{state['text']} capital"}), asked.invoke({"text": state["text"]})]

    def node(state: State) -> State:
        barrier.wait(30)
        return {"found": [state["text"], *both(state)]}

    async def anode(state: State) -> State:
        inside[0] += 1
        if inside[0] == count:
            all_in[0].set()
        await all_in[0].wait()
        grades = [
            await asked.ainvoke({"text": f"{state['text']} capital"}),
            await asked.ainvoke({"text": state["text"]}),
        ]
        return {"found": [state["text"], *grades]}

    def spread(state: State) -> list[Send]:
        return [Send("node", {"text": str(number)}) for number in range(count)]

    graph = _wired(anode if awaits else node, spread)
    made = _counting(monkeypatch)
    fast: Any = fineflow.optimize(graph, strict=True)
    for _ in range(2):
        inside[0], all_in[0] = 0, asyncio.Event()
        found = asyncio.run(fast.ainvoke({"text": ""})) if awaits else fast.invoke({"text": ""})
        assert found["found"] == [each for number in range(count) for each in (str(number), "yes", "no")]
    assert 1 <= len(made) <= count  # threads that come at once may each make one; later visits make none
    assert {id(step) for step in made} == {id(graph.nodes["node"].bound)}


def test_a_graph_that_calls_itself_makes_no_more_copies_in_later_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, graphs = _asked(1.0), list[Any]()

    def node(state: State) -> State:
        grades = [asked.invoke({"text": f"{state['depth']} {each}"}) for each in "ab"]
        deeper = graphs[0].invoke({"depth": state["depth"] - 1})["found"] if state["depth"] else []
        return {"found": [*grades, *deeper]}

    graph = _wired(node)
    graphs.append(graph)
    before = virtual_threads.run(lambda: graph.invoke({"depth": 2}))
    made = _counting(monkeypatch)
    fast: Any = fineflow.optimize(graph, strict=True)
    for _ in range(2):
        after = virtual_threads.run(lambda: fast.invoke({"depth": 2}))
        assert after.value == before.value
        assert (before.seconds, after.seconds) == (6.0, 3.0)
    assert len(made) == 3  # one for each depth, where the graph is a component of the one around it


def test_attempts_that_fail_leave_a_copy_that_serves_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, attempts = _asked(), list[str]()

    def node(state: State) -> State:
        grades = [asked.invoke({"text": each}) for each in "ab"]
        attempts.append(state["text"])
        if len(attempts) % 3:
            raise ConnectionError(f"attempt {len(attempts)}")
        return {"found": grades}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.0, jitter=False)
    made = _counting(monkeypatch)
    fast: Any = fineflow.optimize(_wired(node, retry_policy=policy), strict=True)
    for _ in range(2):
        assert fast.invoke({"text": "x"})["found"] == ["no", "no"]
    attempts.append("one more")
    with pytest.raises(ValueError, match="invalid literal"):
        fineflow.optimize(_wired(lambda state: {"found": [int(asked.invoke({"text": each})) for each in "ab"]})).invoke(
            {}
        )
    assert len(attempts) == 7
    assert len(made) == 2


def test_attributes_that_are_set_on_a_step_or_on_its_copy_lead_to_another_copy() -> None:
    asked = _asked()

    def node(state: State) -> State:
        return {"found": [asked.invoke({"text": each}) for each in "ab"]}

    graph = _wired(node)
    fast: Any = fineflow.optimize(graph, strict=True)
    step = graph.nodes["node"].bound
    first = fast.invoke({})
    kept = _copies(fast)[id(step)].made
    assert kept is not step
    assert fast.invoke({}) == first
    assert _copies(fast)[id(step)].made is kept
    step.tags = ["another"]
    assert fast.invoke({}) == first
    second = _copies(fast)[id(step)].made
    assert second is not kept
    assert second.tags == ["another"]
    second.name = "changed"
    assert fast.invoke({}) == first
    assert _copies(fast)[id(step)].made not in (kept, second)
    assert step.name == "node"


def test_only_steps_of_the_graph_itself_are_kept_and_no_longer_than_it() -> None:
    asked, tools = _asked(), list[Any]()

    def node(state: State) -> State:
        @tool
        def grade(texts: list[str]) -> list[str]:
            """Grades texts."""
            return [asked.invoke({"text": each}) for each in texts]

        tools.append(weakref.ref(grade))
        return {"found": [*grade.invoke({"texts": ["a", "b"]}), asked.invoke({"text": "c"})]}

    graph = _wired(node)
    fast: Any = fineflow.optimize(graph, strict=True)
    for _ in range(3):
        assert fast.invoke({})["found"] == ["no"] * 3
    assert list(_copies(fast)) == [id(graph.nodes["node"].bound)]
    gone = weakref.ref(graph.nodes["node"].bound)
    del graph, fast
    gc.collect()
    assert [each() for each in tools] == [None] * 3
    assert gone() is None


def test_a_call_that_nothing_ran_ahead_of_ends_without_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, posted = _asked(1.0), list[Any]()

    def node(state: State) -> State:
        return {"found": [asked.invoke({"text": each}) for each in state["text"]]}

    fast: Any = fineflow.optimize(_wired(node), strict=True)
    assert fast.invoke({"text": ""}) == {"text": "", "found": []}
    own = runtime_loop.post
    monkeypatch.setattr(runtime_loop, "post", lambda *args: posted.append(args) or own(*args))
    assert fast.invoke({"text": ""}) == {"text": "", "found": []}
    assert not posted
    assert fast._self_last.trace.ended >= fast._self_last.trace.began
    assert virtual_threads.run(lambda: fast.invoke({"text": "abc"})).seconds == 1.0
