"""``fineflow.Runtime`` around calls of LangChain objects: limits, tenants, nested calls, statistics, its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

import fineflow
from fineflow import Overloaded, Runtime
from fineflow.runtime.queues.admission import process_admission
from fineflow.testing import virtual
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "q"}
ANSWER = {**QUESTION, "a": "yes", "b": "yes"}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    assert (process_admission().running, process_admission().waiting) == (0, 0)
    assert process_admission().limits == fineflow.runtime.queues.admission.Limits()


def chain(*models: FakeChat) -> Any:
    ask = ChatPromptTemplate.from_template("{question}")
    first, second = models or (FakeChat(default="yes"), FakeChat(default="yes"))
    return RunnablePassthrough.assign(a=ask | first | StrOutputParser()) | RunnablePassthrough.assign(
        b=ask | second | StrOutputParser()
    )


def gated(gate: Gate) -> Any:
    return fineflow.optimize(chain(FakeChat(default="yes", gate=gate), FakeChat(default="yes", gate=gate)), strict=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def queries() -> Any:
    return fineflow.statistics().queries


async def consumed(one: Any, entry: str, config: Any = None) -> Any:
    """The call by any entry point; of a stream the chunks added up."""
    if entry == "ainvoke":
        return await one.ainvoke(QUESTION, config)
    if entry == "abatch":
        return (await one.abatch([QUESTION], config))[0]
    if entry == "astream":
        return _added([chunk async for chunk in one.astream(QUESTION, config)])
    if entry == "stream":
        return _added(await asyncio.to_thread(lambda: list(one.stream(QUESTION, config))))
    if entry == "batch":
        return (await asyncio.to_thread(one.batch, [QUESTION], config))[0]
    return await asyncio.to_thread(one.invoke, QUESTION, config)


def _added(chunks: list[Any]) -> Any:
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    return total


ENTRIES = ["invoke", "ainvoke", "stream", "astream", "batch", "abatch"]


@pytest.mark.parametrize("stock", [False, True])
@pytest.mark.parametrize("entry", ENTRIES)
async def test_no_more_at_once_than_allowed(entry: str, stock: bool) -> None:
    gate = Gate()
    if stock:  # nothing to gain: the call goes to the user's own object, and counts all the same
        one, expected = fineflow.optimize(FakeChat(default="yes", gate=gate)), None
    else:
        one, expected = gated(gate), ANSWER
    question = "q" if stock else QUESTION
    async with Runtime(max_queries=2) as runtime:
        call = consumed if not stock else consumed_text
        tasks = [asyncio.ensure_future(call(one, entry)) for _ in range(5)]
        await until(lambda: process_admission().running + process_admission().waiting == 5)
        found = runtime.statistics().queries
        assert (found.running, found.waiting) == (2, 3), question
        gate.open()
        for answer in await asyncio.gather(*tasks):
            assert answer == expected if expected else answer.text == "yes"
    assert (queries().running, queries().waiting) == (0, 0)


async def consumed_text(one: Any, entry: str) -> Any:
    class Asked:
        """The model itself, asked with a text instead of a dict."""

        def __getattr__(self, name: str) -> Any:
            return lambda given, config=None: getattr(one, name)(["q"] if isinstance(given, list) else "q", config)

    return await consumed(Asked(), entry)


@pytest.mark.parametrize("entry", ENTRIES)
async def test_an_overloaded_runtime_runs_nothing_of_a_call(entry: str) -> None:
    gate = Gate()
    one, other = gated(gate), chain()
    models = [other.steps[0].mapper.steps__["a"].steps[1], other.steps[1].mapper.steps__["b"].steps[1]]
    async with Runtime(max_queries=1, overload="raise"):
        task = asyncio.ensure_future(one.ainvoke(QUESTION))
        await gate.arrived()
        with pytest.raises(Overloaded, match="max_queries=1"):
            await consumed(fineflow.optimize(other, strict=True), entry)
        assert [model.meter.calls for model in models] == [0, 0]
        gate.open()
        assert await task == ANSWER


async def test_beyond_max_waiting() -> None:
    gate, before = Gate(), queries().overloaded
    one = gated(gate)
    async with Runtime(max_queries=1, max_waiting=1):
        tasks = [asyncio.ensure_future(one.ainvoke(QUESTION)) for _ in range(2)]
        await until(lambda: process_admission().waiting == 1)
        with pytest.raises(Overloaded, match="max_waiting=1"):
            await one.ainvoke(QUESTION)
        gate.open()
        assert await asyncio.gather(*tasks) == [ANSWER] * 2
    assert queries().overloaded == before + 1


async def test_a_call_that_gives_up_while_it_waits() -> None:
    gate = Gate()
    one = gated(gate)
    async with Runtime(max_queries=1):
        first, second, third = (asyncio.ensure_future(one.ainvoke(QUESTION)) for _ in range(3))
        await until(lambda: process_admission().waiting == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert process_admission().waiting == 1
        gate.open()
        assert await first == await third == ANSWER


async def test_a_sync_call_in_a_running_loop_is_turned_away_instead_of_blocking_it() -> None:
    gate = Gate()
    one = gated(gate)
    async with Runtime(max_queries=1):
        task = asyncio.ensure_future(one.ainvoke(QUESTION))
        await gate.arrived()
        with pytest.raises(Overloaded, match="await ainvoke"):
            one.invoke(QUESTION)
        gate.open()
        assert await task == ANSWER
        assert one.invoke(QUESTION) == ANSWER  # there is a place: nobody has to wait


def metadata(tenant: str, priority: int = 0) -> Any:
    return {"metadata": {"fineflow_tenant": tenant, "fineflow_priority": priority}}


async def test_tenants_come_in_by_weight_and_priority() -> None:
    gate, order = Gate(), list[str]()
    first = gated(gate)

    def noted(value: Any, config: Any) -> Any:
        order.append(config["metadata"]["name"])
        return value

    one = fineflow.optimize(RunnableLambda(noted) | chain(), strict=True)

    def config(tenant: str, name: str, priority: int = 0) -> Any:
        return {"metadata": {**metadata(tenant, priority)["metadata"], "name": name}}

    await one.ainvoke(QUESTION, config("free", "planned"))  # calls that wait for their plan come in any order
    order.clear()
    async with Runtime(max_queries=1, tenants={"free": 1, "paid": 3}):
        held = asyncio.ensure_future(first.ainvoke(QUESTION, metadata("free")))
        await gate.arrived()
        calls = [("free", f"free {i}", 0) for i in range(6)] + [("paid", f"paid {i}", int(i == 5)) for i in range(6)]
        tasks = [asyncio.ensure_future(one.ainvoke(QUESTION, config(*call))) for call in calls]
        await until(lambda: process_admission().waiting == len(calls))
        gate.open()
        await asyncio.gather(held, *tasks)
    assert order[:4].count("paid 5") == 1  # the first of its tenant
    assert [name.split()[0] for name in order[:8]].count("paid") == 6
    assert [name for name in order if "free" in name] == [f"free {i}" for i in range(6)]


@pytest.mark.parametrize("key", ["fineflow_tenant", "fineflow_priority"])
def test_metadata_of_no_use(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        fineflow.optimize(chain(), strict=True).invoke(QUESTION, {"metadata": {key: 1.5}})


def test_engines_hear_of_tenants_and_priorities() -> None:
    from fineflow.runtime.queues import request_context

    seen = []

    def look(value: Any) -> Any:
        seen.append((request_context.tenant.get(), request_context.weight.get(), request_context.priority.get()))
        return value

    one = fineflow.optimize(chain() | RunnableLambda(look) | chain(), strict=True)
    with Runtime(tenants={"paid": 4}):
        one.invoke(QUESTION, metadata("paid", 2))
        list(one.stream(QUESTION, metadata("other", -1)))
        asyncio.run(one.ainvoke(QUESTION, metadata("paid")))
        one.invoke(QUESTION)
    assert seen == [("paid", 4.0, 2), ("other", 1.0, -1), ("paid", 4.0, 0), ("", 1.0, 0)]
    assert request_context.tenant.get() == ""


# Calls inside of calls.


def nested(depth: int) -> Any:
    """Calls itself to that depth, in turn from a thread, from a coroutine and from a stream that is being read."""
    if depth == 0:
        return fineflow.optimize(chain(), strict=True)
    inner = nested(depth - 1)

    def step(value: Any) -> Any:
        if depth % 3 == 0:
            asyncio.run(inner.ainvoke(QUESTION))
        elif depth % 3 == 1:
            inner.invoke(QUESTION)
        else:
            list(inner.stream(QUESTION))
        return value

    async def astep(value: Any) -> Any:
        if depth % 2:
            await inner.ainvoke(QUESTION)
        else:
            await asyncio.to_thread(inner.invoke, QUESTION)
        return value

    return fineflow.optimize(chain() | RunnableLambda(step, astep) | chain(), strict=True)


def test_two_hundred_threads_nest_three_levels_with_a_few_places() -> None:
    one, before = nested(3), queries().finished

    def call(number: int) -> Any:
        return one.invoke(QUESTION) if number % 2 else asyncio.run(one.ainvoke(QUESTION))

    with Runtime(max_queries=3), ThreadPoolExecutor(200) as pool:
        calls = [pool.submit(call, i) for i in range(200)]
        assert [each.result(240) for each in calls] == [ANSWER] * 200
    assert queries().finished == before + 200  # what is inside of a call is part of it


def test_a_batch_inside_a_call_needs_no_places_of_its_own() -> None:
    inner = fineflow.optimize(chain(), strict=True)
    one = fineflow.optimize(
        chain() | RunnableLambda(lambda value: [value, *inner.batch([QUESTION] * 8)][0]) | chain(), strict=True
    )
    with Runtime(max_queries=1):
        assert one.batch([QUESTION] * 4) == [ANSWER] * 4


def test_the_reader_of_a_stream_is_not_inside_of_its_call() -> None:
    one = fineflow.optimize(chain(), strict=True)
    with Runtime(max_queries=2):
        before = queries().finished
        for _ in one.stream(QUESTION):
            one.invoke(QUESTION)
            assert queries().running == 1
        assert queries().finished > before + 2


# Its life.


def test_one_at_a_time() -> None:
    with Runtime(max_queries=1), pytest.raises(RuntimeError, match="one at a time"), Runtime():
        raise AssertionError("a second one was opened")
    with Runtime(max_queries=2) as runtime:
        assert process_admission().limits.max_queries == 2
    runtime.close()  # a second time does nothing


def test_closing_turns_away_who_waits_and_waits_for_who_runs() -> None:
    gate = Gate()
    one = gated(gate)
    runtime = Runtime(max_queries=1).start()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(one.invoke, QUESTION)
        gate.wait_arrived()
        second = pool.submit(one.invoke, QUESTION)
        wait_until(lambda: process_admission().waiting == 1)
        with pytest.raises(TimeoutError, match="1 calls are still running"):
            runtime.close(timeout=0.01)
        with pytest.raises(Overloaded, match="closed"):
            second.result(10)
        gate.open()
        assert first.result(10) == ANSWER
        door_empty = threading.Event()
        process_admission().when_idle(door_empty.set)
        assert door_empty.wait(10)


async def test_closing_from_a_coroutine() -> None:
    gate = Gate()
    one = gated(gate)
    runtime = Runtime(max_queries=1).start()
    task = asyncio.ensure_future(one.ainvoke(QUESTION))
    await gate.arrived()
    with pytest.raises(RuntimeError, match="await aclose"):
        runtime.close()
    closing = asyncio.ensure_future(runtime.aclose())
    await until(lambda: process_admission().limits.max_queries is None)
    assert not closing.done()
    gate.open()
    assert await task == ANSWER
    await closing


def test_closing_inside_a_call_is_refused() -> None:
    runtime = Runtime()

    def close(value: Any) -> Any:
        with pytest.raises(RuntimeError, match="inside a call"):
            runtime.close()
        with pytest.raises(RuntimeError, match="inside a call"):
            fineflow.shutdown()
        return value

    with runtime:
        assert fineflow.optimize(chain() | close | chain(), strict=True).invoke(QUESTION) == ANSWER


def test_an_exception_in_the_block_is_not_kept_waiting() -> None:
    gate = Gate()
    one = gated(gate)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError), Runtime(max_queries=1):
            call = pool.submit(one.invoke, QUESTION)
            gate.wait_arrived()
            raise ZeroDivisionError
        gate.open()
        assert call.result(10) == ANSWER


def runtime_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fineflow-runtime"]


def test_after_a_shutdown_the_next_use_starts_anew() -> None:
    one = fineflow.optimize(chain(), strict=True)
    assert one.invoke(QUESTION) == ANSWER
    assert len(runtime_threads()) == 1
    fineflow.shutdown()
    assert runtime_threads() == []
    fineflow.shutdown()
    assert one.invoke(QUESTION) == asyncio.run(one.ainvoke(QUESTION)) == ANSWER
    assert len(runtime_threads()) == 1


def test_a_shutdown_in_the_middle_of_a_call_leaves_it_to_stock() -> None:
    gate = Gate()
    one = gated(gate)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(one.invoke, QUESTION)
        gate.wait_arrived(2)
        fineflow.shutdown(timeout=0.01)
        gate.open()
        assert call.result(20) == ANSWER


# What is told.


async def test_queries_are_counted_by_how_they_end() -> None:
    gate = Gate()
    failing = fineflow.optimize(chain(FakeChat(answers={"q": ValueError("no")}), FakeChat()), strict=True)
    one, before = gated(gate), queries()
    with pytest.raises(ValueError, match="no"):
        await failing.ainvoke(QUESTION)
    task = asyncio.ensure_future(one.ainvoke(QUESTION))
    await gate.arrived()
    assert queries().running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    await one.ainvoke(QUESTION)
    now = queries()
    assert (now.finished, now.failed, now.cancelled) == (before.finished + 1, before.failed + 1, before.cancelled + 1)
    assert now.run_seconds > before.run_seconds


def test_log_events_have_fields(caplog: pytest.LogCaptureFixture) -> None:
    one = fineflow.optimize(chain(), strict=True)
    one.invoke(QUESTION)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger="fineflow"):
        one.invoke(QUESTION, metadata("acme"))
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "call"]
    assert (told.tenant, told.error, told.name) == ("acme", None, "fineflow") and told.ran > 0


def test_a_runtime_closes_in_virtual_time() -> None:
    async def use() -> bool:
        async with Runtime(max_queries=1):
            found = process_admission().limits.max_queries
        return found == 1 and process_admission().limits.max_queries is None

    assert virtual.run(use()).value
