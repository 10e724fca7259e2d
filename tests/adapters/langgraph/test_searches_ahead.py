"""Searches inside tools that nobody has declared start while the model writes; what can be seen is what stock shows."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from agent_cases import VALUE, Agent, both, ran, seen
from benchmarks.peers.plain import plain
from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from search_cases import (
    Changes,
    Tools,
    as_tools,
    asked,
    calls_a_tool_itself,
    chains_as_tools,
    coroutines,
    functions,
    graph_of,
    index_tools,
    offers_a_list,
    offers_each,
    retriever,
    retriever_tools,
    saves,
)

import fineflow
from fineflow.adapters.inner_calls import inner_calls, walk_costs
from fineflow.adapters.langgraph import tools_ahead
from fineflow.adapters.langgraph.tool_runs import ToolRuns
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat
from fineflow.testing.leaks import settled

pytestmark = [
    pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning"),  # as_tool
]
ENTRIES = ("invoke", "ainvoke", "stream", "astream")
MODES: list[Any] = ["values", "messages", "debug", "checkpoints", ["updates", "messages", "custom", "tasks"]]


@pytest.fixture(autouse=True)
def every_run_is_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that fail do not pay, and these tests have many of them, with the same functions."""
    monkeypatch.setattr(inner_calls, "skips", lambda func: False)


@pytest.mark.parametrize("tools", [retriever_tools, functions, coroutines, as_tools, chains_as_tools, index_tools])
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_slow_search_before_a_quick_one_gains(entry: str, tools: Tools, left_before: Any) -> None:
    """The model writes the second call while the first one searches; the second one's search begins early, too."""
    if tools is coroutines and entry in ("invoke", "stream"):
        pytest.skip("stock calls async tools in async runs alone")
    stock, mine, before, after = both(entry, of_tools(tools, "web", "docs"), tools=tools)
    assert sorted(mine.called) == sorted(stock.called)
    assert len(mine.early) == 2
    assert before / after >= 1.3
    assert not settled(before=left_before)


def test_what_a_tool_beside_it_starts_does_not_make_a_search_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second tool's chain begins a thread before stock calls the first tool."""
    begun, holds, starts = threading.Event(), tools_ahead.holds, ToolRuns.starts

    def holds_late(here: Any, number: str) -> bool:
        turn = tools_ahead._turn_of(here)
        if turn is not None and number == next(iter(turn._begun)):
            begun.wait()
        return holds(here, number)

    def starts_first(*args: Any) -> None:
        starts(*args)
        begun.set()

    monkeypatch.setattr(tools_ahead, "holds", holds_late)
    monkeypatch.setattr(ToolRuns, "starts", starts_first)
    stock, mine, before, after = both("invoke", asked("web", "docs"), tools=chains_as_tools)
    assert sorted(mine.called) == sorted(stock.called)
    assert begun.is_set() and len(mine.early) == 2
    assert before / after >= 1.3


@pytest.mark.parametrize("names", [["docs"], ["docs", "docs", "docs"], ["docs", "web"]], ids=len)
def test_no_turn_takes_longer(names: list[str]) -> None:
    """Tools run side by side in stock: what begins early gains nothing if the last call is the slowest."""
    stock, mine, before, after = both("invoke", asked(*names), tools=retriever_tools)
    assert sorted(mine.called) == sorted(stock.called)
    assert after <= 1.002 * before


def of_tools(tools: Tools, *names: str) -> list[Any]:
    """Returns calls with the argument that tools have: LangChain names that of a tool without a schema."""
    return asked(*names, argument="__arg1" if tools is as_tools else "query")


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("entry", ["stream", "astream"])
@pytest.mark.parametrize("tools", [retriever_tools, as_tools, chains_as_tools, index_tools])
def test_streams_are_those_of_stock(tools: Tools, entry: str, mode: Any, left_before: Any) -> None:
    more = {"stream_mode": mode, "subgraphs": True, "config": {"configurable": {"thread_id": "1"}}}
    stock, mine, _, _ = both(entry, of_tools(tools, "web", "docs"), tools=tools, more=more, saves=True)
    assert sorted(mine.called) == sorted(stock.called)
    assert mine.early
    assert not settled(before=left_before)


def test_astream_events_are_those_of_stock() -> None:
    found = []
    for optimized in (False, True):
        agent = Agent(asked("web", "docs"), tools=functions)
        events = ran(agent, "astream_events", optimized=optimized)[0]
        found.append([{k: v for k, v in each.items() if k not in ("run_id", "parent_ids")} for each in events])
        assert bool(agent.early) is optimized
    assert seen(found[1]) == seen(found[0])


@pytest.mark.parametrize("tools", [retriever_tools, functions, as_tools, chains_as_tools])
@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_surfaces_where_stock_searches(entry: str, tools: Tools, left_before: Any) -> None:
    """In async runs, what becomes of the search beside it is a matter of time."""
    calls, sync = of_tools(tools, "web", "docs"), entry in ("invoke", "stream")
    stock, mine, _, _ = both(entry, calls, tools=lambda agent: tools(agent, True), trees=sync)
    assert not sync or sorted(mine.called) == sorted(stock.called)
    assert next(iter(calls[0][1].values())) in mine.early
    assert not settled(before=left_before)


def test_equal_searches_of_two_turns_are_made_twice() -> None:
    stock, mine, before, after = both("invoke", *[asked("web", "docs")] * 2, tools=retriever_tools)
    assert sorted(mine.called) == sorted(stock.called) and len(mine.called) == 4 == len(mine.early)
    assert before / after >= 1.3


@pytest.mark.parametrize("stops", [{"interrupt_before": ["tools"]}, {"interrupt_after": ["model"]}])
def test_breakpoints_leave_searches_to_stock(stops: Any) -> None:
    """A run that stops before its tools, and goes on."""
    seen_by_each = []
    for optimized in (False, True):
        agent = Agent(asked("web", "docs"), tools=retriever_tools, checkpointer=InMemorySaver(), **stops)
        graph: Any = fineflow.optimize(agent.graph, strict=True) if optimized else agent.graph
        config = {"configurable": {"thread_id": "1"}}

        def run(graph: Any = graph, config: Any = config, agent: Agent = agent) -> Any:
            first = graph.invoke(VALUE, config)
            assert not agent.called
            return plain([first, graph.get_state(config).next, graph.invoke(None, config)])

        seen_by_each.append((virtual_threads.run(run).value, sorted(agent.called)))
        assert not agent.early
    assert seen_by_each[0] == seen_by_each[1]


def test_a_run_that_ends_before_its_tools_leaves_no_search(left_before: Any) -> None:
    more = {"config": {"recursion_limit": 1}}
    stock, mine, _, _ = both("ainvoke", asked("web", "docs"), tools=retriever_tools, more=more)
    assert not stock.called and mine.early
    assert not settled(before=left_before)


def test_a_cancelled_run_and_a_closed_stream_leave_no_search(left_before: Any) -> None:
    mine = Agent(asked("web", "docs", "docs"), tools=coroutines)
    graph: Any = fineflow.optimize(mine.graph, strict=True)

    async def closed() -> None:
        async for _ in graph.astream(VALUE, stream_mode="messages"):
            if mine.early:
                break

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await fineflow.optimize(mine.graph, strict=True, timeout=1.2).ainvoke(VALUE)

    virtual_threads.run(lambda: asyncio.run(closed()))
    assert mine.early
    virtual_threads.run(lambda: asyncio.run(cancelled()))
    assert not settled(before=left_before)


def test_nothing_is_searched_before_an_earlier_call_may_have_written() -> None:
    both_tools: Tools = lambda agent: [*retriever_tools(agent), saves(agent)]  # noqa: E731
    _, mine, _, _ = both("invoke", asked("web", "save", "docs"), tools=both_tools)
    assert len(mine.early) == 1


def with_a_model(agent: Agent) -> list[BaseTool]:
    """A tool that searches and asks a model, and one that changes something before it searches."""
    found, read = retriever(agent, "web", 0.9), retriever(agent, "docs", 0.2)
    model: BaseChatModel = FakeChat(prefill=0.1)
    summary = ChatPromptTemplate.from_template("Sum up {text}.") | model | StrOutputParser()
    agent.summed = model.meter.spans  # type: ignore[attr-defined]

    @tool
    def web(query: str) -> str:
        """Searches the web."""
        return str(found.invoke(query)) + summary.invoke({"text": query})

    @tool
    def docs(query: str) -> str:
        """Searches the documents."""
        agent.note("before the search")
        return str(read.invoke(query))

    return [web, docs]


def test_what_comes_before_a_search_comes_first() -> None:
    stock, mine, _, _ = both("invoke", asked("web", "docs"), tools=with_a_model)
    assert sorted(mine.called) == sorted(stock.called)
    assert [each for each in mine.called if each in mine.early] == [asked("web")[0][1]["query"]]
    assert len(mine.summed) == len(stock.summed) == 1


@pytest.mark.parametrize("node", [offers_a_list, offers_each, calls_a_tool_itself])
def test_searches_start_early_behind_a_node_that_only_asks(node: Any) -> None:
    stock, mine, before, after = both("invoke", asked("web", "docs"), tools=retriever_tools, make=graph_of(node))
    assert sorted(mine.called) == sorted(stock.called)
    trusted = node is not calls_a_tool_itself
    assert len(mine.early) == 2 * trusted
    assert before / after >= (1.3 if trusted else 0.998)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_a_search_that_stock_does_not_ask_for_is_dropped(entry: str, left_before: Any) -> None:
    found = []
    for optimized in (False, True):
        suffix = [""]

        def tools(agent: Agent, suffix: Any = suffix) -> list[BaseTool]:
            archive = retriever(agent, "web", 0.1)

            @tool
            def web(query: str) -> str:
                """Searches the web."""
                return str(archive.invoke(query + suffix[0]))

            return [web, *retriever_tools(agent)[1:]]

        agent = Agent(asked("web", "docs"), tools=tools)
        value = ran(agent, entry, optimized=optimized, config={"callbacks": [Changes(suffix)]})[0]
        found.append((plain(value), sorted(agent.called)))
    query = asked("web")[0][1]["query"]
    assert found[1][0] == found[0][0]
    assert found[1][1] == sorted([query, *found[0][1]]) and f"{query} now" in found[0][1]
    assert not settled(before=left_before)


def test_functions_whose_walks_do_not_pay_are_left_to_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_calls, "skips", lambda func: True)
    stock, mine, _, _ = both("invoke", asked("web", "docs"), tools=retriever_tools)
    assert sorted(mine.called) == sorted(stock.called) and not mine.early


def test_runs_that_end_before_their_tools_say_nothing_about_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_costs, "_LITTLE", 0.0)
    monkeypatch.setattr(walk_costs, "_losses", WeakKeyDictionary())
    for _ in range(3):
        ran(Agent(asked("web"), tools=retriever_tools), "ainvoke", optimized=True, config={"recursion_limit": 1})
    assert not walk_costs._losses


def test_explain_says_which_searches_start_early() -> None:
    agent = Agent(asked("web"), tools=lambda agent: [*retriever_tools(agent), saves(agent)])
    said = " ".join(str(fineflow.explain(agent.graph, graphs=True)).split())
    assert "searches and requests in calls of web, docs start when the model has written them" in said
    assert "calls of save start when stock makes them: its effects are not declared" in said


@pytest.mark.parametrize("tools", [retriever_tools, chains_as_tools])
def test_explain_asks_nobody_to_decorate_functions_of_packages(tools: Tools) -> None:
    said = str(fineflow.explain(Agent(asked("web"), tools=tools).graph))
    assert "searches and requests in calls of web" in " ".join(said.split())
    assert "In the way" not in said
