"""Interpreter exit with calls under way: silent, not delayed, and nothing changes for threads that live on."""

from __future__ import annotations

import textwrap

import pytest

import programs

HEAD = """
import asyncio, atexit, os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor, thread as executors
go = threading.Event()
@atexit.register
def after_fineflow():  # atexit functions run in reverse order: fineflow's runtime has stopped by then
    late()
    print("exited", flush=True)
def late():
    pass
from fineflow.runtime.loop.iteration import iterate_async, iterate_sync
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.loop.submission import run_async, run_sync
"""


def run_python(text: str, head: str = HEAD) -> tuple[int, str, str]:
    program = head + textwrap.dedent(text)
    done = programs.run("-c", program, timeout=60, whole_exit=True)
    return done.returncode, done.stdout, done.stderr


WAYS = {
    "run_sync": "run_sync(work)",
    "run_async": "asyncio.run(run_async(work))",
    "iterate_sync": "list(iterate_sync(items))",
    "iterate_async": "asyncio.run(drain(iterate_async(items)))",
}

ITEMS = """
async def items():
    yield 1
    yield await work()
async def drain(source):
    async for _ in source: pass
"""


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_that_is_closed_at_exit_is_not_reported(way: str) -> None:
    """Engines are closed before the runtime's loop is stopped: their requests fail, in threads that end anyway."""
    program = f"""
    {textwrap.indent(ITEMS, "    ").strip()}
    failing = []
    async def work():
        failing.append(asyncio.get_running_loop().create_future())
        go.set()
        await failing[0]
    thread = threading.Thread(target=lambda: {WAYS[way]}, daemon=True)
    @atexit.register
    def close_engine():
        engine_loop().call_soon_threadsafe(failing[0].set_exception, RuntimeError("the engine was closed"))
        thread.join(0.5)  # time enough to report that
    thread.start()
    go.wait()
    """
    assert run_python(program) == (0, "exited\n", "")


@pytest.mark.parametrize("way", WAYS)
def test_work_that_the_end_of_the_loop_cancels_is_not_reported(way: str) -> None:
    program = f"""
    {textwrap.indent(ITEMS, "    ").strip()}
    async def work():
        go.set()
        await asyncio.Event().wait()
    thread = threading.Thread(target=lambda: {WAYS[way]}, daemon=True)
    def late(): thread.join(0.5)
    thread.start()
    go.wait()
    """
    assert run_python(program) == (0, "exited\n", "")


@pytest.mark.parametrize("way", WAYS)
def test_work_that_begins_after_the_end_of_the_loop_is_not_reported(way: str) -> None:
    program = f"""
    {textwrap.indent(ITEMS, "    ").strip()}
    async def work(): pass
    def begin():
        go.wait()
        {WAYS[way]}
    thread = threading.Thread(target=begin, daemon=True)
    def late():
        go.set()
        thread.join(0.5)
    thread.start()
    run_sync(work)
    """
    assert run_python(program) == (0, "exited\n", "")


def test_an_exit_function_may_wait_for_the_thread() -> None:
    """Though not for ever in vain: the thread is held for a while only."""
    program = """
    from fineflow.runtime.loop import interpreter_exit
    interpreter_exit._HOLD_SECONDS = 0.2
    async def work():
        go.set()
        await asyncio.Event().wait()
    def wait():
        try:
            run_sync(work)
        except BaseException as error:
            print(type(error).__name__, flush=True)
    thread = threading.Thread(target=wait, daemon=True)
    def late(): thread.join()
    thread.start()
    go.wait()
    """
    assert run_python(program) == (0, "CancelledError\nexited\n", "")


def test_exit_functions_themselves_are_not_held() -> None:
    program = """
    from fineflow.runtime.loop import interpreter_exit
    interpreter_exit._HOLD_SECONDS = 1000
    async def work(): raise ValueError
    @atexit.register
    def before_fineflow():
        try:
            run_sync(work)
        except ValueError:
            print("raised")
    """
    assert run_python(program) == (0, "raised\nexited\n", "")


def test_daemon_threads_go_on_as_long_as_others_do() -> None:
    """After the end of the main thread a process lives on in its other threads, and so do failures of calls."""
    program = """
    from fineflow.runtime.loop import interpreter_exit
    interpreter_exit._HOLD_SECONDS = 1000
    async def work(): raise ValueError
    def wait():
        threading.main_thread().join()
        try:
            run_sync(work)
        except ValueError:
            print("raised")
    def stay():
        thread.join()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    threading.Thread(target=stay).start()
    """
    assert run_python(program) == (0, "raised\nexited\n", "")


def test_a_deadline_at_exit_needs_no_loop() -> None:
    program = """
    from fineflow.runtime.loop import deadline
    def late(): print(list(deadline.iterate(lambda: iter([1, 2]), 5.0)), deadline.run(lambda: 3, 5.0))
    """
    assert run_python(program) == (0, "[1, 2] 3\nexited\n", "")


# Calls of optimized objects, whose other half is LangChain's own code.

CHAIN = """
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
import fineflow
from fineflow.testing.langchain import FakeChat
ask = ChatPromptTemplate.from_template("{question}")
step = lambda: ask | FakeChat(default="yes") | StrOutputParser()
chain = RunnablePassthrough.assign(a=step(), b=step()) | RunnablePassthrough.assign(c=step(), d=step())
one = fineflow.optimize(chain, strict=True, eager=True)
late_one = fineflow.optimize(chain, strict=True, eager=True, timeout=30)
Q = {"question": "q"}
"""


@pytest.mark.parametrize(
    "call",
    [
        "one.invoke(Q)",
        "list(one.stream(Q))",
        "one.batch([Q, Q])",
        "late_one.invoke(Q)",
        "list(late_one.stream(Q))",
        "asyncio.run(one.ainvoke(Q))",
    ],
)
def test_executors_that_refuse_work_are_not_reported(call: str) -> None:
    """Python joins executors before it runs atexit functions. From then on stock finds no threads for its branches."""
    program = f"""
    def begin():
        go.wait()
        {call}
    thread = threading.Thread(target=begin, daemon=True)
    def hold_up():
        while not executors._shutdown: time.sleep(0.001)
        go.set()
        thread.join(0.5)
    {call}
    thread.start()
    ThreadPoolExecutor(1).submit(hold_up)
    """
    assert run_python(program, HEAD + CHAIN) == (0, "exited\n", "")


MODELS = {
    "LangChain": """
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
import fineflow
from fineflow.testing.gates import Trap
from fineflow.testing.langchain import FakeChat
trap = Trap(at=2)
chain = ChatPromptTemplate.from_template("{question}") | FakeChat(default="yes", gate=trap) | StrOutputParser()
one = fineflow.optimize(chain, strict=True, eager=True)
call = lambda: one.invoke({"question": "q"})
acall = lambda: one.ainvoke({"question": "q"})
""",
    "LlamaIndex": """
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
import fineflow
from fineflow.testing.gates import Trap
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
trap = Trap(at=2)
index = VectorStoreIndex([TextNode(text=f"text {i}") for i in range(3)], embed_model=FakeEmbedding())
one = fineflow.optimize(index.as_query_engine(llm=FakeLLM(gate=trap)), strict=True, eager=True)
call = lambda: one.query("q")
acall = lambda: one.aquery("q")
""",
}


@pytest.mark.parametrize("entry", ["call()", "asyncio.run(acall())"])
@pytest.mark.parametrize("framework", MODELS)
def test_a_model_that_fails_at_exit_is_not_reported(framework: str, entry: str) -> None:
    program = f"""
    {entry}  # a first one that succeeds
    thread = threading.Thread(target=lambda: {entry}, daemon=True)
    @atexit.register
    def close_model():
        trap.error = RuntimeError("the model was closed")
        trap.open()
        thread.join(0.5)
    thread.start()
    trap.wait_arrived(2)
    """
    assert run_python(program, HEAD + MODELS[framework]) == (0, "exited\n", "")
