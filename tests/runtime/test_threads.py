"""Worker threads: unbounded, reused, forgotten by forked children, no hindrance to the end of the process."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from fineflow.runtime.loop import workers
from fineflow.runtime.loop.workers import in_thread, run_to_completion
from fineflow.testing.gates import Gate, until

PROBE: contextvars.ContextVar[str] = contextvars.ContextVar("probe", default="nobody")


def run_python(text: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=timeout
    )


async def test_result_exception_and_context() -> None:
    PROBE.set("caller")
    assert await in_thread(PROBE.get) == "caller"
    error = ValueError("the same object")

    def fail() -> None:
        PROBE.set("thread")
        raise error

    with pytest.raises(ValueError) as caught:
        await in_thread(fail)
    assert caught.value is error
    assert PROBE.get() == "caller"


async def test_a_call_may_end_while_a_thread_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may collect an abandoned stream right there, whose end waits for calls under way."""
    monkeypatch.setattr(workers, "_pool", workers._Pool())
    gate, ended, in_time = Gate(), threading.Event(), []
    first = asyncio.create_task(in_thread(gate.wait_sync))
    await gate.arrived(1)
    (worker,) = workers._pool._busy

    class Slow(workers._Worker):
        def __init__(self, pool: workers._Pool) -> None:
            gate.open()
            in_time.append(ended.wait(10.0))
            super().__init__(pool)

    def idle(self: workers._Pool, found: workers._Worker) -> None:
        become_idle(self, found)
        ended.set()

    become_idle = workers._Pool.idle
    monkeypatch.setattr(workers._Pool, "idle", idle)
    monkeypatch.setattr(workers, "_Worker", Slow)
    assert await in_thread(lambda: 1) == 1
    await first
    assert in_time == [True]
    assert worker in workers._pool._idle


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_exceptions_that_end_threads_arrive_too(kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind

    with pytest.raises(BaseException) as caught:
        await in_thread(fail)
    assert type(caught.value) is kind
    assert await in_thread(lambda: 1) == 1


async def test_stop_iteration_becomes_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await in_thread(lambda: next(iter(())))
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_no_number_of_blocked_threads_holds_up_the_next() -> None:
    gate = Gate()
    blocked = [asyncio.ensure_future(in_thread(gate.wait_sync)) for _ in range(120)]
    await gate.arrived(120)
    assert await in_thread(lambda: "through") == "through"
    gate.open()
    await asyncio.gather(*blocked)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> workers._Pool:
    """Threads of this test alone."""
    monkeypatch.setattr(workers, "_pool", workers._Pool())
    return workers._pool


async def test_an_idle_thread_is_used_again(pool: workers._Pool) -> None:
    names = set()
    for _ in range(20):
        names.add(await in_thread(lambda: threading.current_thread().name))
        await until(lambda: bool(pool._idle))  # a result arrives a moment before its thread is idle
    assert len(names) == 1


async def test_cancelling_the_caller_does_not_wait_for_the_thread() -> None:
    gate, ended = Gate(), threading.Event()

    def block() -> None:
        gate.wait_sync()
        ended.set()

    task = asyncio.ensure_future(in_thread(block))
    await gate.arrived()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    gate.open()
    assert await asyncio.to_thread(ended.wait, 10)


async def test_an_idle_thread_keeps_nothing_alive(pool: workers._Pool) -> None:
    class Value:
        pass

    value = Value()
    seen = weakref.ref(value)
    assert await in_thread(lambda held=value: held) is value
    del value
    await until(lambda: bool(pool._idle))
    await asyncio.sleep(0)  # the step of this task that was woken by the result holds it
    gc.collect()
    assert seen() is None


def test_a_loop_that_ended_meanwhile_disturbs_nobody() -> None:
    gate, ended = Gate(), threading.Event()

    def block() -> None:
        gate.wait_sync()
        ended.set()

    async def abandon() -> None:
        task = asyncio.ensure_future(in_thread(block))
        await gate.arrived()
        task.cancel()

    asyncio.run(abandon())
    gate.open()
    assert ended.wait(10)


def test_unused_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.01)
    pool = workers._Pool()
    found: list[threading.Thread] = []
    done = threading.Event()
    pool.submit(lambda: (found.append(threading.current_thread()), done.set()))  # type: ignore[arg-type, func-returns-value]
    assert done.wait(10)
    found[0].join(10)
    assert not found[0].is_alive()
    assert not pool._idle and not pool._busy


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    done = run_python(
        """
        import asyncio, os, warnings
        from fineflow.runtime.loop.workers import in_thread, run_to_completion
        warnings.simplefilter("ignore")  # newer Pythons warn of any fork in a process with threads
        assert asyncio.run(in_thread(os.getpid)) == os.getpid()
        child = os.fork()
        if child == 0:
            os._exit(0 if asyncio.run(asyncio.wait_for(in_thread(os.getpid), 10)) == os.getpid() else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_blocked_thread_does_not_hold_up_the_end_of_the_process() -> None:
    done = run_python(
        """
        import asyncio, threading
        from fineflow.runtime.loop.workers import in_thread, run_to_completion
        begun = threading.Event()
        def block():
            begun.set()
            threading.Event().wait(300)
        async def main():
            task = asyncio.ensure_future(in_thread(block))
            await asyncio.to_thread(begun.wait, 10)
            task.cancel()
        asyncio.run(main())
        """
    )
    assert (done.returncode, done.stderr) == (0, "")  # or TimeoutExpired after 60 s


async def test_what_must_not_be_left_at_work_is_waited_for() -> None:
    gate, ended = Gate(), []

    def work() -> None:
        gate.wait_sync()
        ended.append(True)

    task = asyncio.create_task(run_to_completion(in_thread(work)))
    await gate.arrived()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_and_gives_what_it_gives() -> None:
    assert await run_to_completion(in_thread(lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        await run_to_completion(in_thread(lambda: 1 // 0))
