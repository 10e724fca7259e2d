"""What can be seen of a run of an optimized graph is what stock shows: events, runs, states, component calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from benchmarks.peers.plain import plain
from graph_cases import VALUE, App
from langgraph.types import Command

import fineflow
from fineflow.testing.leaks import left, settled
from fineflow.testing.recording import RecordingHandler, run_tree

MODES: list[Any] = [
    *("values", "updates", "messages", "debug", "tasks", "checkpoints", "custom"),
    ["values", "updates", "messages", "custom", "tasks"],
]
SECONDS = 0.004  # longer than what is quick, so that calls run ahead


def optimized(graph: Any) -> Any:
    return fineflow.optimize(graph, strict=True, eager=True)


def config(**more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": "1"}, **more}


def ran(app: App, entry: str, given: Any = VALUE, *, at: Any = None, **more: Any) -> Any:
    """Returns what a run yields or returns. at: the config of an earlier state."""
    where = at or config()

    async def awaited(runs: Any) -> Any:
        if entry == "ainvoke":
            return await runs.ainvoke(given, where, **more)
        if entry == "astream_events":
            return [each async for each in runs.astream_events(given, where, version="v2", **more)]
        return [each async for each in runs.astream(given, where, **more)]

    runs = app.graph
    if entry == "invoke":
        found = runs.invoke(given, where, **more)
    elif entry == "stream":
        found = list(runs.stream(given, where, **more))
    else:
        found = asyncio.run(awaited(runs))
    return found


def both(**made: Any) -> tuple[App, App]:
    stock, mine = App(SECONDS, **made), App(SECONDS, **made)
    mine.graph = optimized(mine.graph)
    return stock, mine


def settled_order(events: Any) -> Any:
    """Returns events with those of concurrent tasks, whose order is open in stock too, in a fixed order."""
    return sorted(map(repr, plain(events)))


def states(graph: Any) -> Any:
    return plain(list(graph.get_state_history(config(), limit=50)))


@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(("entry", "awaits"), [("stream", False), ("astream", False), ("astream", True)])
def test_streams_are_those_of_stock(entry: str, awaits: bool, mode: Any, subgraphs: bool) -> None:
    before = left()
    stock, mine = both(awaits=awaits)
    expected = ran(stock, entry, stream_mode=mode, subgraphs=subgraphs)
    found = ran(mine, entry, stream_mode=mode, subgraphs=subgraphs)
    assert settled_order(found) == settled_order(expected)
    assert states(mine.graph) == states(stock.graph)
    assert mine.asked == stock.asked
    assert not settled(before=before)


def test_events_of_a_graph_without_concurrent_tasks_keep_their_order() -> None:
    stock, mine = both()
    for app in (stock, mine):
        del app.retriever.documents[2:]  # one of the others is kept, so there is one note
    expected, found = (ran(app, "stream", stream_mode="debug") for app in (stock, mine))
    assert plain(found) == plain(expected)
    assert sum(each["payload"].get("name") == "note" for each in expected) == 2  # its task and its result


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_results_and_run_trees_are_those_of_stock(entry: str) -> None:
    trees = []
    results = []
    for app in both():
        handler = RecordingHandler()
        runs = app.graph
        given: Any = config(callbacks=[handler], tags=["mine"], metadata={"user": "me"})
        found = runs.invoke(VALUE, given) if entry == "invoke" else asyncio.run(runs.ainvoke(VALUE, given))
        results.append(plain(found))
        trees.append(plain(repr(run_tree(handler))))
    assert results[1] == results[0]
    assert trees[1] == trees[0]


@pytest.mark.parametrize("awaits", [False, True])
def test_astream_events_are_those_of_stock(awaits: bool) -> None:
    stock, mine = both(awaits=awaits)
    expected, found = ran(stock, "astream_events"), ran(mine, "astream_events")
    assert settled_order(_named(found)) == settled_order(_named(expected))


def _named(events: Any) -> Any:
    """Returns events without the ids of runs, which are new, and of their parents."""
    return [{key: part for key, part in each.items() if key not in ("run_id", "parent_ids")} for each in events]


@pytest.mark.parametrize(("entry", "awaits"), [("stream", False), ("astream", True)])
def test_an_interrupted_run_resumes_as_in_stock(entry: str, awaits: bool) -> None:
    stock, mine = both(awaits=awaits, pauses=True)
    for given in (VALUE, Command(resume="go")):
        expected = ran(stock, entry, given)
        found = ran(mine, entry, given)
        assert settled_order(found) == settled_order(expected)
        assert plain(mine.graph.get_state(config())) == plain(stock.graph.get_state(config()))
    assert mine.asked == stock.asked
    fork = [next(s for s in app.graph.get_state_history(config()) if s.next == ("grade",)) for app in (stock, mine)]
    again = [ran(app, entry, None, at=at.config) for app, at in zip((stock, mine), fork, strict=True)]
    assert settled_order(again[1]) == settled_order(again[0])


def test_what_does_not_run_a_graph_is_the_users_own() -> None:
    app = App()
    fast = optimized(app.graph)
    assert fast.nodes is app.graph.nodes
    assert fast.checkpointer is app.graph.checkpointer
    assert fast.get_graph().draw_mermaid() == app.graph.get_graph().draw_mermaid()
    assert dict(fast.get_subgraphs()).keys() == {"finish"}
    assert isinstance(fast, type(app.graph))
    fast.invoke(VALUE, config())
    assert app.graph.get_state(config()) == fast.get_state(config())


def test_batches_run_each_input() -> None:
    app, other = both()
    given = [config(), {"configurable": {"thread_id": "2"}}]
    assert plain(other.graph.batch([VALUE] * 2, given)) == plain(app.graph.batch([VALUE] * 2, given))
    assert other.asked == app.asked
