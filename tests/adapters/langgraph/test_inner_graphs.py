"""Agents inside of graphs, as nodes or called by functions of nodes and tools: their tools start early, too."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from agent_cases import FOUR, Agent, both, look_up, ran, seen, written
from benchmarks.peers.plain import plain
from langchain.agents import create_agent
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import BaseTool, tool
from langgraph._internal._runnable import RunnableCallable
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send

import fineflow
from fineflow.backends.emulated.llm import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual_threads
from fineflow.testing.recording import RecordingHandler, run_tree

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")


def model(*turns: Sequence[Any]) -> ChatEngine:
    """Returns a model that writes these calls, one list after the other, and then a text."""

    def says(prompt: str) -> str:
        turn = prompt.count("<assistant>\n<tool_call>")
        return written(turns[turn]) if turn < len(turns) else "Done."

    return ChatEngine(engine=EmulatedLLM(says), max_tokens=4000)


def line(**nodes: Any) -> Any:
    """Returns a graph of nodes that run one after the other."""
    made, before = StateGraph(MessagesState), START
    for name, node in nodes.items():
        made.add_node(name, node)
        made.add_edge(before, name)
        before = name
    made.add_edge(before, END)
    return made.compile()


def as_a_node(model: Any, tools: Any) -> Any:
    return line(agent=create_agent(model, tools))


def in_two_graphs(model: Any, tools: Any) -> Any:
    return line(outer=line(agent=create_agent(model, tools)))


def by_a_node(model: Any, tools: Any) -> Any:
    agent = create_agent(model, tools)

    def asks(state: MessagesState) -> Any:
        return {"messages": agent.invoke({"messages": state["messages"]})["messages"][-1:]}

    async def aasks(state: MessagesState) -> Any:
        return {"messages": (await agent.ainvoke({"messages": state["messages"]}))["messages"][-1:]}

    return line(asks=RunnableCallable(asks, aasks, name="asks"))


def behind_a_command(model: Any, tools: Any) -> Any:
    agent = create_agent(model, tools, name="agent")

    def leads(state: MessagesState) -> Command[Any]:
        return Command(goto="agent")

    made = StateGraph(MessagesState)
    made.add_node("leads", leads, destinations=("agent",))
    made.add_node("agent", agent)
    made.add_edge(START, "leads")
    return made.compile()


def by_a_tool(model_of_agent: Any, tools: Any) -> Any:
    return planner(research(create_agent(model_of_agent, tools)), ["the town"])


def research(agent: Any) -> BaseTool:
    @tool
    def research(topic: str) -> str:
        """Asks an agent."""
        found = agent.invoke({"messages": [("user", f"What about {topic}?")]})
        return found["messages"][-1].content  # type: ignore[no-any-return]

    return research


def planner(asks: BaseTool, topics: Sequence[str]) -> Any:
    return create_agent(model([("research", {"topic": topic}) for topic in topics]), [asks])


MAKERS = [as_a_node, in_two_graphs, by_a_node, behind_a_command, by_a_tool]


@pytest.mark.parametrize(
    ("make", "entry"),
    [
        *((make, entry) for make in MAKERS for entry in ("invoke", "astream")),
        (as_a_node, "ainvoke"),
        (by_a_tool, "stream"),
    ],
)
def test_tools_of_an_agent_inside_start_while_its_model_writes(make: Callable[..., Any], entry: str) -> None:
    more = {"stream_mode": ["values", "updates", "messages"], "subgraphs": True} if "stream" in entry else {}
    *_, stock, mine = both(entry)
    saved = stock - mine
    stock_agent, agent, before, after = both(entry, more=more, make=make)
    assert sorted(agent.called) == sorted(stock_agent.called)
    assert before - after >= 0.95 * saved


@pytest.mark.parametrize("make", MAKERS)
def test_explain_says_which_tools_start_early(make: Callable[..., Any]) -> None:
    said = " ".join(str(fineflow.explain(Agent(make=make).graph)).split())
    assert "calls of look_up start when the model has written them" in said


def fans_out(model: Any, tools: Any) -> Any:
    """A function of the user's runs beside the agent: nobody knows what it changes."""

    def beside(state: MessagesState) -> Any:
        notes.append(state)
        return {}

    notes: list[Any] = []
    made = StateGraph(MessagesState)
    made.add_node("agent", create_agent(model, tools))
    made.add_node("beside", beside)
    made.add_conditional_edges(START, lambda state: [Send("agent", state), Send("beside", state)], ["agent", "beside"])
    return made.compile()


def test_agents_that_a_graph_sends_for_gain_side_by_side() -> None:
    """A router of the user's that only decides, and a function that runs when they have ended."""

    def make(model: Any, tools: Any) -> Any:
        def sums_up(state: MessagesState) -> Any:
            notes.append(len(state["messages"]))
            return {}

        notes: list[int] = []
        made = StateGraph(MessagesState)
        made.add_node("agent", create_agent(model, tools))
        made.add_node("sums_up", sums_up)
        made.add_conditional_edges(START, lambda state: [Send("agent", state), Send("agent", state)], ["agent"])
        made.add_conditional_edges("agent", lambda state: "sums_up" if state["messages"] else END, ["sums_up", END])
        return made.compile()

    stock, mine, before, after = both("invoke", make=make)
    assert sorted(mine.called) == sorted(stock.called)
    assert before - after >= 0.4


def asks_twice(model: Any, tools: Any) -> Any:
    """Another agent runs beside it, in a function that may do anything."""
    agent, other = create_agent(model, tools), create_agent(model, tools)

    def asks(state: MessagesState) -> Any:
        with ContextThreadPoolExecutor() as threads:
            found = list(threads.map(lambda each: each.invoke({"messages": state["messages"]}), [agent, other]))
        return {"messages": [each["messages"][-1] for each in found]}

    return line(asks=asks)


@pytest.mark.parametrize("make", [fans_out, asks_twice])
def test_beside_what_nobody_knows_tools_start_as_in_stock(make: Callable[..., Any]) -> None:
    stock, mine, before, after = both("invoke", make=make)
    assert sorted(mine.called) == sorted(stock.called)
    assert not mine.early
    assert after <= 1.005 * before


class Town:
    """What two agents that run side by side read and write. log: what has been read, and when."""

    def __init__(self, writes_after: float | None) -> None:
        self.pages, self.log = ["a page"], list[str]()
        self.writes = (
            [] if writes_after is None else [("publish", {"text": " ".join(["word"] * int(60 * writes_after))})]
        )

    def graph(self) -> Any:
        return planner(research(self.agent()), ["the reader", "the other one"])

    def agent(self, *more: BaseTool) -> Any:
        @tool
        @fineflow.effects(reads="pages")
        def look_up(topic: str, reason: str = "") -> str:
            """Reads the pages."""
            self.log.append(topic)
            found = ", ".join(self.pages)
            time.sleep(2.0 if topic == "rivers" else 0.5)
            return found

        @tool
        def publish(text: str) -> str:
            """Writes a page."""
            self.pages.append("another page")
            return "published"

        def says(prompt: str) -> str:
            if "<assistant>\n<tool_call>" in prompt:
                return "Done: " + " and ".join(re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", prompt))
            if "What about it?" in prompt:
                return written([("research", {"topic": each}) for each in ("the reader", "the other one")])
            return written(FOUR if "reader" in prompt else self.writes or FOUR[:1])

        return create_agent(ChatEngine(engine=EmulatedLLM(says), max_tokens=4000), [look_up, publish, *more])


class AsksItself(Town):
    """The two agents are one, which calls itself."""

    def graph(self) -> Any:
        @tool
        def research(topic: str) -> str:
            """Asks an agent."""
            found = graph.invoke({"messages": [("user", f"What about {topic}?")]})
            return found["messages"][-1].content  # type: ignore[no-any-return]

        graph = self.agent(research)
        return graph


def runs(town: Town, *, optimized: bool) -> tuple[Any, Any, float]:
    graph = town.graph()
    graph, handler = fineflow.optimize(graph, strict=True) if optimized else graph, RecordingHandler()
    given = {"messages": [("user", "What about it?")]}
    found = virtual_threads.run(lambda: graph.invoke(given, {"callbacks": [handler]}))
    return seen(found.value), plain(repr(run_tree(handler))), found.seconds


def test_agents_side_by_side_gain_where_none_writes() -> None:
    stock, town = Town(None), Town(None)
    expected, found = runs(stock, optimized=False), runs(town, optimized=True)
    assert found[:2] == expected[:2]
    assert sorted(town.log) == sorted(stock.log)
    assert expected[2] - found[2] >= 0.5


@pytest.mark.parametrize("kind", [Town, AsksItself])
@pytest.mark.parametrize("after", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_what_an_agent_reads_ahead_of_a_write_of_another_is_read_again(after: float, kind: type[Town]) -> None:
    expected, found = runs(kind(after), optimized=False), runs(kind(after), optimized=True)
    assert found[:2] == expected[:2]
    assert found[2] <= 1.005 * expected[2]


def test_a_graph_that_calls_itself_runs_as_in_stock() -> None:
    held: dict[str, Any] = {}

    def make(model: Any, tools: Any) -> Any:
        agent = create_agent(model, tools)

        def asks(state: MessagesState) -> Any:
            if len(state["messages"]) < 3:
                return {"messages": held[str(id(tools))].invoke({"messages": [*state["messages"], ("user", "go on")]})}
            return {"messages": agent.invoke({"messages": state["messages"]})["messages"][-1:]}

        held[str(id(tools))] = line(asks=asks)
        return held[str(id(tools))]

    stock, mine = (Agent(make=make, tools=lambda agent: [look_up(agent)]) for _ in range(2))
    assert seen(ran(mine, optimized=True)[0]) == seen(ran(stock)[0])
    assert sorted(mine.called) == sorted(stock.called)
