"""Bounds on requests and their priorities at an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough
from served_chains import VALUE, answered, answers, ask, both, chat, completion, mapped, server, siblings  # noqa: F401

import fineflow
from fineflow.langchain import ChatEngine
from fineflow.runtime import servers
from fineflow.runtime.loop.submission import run_async, run_sync
from fineflow.testing.differential import ALL, differences, observe
from fineflow.testing.gates import Gate
from fineflow.testing.server import OpenAIServer


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("entry", ["ainvoke", "invoke", "astream", "stream"])
def test_deeper_requests_say_so(server: OpenAIServer, entry: str, streaming: bool) -> None:
    fineflow.engine(server.url, priority=True)
    model = chat(server, extra_body={"top_k": 5}, streaming=streaming)
    first = RunnablePassthrough.assign(found=ask("first {question}") | model | StrOutputParser())
    chain = first | ask("second {question} {found}") | model | StrOutputParser()
    seen = [observe(each, entry, VALUE) for each in (chain, fineflow.optimize(chain, strict=True, eager=True))]
    assert not differences(*seen)
    assert [each.body.get("priority") for each in server.received[:2]] == [None, None]
    first_, second = (each.body for each in server.received[2:])
    assert first_["priority"] < second["priority"] < 0
    assert first_["top_k"] == second["top_k"] == 5


@pytest.mark.parametrize("entry", ["ainvoke", "astream"])
def test_a_server_that_refuses_priorities_is_told_none(server: OpenAIServer, entry: str) -> None:
    server.priorities = False
    fineflow.engine(server.url, priority=True)
    chain = answers(chat(server)) | StrOutputParser()
    for _ in range(2):
        seen = [observe(each, entry, VALUE) for each in (chain, fineflow.optimize(chain, strict=True, eager=True))]
        assert not differences(*seen)
    assert [each.ended for each in server.received] == ["answered", "refused", "answered", "answered", "answered"]


@pytest.fixture
def narrow() -> Iterator[OpenAIServer]:
    """Works on one request at a time."""
    with OpenAIServer(answered, slots=1, gate=Gate()) as found:
        yield found
        servers.forget(found.url)


async def test_a_server_serves_the_deepest_first(narrow: OpenAIServer) -> None:
    """One place; three requests wait for it, and the one that came last has most behind it."""
    server, gate = narrow, narrow.gate
    assert gate is not None
    fineflow.engine(server.url, priority=True)
    shallow = ask("shallow {question}") | chat(server)
    deep = ask("deep {question}") | chat(server) | StrOutputParser() | ask("then {x}") | chat(server)
    first = asyncio.create_task(chat(server).ainvoke("first"))
    await gate.arrived()
    chain = fineflow.optimize(RunnableParallel(a=shallow, b=shallow, c=deep), strict=True, eager=True)
    call = asyncio.create_task(chain.ainvoke(VALUE))
    await asyncio.to_thread(server.wait, lambda s: s.waiting == 3)
    gate.open()
    await asyncio.gather(first, call)
    began = sorted(server.received, key=lambda each: each.began or 0)
    assert ["deep" in each.prompt for each in began] == [False, True, False, False, False]


BOUNDED: dict[str, Callable[[OpenAIServer], Runnable[Any, Any]]] = {
    "siblings": siblings,
    "map": mapped,
    "nothing to gain": lambda s: ask("{question}") | chat(s) | StrOutputParser(),
    "streams": lambda s: answers(chat(s, streaming=True)) | StrOutputParser(),
    "completion": completion,
}


@pytest.mark.parametrize("shape", BOUNDED)
def test_same_answers_with_a_bound(server: OpenAIServer, shape: str) -> None:
    fineflow.engine(server.url, max_requests=1)
    for entry in ALL:
        both(server, BOUNDED[shape], entry)


@pytest.mark.parametrize("kind", ["ainvoke", "astream"])
async def test_a_bound_holds_for_all_calls_together(server: OpenAIServer, kind: str) -> None:
    server.gate = Gate()
    fineflow.engine(server.url, max_requests=2)
    chain = fineflow.optimize(siblings(server), strict=True)
    name = server.url.removeprefix("http://").removesuffix("/v1")

    async def call() -> None:
        if kind == "ainvoke":
            await chain.ainvoke(VALUE)
        else:
            assert [chunk async for chunk in chain.astream(VALUE)]

    calls = [asyncio.create_task(call()) for _ in range(3)]
    for arrived in (2, 4, 6):
        await server.gate.arrived(arrived)
        assert len(server.received) == arrived
        if arrived < 6:
            found = fineflow.statistics().engines[name]
            assert (found.running, found.queued) == (2, 6 - arrived)
        server.gate.let(2)
    await asyncio.gather(*calls)
    assert len(server.received) == 6


async def test_a_bound_serves_the_deepest_first(server: OpenAIServer) -> None:
    server.gate = Gate()
    fineflow.engine(server.url, max_requests=1)
    shallow = ask("shallow {question}") | chat(server)
    deep = ask("deep {question}") | chat(server) | StrOutputParser() | ask("then {x}") | chat(server)
    chain = fineflow.optimize(RunnableParallel(a=shallow, b=shallow, c=deep), strict=True)
    call = asyncio.create_task(chain.ainvoke(VALUE))
    for number in range(1, 5):
        await server.gate.arrived(number)
        server.gate.let(1)
    await call
    assert "deep" in "".join(each.prompt for each in server.received[:2])


def test_a_bound_counts_components_too(server: OpenAIServer) -> None:
    server.gate = Gate()
    engine = fineflow.engine(server.url, max_requests=1)
    model = ChatEngine(engine=engine)

    async def both_kinds() -> None:
        calls = [model.ainvoke("one"), fineflow.optimize(ask("{question}") | chat(server)).ainvoke(VALUE)]
        tasks = [asyncio.ensure_future(each) for each in calls]
        for number in (1, 2):
            await server.gate.arrived(number)  # type: ignore[union-attr]
            assert len(server.received) == number
            server.gate.let(1)  # type: ignore[union-attr]
        await asyncio.gather(*tasks)

    asyncio.run(both_kinds())
    run_sync(engine.aclose)


async def test_a_call_from_inside_of_a_stream_does_not_wait_for_itself(server: OpenAIServer) -> None:
    fineflow.engine(server.url, max_requests=1)
    inner = fineflow.optimize(ask("inner {question}") | chat(server), strict=True)
    outer = fineflow.optimize(answers(chat(server)), strict=True)
    async with asyncio.timeout(20):
        count = 0
        async for _ in outer.astream(VALUE):
            count += 1
            if count < 3:
                assert "Answer" in (await inner.ainvoke(VALUE)).content
    assert count > 2


async def test_a_component_from_inside_of_its_own_stream_does_not_either(server: OpenAIServer) -> None:
    model = ChatEngine(engine=fineflow.engine(server.url, max_requests=1))
    async with asyncio.timeout(20):
        async for _ in model.astream("outer"):
            assert "Answer" in (await model.ainvoke("inner")).content
    await run_async(model.engine.aclose)


async def test_a_bound_may_be_lifted(server: OpenAIServer) -> None:
    server.gate = Gate()
    fineflow.engine(server.url, max_requests=1)
    call = asyncio.create_task(fineflow.optimize(siblings(server), strict=True).ainvoke(VALUE))
    await server.gate.arrived()
    fineflow.engine(server.url)
    await server.gate.arrived(2)
    server.gate.open()
    await call
