"""LangSmith's run trees are stock's where tools start early, also of what tools trace by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from agent_cases import VALUE, Agent, look_up
from langchain_core.tools import BaseTool, tool
from langchain_core.tracers.langchain import LangChainTracer
from langsmith import Client, get_current_run_tree, run_helpers, trace

import fineflow
from fineflow.testing import virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")


class Kept(Client):
    """A client that keeps what it is to send."""

    def __init__(self) -> None:
        super().__init__(api_url="http://127.0.0.1:9", api_key="none", auto_batch_tracing=False)
        self.kept: dict[Any, dict[str, Any]] = {}

    def create_run(self, name: str, inputs: Any, run_type: Any, **given: Any) -> None:
        self.kept[given["id"]] = {"name": name, "kind": run_type, "parent": given.get("parent_run_id")}

    def update_run(self, run_id: Any, **given: Any) -> None:
        self.kept[run_id] |= {"outputs": str(given.get("outputs")), "metadata": _own(given.get("extra"))}

    @property
    def tree(self) -> list[Any]:
        """Runs by the names of those around them, with what they returned, sorted."""
        return sorted((self._path(each), run["kind"], run.get("metadata")) for each, run in self.kept.items())

    def _path(self, run_id: Any) -> list[str]:
        run = self.kept[run_id]
        return [*(self._path(run["parent"]) if run["parent"] in self.kept else []), run["name"]]


def _own(extra: Any) -> str:
    return str(((extra or {}).get("metadata") or {}).get("topic"))


def tracing(agent: Agent) -> list[BaseTool]:
    @tool
    @fineflow.effects(reads="the archive")
    def look_up(topic: str, reason: str = "") -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        with trace(f"page about {topic}"):
            return f"A page about {topic}."

    return [look_up]


def asking(agent: Agent) -> list[BaseTool]:
    @tool
    @fineflow.effects(reads="the archive")
    def look_up(topic: str, reason: str = "") -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        if run := get_current_run_tree():
            run.metadata["topic"] = topic
        return f"A page about {topic}."

    return [look_up]


def run(tools: Any, *, optimized: bool, calls: int = 1) -> tuple[Agent, Any, Kept, float]:
    agent, client = Agent(tools=tools), Kept()
    graph: Any = fineflow.optimize(agent.graph, strict=True) if optimized else agent.graph
    config: Any = {"callbacks": [LangChainTracer(client=client, project_name="town")]}
    found = virtual_threads.run(lambda: [graph.invoke(VALUE, config) for _ in range(calls)])
    return agent, [each["messages"][-1].content for each in found.value], client, found.seconds


def test_tools_start_early_while_langsmith_records() -> None:
    stock, mine = (run(lambda agent: [look_up(agent)], optimized=each) for each in (False, True))
    assert mine[0].early and not stock[0].early
    assert stock[3] / mine[3] >= 1.1
    assert mine[1] == stock[1]
    assert mine[2].tree == stock[2].tree


def hiding(agent: Agent) -> list[BaseTool]:
    @tool
    @fineflow.effects(reads="the archive")
    def look_up(topic: str, reason: str = "") -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        if run := getattr(run_helpers, "get_current" + "_run_tree")():
            run.metadata["topic"] = topic
        return f"A page about {topic}."

    return [look_up]


@pytest.mark.parametrize("tools", [tracing, asking, hiding])
def test_what_a_tool_traces_belongs_to_its_run(tools: Any) -> None:
    """It is left to stock; where its code does not show that, the first call finds out, and is made again."""
    stock, mine = (run(tools, optimized=each, calls=2) for each in (False, True))
    if tools is hiding:
        assert len(mine[0].called) > len(stock[0].called)
    else:
        assert sorted(mine[0].called) == sorted(stock[0].called) and not mine[0].early
    assert mine[1] == stock[1]
    assert mine[2].tree == stock[2].tree
