"""Agents whose model runs on an emulated engine, and tools that note when they are called."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.plain import plain
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

import fineflow
from fineflow.backends.emulated.llm import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual_threads
from fineflow.testing.recording import RecordingHandler, run_tree

REASON = "because the person who asks this question wants to know all about the topic, in detail and with sources"
FOUR = [("look_up", {"topic": topic, "reason": REASON}) for topic in ("rivers", "bridges", "ferries", "floods")]
VALUE = {"messages": [("user", "What about the town?")]}
Call = tuple[str, dict[str, Any]]


def written(calls: Sequence[Call]) -> str:
    """Returns calls as a model of the Hermes family writes them."""
    said = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in said)


class Agent:
    """An agent with its components, and what happened to them.

    calls: those that the model writes, for each of its turns; then it answers. called: arguments with which the
    functions of tools were called. early: those of them that were called while the model wrote. make: makes the graph
    of a model and tools.
    """

    def __init__(
        self,
        *calls: Sequence[Call],
        seconds: float = 0.25,
        fails: str = "",
        awaits: bool = False,
        tools: Callable[[Agent], Sequence[BaseTool]] | None = None,
        make: Callable[..., Any] = create_agent,
        can_prefill: bool = True,
        **settings: Any,
    ) -> None:
        self.turns, self.seconds, self.fails = calls or (FOUR,), seconds, fails
        self.called: list[str] = []
        self.early: list[str] = []
        self.engine = EmulatedLLM(self._says, can_prefill=can_prefill)
        self.model = ChatEngine(engine=self.engine, max_tokens=4000)
        self.tools = tools(self) if tools is not None else [(alook_up if awaits else look_up)(self)]
        self.graph = make(self.model, self.tools, **settings)

    def _says(self, prompt: str) -> str:
        turn = prompt.count("<assistant>\n<tool_call>")
        return written(self.turns[turn]) if turn < len(self.turns) else "That is all about the town."

    def takes(self, topic: str) -> float:
        """Returns the seconds of a call: four times as many for the first one of ``FOUR``."""
        return 4 * self.seconds if topic == "rivers" else self.seconds

    def note(self, topic: str) -> None:
        """Notes a call of a tool's function. Raises what the tool raises."""
        self.called.append(topic)
        if "1 running" in repr(self.engine):
            self.early.append(topic)
        if topic == self.fails:
            raise ValueError(f"nothing about {topic}")


def look_up(agent: Agent) -> BaseTool:
    @tool
    @fineflow.effects(reads="the archive")
    def look_up(topic: str, reason: str = "") -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        time.sleep(agent.takes(topic))
        return f"A page about {topic}."

    return look_up


def alook_up(agent: Agent) -> BaseTool:
    @tool
    @fineflow.effects(reads="the archive")
    async def look_up(topic: str, reason: str = "") -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        await asyncio.sleep(agent.takes(topic))
        return f"A page about {topic}."

    return look_up


def ran(agent: Agent, entry: str = "invoke", *, optimized: bool = False, config: Any = None, **more: Any) -> Any:
    """Runs an agent in virtual time: its result or the error, the seconds, and the events of its runs."""
    graph: Any = fineflow.optimize(agent.graph, strict=True) if optimized else agent.graph
    handler = RecordingHandler()
    given = {"callbacks": [handler], **(config or {})}

    def run() -> Any:
        try:
            if entry == "invoke":
                return graph.invoke(VALUE, given, **more)
            if entry == "stream":
                return list(graph.stream(VALUE, given, **more))
            return asyncio.run(_arun(graph, entry, given, more))
        except Exception as error:
            return type(error), str(error)

    found = virtual_threads.run(run)
    return found.value, found.seconds, handler


async def _arun(graph: Any, entry: str, given: Any, more: Any) -> Any:
    if entry == "ainvoke":
        return await graph.ainvoke(VALUE, given, **more)
    if entry == "astream_events":
        return [each async for each in graph.astream_events(VALUE, given, version="v2", **more)]
    return [each async for each in graph.astream(VALUE, given, **more)]


def both(
    entry: str = "invoke",
    *given: Any,
    more: Any = None,
    saves: bool = False,
    trees: bool = True,
    kind: type[Any] = Agent,
    **made: Any,
) -> tuple[Agent, Agent, Any, Any]:
    """Runs an agent as it is and optimized: both agents and their seconds. Checks that they show the same.

    more: arguments of the run. trees: compares the run trees. saves: with a checkpointer. kind: of agent.
    """
    stock, mine = (kind(*given, **made, **({"checkpointer": InMemorySaver()} if saves else {})) for _ in range(2))
    expected, found = ran(stock, entry, **(more or {})), ran(mine, entry, optimized=True, **(more or {}))
    assert seen(found[0]) == seen(expected[0])
    assert not trees or plain(repr(run_tree(found[2]))) == plain(repr(run_tree(expected[2])))
    assert not stock.early
    return stock, mine, expected[1], found[1]


def seen(events: Any) -> Any:
    """Returns a result or events; what concurrent tasks show, whose order is open in stock too, in a fixed order."""
    if isinstance(events, list):
        return sorted(map(repr, plain(events)))
    found = plain(events)
    if isinstance(found, dict) and "__interrupt__" in found:
        found["__interrupt__"] = sorted(found["__interrupt__"])
    return found
