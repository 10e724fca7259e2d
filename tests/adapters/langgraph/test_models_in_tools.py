"""Requests to models inside of tools start while the agent's model writes; what can be seen is what stock shows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_cases import VALUE, Agent, both, ran, seen
from asking_cases import ASKING, OneEngine, chains, coroutines, functions, of_the_engine, search_first, service
from benchmarks.peers.plain import plain
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from search_cases import Changes, Tools, asked, saves

import fineflow
from fineflow.adapters.inner_calls import inner_calls
from fineflow.testing import virtual_threads
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


@pytest.mark.parametrize("tools", ASKING)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_slow_request_before_a_quick_one_gains(entry: str, tools: Tools, left_before: Any) -> None:
    if tools is coroutines and entry in ("invoke", "stream"):
        pytest.skip("stock calls async tools in async runs alone")
    stock, mine, before, after = both(entry, asked("web", "docs"), tools=tools)
    assert sorted(mine.called) == sorted(stock.called) and len(mine.called) == 2
    assert len(mine.early) == 2
    assert before / after >= 1.3
    assert not settled(before=left_before)


@pytest.mark.parametrize(("names", "gain"), [(["web", "docs"], 1.13), (["web"] * 4, 1.4), (["web"], 0.998)], ids=repr)
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_tools_that_ask_the_engine_that_writes_their_calls(entry: str, names: list[str], gain: float) -> None:
    stock, mine, before, after = both(entry, asked(*names), tools=of_the_engine, kind=OneEngine)
    assert sorted(mine.prompts) == sorted(stock.prompts) and len(mine.prompts) == len(names)
    assert before / after >= gain


def test_no_turn_of_equal_requests_takes_longer() -> None:
    stock, mine, before, after = both("invoke", asked("docs", "docs", "docs"), tools=functions)
    assert sorted(mine.called) == sorted(stock.called)
    assert after <= 1.002 * before


def test_a_model_on_the_cores_that_write_is_asked_by_stock() -> None:
    found = []
    for optimized in (False, True):
        agent = OneEngine(asked("web", "docs"), tools=of_the_engine)
        agent.engine.device = "cpu"  # type: ignore[attr-defined]
        value, seconds, _ = ran(agent, optimized=optimized)
        found.append((plain(value), seconds, sorted(agent.prompts)))
    assert found[1][::2] == found[0][::2]
    assert found[1][1] == pytest.approx(found[0][1], rel=0.002)


def test_a_request_about_what_a_search_finds_starts_when_that_is_there() -> None:
    stock, mine, before, after = both("invoke", asked("web", "docs"), tools=search_first)
    assert sorted(mine.called) == sorted(stock.called) and len(mine.called) == 3
    assert len(mine.early) == 3
    assert before / after >= 1.2


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("entry", ["stream", "astream"])
@pytest.mark.parametrize("tools", [functions, chains])
def test_streams_are_those_of_stock(tools: Tools, entry: str, mode: Any, left_before: Any) -> None:
    more = {"stream_mode": mode, "subgraphs": True, "config": {"configurable": {"thread_id": "1"}}}
    stock, mine, _, _ = both(entry, asked("web", "docs"), tools=tools, more=more, saves=True)
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


@pytest.mark.parametrize("tools", ASKING)
@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_surfaces_where_stock_asks(entry: str, tools: Tools, left_before: Any) -> None:
    """In async runs, what becomes of the request beside it is a matter of time."""
    sync = entry in ("invoke", "stream")
    if tools is coroutines and sync:
        pytest.skip("stock calls async tools in async runs alone")
    stock, mine, _, _ = both(entry, asked("web", "docs"), tools=lambda agent: tools(agent, True), trees=sync)
    assert not sync or sorted(mine.called) == sorted(stock.called)
    assert mine.early
    assert not settled(before=left_before)


@pytest.mark.parametrize("stops", [{"interrupt_before": ["tools"]}, {"interrupt_after": ["model"]}])
def test_breakpoints_leave_requests_to_stock(stops: Any) -> None:
    seen_by_each = []
    for optimized in (False, True):
        agent = Agent(asked("web", "docs"), tools=functions, checkpointer=InMemorySaver(), **stops)
        graph: Any = fineflow.optimize(agent.graph, strict=True) if optimized else agent.graph
        config = {"configurable": {"thread_id": "1"}}

        def run(graph: Any = graph, config: Any = config, agent: Agent = agent) -> Any:
            first = graph.invoke(VALUE, config)
            assert not agent.called
            return plain([first, graph.get_state(config).next, graph.invoke(None, config)])

        seen_by_each.append((virtual_threads.run(run).value, sorted(agent.called)))
        assert not agent.early
    assert seen_by_each[0] == seen_by_each[1]


@pytest.mark.parametrize("limited", ["recursion", "closed", "late"])
def test_what_stock_does_not_ask_for_is_ended(limited: str, left_before: Any) -> None:
    """A run that ends before its tools, a stream that is closed, a timeout."""
    if limited == "recursion":
        stock, mine, _, _ = both("ainvoke", asked("web", "docs"), tools=chains, more={"config": {"recursion_limit": 1}})
        assert not stock.called
    else:
        mine = Agent(asked("web", "docs", "docs"), tools=coroutines)
        late = {"timeout": 1.2} if limited == "late" else {}
        graph: Any = fineflow.optimize(mine.graph, strict=True, **late)

        async def closed() -> None:
            async for _ in graph.astream(VALUE, stream_mode="messages"):
                if mine.early and not late:
                    break

        async def run() -> None:
            if late:
                with pytest.raises(TimeoutError):
                    await closed()
            else:
                await closed()

        virtual_threads.run(lambda: asyncio.run(run()))
    assert mine.early
    assert not settled(before=left_before)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_an_engine_is_asked_whatever_an_earlier_call_may_write(entry: str) -> None:
    """Its answer depends on the prompt alone."""
    tools: Tools = lambda agent: [saves(agent), *of_the_engine(agent)]  # noqa: E731
    calls = [*asked("save"), *asked("web", "docs")]
    stock, mine, before, after = both(entry, calls, tools=tools, kind=OneEngine)
    assert sorted(mine.prompts) == sorted(stock.prompts) and len(mine.prompts) == 2
    assert mine.called == ["saved"] and not mine.early
    assert before / after >= 1.1


def test_no_service_is_asked_before_an_earlier_call_may_have_written() -> None:
    both_tools: Tools = lambda agent: [*functions(agent), saves(agent)]  # noqa: E731
    _, mine, _, _ = both("invoke", asked("web", "save", "docs"), tools=both_tools)
    assert len(mine.early) == 1


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_a_request_that_stock_does_not_make_is_dropped(entry: str, left_before: Any) -> None:
    found = []
    for optimized in (False, True):
        suffix = [""]

        def tools(agent: Agent, suffix: Any = suffix) -> list[BaseTool]:
            model = service(agent, 0.1)

            @tool
            def web(query: str) -> str:
                """Sums up."""
                return str(model.invoke(f"Sum up {query}{suffix[0]}").content)

            return [web, *functions(agent)[1:]]

        agent = Agent(asked("web", "docs"), tools=tools)
        value = ran(agent, entry, optimized=optimized, config={"callbacks": [Changes(suffix)]})[0]
        found.append((plain(value), len(agent.called), len(agent.early)))
    assert found[1][0] == found[0][0]
    assert found[0][1:] == (2, 0) and found[1][1:] == (3, 2)
    assert not settled(before=left_before)
