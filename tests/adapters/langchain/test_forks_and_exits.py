"""Calls in a process that exits or forks."""

from __future__ import annotations

import signal
import sys
import textwrap

import pytest

import programs

# The process.

APP = """
import asyncio, os, sys, threading, warnings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
import fineflow
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
gate = Gate()
def chain(**more):
    ask = ChatPromptTemplate.from_template("{question}")
    step = lambda: ask | FakeChat(default="yes", **more) | StrOutputParser()
    return fineflow.optimize(RunnablePassthrough.assign(a=step()) | RunnablePassthrough.assign(b=step()), strict=True)
def linear(**more):
    # Without RunnableParallel, whose threads the interpreter waits for, and which starts none when it is exiting.
    return fineflow.optimize(chain(**more).steps[0].mapper.steps__["a"], eager=True, strict=True)
Q = {"question": "q"}
"""


def run_python(text: str, timeout: float = 60.0) -> tuple[int, str]:
    done = programs.run("-c", APP + textwrap.dedent(text), timeout=timeout, whole_exit=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("call", ["one.invoke(Q)", "list(one.stream(Q))", "asyncio.run(one.ainvoke(Q))"])
def test_the_interpreter_exits_in_the_middle_of_a_call(call: str) -> None:
    text = f"""
    one = linear(gate=gate)
    threading.Thread(target=lambda: {call}, daemon=True).start()
    gate.wait_arrived()
    """
    assert run_python(text) == (0, "")


def test_a_call_while_the_interpreter_exits_runs_as_stock() -> None:
    text = """
    import atexit
    one = linear()
    def late():
        os._exit(7 if one.invoke(Q) == "yes" else 1)
    atexit.register(late)
    import fineflow.runtime.loop.runtime_loop
    atexit.unregister(fineflow.runtime.loop.runtime_loop._exit)
    atexit.register(fineflow.runtime.loop.runtime_loop._exit)  # so that it is run before the function above
    one.invoke(Q)
    """
    assert run_python(text) == (7, "")


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or sys.platform == "win32", reason="needs signals")
def test_an_interrupted_call_does_not_hold_up_the_exit() -> None:
    text = """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have handed on that it is ignored
    one = linear(answers=lambda messages: gate.wait_sync(300) or "yes")
    def interrupt():
        gate.wait_arrived()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        one.invoke(Q)
    except KeyboardInterrupt:
        sys.exit(3)
    """
    assert run_python(text, timeout=60) == (3, "")


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_forked_child_can_make_calls() -> None:
    text = """
    warnings.simplefilter("ignore")  # newer Pythons warn of any fork in a process with threads
    one, expected = chain(), {**Q, "a": "yes", "b": "yes"}
    assert one.invoke(Q) == expected
    child = os.fork()
    if child == 0:
        found = [one.invoke(Q), asyncio.run(one.ainvoke(Q)), *one.batch([Q] * 3)]
        os._exit(0 if found == [expected] * 5 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert one.invoke(Q) == expected
    """
    assert run_python(text) == (0, "")
