"""Graphs inside of graphs: what runs beside an inner agent may change what its tools read, so these start late."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import pytest
from agent_cases import FOUR, Agent, both, written
from langchain.agents import create_agent
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent

import fineflow
from fineflow.backends.emulated.llm import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")

Made = Callable[["Paged", Any], Any]  # an outer graph around an agent


class Paged(Agent):
    """Its tool reads how often something has been written, and ``write`` writes once, while the model writes."""

    def __init__(self, outer: Made, **given: Any) -> None:
        self.written = 0
        super().__init__(
            tools=lambda own: [_look_up(own)], make=lambda *made: outer(self, create_agent(*made)), **given
        )

    def write(self, *_: Any) -> None:
        time.sleep(0.9)
        self.written += 1


def _look_up(agent: Any) -> BaseTool:
    @tool
    @fineflow.effects(reads="the archive")
    def look_up(topic: str, reason: str = "") -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        found = f"{topic}: {agent.written}"
        time.sleep(agent.takes(topic))
        return found

    return look_up


def one_node(func: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("node", func)
    graph.add_edge(START, "node")
    return graph.compile()


def _told(found: Any) -> str:
    return ", ".join(each.text for each in found["messages"] if each.type == "tool")


def answered(found: Any) -> dict[str, Any]:
    return {"messages": [("ai", _told(found))]}


def _called(paged: Paged, agent: Any) -> Any:
    return one_node(lambda state: answered(agent.invoke(state)))


def _streamed(paged: Paged, agent: Any) -> Any:
    return one_node(lambda state: answered(list(agent.stream(state, stream_mode="values"))[-1]))


def _tasks(paged: Paged, agent: Any) -> Any:
    @task
    def asked(state: Any) -> Any:
        return answered(agent.invoke(state))

    @entrypoint()
    def run(state: Any) -> Any:
        return asked(state).result()

    return run


def _gathered(paged: Paged, agent: Any) -> Any:
    async def node(state: MessagesState) -> Any:
        found, _ = await asyncio.gather(agent.ainvoke(state), asyncio.to_thread(paged.write))
        return answered(found)

    return one_node(node)


def _task_beside(paged: Paged, agent: Any) -> Any:
    async def node(state: MessagesState) -> Any:
        beside = asyncio.create_task(asyncio.to_thread(paged.write))
        found = await agent.ainvoke(state)
        await beside
        return answered(found)

    return one_node(node)


class _Begins:
    """Its method hides that a task begins."""

    def __init__(self, paged: Paged) -> None:
        self._paged = paged

    def writing(self) -> Any:
        return self._task()

    def _task(self) -> Any:
        return asyncio.create_task(asyncio.to_thread(self._paged.write))


def _task_in_a_method(paged: Paged, agent: Any) -> Any:
    begins = _Begins(paged)

    async def node(state: MessagesState) -> Any:
        beside = begins.writing()
        found = await agent.ainvoke(state)
        await beside
        return answered(found)

    return one_node(node)


def _executor(paged: Paged, agent: Any) -> Any:
    executor = ContextThreadPoolExecutor(2)

    async def node(state: MessagesState) -> Any:
        beside = executor.map(paged.write, [1])
        found = await agent.ainvoke(state)
        list(beside)
        return answered(found)

    return one_node(node)


def _threads(paged: Paged, agent: Any) -> Any:
    def node(state: MessagesState) -> Any:
        with ContextThreadPoolExecutor(2) as executor:
            found = _submitted(executor, agent, state)
            executor.submit(paged.write)
            return answered(found.result())

    return one_node(node)


def _submitted(executor: Executor, agent: Any, state: Any) -> Any:
    return executor.submit(agent.invoke, state)


def _nodes(paged: Paged, agent: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("agent", lambda state: answered(agent.invoke(state)))
    graph.add_node("writer", paged.write)
    graph.add_edge(START, "agent")
    graph.add_edge(START, "writer")
    return graph.compile()


def _tools(paged: Paged, agent: Any, version: Any) -> Any:
    @tool
    def research(topic: str) -> str:
        """Asks the agent."""
        return _told(agent.invoke({"messages": [("user", topic)]}))

    @tool
    def write(topic: str) -> str:
        """Writes."""
        paged.write()
        return "written"

    calls = [("research", {"topic": "floods"}), ("write", {"topic": "floods"})]
    asks = EmulatedLLM(lambda prompt: "Done." if "<assistant>\n<tool_call>" in prompt else written(calls))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for now it is still in wide use
        return create_react_agent(ChatEngine(engine=asks), [research, write], version=version)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
@pytest.mark.parametrize(
    "outer",
    [
        _gathered,
        _task_beside,
        _task_in_a_method,
        _executor,
        _threads,
        _nodes,
        partial(_tools, version="v1"),
        partial(_tools, version="v2"),
        _streamed,
        _tasks,
    ],
    ids=[
        "gather",
        "task",
        "method",
        "executor",
        "threads",
        "nodes",
        "one ToolNode",
        "several ToolNodes",
        "stream",
        "@task",
    ],
)
def test_tools_of_an_inner_agent_see_what_is_written_beside_it(outer: Made, entry: str) -> None:
    if outer in (_gathered, _task_beside, _task_in_a_method, _executor) and entry == "invoke":
        pytest.skip("the node is async")
    both(entry, kind=Paged, outer=outer)


def test_tools_of_an_inner_agent_that_is_alone_start_early() -> None:
    _, mine, before, after = both(kind=Paged, outer=_called)
    assert set(mine.early) <= {call["topic"] for _, call in FOUR}
    assert mine.early and after < before


@pytest.mark.parametrize(
    ("outer", "why"),
    [
        (_tasks, "a function that calls it starts tasks"),
        (_streamed, "the function that calls it asks for a stream"),
    ],
)
def test_the_explanation_says_why_tools_of_an_inner_agent_start_late(outer: Made, why: str) -> None:
    said = " ".join(str(fineflow.explain(Paged(outer).graph)).split())
    assert f"start when stock makes their calls: {why}" in said
    assert "start when the model has written them" not in said


@pytest.mark.parametrize("outer", [_gathered, _called])
def test_the_explanation_says_that_tools_of_an_inner_agent_wait_for_what_runs_beside_it(outer: Made) -> None:
    said = " ".join(str(fineflow.explain(Paged(outer).graph)).split())
    assert "if its answer comes in pieces, and no task or thread runs that your code has started" in said


def _slept(paged: Paged, agent: Any) -> Any:
    async def node(state: MessagesState) -> Any:
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.1) for _ in range(2)))
        threading.Thread(target=nothing).start()
        return answered(await agent.ainvoke(state))

    return one_node(node)


def nothing() -> None:
    pass


def test_tools_of_an_inner_agent_start_early_when_what_was_started_has_ended() -> None:
    _, mine, before, after = both("ainvoke", kind=Paged, outer=_slept)
    assert mine.early and after < before


@pytest.mark.parametrize("outer", [_threads, _nodes])
def test_an_optimized_agent_in_a_graph_of_stock_reads_what_is_written_beside_it(outer: Made) -> None:
    """Nobody looks at what that graph runs."""

    def ran(*, optimized: bool) -> tuple[Any, list[str]]:
        paged = Paged(lambda own, agent: outer(own, fineflow.optimize(agent, strict=True) if optimized else agent))
        found = virtual_threads.run(lambda: paged.graph.invoke({"messages": [("user", "What about it?")]}))
        return found.value["messages"][-1].text, paged.early

    assert ran(optimized=True) == (ran(optimized=False)[0], [])
