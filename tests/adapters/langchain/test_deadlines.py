"""``optimize(chain, timeout=...)``: what is raised when the time is over, and that nothing goes on."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faults import in_virtual_time, needs_virtual_threads
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableGenerator, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.langchain import EngineEmbeddings
from fineflow.runtime.events import now
from fineflow.runtime.loop import deadline, workers
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.queues.admission import process_admission
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedBatches
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "q"}
ANSWER = {**QUESTION, "a": "yes", "b": "yes"}
SOON = 0.2  # seconds: long enough to arrive at a gate, which never opens in time
LONG = 60.0


def parts(**more: Any) -> tuple[FakeChat, FakeChat]:
    return FakeChat(default="yes", **more), FakeChat(default="yes", **more)


def chain(first: FakeChat, second: FakeChat, between: Any = None) -> Any:
    ask = ChatPromptTemplate.from_template("{question}")
    begin = RunnablePassthrough.assign(a=ask | first | StrOutputParser())
    end = RunnablePassthrough.assign(b=ask | second | StrOutputParser())
    return begin | end if between is None else begin | between | end


def bounded(*models: FakeChat, seconds: float = SOON) -> Any:
    return fineflow.optimize(chain(*models), strict=True, timeout=seconds)


def call(one: Any, entry: str, question: Any = QUESTION) -> Any:
    """From a plain thread, by any entry point; of a stream the chunks."""

    async def stream() -> list[Any]:
        return [chunk async for chunk in one.astream(question)]

    if entry == "ainvoke":
        return asyncio.run(one.ainvoke(question))
    if entry == "abatch":
        return asyncio.run(one.abatch([question]))
    if entry == "astream":
        return asyncio.run(stream())
    if entry == "stream":
        return list(one.stream(question))
    return one.batch([question]) if entry == "batch" else one.invoke(question)


ENTRIES = ["invoke", "ainvoke", "stream", "astream", "batch", "abatch"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield

    async def turns() -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run_coroutine_threadsafe(turns(), engine_loop()).result(10) == 0
    empty = threading.Event()
    process_admission().when_idle(empty.set)
    assert empty.wait(10), "a call is still under way"


@pytest.mark.parametrize("entry", ENTRIES)
def test_in_time_it_is_the_same_answer(entry: str) -> None:
    found = call(bounded(*parts(), seconds=LONG), entry)
    if "stream" in entry:
        found = {name: "".join(chunk[name] for chunk in found if name in chunk) for name in ANSWER}
    assert found == ([ANSWER] if "batch" in entry else ANSWER)


@pytest.fixture
def late(deadline_passes: Callable[[], None]) -> Callable[[Callable[[], object]], None]:
    """Lets the deadlines of sync calls pass when a function returns, in a thread."""

    def after(arrived: Callable[[], object]) -> None:
        def wait() -> None:
            arrived()
            deadline_passes()

        threading.Thread(target=wait, daemon=True).start()

    return after


class Patient(Gate):
    """Does not give up: a call that waits for it hangs."""

    def wait_sync(self, timeout: float = 1000.0) -> None:
        super().wait_sync(timeout)

    async def wait(self, timeout: float = 1000.0) -> None:
        await super().wait(timeout)


@pytest.mark.parametrize("entry", ["invoke", "batch"])
def test_when_the_time_is_over(entry: str, late: Any) -> None:
    """The caller waits for neither model."""
    gate = Patient()
    models = parts(gate=gate)
    late(lambda: gate.wait_arrived(2))
    with pytest.raises(TimeoutError, match=r"did not end within 60 s"):
        call(bounded(*models, seconds=LONG), entry)
    gate.open()
    for model in models:
        model.meter.wait_idle()
    assert [model.meter.calls for model in models] == [1, 1]  # those that ran ahead, and no further one by stock


@needs_virtual_threads
@pytest.mark.parametrize("entry", ["ainvoke", "stream", "astream", "abatch"])
def test_when_the_time_that_a_loop_measures_is_over(entry: str) -> None:
    gate = Gate()
    models = parts(gate=gate)

    def over() -> float:
        with pytest.raises(TimeoutError, match=r"did not end within 5 s"):
            call(bounded(*models, seconds=5.0), entry)
        return now()

    # Stock's own stream, in asyncio.timeout, waits for the model: 10 s at this gate.
    assert virtual_threads.run(over).value == pytest.approx(5.0)
    gate.open()
    for model in models:
        model.meter.wait_idle()
    assert [model.meter.calls for model in models] == [1, 1]


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_goes_straight_to_stock_is_bounded_too(entry: str) -> None:
    gate = Gate()
    model = FakeChat(default="yes", gate=gate)
    with pytest.raises(TimeoutError, match="did not end"):
        call(fineflow.optimize(model, timeout=SOON), entry, "q")
    gate.open()
    model.meter.wait_idle()


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_timeout_error_of_the_users_own_is_passed_on(entry: str) -> None:
    own = TimeoutError("mine")
    one = bounded(FakeChat(answers=lambda _: own), FakeChat(), seconds=LONG)
    with pytest.raises(TimeoutError, match=r"^mine$"):
        call(one, entry)


def test_the_caller_does_not_wait_for_blocking_code_and_its_thread_goes_no_further(late: Any) -> None:
    began, gate, after = threading.Event(), Patient(), list[str]()

    def block(value: Any) -> Any:
        began.set()
        gate.wait_sync()
        return value

    models = parts()
    behind = RunnableLambda(lambda value: after.append("ran") or value)
    steps = RunnableLambda(block) | RunnablePassthrough.assign(x=behind)
    one = fineflow.optimize(chain(*models, between=steps), strict=True, timeout=LONG)
    late(began.wait)
    with pytest.raises(TimeoutError):
        one.invoke(QUESTION)
    gate.open()
    empty = threading.Event()
    process_admission().when_idle(empty.set)
    assert empty.wait(10) and after == []


def test_calls_inside_of_it_are_stopped(late: Any) -> None:
    gate = Gate()
    models, others = parts(gate=gate), parts()
    inner = fineflow.optimize(chain(*models), strict=True)

    def ask(value: Any) -> Any:
        inner.invoke(QUESTION)
        return value

    one = fineflow.optimize(chain(*others, between=ask), strict=True, timeout=LONG)
    late(lambda: gate.wait_arrived(2))
    with pytest.raises(TimeoutError):
        one.invoke(QUESTION)
    gate.open()
    empty = threading.Event()
    process_admission().when_idle(empty.set)
    assert empty.wait(10)
    assert [model.meter.calls for model in models] == [1, 1]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream"])
def test_what_waits_for_an_engine_leaves_its_queue(entry: str) -> None:
    engine = GatedBatches(gate=Gate())
    embeddings = EngineEmbeddings(engine)
    asked = RunnableLambda(lambda text: embeddings.embed_query(text), lambda text: embeddings.aembed_query(text))
    with pytest.raises(TimeoutError):
        call(fineflow.optimize(asked, timeout=SOON), entry, "q")
    assert batch_queue_of(engine).waiting == 0
    assert engine.gate is not None
    engine.gate.open()
    assert call(fineflow.optimize(asked, timeout=LONG), "invoke", "q")


@in_virtual_time
async def test_a_stream_that_is_read_slowly_is_stopped_in_time() -> None:
    tokens = Gate()
    model = FakeChat(default="yes and no", token_gate=tokens)
    one = fineflow.optimize(model, eager=True, strict=True, timeout=SOON)
    tokens.let()
    stream = one.astream("q")
    assert (await anext(stream)).text == "yes "
    await model.meter.idle()  # by itself: nobody asks for the next one
    with pytest.raises(TimeoutError):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@needs_virtual_threads
def test_a_sync_stream_that_is_read_slowly_is_stopped_in_time() -> None:
    tokens = Gate()
    model = FakeChat(default="yes and no", token_gate=tokens)
    one = fineflow.optimize(ChatPromptTemplate.from_template("{question}") | model, eager=True, timeout=5.0)
    tokens.let()

    def read() -> None:
        stream = one.stream(QUESTION)
        assert next(stream).text == "yes "
        time.sleep(5.5)
        with pytest.raises(TimeoutError):
            next(stream)
        tokens.open()

    virtual_threads.run(read)
    model.meter.wait_idle()
    assert model.meter.calls == 1


AFTER_THE_MODEL = {
    "a parser": lambda model: model | StrOutputParser(),
    "a generator": lambda model: model | StrOutputParser() | RunnableGenerator(lambda chunks: (yield from chunks)),
    "beside another": lambda model: {"a": model | StrOutputParser(), "b": StrOutputParser()} | RunnablePassthrough(),
}


@needs_virtual_threads
@pytest.mark.parametrize("left", ["asked again", "closed", "collected"])
@pytest.mark.parametrize("kind", AFTER_THE_MODEL)
def test_python_reports_nothing_of_a_sync_stream_whose_time_is_over(
    kind: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock's generators read the rest of their input when they are collected."""
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_value))
    tokens = Gate()
    model = FakeChat(default="yes and no", token_gate=tokens)
    first = RunnableLambda(lambda question: f"{question['question']}?")
    one = fineflow.optimize(first | AFTER_THE_MODEL[kind](model), eager=True, timeout=5.0)
    tokens.let()

    def read() -> None:
        stream = one.stream(QUESTION)
        next(stream)
        time.sleep(5.5)
        if left == "asked again":
            with pytest.raises(TimeoutError):
                next(stream)
        elif left == "closed":
            stream.close()
        del stream
        gc.collect()

    virtual_threads.run(read)
    tokens.open()
    model.meter.wait_idle()
    workers._pool.drain(10.0)  # one of them closes the stream
    assert reported == []


@needs_virtual_threads
def test_a_generator_that_others_read_too_is_left_open() -> None:
    closed: list[str] = []

    def numbers(name: str) -> Iterator[int]:
        try:
            yield from range(9)
        finally:
            closed.append(name)

    kept = numbers("kept")

    def pairs(own: Iterator[int]) -> Iterator[tuple[int, int]]:
        for number in own:
            yield number, next(kept)

    def read() -> None:
        stream = deadline.iterate(lambda: pairs(numbers("own")), 5.0)
        assert next(stream) == (0, 0)
        time.sleep(5.5)
        with pytest.raises(TimeoutError):
            next(stream)

    virtual_threads.run(read)
    workers._pool.drain(10.0)
    assert closed == ["own"] and next(kept) == 1


def test_a_bounded_stream_that_is_left_early() -> None:
    model = FakeChat(default="yes and no")
    linear = ChatPromptTemplate.from_template("{question}") | model  # closing stock's `assign` races with its threads
    stream = fineflow.optimize(linear, eager=True, strict=True, timeout=LONG).stream(QUESTION)
    assert next(stream).text == "yes "
    stream.close()
    model.meter.wait_idle()


async def test_cancelling_a_bounded_call_is_no_timeout() -> None:
    gate = Gate()
    task = asyncio.ensure_future(bounded(*parts(gate=gate), seconds=LONG).ainvoke(QUESTION))
    await gate.arrived()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_waiting_for_a_place_counts() -> None:
    gate = Gate()
    one, late = bounded(*parts(gate=gate), seconds=LONG), bounded(*parts())
    with fineflow.Runtime(max_queries=1):
        thread = threading.Thread(target=one.invoke, args=(QUESTION,))
        thread.start()
        gate.wait_arrived()
        with pytest.raises(TimeoutError):
            late.invoke(QUESTION)
        with pytest.raises(TimeoutError):
            asyncio.run(late.ainvoke(QUESTION))
        gate.open()
        thread.join(10)
        assert late.invoke(QUESTION) == ANSWER


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1", True])
def test_no_deadline(seconds: Any) -> None:
    with pytest.raises(ValueError, match="timeout is a number of seconds above 0"):
        fineflow.optimize(chain(*parts()), timeout=seconds)
