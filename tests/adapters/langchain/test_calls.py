"""Calls end cleanly, in whatever way they end, on every combination of loops and threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gated_app import ANSWER, QUESTION, App, gated, no_task_is_left, within
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat


async def no_task_of_ours_is_left() -> None:
    """Where stock itself leaves tasks behind: its own streams with ``assign`` do, when nobody reads them to the end."""
    for _ in range(10):
        await asyncio.sleep(0)
    codes = [getattr(task.get_coro(), "cr_code", None) for task in asyncio.all_tasks() - {asyncio.current_task()}]
    assert [code.co_qualname for code in codes if code and "fineflow/" in code.co_filename.partition("src/")[2]] == []


def no_engine_task_is_left() -> None:
    async def turns() -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run_coroutine_threadsafe(turns(), engine_loop()).result(10) == 0


# Cancelling.


async def test_cancelled_before_it_began() -> None:
    app, before = App(), asyncio.all_tasks()
    chain = app.optimized()
    task = asyncio.ensure_future(chain.ainvoke(QUESTION))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [meter.calls for meter in app.meters] == [0, 0, 0]
    await no_task_is_left(before)
    assert await chain.ainvoke(QUESTION) == ANSWER


@pytest.mark.parametrize("where", ["kind", "answer", "store"])
async def test_cancelled_while_a_component_works(where: str) -> None:
    gate, before = Gate(), asyncio.all_tasks()
    app = gated(**{where: gate})
    chain = app.optimized()
    task = asyncio.ensure_future(chain.ainvoke(QUESTION))
    await gate.arrived()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [meter.in_flight for meter in app.meters] == [0, 0, 0]
    await no_task_is_left(before)
    app.open()
    assert await chain.ainvoke(QUESTION) == ANSWER


async def test_a_timeout_ends_everything() -> None:
    gate, before = Gate(), asyncio.all_tasks()
    app = gated(kind=gate, answer=gate, store=gate)
    chain = app.optimized()

    async def expire(limit: asyncio.Timeout) -> None:
        await gate.arrived(3)
        limit.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
            group.create_task(expire(limit))
            await chain.ainvoke(QUESTION)
    assert gate.arrivals == 3
    assert [meter.in_flight for meter in app.meters] == [0, 0, 0]
    await no_task_is_left(before)


async def test_cancelled_half_way_through_a_stream() -> None:
    app, tokens, seen = App(), Gate(), []
    app.answer.token_gate = tokens
    chain = app.optimized()

    async def consume() -> None:
        async for chunk in chain.astream(QUESTION):
            seen.append(chunk)

    task = asyncio.ensure_future(consume())
    tokens.let(1)
    await tokens.arrived(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.answer.meter.in_flight == 0
    await no_task_of_ours_is_left()
    app.answer.token_gate = None
    assert [chunk["answer"] async for chunk in chain.astream(QUESTION) if "answer" in chunk] == [
        "Paris ",
        "of ",
        "course",
    ]


# Streams that nobody reads to the end.


def _astream(chain: Any) -> AsyncIterator[Any]:
    return chain.astream(QUESTION)


def _astream_events(chain: Any) -> AsyncIterator[Any]:
    return chain.astream_events(QUESTION, version="v2")


@pytest.mark.parametrize("entry", [_astream, _astream_events])
@pytest.mark.parametrize("how", ["closed", "abandoned"])
async def test_an_async_stream_that_is_left_early(entry: Callable[[Any], AsyncIterator[Any]], how: str) -> None:
    app, tokens = App(), Gate()
    app.answer.token_gate = tokens
    chain = app.optimized()
    stream = entry(chain)
    async for _ in stream:
        break
    await tokens.arrived()
    if how == "closed":
        await stream.aclose()  # type: ignore[attr-defined]
        assert app.answer.meter.in_flight == 0
    del stream
    gc.collect()
    await app.idle()
    await no_task_of_ours_is_left()


@pytest.mark.parametrize("how", ["closed", "abandoned"])
def test_a_stream_that_is_left_early(how: str) -> None:
    tokens = Gate()
    model = FakeChat(default="Paris of course", token_gate=tokens)
    # Stock's parsers, and `assign`, read their input to its end when they are closed; the model is closed at once.
    chain = ChatPromptTemplate.from_template("{question}") | model
    stream = fineflow.optimize(chain, eager=True, strict=True).stream(QUESTION)
    tokens.let()
    assert next(stream).text == "Paris "
    tokens.wait_arrived(2)
    if how == "closed":
        within(8, stream.close)  # does not wait for the thread, which nothing can interrupt
    del stream
    gc.collect()
    no_engine_task_is_left()
    tokens.let()  # the thread meets the end when the component yields
    model.meter.wait_idle()
    assert (model.meter.calls, tokens.arrivals) == (1, 2)


def test_a_stream_that_nobody_reads_starts_nothing() -> None:
    app = App()
    stream = app.optimized().stream(QUESTION)
    del stream
    assert [meter.calls for meter in app.meters] == [0, 0, 0]


# Exceptions.


async def test_an_exception_of_stock_cancels_what_runs_ahead() -> None:
    gate, before = Gate(), asyncio.all_tasks()
    app = gated(answer=gate)
    app.parser = JsonOutputParser()
    with pytest.raises(ValueError, match="Invalid json output: fact"):
        await app.optimized().ainvoke(QUESTION)
    assert (app.answer.meter.calls, app.answer.meter.in_flight) == (1, 0)
    await no_task_is_left(before)


def test_an_exception_of_stock_does_not_wait_for_threads() -> None:
    gate = Gate()
    app = gated(answer=gate)
    app.parser = JsonOutputParser()
    with pytest.raises(ValueError, match="Invalid json output: fact"):
        within(8, lambda: app.optimized().invoke(QUESTION))  # the gate itself would give up after 10 s
    no_engine_task_is_left()
    gate.open()
    app.wait_idle()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_component_that_ends_the_process_does_not_end_the_runtime(kind: type[BaseException]) -> None:
    def leave(_: Any) -> str:
        raise kind("bye")

    app = App()
    app.answer = FakeChat(answers=leave)
    with pytest.raises(kind):
        within(10, lambda: app.optimized().invoke(QUESTION))
    app.answer = FakeChat(default="Paris of course")
    assert within(10, lambda: app.optimized().invoke(QUESTION)) == ANSWER


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_of_the_calling_thread() -> None:
    gate = Gate()
    model = FakeChat(default="Paris", gate=gate)
    # Without `assign`: stock waits for the threads in which it runs the branches of that.
    chain = ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()
    optimized: Any = fineflow.optimize(chain, eager=True, strict=True)
    main = threading.main_thread().ident
    assert main is not None and threading.current_thread() is threading.main_thread()

    def interrupt() -> None:
        gate.wait_arrived()
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        optimized.invoke(QUESTION)
    helper.join()
    assert model.meter.in_flight == 1  # nobody has opened the gate: the call did not wait for its thread
    no_engine_task_is_left()
    gate.open()
    model.meter.wait_idle()
    assert optimized.invoke(QUESTION) == "Paris"


# Loops and threads.


def test_two_event_loops_one_after_the_other() -> None:
    app = App()
    chain = app.optimized()
    for _ in range(2):
        assert asyncio.run(chain.ainvoke(QUESTION)) == ANSWER
    assert chain.invoke(QUESTION) == ANSWER
    assert asyncio.run(chain.abatch([QUESTION] * 3)) == [ANSWER] * 3


async def test_a_sync_call_inside_a_running_loop() -> None:
    assert App().optimized().invoke(QUESTION) == ANSWER
    assert len(list(App().optimized().stream(QUESTION))) > 1


def nested(depth: int) -> Any:
    """A chain whose first step calls another optimized chain, by a sync and by an async function in turn."""
    app = App()
    if depth == 0:
        return app.optimized()
    inner = nested(depth - 1)

    def step(value: Any) -> Any:
        inner.invoke(QUESTION) if depth % 2 else asyncio.run(inner.ainvoke(QUESTION))
        return value

    async def astep(value: Any) -> Any:
        await inner.ainvoke(QUESTION) if depth % 2 else await asyncio.to_thread(inner.invoke, QUESTION)
        return value

    return fineflow.optimize(app.chain() | RunnableLambda(step, astep) | app.chain(), strict=True)


def test_fifty_threads_nest_three_chains_each() -> None:
    chain = nested(3)

    def one(number: int) -> Any:
        return chain.invoke(QUESTION) if number % 2 else asyncio.run(chain.ainvoke(QUESTION))

    def all_of_them() -> list[Any]:
        with ThreadPoolExecutor(50) as pool:
            return list(pool.map(one, range(50)))

    assert within(120, all_of_them) == [ANSWER] * 50
    no_engine_task_is_left()


def test_a_component_that_itself_calls_an_optimized_chain() -> None:
    inner = App().optimized()

    def ask_inner(_: Any) -> str:
        return str(inner.invoke(QUESTION)["answer"])

    app = App()
    app.kind = app.answer = FakeChat(answers=ask_inner)
    chain = app.optimized()
    config = {"max_concurrency": 1}
    assert within(20, lambda: chain.invoke(QUESTION, config))["kind"] == "Paris of course"
    assert within(20, lambda: chain.batch([QUESTION] * 4, config))[3]["kind"] == "Paris of course"


# Memory.


class Marked(dict):  # type: ignore[type-arg]
    """A value whose end can be seen."""


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "failing"])
def test_nothing_of_a_finished_call_is_kept(entry: str) -> None:
    app = App()
    seen: list[weakref.ref[Any]] = []

    def watch(value: dict[str, Any]) -> dict[str, Any]:
        marked = Marked(value)
        seen.append(weakref.ref(marked))
        if entry == "failing":
            raise ValueError(marked)
        return marked

    chain = fineflow.optimize(app.chain() | watch | app.chain(), strict=True)
    with contextlib.suppress(ValueError):
        if entry == "ainvoke":
            asyncio.run(chain.ainvoke(QUESTION))
        elif entry == "stream":
            list(chain.stream(QUESTION))
        else:
            chain.invoke(QUESTION)
    no_engine_task_is_left()
    gc.collect()
    assert seen and [ref() for ref in seen] == [None]
    assert chain._self_last.claimed >= 3


def test_an_optimized_object_can_be_collected() -> None:
    app = App()
    chain = app.optimized()
    chain.invoke(QUESTION)
    asyncio.run(chain.ainvoke(QUESTION))
    kept = [
        weakref.ref(chain),
        weakref.ref(chain.__wrapped__),
        weakref.ref(chain._self_plans[True]),
        weakref.ref(app.kind),
    ]
    no_engine_task_is_left()
    del chain, app
    gc.collect()
    assert [ref() for ref in kept] == [None] * 4


def test_what_is_kept_of_a_call_is_small() -> None:
    app = App(answer=FakeChat(answers=lambda _: ValueError("x" * 10_000)))
    chain = app.optimized()
    with pytest.raises(ValueError):
        chain.invoke(QUESTION)
    (surprise,) = {text for text in chain._self_last.surprises if "answer" in text}
    assert len(surprise) <= 200
