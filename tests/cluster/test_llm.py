"""LLMs on the cluster: streams, cancellation, room, and prompts ahead of stock."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from desk import answer
from langchain_core.prompts import ChatPromptTemplate
from machine import until

import fineflow
from fineflow.backends.emulated import EmulatedLLM
from fineflow.errors import RequestError
from fineflow.langchain import ChatEngine
from fineflow.protocols import Sampling
from fineflow.runtime import events
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.responses import listener


def engine(machine: Any) -> Any:
    return machine.engine("llm", "llm", capacity=40)


async def test_pieces_arrive_while_the_engine_still_writes(machine: Any) -> None:
    chat, found = ChatEngine(engine=engine(machine)), []
    alone = [piece.content for piece in ChatEngine(engine=EmulatedLLM(answer)).stream("Where?")]
    machine.close("llm words")
    async with aclosing(chat.astream("Where?")) as pieces:
        async for piece in pieces:
            if not found:
                assert machine.told("llm ended") == []
                machine.open("llm words")
            found.append(piece.content)
    assert found == alone
    assert len(found) > 4


async def test_a_stream_that_is_closed_ends_on_the_engine(machine: Any) -> None:
    llm = engine(machine)
    machine.close("llm words")
    async with aclosing(llm.generate(llm.encode("Where?"), Sampling())) as deltas:
        await anext(deltas)
    assert machine.told("llm ended", 1) == ["Where?"]
    assert machine.requests("llm") == 0
    assert llm_queue_of(llm).waiting == 0


async def test_a_cancelled_call_leaves_the_line_of_the_engine(machine: Any) -> None:
    llm = engine(machine)
    machine.close("llm")
    running = machine.others[0].begin("ask", "llm", {"capacity": 40}, "first")
    machine.told("llm", 1)
    call = asyncio.create_task(ChatEngine(engine=llm).ainvoke("word " * 30))
    await asyncio.to_thread(machine.queued, "llm", 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    machine.queued("llm", 0)
    machine.open("llm")
    assert running.result(60).startswith("<user>")
    assert len(machine.told("llm")) == 1


def test_a_request_that_does_not_fit_waits_for_that_of_another_process(machine: Any) -> None:
    engine(machine)
    machine.close("llm")
    first = machine.others[0].begin("ask", "llm", {"capacity": 40}, "first")
    machine.told("llm", 1)
    second = machine.others[1].begin("ask", "llm", {"capacity": 40}, "second")
    machine.queued("llm", 1)
    assert len(machine.told("llm")) == 1
    machine.open("llm")
    assert "first" in first.result(60)
    assert "second" in second.result(60)


def test_an_optimized_chain_answers_as_stock_does(machine: Any) -> None:
    chain = ChatPromptTemplate.from_template("Where is {place}?") | ChatEngine(engine=engine(machine))
    alone = ChatPromptTemplate.from_template("Where is {place}?") | ChatEngine(engine=EmulatedLLM(answer))
    rag = fineflow.optimize(chain)
    assert rag.invoke({"place": "Paris"}).content == alone.invoke({"place": "Paris"}).content
    pieces = [piece.content for piece in rag.stream({"place": "Rome"})]
    assert pieces == [piece.content for piece in alone.stream({"place": "Rome"})]


def test_prefixes_of_tenants_stay_apart(machine: Any) -> None:
    chat = ChatEngine(engine=engine(machine))
    with fineflow.identity(tenant="large"):
        chat.invoke("Where?")
    chat.invoke("Where?")
    assert machine.told("llm salts") == ["large", ""]


async def test_refused_requests_raise_the_engine_s_own_error(machine: Any) -> None:
    llm = engine(machine)
    with pytest.raises(RequestError, match="cannot follow regex"):
        async for _ in llm.generate(llm.encode("Where?"), Sampling(regex="a+")):
            pass


async def test_measurements_and_timelines_come_with_the_answer(machine: Any) -> None:
    llm = engine(machine)
    observed: list[Any] = []

    class Meter:
        def observe(self, engine: str, op: Any, size: Any, seconds: float, *, together: float = 1.0) -> None:
            observed.append((engine, op.value))

        def observe_size(self, engine: str, op: Any, name: str, size: float) -> None:
            observed.append((engine, op.value))

    meter = Meter()
    events.meters.append(meter)
    try:
        with events.record() as found:
            async for _ in llm.generate(llm.encode("Where?"), Sampling()):
                pass
    finally:
        events.meters.remove(meter)
    assert ("llm", "decode") in observed
    (interval,) = found
    assert (interval.lane, interval.label) == ("llm", "decode")
    assert interval.tokens is not None
    assert interval.tokens.decoded > 4


async def test_the_engine_learns_when_stock_wants_a_request_that_goes_ahead(machine: Any) -> None:
    llm = engine(machine)
    machine.close("llm")
    ahead = HeldBack(None)
    token = listener.set(ahead)
    try:
        stream = asyncio.create_task(_text(llm))
    finally:
        listener.reset(token)
    await asyncio.to_thread(machine.told, "llm", 1)
    assert await _ahead(machine) == [False]
    ahead.want()
    await asyncio.to_thread(until, lambda: asyncio.run(_ahead(machine)) == [True])
    machine.open("llm")
    assert "four words" in await stream


async def _ahead(machine: Any) -> list[bool]:
    found: list[bool] = await machine.host("llm").wanted.remote()
    return found


async def _text(llm: Any) -> str:
    return "".join([delta.text async for delta in llm.generate(llm.encode("Where?"), Sampling())])
