"""The runtime's loop: results, items, exceptions and cancellations across threads and event loops."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fineflow.runtime.loop.iteration import iterate_async, iterate_sync
from fineflow.runtime.loop.runtime_loop import Runtime, engine_loop, on_engine_loop
from fineflow.runtime.loop.submission import run_async, run_sync

WAIT = 10  # seconds; only a failing test waits this long

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")


class Hang:
    """Work that starts, waits for ever, and says how it ended; its clean-up takes a further turn of the loop."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.ended: list[str] = []

    async def __call__(self) -> None:
        try:
            self.started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended.append("cancelled")


class Source:
    """An endless stream that says when it was closed and how many items it has produced."""

    def __init__(self) -> None:
        self.produced = 0
        self.closed = threading.Event()

    async def __call__(self) -> AsyncIterator[int]:
        try:
            while True:
                self.produced += 1
                yield self.produced
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            self.closed.set()


async def failing() -> int:
    raise error


async def failing_items() -> AsyncIterator[int]:
    yield 1
    raise error


error = ValueError("the work failed")


async def where() -> tuple[str, bool]:
    return var.get(), on_engine_loop()


def test_work_runs_on_one_loop_for_every_thread() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with ThreadPoolExecutor(8) as pool:
        loops = set(pool.map(lambda _: run_sync(loop), range(50)))
    assert loops == {engine_loop()}
    assert not on_engine_loop()


def test_context_variables_of_the_caller_are_visible() -> None:
    async def item() -> AsyncIterator[str]:
        yield var.get()

    token = var.set("caller")
    try:
        assert run_sync(where) == ("caller", True)
        assert asyncio.run(run_async(where)) == ("caller", True)
        items = iterate_sync(item)
    finally:
        var.reset(token)
    assert list(items) == ["caller"]


async def test_context_variables_are_visible_from_another_loop() -> None:
    async def item() -> AsyncIterator[str]:
        yield var.get()

    var.set("task")
    assert await run_async(where) == ("task", True)
    assert [i async for i in iterate_async(item)] == ["task"]


def test_exceptions_arrive_as_the_same_object_with_their_traceback() -> None:
    with pytest.raises(ValueError) as caught:
        run_sync(failing)
    assert caught.value is error
    assert "failing" in [entry.name for entry in caught.traceback]


async def test_exceptions_arrive_in_coroutines_and_iterations() -> None:
    with pytest.raises(ValueError) as caught:
        await run_async(failing)
    assert caught.value is error
    found: list[int] = []
    with pytest.raises(ValueError) as caught:
        async for item in iterate_async(failing_items):
            found.append(item)
    assert caught.value is error and found == [1]


def test_exceptions_arrive_in_plain_iterations_after_the_items() -> None:
    found: list[int] = []
    with pytest.raises(ValueError) as caught:
        for item in iterate_sync(failing_items):
            found.append(item)
    assert caught.value is error and found == [1]


def test_a_keyboard_interrupt_inside_the_work_leaves_the_loop_alive() -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sync(interrupted)
    assert run_sync(where)[1]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_wait_cancels_the_work() -> None:
    hang = Hang()
    main = threading.get_ident()

    def interrupt() -> None:
        assert hang.started.wait(WAIT)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_sync(hang)
    thread.join(WAIT)
    assert hang.ended == ["cancelled"]


def test_cancelling_the_caller_cancels_the_work_and_waits_for_it() -> None:
    hang = Hang()

    async def main() -> None:
        task = asyncio.create_task(run_async(hang))
        await asyncio.to_thread(hang.started.wait, WAIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert hang.ended == ["cancelled"]

    asyncio.run(main())


def test_an_error_of_a_cancelled_work_is_not_swallowed() -> None:
    started = threading.Event()

    async def stubborn() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    async def main() -> None:
        task = asyncio.create_task(run_async(stubborn))
        await asyncio.to_thread(started.wait, WAIT)
        task.cancel()
        with pytest.raises(ValueError) as caught:
            await task
        assert caught.value is error

    asyncio.run(main())


def test_blocking_calls_on_the_runtime_thread_are_refused() -> None:
    async def block() -> None:
        run_sync(where)

    async def block_on_items() -> None:
        list(iterate_sync(failing_items))

    with pytest.raises(RuntimeError, match="run_async"):
        run_sync(block)
    with pytest.raises(RuntimeError, match="iterate_async"):
        run_sync(block_on_items)


def test_nested_calls_on_the_runtime_loop_are_direct() -> None:
    async def three() -> AsyncIterator[int]:
        for i in range(3):
            yield i

    async def outer() -> tuple[tuple[str, bool], list[int]]:
        return await run_async(where), [i async for i in iterate_async(three)]

    assert run_sync(outer) == (("unset", True), [0, 1, 2])


@pytest.mark.parametrize("buffer", [0, 1, 3])
def test_items_keep_their_order(buffer: int) -> None:
    async def numbers() -> AsyncIterator[int]:
        for i in range(100):
            yield i

    async def collect() -> list[int]:
        return [i async for i in iterate_async(numbers, buffer=buffer)]

    assert list(iterate_sync(numbers, buffer=buffer)) == list(range(100))
    assert asyncio.run(collect()) == list(range(100))


def test_a_bounded_buffer_holds_the_source_back() -> None:
    source = Source()
    items = iterate_sync(source, buffer=2)
    assert next(items) == 1

    async def turns() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    run_sync(turns)
    assert source.produced <= 4  # one taken, two in the buffer, one in the hand of the pump
    items.close()
    assert source.closed.is_set()


def test_nothing_runs_before_the_first_item_is_asked_for() -> None:
    source = Source()
    items = iterate_sync(source)
    run_sync(where)
    assert source.produced == 0
    items.close()


def test_abandoning_the_iterator_closes_the_source() -> None:
    source = Source()
    items = iterate_sync(source, buffer=1)
    next(items)
    del items
    gc.collect()
    assert source.closed.wait(WAIT)


async def test_closing_an_async_iteration_closes_the_source() -> None:
    source = Source()
    items = iterate_async(source, buffer=1)
    assert await anext(items) == 1
    await items.aclose()
    assert source.closed.is_set()


async def test_cancelling_an_async_iteration_closes_the_source() -> None:
    closed = threading.Event()
    first = asyncio.Event()

    async def stuck() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def consume() -> None:
        async for _ in iterate_async(stuck):
            first.set()

    task = asyncio.create_task(consume())
    await first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


def test_a_consumer_loop_that_ends_closes_the_source() -> None:
    source = Source()

    async def take_one() -> int:
        return await anext(iterate_async(source, buffer=1))

    assert asyncio.run(take_one()) == 1
    assert source.closed.wait(WAIT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    run_sync(where)
    child = os.fork()
    if child == 0:
        os._exit(0 if run_sync(where)[1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_interpreter_exits_cleanly_with_work_under_way() -> None:
    program = """
import asyncio, threading
from fineflow.runtime.loop.submission import run_sync
started = threading.Event()
async def hang():
    try:
        started.set()
        await asyncio.Event().wait()
    finally:
        print("cancelled", flush=True)
def wait():
    try:
        run_sync(hang)
    except BaseException:
        pass
threading.Thread(target=wait, daemon=True).start()
assert started.wait(10)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "cancelled", "")


def test_the_loop_keeps_nothing_of_the_call_that_starts_it() -> None:
    class Value:
        pass

    held: contextvars.ContextVar[Value] = contextvars.ContextVar("held")

    def starts() -> tuple[Runtime, weakref.ref[Value]]:
        value = Value()
        held.set(value)
        return Runtime(), weakref.ref(value)

    runtime, value = contextvars.copy_context().run(starts)
    gc.collect()
    assert value() is None
    runtime.stop()
