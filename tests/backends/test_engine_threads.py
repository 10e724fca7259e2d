"""The threads of engines: at most so many, alive as long as the process, waited for at its exit."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import CancelledError

import pytest

from fineflow.backends.engine_threads import EngineThreads
from fineflow.testing.gates import Gate

WAIT = 10.0


def run_python(text: str) -> tuple[int, str, str]:
    head = "import atexit, threading\nfrom fineflow.backends.engine_threads import EngineThreads\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(text)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_results_and_exceptions_arrive_from_the_one_thread() -> None:
    threads, error = EngineThreads(1, "fineflow-test"), ValueError("x")

    def fail() -> None:
        raise error

    names = {threads.submit(lambda: threading.current_thread().name).result(WAIT) for _ in range(5)}
    assert names == {"fineflow-test_0"}
    assert threads.submit(fail).exception(WAIT) is error
    assert threads.submit(divmod, 7, 2).result(WAIT) == (3, 1)


def test_no_more_threads_than_allowed() -> None:
    threads, gate = EngineThreads(3, "fineflow-test"), Gate()
    calls = [threads.submit(gate.wait_sync) for _ in range(5)]
    gate.wait_arrived(3)
    assert gate.arrivals == 3 and len(threads._threads) == 3
    gate.open()
    for call in calls:
        call.result(WAIT)
    assert gate.arrivals == 5


def test_a_call_that_was_cancelled_before_its_turn_is_not_made() -> None:
    threads, gate, made = EngineThreads(1, "fineflow-test"), Gate(), []
    first = threads.submit(gate.wait_sync)
    second = threads.submit(made.append, 1)
    assert second.cancel()
    gate.open()
    first.result(WAIT)
    assert threads.submit(lambda: list(made)).result(WAIT) == []
    with pytest.raises(CancelledError):
        second.result()


def test_shutdown_ends_the_threads_after_the_calls_submitted_so_far() -> None:
    threads, gate, made = EngineThreads(1, "fineflow-test"), Gate(), []
    first = threads.submit(gate.wait_sync)
    threads.submit(made.append, 1)
    (thread,) = threads._threads
    threads.shutdown(wait=False)
    assert not first.done() and thread.is_alive()
    gate.open()
    thread.join(WAIT)
    assert not thread.is_alive() and made == [1]
    with pytest.raises(RuntimeError, match="'fineflow-test' have been shut down"):
        threads.submit(gate.wait_sync)


def test_shutdown_may_leave_out_the_calls_that_wait() -> None:
    threads, gate, made = EngineThreads(1, "fineflow-test"), Gate(), []
    threads.submit(gate.wait_sync)
    threads.submit(made.append, 1)
    gate.wait_arrived()
    threads.shutdown(wait=False, cancel_futures=True)
    gate.open()
    threads.shutdown()
    assert not threads._threads[0].is_alive() and made == []


def test_an_object_that_nobody_holds_ends_its_threads() -> None:
    threads = EngineThreads(1, "fineflow-test")
    value = threading.Event()
    seen = weakref.ref(value)
    threads.submit(value.set).result(WAIT)
    del value
    threads.submit(int).result(WAIT)
    gc.collect()
    assert seen() is None  # an idle thread keeps nothing alive
    (thread,) = threads._threads
    del threads
    gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_they_serve_threads_that_outlive_the_main_thread() -> None:
    program = """
    threads = EngineThreads(1, "fineflow-test")
    threads.submit(int).result()
    def late():
        threading.main_thread().join()
        print(threads.submit(divmod, 7, 2).result())
    threading.Thread(target=late).start()
    """
    assert run_python(program) == (0, "(3, 1)\n", "")


def test_exit_waits_for_the_call_under_way_and_makes_no_other() -> None:
    program = """
    threads, begun, exiting = EngineThreads(1, "fineflow-test"), threading.Event(), threading.Event()
    def work():
        begun.set()
        exiting.wait()
        for _ in range(1000): threading.Event().wait(0.0001)
        print("ended")
    threads.submit(work)
    threads.submit(print, "not this")
    atexit.register(exiting.set)
    begun.wait()
    """
    assert run_python(program) == (0, "ended\n", "")
