"""Processes: the end of the interpreter with calls under way, fork and spawn."""

from __future__ import annotations

import multiprocessing
import os
import textwrap
from pathlib import Path

import pytest

import programs

PROGRAM = """
import asyncio, multiprocessing, os, sys, threading, warnings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
import fineflow
from fineflow.runtime.queues.admission import process_admission
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.langchain import FakeChat
Q, A = {"question": "q"}, {"question": "q", "a": "yes", "b": "yes"}
def chain(gate=None, **more):
    ask = ChatPromptTemplate.from_template("{question}")
    step = lambda: ask | FakeChat(default="yes", gate=gate) | StrOutputParser()
    return fineflow.optimize(RunnablePassthrough.assign(a=step()) | RunnablePassthrough.assign(b=step()), **more)
def linear(gate, **more):
    ask = ChatPromptTemplate.from_template("{question}")
    return fineflow.optimize(ask | FakeChat(default="yes", gate=gate) | StrOutputParser(), eager=True, **more)
"""


def run_python(path: Path, text: str, timeout: float = 120.0) -> tuple[int, str, str]:
    """Runs a program of a file of its own, as ``spawn`` wants it: exit status, output, errors."""
    program = path / "program.py"
    program.write_text(PROGRAM + textwrap.dedent(text), encoding="utf-8")
    done = programs.run(program, timeout=timeout, whole_exit=True)
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize("call", ["one.invoke(Q)", "list(one.stream(Q))", "asyncio.run(one.ainvoke(Q))"])
def test_the_interpreter_exits_with_calls_that_run_and_calls_that_wait(tmp_path: Path, call: str) -> None:
    text = f"""
    gate = Gate()
    one = linear(gate)
    fineflow.Runtime(max_queries=1).start()
    for _ in range(3):
        threading.Thread(target=lambda: {call}, daemon=True).start()
    gate.wait_arrived()
    wait_until(lambda: process_admission().waiting == 2)
    """
    assert run_python(tmp_path, text) == (0, "", "")


def test_the_interpreter_exits_in_the_middle_of_a_call_with_a_deadline(tmp_path: Path) -> None:
    text = """
    gate = Gate()
    one = linear(gate, timeout=60)
    threading.Thread(target=lambda: one.invoke(Q), daemon=True).start()
    gate.wait_arrived()
    """
    assert run_python(tmp_path, text) == (0, "", "")


def test_the_interpreter_exits_after_a_shutdown(tmp_path: Path) -> None:
    text = """
    one = chain()
    assert one.invoke(Q) == A
    fineflow.shutdown()
    print("over")
    """
    assert run_python(tmp_path, text) == (0, "over", "")


CHILD = """
one = chain()
def child(queue):
    found = [one.invoke(Q), asyncio.run(one.ainvoke(Q)), *one.batch([Q] * 2)]
    now = fineflow.statistics().queries
    queue.put((found == [A] * 4, now.finished, now.running, process_admission().limits.max_queries))
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_child_process_has_a_runtime_of_its_own(tmp_path: Path, method: str) -> None:
    text = f"""
    warnings.simplefilter("ignore")  # newer Pythons warn of any fork in a process with threads
    if __name__ == "__main__":
        with fineflow.Runtime(max_queries=2):
            assert one.invoke(Q) == A
            context = multiprocessing.get_context({method!r})
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(*queue.get(timeout=60))
            process.join(60)
            assert process.exitcode == 0 and one.invoke(Q) == A
    """
    limit = 2 if method == "fork" else None  # what a fork copies
    assert run_python(tmp_path, CHILD + textwrap.dedent(text)) == (0, f"True 4 0 {limit}", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_calls_run_and_wait(tmp_path: Path) -> None:
    text = """
    warnings.simplefilter("ignore")
    gate, after = Gate(), chain()
    assert after.invoke(Q) == A  # what LangChain imports in a first call: a fork in the middle of an import would hang
    one = chain(gate)
    fineflow.Runtime(max_queries=1).start()
    threads = [threading.Thread(target=one.invoke, args=(Q,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.wait_arrived()
    wait_until(lambda: process_admission().waiting == 1)
    child = os.fork()
    if child == 0:
        now = fineflow.statistics().queries
        os._exit(0 if (now.running, now.waiting) == (0, 0) and after.invoke(Q) == A else 1)
    assert os.waitpid(child, 0)[1] == 0
    gate.open()
    for thread in threads:
        thread.join(30)
    print(fineflow.statistics().queries.finished)
    """
    assert run_python(tmp_path, text) == (0, "3", "")


LLM = """
from fineflow.backends.emulated import LLMProfile
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.runtime.queues.llm_queue import llm_queue_of
llm = EmulatedLLM(lambda prompt: "yes " * 2000, LLMProfile(0.01, 0.0, 0.0), capacity=2200)  # 20 s, one at a time
admission = llm_queue_of(llm)
def on_engine(**more):
    ask = ChatPromptTemplate.from_template("{question}") | ChatEngine(engine=llm, **more)
    return fineflow.optimize(ask | StrOutputParser(), eager=True)
def under_way(call):
    threads = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: (admission.running, admission.waiting) == (1, 2))
    return threads
"""


@pytest.mark.parametrize("call", ["one.invoke(Q)", "list(one.stream(Q))", "asyncio.run(one.ainvoke(Q))"])
def test_the_interpreter_exits_with_requests_in_an_llm_and_in_its_queue(tmp_path: Path, call: str) -> None:
    text = f"""
    one = on_engine(max_tokens=2000)
    under_way(lambda: {call})
    """
    assert run_python(tmp_path, LLM + textwrap.dedent(text)) == (0, "", "")


@pytest.mark.parametrize("call", ["model.invoke('q')", "list(model.stream('q'))", "asyncio.run(model.ainvoke('q'))"])
def test_the_interpreter_exits_with_calls_of_a_model_by_itself(tmp_path: Path, call: str) -> None:
    text = f"""
    model = ChatEngine(engine=llm, max_tokens=2000)
    under_way(lambda: {call})
    """
    assert run_python(tmp_path, LLM + textwrap.dedent(text)) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_requests_are_in_an_llm_and_in_its_queue(tmp_path: Path) -> None:
    text = """
    warnings.simplefilter("ignore")
    one, short = on_engine(max_tokens=2000), on_engine(max_tokens=2)
    assert short.invoke(Q) == "yes yes "  # imports, as above
    under_way(lambda: one.invoke(Q))
    child = os.fork()
    if child == 0:
        right = short.invoke(Q) == "".join(short.stream(Q)) == "yes yes "
        os._exit(0 if right and (admission.running, admission.waiting, admission.tokens) == (0, 0, 0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    print(admission.running, admission.waiting)
    """
    assert run_python(tmp_path, LLM + textwrap.dedent(text)) == (0, "1 2", "")


def test_a_shutdown_tells_those_whose_requests_were_in_an_llm(tmp_path: Path) -> None:
    text = """
    from fineflow.errors import BackendError
    model, found = ChatEngine(engine=llm, max_tokens=2000), []
    def call():
        try:
            model.invoke("q")
        except BackendError as error:
            found.append(str(error))
    threads = under_way(call)
    fineflow.shutdown(timeout=0)
    for thread in threads:
        thread.join(30)
    print(len(found), set(found))
    print(on_engine(max_tokens=2).invoke(Q), admission.running, admission.waiting)
    """
    status, out, errors = run_python(tmp_path, LLM + textwrap.dedent(text))
    told = "3 {'fineflow.shutdown() was called while this was running'}"
    assert (status, out.splitlines(), errors) == (0, [told, "yes yes  0 0"], "")
