"""With ``across_nodes``, failures, retries, cancelled and closed runs are those of stock, and leave nothing."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest
from across_cases import CASES, VALUE, Parts, State, graph_of, optimized, ran
from benchmarks.peers.plain import plain
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate
from fineflow.testing.leaks import settled

SCALE = 0.02
LONGEST = 2  # more seconds than a call takes
CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}
in_virtual_time = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")


def timed(graph: Any, parts: Parts, value: Any = VALUE) -> Any:
    """Runs a graph in virtual time: on a busy machine, too, siblings end in the order of their seconds."""

    def run() -> Any:
        try:
            return ran(graph, parts, CONFIG, value)
        finally:
            time.sleep(LONGEST)  # threads that sleep are woken by this clock, and by no other

    return virtual_threads.run(run).value


def ends(graph: Any, parts: Parts) -> Any:
    """Returns what a run returns or raises, and the states after it."""
    try:
        found = timed(graph, parts)
    except Exception as error:
        found = type(error), str(error), plain(list(getattr(error, "__notes__", ())))
    return found, plain(list(graph.get_state_history(CONFIG)))


def compiled(name: str, parts: Parts, *, fast: bool) -> Any:
    graph = CASES[name](parts).compile(checkpointer=InMemorySaver())
    return optimized(graph) if fast else graph


@in_virtual_time
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize(
    ("name", "fails"),
    [
        *(("siblings", each) for each in ("fast", "slow", "after_fast", "after_slow")),
        *(("support", each) for each in ("kind", "context", "policy", "draft")),
        *(("line", each) for each in ("kind", "context", "policy", "risk", "review")),
    ],
)
def test_a_failing_node_ends_the_run_as_in_stock(name: str, fails: str, awaits: bool, left_before: Any) -> None:
    """At most one request more for each later node: what started before the failure.

    A call that failed ahead fails when stock gets there, so tasks beside it may be cancelled that would have ended.
    """
    found, asked = [], []
    for fast in (False, True):
        parts = Parts(awaits=awaits, fails=fails)
        error, states = ends(compiled(name, parts, fast=fast), parts)
        found.append((error, states if name == "line" else [each[1]["values"] for each in states]))
        asked.append(parts.asked)
    assert found[1] == found[0]
    assert all(len(each) <= 1 for each in asked[1].values())
    assert name != "line" or all(set(asked[0][each]) <= set(asked[1][each]) for each in asked[0])
    assert not settled(before=left_before)


@in_virtual_time
@pytest.mark.parametrize("awaits", [False, True])
def test_a_run_that_failed_goes_on_as_in_stock(awaits: bool, left_before: Any) -> None:
    found = []
    for fast in (False, True):
        parts = Parts(awaits=awaits, fails="slow", times=1)
        graph = compiled("siblings", parts, fast=fast)
        first = ends(graph, parts)
        found.append((first, timed(graph, parts, None), plain(list(graph.get_state_history(CONFIG)))))
    assert found[1] == found[0]
    assert not settled(before=left_before)


@in_virtual_time
@pytest.mark.parametrize("fails", ["kind", "policy"])
@pytest.mark.parametrize("awaits", [False, True])
def test_retries_are_those_of_stock(fails: str, awaits: bool, left_before: Any) -> None:
    found = []
    for fast in (False, True):
        parts, graph = Parts(awaits=awaits, fails=fails, times=1), StateGraph(State)
        for name in ("kind", "policy"):
            policy = RetryPolicy(initial_interval=0.001, retry_on=ConnectionError)
            graph.add_node(f"do_{name}", parts.node(name, 0.4, "question"), retry_policy=policy)
        graph.add_edge(START, "do_kind")
        graph.add_edge("do_kind", "do_policy")
        made = graph.compile(checkpointer=InMemorySaver())
        runs = optimized(made) if fast else made
        found.append((ends(runs, parts), parts.asked))
    assert found[1] == found[0]
    assert not settled(before=left_before)


def waiting(parts: Parts, gate: Gate) -> Any:
    """Two nodes in line whose models wait at a gate; the second one's call starts with the first one's."""
    nodes = {name: parts.node(name, 0.0, "question") for name in ("kind", "policy")}
    for model in parts.models.values():
        model.gate = gate
    return optimized(graph_of(nodes, (START, "kind"), ("kind", "policy")).compile(), eager=True)


def in_flight(parts: Parts) -> int:
    return sum(model.meter.in_flight for model in parts.models.values())


def test_a_cancelled_run_stops_what_is_ahead(left_before: Any) -> None:
    parts = Parts(awaits=True)
    graph = waiting(parts, Gate())

    async def main() -> None:
        running = asyncio.create_task(graph.ainvoke(VALUE))
        while in_flight(parts) < 2:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert in_flight(parts) == 0

    asyncio.run(main())
    assert not settled(before=left_before)


def test_a_run_that_is_late_stops_what_is_ahead(left_before: Any) -> None:
    parts, gate = Parts(), Gate()
    nodes = {name: parts.node(name, 0.0, "question") for name in ("kind", "policy")}
    for model in parts.models.values():
        model.gate = gate
    graph = optimized(graph_of(nodes, (START, "kind"), ("kind", "policy")).compile(), eager=True, timeout=0.3)
    with pytest.raises(TimeoutError):
        graph.invoke(VALUE)
    gate.open()
    assert not settled(before=left_before)


@pytest.mark.parametrize("awaits", [False, True])
def test_a_closed_stream_stops_what_is_ahead(awaits: bool, left_before: Any) -> None:
    parts = Parts(SCALE, awaits=awaits)
    graph = optimized(CASES["siblings"](parts).compile())
    if not awaits:
        stream = graph.stream(VALUE, stream_mode="updates")
        assert len(next(stream)) == 1
        stream.close()
    else:

        async def closed() -> None:
            chunks = graph.astream(VALUE, stream_mode="updates")
            assert len(await anext(chunks)) == 1
            await chunks.aclose()

        asyncio.run(closed())
    assert not settled(before=left_before)


@pytest.mark.parametrize("awaits", [False, True])
def test_a_bound_keeps_it_off(awaits: bool) -> None:
    parts = Parts(SCALE, awaits=awaits)
    graph = optimized(CASES["line"](parts).compile())
    ran(graph, parts, {"max_concurrency": 1})
    spans = sorted((span.start, span.end) for model in parts.models.values() for span in model.meter.spans)
    assert len(spans) == 6
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_concurrent_runs_keep_apart() -> None:
    parts = Parts(SCALE, awaits=True)
    graph = optimized(CASES["support"](parts).compile())
    values = [{"question": "?" * number} for number in range(1, 9)]

    async def main() -> list[Any]:
        return await asyncio.gather(*(graph.ainvoke(value) for value in values))

    stock = Parts(SCALE, awaits=True)
    plain_graph = CASES["support"](stock).compile()
    expected = [ran(plain_graph, stock, None, value) for value in values]
    assert asyncio.run(main()) == expected
    assert {name: sorted(asked) for name, asked in parts.asked.items()} == {
        name: sorted(asked) for name, asked in stock.asked.items()
    }


def test_a_slow_start_of_stock_finds_the_call_done() -> None:
    """The next node's call ends before stock enters the node; stock gets its result, and no second call is made."""
    parts = Parts(SCALE)
    kind = parts.chain("kind", 1.0)

    def do_kind(state: State) -> Any:
        found = {"kind": kind.invoke({"text": state["question"]})}
        return found

    nodes = {"kind": do_kind, "policy": parts.node("policy", 0.4, "question")}
    graph = optimized(graph_of(nodes, (START, "kind"), ("kind", "policy")).compile())
    assert set(ran(graph, parts)) == {"question", "log", "kind", "policy"}
    assert [len(asked) for asked in parts.asked.values()] == [1, 1]
