"""The third version of streaming, ``(a)stream_events(version="v3")``: calls in nodes run ahead, events are stock's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from benchmarks.peers.plain import plain
from graph_cases import VALUE, App
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat, FakeRetriever
from fineflow.testing.leaks import left, settled
from fineflow.testing.recording import RecordingHandler, run_tree

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
KINDS = pytest.mark.parametrize(("awaits", "entry"), [(False, "sync"), (False, "async"), (True, "async")])


class Telling(FakeChat):
    """A model whose own stream reports its tokens, as those of providers do."""

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for chunk in super()._stream(messages, stop, **kwargs):
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for chunk in super()._astream(messages, stop, **kwargs):
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def optimized(graph: Any, **options: Any) -> Any:
    return fineflow.optimize(graph, strict=True, trust="interfaces", **options)


def streamed(graph: Any, entry: str, given: Any, handler: Any = None, **more: Any) -> tuple[list[Any], Any]:
    """Returns the events of a run, and its last state."""
    config: Any = {"configurable": {"thread_id": "1"}, "callbacks": [] if handler is None else [handler]}

    async def awaited() -> tuple[list[Any], Any]:
        run = await graph.astream_events(given, config, version="v3", **more)
        return [each async for each in run], await run.output()

    if entry == "async":
        return asyncio.run(awaited())
    run = graph.stream_events(given, config, version="v3", **more)
    return list(run), run.output


def seen(events: list[Any]) -> list[str]:
    """Returns events without their times and numbers; those of concurrent tasks come in any order."""
    return sorted(repr(plain({key: part for key, part in each.items() if key != "seq"})) for each in events)


@pytest.mark.parametrize("kind", [FakeChat, Telling])
@KINDS
def test_events_runs_and_requests_are_those_of_stock(awaits: bool, entry: str, kind: type[FakeChat]) -> None:
    before, found = left(), []
    for way in (lambda graph: graph, optimized):
        app, handler = App(1.0, awaits=awaits, kind=kind), RecordingHandler()
        run = partial(streamed, way(app.graph), entry, VALUE, handler)
        ran = virtual_threads.run(run)
        events, state = ran.value
        found.append((seen(events), plain(state), plain(repr(run_tree(handler))), app.asked))
        found[-1] += (ran.seconds,)
    assert found[1][:-1] == found[0][:-1]
    assert found[0][-1] / found[1][-1] >= 1.5
    assert not settled(before=before)


class State(TypedDict, total=False):
    question: str
    texts: list[str]


@pytest.mark.parametrize("entry", ["sync", "async"])
def test_a_step_behind_a_model_gets_what_stock_makes_of_its_events(entry: str) -> None:
    """The content of a message that was streamed by events is a list of blocks, which the search is made of."""
    found = []
    for way in (lambda graph: graph, partial(optimized, eager=True)):
        llm, retriever = FakeChat(answers={}, prefill=1.0), FakeRetriever(documents=[Document("x")], latency=1.0)
        search = llm | RunnableLambda(lambda message: f"{message.content}") | retriever

        def node(state: State, search: Any = search) -> State:
            one, two = search.invoke("a " + state["question"]), search.invoke("b " + state["question"])
            return {"texts": [each.page_content for each in (*one, *two)]}

        made = StateGraph(State)
        made.add_node("node", node)
        made.add_edge(START, "node")
        made.add_edge("node", END)
        events, state = virtual_threads.run(partial(streamed, way(made.compile()), entry, {"question": "q"})).value
        found.append((seen(events), state, sorted(retriever.meter.labels)))
    assert found[1] == found[0]
    assert "'type': 'text'" in found[0][-1][0]


@KINDS
def test_a_run_that_is_left_ends_its_calls(awaits: bool, entry: str) -> None:
    before, app = left(), App(1.0, awaits=awaits)
    graph, config = optimized(app.graph), {"configurable": {"thread_id": "1"}}

    async def aborted() -> None:
        async with await graph.astream_events(VALUE, config, version="v3") as run:
            await anext(aiter(run))

    def call() -> None:
        if entry == "async":
            asyncio.run(aborted())
            return
        run = graph.stream_events(VALUE, config, version="v3")
        next(iter(run))
        run.abort()

    virtual_threads.run(call)
    assert not settled(before=before)


def test_a_timeout_bounds_it() -> None:
    graph = optimized(App(1.0).graph, timeout=2.5)
    with pytest.raises(TimeoutError, match="the call did not end"):
        virtual_threads.run(lambda: streamed(graph, "sync", VALUE))


def test_arguments_that_it_refuses_are_refused() -> None:
    graph = optimized(App().graph)
    with pytest.raises(TypeError, match="stream_mode"):
        graph.stream_events(VALUE, version="v3", stream_mode="values")
    with pytest.raises(NotImplementedError):
        graph.stream_events(VALUE, version="v2")
