"""What tools call is made side by side, whatever kind of tool it is, in a ``ToolNode`` and in an agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.peers.plain import plain
from graph_cases import ask
from langchain.agents import create_agent
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, StructuredTool, create_retriever_tool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import fineflow
from fineflow.backends.emulated.llm import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat, FakeRetriever
from fineflow.testing.recording import RecordingHandler, run_tree

pytestmark = [
    pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning"),  # as_tool
]


class Parts:
    """Components that take a second each. asked: what they were asked."""

    def __init__(self) -> None:
        self.model = FakeChat(prefill=1.0)
        self.grader = ask("Grade {text} DOC", self.model)
        found = [FakeRetriever(documents=[Document(name)], latency=1.0) for name in ("one", "two", "three")]
        self.retrievers = found
        self.ensemble = EnsembleRetriever(retrievers=found, weights=[1.0, 1.0, 1.0])

    @property
    def asked(self) -> list[str]:
        return sorted(label for each in (self.model, *self.retrievers) for label in each.meter.labels)


def sync_tool(parts: Parts) -> BaseTool:
    @tool
    def grade(query: str) -> str:
        """Grades."""
        return " ".join([parts.grader.invoke({"text": query + each}) for each in "abc"])

    return grade


def async_tool(parts: Parts) -> BaseTool:
    @tool
    async def grade(query: str) -> str:
        """Grades."""
        return " ".join([await parts.grader.ainvoke({"text": query + each}) for each in "abc"])

    return grade


def structured_tool(parts: Parts) -> BaseTool:
    def grade(query: str) -> str:
        """Grades."""
        return " ".join([parts.grader.invoke({"text": query + each}) for each in "abc"])

    async def agrade(query: str) -> str:
        return " ".join([await parts.grader.ainvoke({"text": query + each}) for each in "abc"])

    return StructuredTool.from_function(grade, coroutine=agrade)


class Graded(BaseTool):
    """A class of the user's: its object runs."""

    name: str = "grade"
    description: str = "Grades."
    grader: Any = None

    def _run(self, query: str) -> str:
        return " ".join([self.grader.invoke({"text": query + each}) for each in "abc"])


class AsyncGraded(Graded):
    async def _arun(self, query: str) -> str:
        return " ".join([await self.grader.ainvoke({"text": query + each}) for each in "abc"])


def search_tool(parts: Parts) -> BaseTool:
    @tool
    def search(query: str) -> str:
        """Searches."""
        return str(parts.ensemble.invoke(query))

    return search


def retriever_tool(parts: Parts) -> BaseTool:
    return create_retriever_tool(parts.ensemble, "search", "Searches.")


def as_a_tool(parts: Parts) -> BaseTool:
    made: BaseTool = parts.ensemble.as_tool(name="search", description="Searches.")
    return made


def in_a_tool_node(made: BaseTool) -> tuple[Any, Any]:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([made]))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    call: Any = {"name": made.name, "args": {"query": "q"}, "id": "1", "type": "tool_call"}
    return graph.compile(), {"messages": [AIMessage("", tool_calls=[call])]}


def in_an_agent(made: BaseTool) -> tuple[Any, Any]:
    call = json.dumps({"name": made.name, "arguments": {"query": "q"}})
    says = lambda prompt: "done" if "<tool>" in prompt else f"<tool_call>{call}</tool_call>"  # noqa: E731
    return create_agent(ChatEngine(engine=EmulatedLLM(says)), [made]), {"messages": [("user", "Grade it.")]}


Made = Callable[[Parts], BaseTool]


def tool_class(parts: Parts) -> BaseTool:
    return Graded(grader=parts.grader)


def async_tool_class(parts: Parts) -> BaseTool:
    return AsyncGraded(grader=parts.grader)


SYNC: list[Made] = [sync_tool, structured_tool, search_tool, retriever_tool, as_a_tool, tool_class]
ASYNC: list[Made] = [sync_tool, async_tool, structured_tool, search_tool, async_tool_class]


def ran(made: Made, where: Any, *, awaits: bool, optimized: bool) -> Any:
    """Returns the messages and the run tree, what components were asked, and the virtual seconds."""
    parts, handler = Parts(), RecordingHandler()
    graph, value = where(made(parts))
    app: Any = fineflow.optimize(graph, strict=True) if optimized else graph
    given = {"callbacks": [handler]}
    run = (lambda: asyncio.run(app.ainvoke(value, given))) if awaits else (lambda: app.invoke(value, given))
    found = virtual_threads.run(run)
    return plain(found.value), plain(repr(run_tree(handler))), parts.asked, found.seconds


@pytest.mark.parametrize("where", [in_a_tool_node, in_an_agent])
@pytest.mark.parametrize(
    ("made", "awaits"),
    [*((made, False) for made in SYNC), *((made, True) for made in ASYNC)],
    ids=lambda each: getattr(each, "__name__", repr(each)),
)
def test_calls_in_tools_of_every_kind_are_made_side_by_side(made: Made, awaits: bool, where: Any) -> None:
    stock, mine = (ran(made, where, awaits=awaits, optimized=optimized) for optimized in (False, True))
    assert mine[:3] == stock[:3]
    assert stock[3] - mine[3] == pytest.approx(2.0, abs=0.01)


def test_explain_shows_the_tools_that_gain() -> None:
    graph, _ = in_a_tool_node(retriever_tool(Parts()))
    assert "its call of `retriever`" in " ".join(str(fineflow.explain(graph, graphs=True)).split())
