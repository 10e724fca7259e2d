"""Tools that are declared to read, where code of the user's may change what they read: stock alone calls them.

In each case stock's tool reads "new". A model writes its call first, and text for three seconds after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.config import get_config
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from typing_extensions import TypedDict

import fineflow
from fineflow.testing import virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
READS = [("read", '{"key": "x"}'), "the", "answer", "follows"]
user: ContextVar[str] = ContextVar("user", default="nobody")


class Scripted(BaseChatModel):
    """Streams a piece a second: calls (name, JSON) and texts in its first turn, then "done". log: gets "written"."""

    script: list[Any] = READS
    log: Any = None
    streaming: bool = True

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"streaming": True, **given})  # a default does not count as set

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **settings: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **settings: Any
    ) -> Iterator[ChatGenerationChunk]:
        asked = any(isinstance(each, AIMessage) for each in messages)
        for place, piece in enumerate(["done"] if asked else self.script):
            time.sleep(1.0)  # virtual
            if isinstance(piece, str):
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
                continue
            name, args = piece
            call = {"name": name, "args": args, "id": f"call {place}", "index": place, "type": "tool_call_chunk"}
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))
        if self.log is not None:
            self.log.append("written")


class World:
    """An archive that a tool is declared to read."""

    def __init__(self, what: Callable[[], str] | None = None) -> None:
        self.archive = {"x": "old"}
        self.log: list[str] = []

        @tool
        @fineflow.effects(reads="the archive")
        def read(key: str) -> str:
            """Reads in the archive."""
            self.log.append("read")
            return self.archive[key] if what is None else what()

        @tool
        def save(text: str = "") -> str:
            """Saves something in the archive."""
            self.write()
            return "saved"

        self.read: BaseTool = read
        self.save: BaseTool = save

    def write(self) -> None:
        self.archive["x"] = "new"
        self.log.append("write")


def wired(node: Any, world: World, route: Any = tools_condition, schema: Any = MessagesState) -> Any:
    graph = StateGraph(schema)
    graph.add_node("call", node)
    graph.add_node("tools", ToolNode([world.read]))
    graph.add_edge(START, "call")
    graph.add_conditional_edges("call", route, ["tools", END])
    graph.add_edge("tools", "call")
    return graph.compile()


def asks(state: Any) -> Any:
    return {"messages": [Scripted().invoke(state["messages"])]}


def object_that_is_called(world: World) -> Any:
    class Assistant:  # as in LangGraph's tutorials
        def __call__(self, state: Any) -> Any:
            found = asks(state)
            world.write()
            return found

    return wired(Assistant(), world)


def partial_of_a_function(world: World) -> Any:
    def node(model: Any, state: Any) -> Any:
        found = {"messages": [model.invoke(state["messages"])]}
        world.write()
        return found

    return wired(partial(node, Scripted()), world)


def router_that_writes(world: World) -> Any:
    model = Scripted()

    def call(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def route(state: Any) -> Any:
        world.write()
        return "tools" if state["messages"][-1].tool_calls else END

    return wired(call, world, route)


_world: list[World] = []


def reduced(old: Any, new: Any) -> Any:
    _world[-1].write()
    return add_messages(old, new)


class State(TypedDict):
    messages: Annotated[list[Any], reduced]


def reducer_that_writes(world: World) -> Any:
    model = Scripted()
    _world.append(world)

    def call(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    return wired(call, world, schema=State)


def agent_beside_a_node(world: World) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("agent", create_agent(Scripted(), [world.read]))
    graph.add_node("beside", lambda state: time.sleep(2.5) or world.write())  # virtual
    graph.add_edge(START, "agent")
    graph.add_edge(START, "beside")
    return graph.compile()


@pytest.mark.parametrize("saved", ["{}", "", '{"text": "a\nb"}', '{"text": "a"'])
def test_a_call_that_cannot_be_read_yet_may_be_one_that_writes(saved: str) -> None:
    """Stock calls both at the same time, so what is read is open; but nothing is read before the model has written."""
    for optimized in (False, True):
        world = World()
        model = Scripted(script=[("save", saved), *READS])
        model.log = world.log
        agent = create_agent(model, [world.read, world.save])
        assert len(said(fineflow.optimize(agent, strict=True) if optimized else agent)) == 2
        assert world.log[0] == "written" and sorted(world.log) == ["read", "write", "written", "written"]


@pytest.mark.parametrize(
    "made",
    [object_that_is_called, partial_of_a_function, router_that_writes, reducer_that_writes, agent_beside_a_node],
    ids=lambda each: each.__name__,
)
def test_what_may_write_between_or_beside_leaves_reads_to_stock(made: Callable[[World], Any]) -> None:
    assert_equal(made)


def assert_equal(made: Callable[[World], Any]) -> None:
    stock = World()
    expected = said(made(stock))
    mine = World()
    found = said(fineflow.optimize(made(mine), strict=True))
    assert found == expected and expected[-1] == "new"
    assert mine.log == stock.log


def said(graph: Any, config: Any = None) -> list[Any]:
    """Returns what the tools answered."""
    state = virtual_threads.run(lambda: graph.invoke({"messages": [("user", "What is x?")]}, config)).value
    return [each.content for each in state["messages"] if isinstance(each, ToolMessage)]


def of_the_config() -> str:
    return str(get_config()["configurable"].get("user_id")) + str(get_config()["metadata"].get("langgraph_node"))


@pytest.mark.parametrize("what", [of_the_config, user.get], ids=["config", "context variable"])
def test_a_tool_sees_the_config_and_the_context_of_its_run(what: Callable[[], str]) -> None:
    def made() -> Any:
        agent = create_agent(Scripted(), [World(what).read])

        def node(state: MessagesState, config: RunnableConfig) -> Any:
            user.set("alice")
            own = {**config["configurable"], "user_id": "inner"}
            return {
                "messages": agent.invoke({"messages": state["messages"]}, {**config, "configurable": own})["messages"]
            }

        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        return graph.compile()

    config = {"configurable": {"user_id": "outer"}}
    expected = said(made(), config)
    assert said(fineflow.optimize(made(), strict=True), config) == expected
    assert expected == (["innertools"] if what is of_the_config else ["alice"])


def test_a_tool_that_is_another_one_now_is_not_called_early() -> None:
    world = World()
    agent = fineflow.optimize(create_agent(Scripted(), [world.read]), strict=True)
    assert said(agent) == ["old"]
    early = world.log.copy()
    world.read.func = lambda key: "replaced"  # type: ignore[attr-defined]
    assert said(agent) == ["replaced"] and early == ["read"] == world.log
