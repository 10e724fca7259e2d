"""Tools of agents start while the model writes; all that can be seen of the run is what stock shows."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from agent_cases import FOUR, VALUE, Agent, alook_up, both, look_up, ran, seen
from benchmarks.peers.plain import plain
from langchain.agents.middleware import wrap_model_call
from langchain_core.documents import Document
from langchain_core.messages import SystemMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.types import interrupt
from pydantic import BaseModel

import fineflow
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.langchain import FakeRetriever
from fineflow.testing.leaks import settled
from fineflow.testing.recording import AsyncRecordingHandler, run_tree

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
ENTRIES = ("invoke", "ainvoke", "stream", "astream")
MODES: list[Any] = [
    *("values", "updates", "messages", "debug", "tasks", "checkpoints", "custom"),
    ["values", "updates", "messages", "custom", "tasks"],
]


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_turn_of_four_calls_gains(entry: str, awaits: bool) -> None:
    """The first call takes 1 s, as long as the model takes to write two others; these take 0.25 s."""
    if awaits and entry in ("invoke", "stream"):
        pytest.skip("stock calls async tools in async runs alone")
    stock, mine, before, after = both(entry, awaits=awaits)
    assert sorted(mine.called) == sorted(stock.called) == ["bridges", "ferries", "floods", "rivers"]
    assert len(mine.early) >= 3
    assert before / after >= 1.1


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_turn_of_one_call_takes_what_it_takes(entry: str) -> None:
    _, _, before, after = both(entry, FOUR[:1])
    assert after <= 1.005 * before


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("entry", ["stream", "astream"])
def test_streams_are_those_of_stock(entry: str, mode: Any, left_before: Any) -> None:
    stock, mine, _, _ = both(entry, more={"stream_mode": mode, "subgraphs": True})
    assert sorted(mine.called) == sorted(stock.called)
    assert mine.early
    assert not settled(before=left_before)


def test_astream_events_are_those_of_stock() -> None:
    stock, mine = Agent(), Agent()
    found = [
        [{key: part for key, part in each.items() if key not in ("run_id", "parent_ids")} for each in events]
        for events in (ran(stock, "astream_events")[0], ran(mine, "astream_events", optimized=True)[0])
    ]
    assert seen(found[1]) == seen(found[0])


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_surfaces_where_stock_calls_the_tool(entry: str, left_before: Any) -> None:
    """In async runs, what becomes of the calls beside it is a matter of time."""
    sync = entry in ("invoke", "stream")
    stock, mine, _, _ = both(entry, fails="bridges", trees=sync)
    assert not sync or sorted(mine.called) == sorted(stock.called)
    assert "bridges" in mine.early
    assert not settled(before=left_before)


@pytest.mark.parametrize("where", ["tools", "model", "*"])
@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
def test_breakpoints_leave_tools_to_stock(when: str, where: str) -> None:
    stops: Any = {when: "*" if where == "*" else [where]}
    config = {"configurable": {"thread_id": "1"}}
    _, mine, _, _ = both("invoke", saves=True, more={"config": config, **stops})
    assert not mine.early
    if where != "*":
        _, mine, _, _ = both("invoke", saves=True, more={"config": config}, **stops)
        assert not mine.early


def test_a_bound_of_the_user_leaves_tools_to_stock() -> None:
    _, mine, _, _ = both("invoke", more={"config": {"max_concurrency": 2}})
    assert not mine.early


def test_calls_that_middleware_removes_are_dropped(left_before: Any) -> None:
    """Their results serve no later call, even one with the same arguments."""

    @wrap_model_call
    def first_turn_without(request: Any, handler: Any) -> Any:
        found = handler(request)
        if len(request.messages) == 1:
            found.result[0].tool_calls[:] = found.result[0].tool_calls[:1]
        return found

    def tools(agent: Agent) -> Any:
        @tool
        @fineflow.pure
        def look_up(topic: str, reason: str = "") -> str:
            """Looks a topic up in the archive."""
            agent.note(topic)
            return f"{topic}, call {agent.called.count(topic)}"

        return [look_up]

    mine = Agent(FOUR, FOUR[1:2], tools=tools, middleware=[first_turn_without])
    value, _, _ = ran(mine, optimized=True)
    said = [each.content for each in value["messages"] if each.type == "tool"]
    assert said == ["rivers, call 1", "bridges, call 2"]
    assert not settled(before=left_before)


def saver(agent: Agent) -> Any:
    @tool
    def save(text: str) -> str:
        """Saves a text in the archive."""
        agent.note(text)
        return "saved"

    return save


def declared_saver(agent: Agent) -> Any:
    @tool
    @fineflow.effects(writes="the archive")
    def save(text: str) -> str:
        """Saves a text in the archive."""
        agent.note(text)
        return "saved"

    return save


@pytest.mark.parametrize("made", [saver, declared_saver])
def test_nothing_is_read_before_an_earlier_call_may_have_written_it(made: Any) -> None:
    calls = [FOUR[0], ("save", {"text": "a text"}), *FOUR[1:]]
    _, mine, _, _ = both("invoke", calls, tools=lambda agent: [look_up(agent), made(agent)])
    assert mine.early == ["rivers"]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_what_a_later_call_of_the_message_writes_makes_no_earlier_one_read_again(entry: str) -> None:
    calls = [FOUR[0], *[("save", {"text": f"text {number}"}) for number in range(3)]]
    _, mine, _, _ = both(entry, calls, tools=lambda agent: [look_up(agent), declared_saver(agent)])
    assert mine.early == ["rivers"]
    assert sorted(mine.called) == ["rivers", "text 0", "text 1", "text 2"]


def test_an_undeclared_tool_is_left_to_stock() -> None:
    _, mine, _, _ = both("invoke", [("save", {"text": "a"})] * 3, tools=lambda agent: [saver(agent)])
    assert not mine.early


@pytest.mark.parametrize("entry", ["stream", "astream"])
def test_functions_that_need_their_task_are_called_by_stock(entry: str) -> None:
    """A retriever opens a run; a writer, and an interrupt, belong to the task of the call."""
    retriever = FakeRetriever(documents=[Document("a page")], latency=0.1)

    def found(topic: str) -> Any:
        return [retriever, topic]

    def tools(agent: Agent) -> Any:
        @tool
        @fineflow.effects(reads="the archive")
        def searched(topic: str) -> str:
            """Searches."""
            holder, query = found(topic)
            return str(holder.invoke(query))

        @tool
        @fineflow.effects(reads="the archive")
        def noted(topic: str) -> str:
            """Notes."""
            get_stream_writer()({"noted": topic})
            return topic

        @tool
        @fineflow.effects(reads="the archive")
        def asked(topic: str) -> str:
            """Asks."""
            return str(interrupt(topic))

        return [searched, noted, asked, look_up(agent)]

    calls = [("searched", {"topic": "a"}), ("noted", {"topic": "b"}), ("asked", {"topic": "c"}), *FOUR[:2]]
    config = {"configurable": {"thread_id": "1"}}
    more = {"config": config, "stream_mode": ["updates", "custom"]}
    _, mine, _, _ = both(entry, calls, tools=tools, saves=True, more=more)
    assert mine.early == ["rivers", "bridges"]
    assert len(retriever.meter.labels) == 2  # one by each of the two agents


def test_arguments_that_the_tool_does_not_accept_are_stocks_to_refuse() -> None:
    calls = [("look_up", {"topics": 3}), ("unknown", {"x": 1}), *FOUR[:2]]
    stock, mine, _, _ = both("invoke", calls)
    assert sorted(mine.called) == sorted(stock.called)


def graph_of(node: Any, *, router: Any = tools_condition) -> Any:
    """Returns what makes a graph of a model's node and a ``ToolNode``. node: makes the node of a model with tools."""

    def make(model: Any, tools: Any) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("model", node(model.bind_tools(tools)))
        graph.add_node("tools", ToolNode(tools))
        graph.add_node("other", lambda state: {})
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", router, ["tools", "other", END])
        graph.add_edge("tools", "model")
        return graph.compile()

    return make


def asks(model: Any) -> Any:
    def call_model(state: MessagesState) -> Any:
        response = model.invoke([SystemMessage("Be brief."), *state["messages"]])
        return {"messages": [response]}

    return call_model


def asks_async(model: Any) -> Any:
    async def call_model(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return call_model


def writes_then(model: Any) -> Any:
    """Code of the user's that may write what the tools read."""
    notes = list[str]()

    def call_model(state: MessagesState) -> Any:
        response = model.invoke(state["messages"])
        notes.append(response.text)
        return {"messages": [response]}

    return call_model


def several(state: MessagesState) -> Any:
    last: Any = state["messages"][-1]
    return ["tools", "other"] if last.tool_calls else END


@pytest.mark.parametrize(("node", "entry"), [(asks, "invoke"), (asks, "astream"), (asks_async, "ainvoke")])
def test_tools_of_a_graph_with_a_node_that_asks_a_model_start_early(node: Any, entry: str) -> None:
    stock, mine, before, after = both(entry, make=graph_of(node))
    assert sorted(mine.called) == sorted(stock.called)
    assert len(mine.early) >= 3
    assert before / after >= 1.1


@pytest.mark.parametrize("made", [graph_of(writes_then), graph_of(asks, router=several)])
def test_nothing_is_read_before_code_of_the_users_or_beside_it(made: Any) -> None:
    _, mine, _, _ = both("invoke", make=made)
    assert not mine.early


def test_a_pure_tool_starts_early_in_any_graph_with_one_node_at_a_time() -> None:
    def tools(agent: Agent) -> Any:
        @tool
        @fineflow.pure
        def look_up(topic: str, reason: str = "") -> str:
            """Looks a topic up in the archive."""
            agent.note(topic)
            return topic

        return [look_up]

    _, mine, _, _ = both("invoke", make=graph_of(writes_then), tools=tools)
    assert len(mine.early) >= 3


def test_a_cancelled_run_leaves_nothing(left_before: Any) -> None:
    mine = Agent(seconds=30.0, awaits=True)
    graph: Any = fineflow.optimize(mine.graph, strict=True, timeout=3.0)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await graph.ainvoke(VALUE)

    virtual_threads.run(lambda: asyncio.run(main()))
    assert mine.early
    assert not settled(before=left_before)


@tool
def mail(text: str) -> str:
    """Sends a mail."""
    return f"sent {text}"


@pytest.mark.parametrize("settings", [{}, {"interrupt_before": ["tools"]}], ids=["", "breakpoint"])
def test_explain_says_which_tools_start_early(settings: dict[str, Any]) -> None:
    said = " ".join(
        str(fineflow.explain(Agent(tools=lambda agent: [look_up(agent), mail], **settings).graph, graphs=True)).split()
    )
    assert ("calls of look_up start when the model has written them" in said) is not bool(settings)
    assert ("calls of mail start when stock makes them: its effects are not declared" in said) is not bool(settings)
    assert ("the beginning of its next prompt is prefilled" in said) is not bool(settings)
    assert ("the graph has breakpoints" in said) is bool(settings)


def test_a_failure_ends_no_call_beside_it_that_stock_would_have_ended() -> None:
    """It is known early, but a tool that writes for half a second beside it is not cut short."""

    def tools(agent: Agent) -> Any:
        @tool
        @fineflow.effects(reads="the archive")
        async def look_up(topic: str) -> str:
            """Looks a topic up in the archive."""
            agent.note(f"{topic} begins")
            await asyncio.sleep(1.0)
            raise ValueError(topic)

        @tool
        @fineflow.effects(writes="letters")
        async def write(topic: str) -> str:
            """Writes a letter."""
            await asyncio.sleep(0.5)
            agent.note(f"{topic} is written")
            return topic

        return [look_up, write]

    calls = [("look_up", {"topic": "rivers"}), ("write", {"topic": "a letter"}), ("write", {"topic": "another"})]
    stock, mine, _, _ = both("ainvoke", calls, tools=tools)
    assert mine.early == ["rivers begins"]
    assert sorted(mine.called) == sorted(stock.called) == ["a letter is written", "another is written", "rivers begins"]


def test_a_tool_that_an_interrupt_leaves_behind_runs_to_its_end() -> None:
    """In one node for all tools, stock does not cancel the calls beside one that asks; their runs end later."""

    @tool
    async def asks(topic: str) -> str:
        """Asks."""
        return str(interrupt(topic))

    async def run(*, optimized: bool) -> tuple[Any, Any]:
        calls = [("look_up", {"topic": "rivers"}), ("asks", {"topic": "bridges"})]
        agent = Agent(
            calls,
            tools=lambda agent: [alook_up(agent), asks],
            make=partial(create_react_agent, version="v1"),
            checkpointer=InMemorySaver(),
            seconds=5.0,
        )
        graph: Any = fineflow.optimize(agent.graph, strict=True) if optimized else agent.graph
        handler = AsyncRecordingHandler()
        await graph.ainvoke(VALUE, {"callbacks": [handler], "configurable": {"thread_id": "1"}})
        await asyncio.sleep(60.0)  # virtual seconds
        return plain(repr(run_tree(handler))), agent.called

    assert virtual.run(run(optimized=True)).value == virtual.run(run(optimized=False)).value


def test_a_tool_that_asks_a_human_is_called_as_often_as_by_stock() -> None:
    """Also where a helper asks."""

    def confirmed(topic: str) -> str:
        from langgraph.types import interrupt as ask

        return str(ask(topic))

    def tools(agent: Agent) -> Any:
        @tool
        @fineflow.effects(reads="the archive")
        def asks(topic: str) -> str:
            """Asks."""
            agent.note(topic)
            return str(interrupt(topic))

        @tool
        @fineflow.effects(reads="the archive")
        def asks_inside(topic: str) -> str:
            """Asks."""
            agent.note(topic)
            return confirmed(topic)

        return [asks, asks_inside, look_up(agent)]

    calls = [("asks", {"topic": "a"}), ("asks_inside", {"topic": "b"}), *FOUR[:2]]
    more = {"config": {"configurable": {"thread_id": "1"}}}
    stock, mine, _, _ = both("invoke", calls, tools=tools, saves=True, more=more)
    assert mine.early == ["rivers", "bridges"]
    assert sorted(mine.called) == sorted(stock.called)


class Where(BaseModel):
    kinds: list[str]


def sorts(agent: Agent) -> BaseTool:
    @tool
    @fineflow.effects(reads="the archive")
    def look_up(topic: str, where: list[str]) -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        where.sort()
        return f"{topic} {where}"

    return look_up


def takes_out(agent: Agent) -> BaseTool:
    @tool
    @fineflow.effects(reads="the archive")
    async def look_up(topic: str, where: list[str]) -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        return f"{topic} {where.pop()}"

    return look_up


def changes_a_part(agent: Agent) -> BaseTool:
    @tool
    @fineflow.effects(reads="the archive")
    async def look_up(topic: str, where: list[list[str]]) -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        where[0].reverse()
        return f"{topic} {where}"

    return look_up


def changes_a_model(agent: Agent) -> BaseTool:
    @tool
    @fineflow.effects(reads="the archive")
    def look_up(topic: str, where: Where) -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        where.kinds.append("dams")
        return f"{topic} {where}"

    return look_up


@pytest.mark.parametrize("made", [sorts, takes_out, changes_a_part, changes_a_model])
def test_a_tool_that_changes_its_arguments_is_left_to_stock_once_that_is_known(made: Any) -> None:
    """They may be parts of the model's message, in which stock's calls show what they have changed."""
    kinds = ["rivers", "bridges"]
    where: Any = {changes_a_model: {"kinds": kinds}, changes_a_part: [kinds]}.get(made, kinds)
    calls = [("look_up", {"topic": topic, "where": where}) for topic in ("a", "b")]
    stock, mine = (Agent(calls, tools=lambda agent: [made(agent)]) for _ in range(2))
    mine.graph = fineflow.optimize(mine.graph, strict=True)
    extra = []
    for _ in range(3):
        expected, found = ran(stock, "ainvoke")[0], ran(mine, "ainvoke")[0]
        assert seen(found) == seen(expected)
        extra.append(len(mine.called) - len(stock.called))
    assert extra[0] == extra[2] == len(mine.early) > 0
    assert "start when stock makes them" in " ".join(str(fineflow.explain(mine.graph)).split())
