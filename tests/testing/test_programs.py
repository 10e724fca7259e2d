"""Programs that are forked from a parent with the frameworks do what they do in a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import programs

PROGRAM = """
import atexit, sys, threading
atexit.register(print, "exits")
ends = threading.Event()
threading.Thread(target=lambda: print("a thread" if ends.wait() else "")).start()
print(__name__, __file__, sys.argv, len(sys.stdin.read()), sys.path[0])
print("an error", file=sys.stderr)
ends.set()
if sys.argv[1:] == ["raise"]:
    raise ValueError("the program's own")
sys.exit({"zero": 0, "text": "a text", "seven": 7}.get(sys.argv[1]))
"""
CHAIN = """
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from fineflow.testing.langchain import FakeChat
model = ChatPromptTemplate.from_template("{q}") | FakeChat(default="yes")
chain = RunnablePassthrough.assign(a=model) | RunnablePassthrough.assign(b=model)
print(chain.invoke({"q": "?"})["b"].text)
"""
ENGINE = """
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
index = VectorStoreIndex([TextNode(text=f"text {i}") for i in range(3)], embed_model=FakeEmbedding())
print(index.as_query_engine(llm=FakeLLM()).query("q"))
"""


def in_a_new_interpreter(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, *arguments], {**os.environ, **programs.FIXED}
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    return subprocess.run(command, cwd=cwd, env=env, timeout=120, **options)


@pytest.mark.parametrize("whole_exit", [False, True])
@pytest.mark.parametrize("how", ["zero", "text", "seven", "none", "raise"])
def test_exit_output_and_errors(how: str, whole_exit: bool, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM, encoding="utf-8")
    forked = programs.run("app.py", how, cwd=tmp_path, whole_exit=whole_exit)
    real = in_a_new_interpreter("app.py", how, cwd=tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)


@pytest.mark.parametrize("command", [("-c", "import sys; print(sys.argv, sys.path[0], __name__)"), ("-m", "app")])
def test_modules_and_code(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import sys\nprint(sys.argv, sys.path[0], __spec__.name)", encoding="utf-8")
    forked = programs.run(*command, "one", cwd=tmp_path)
    real = in_a_new_interpreter(*command, "one", cwd=tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)


@pytest.mark.parametrize("source", [CHAIN, ENGINE], ids=["LangChain", "LlamaIndex"])
def test_a_program_that_fineflow_runs(source: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(source, encoding="utf-8")
    command = ("-m", "fineflow", "run", "app.py")
    forked, real = programs.run(*command, cwd=tmp_path), in_a_new_interpreter(*command, cwd=tmp_path)
    assert forked.returncode == real.returncode == 0, real.stderr
    assert forked.stdout == real.stdout
    assert "1 call routed" in forked.stderr and "1 call routed" in real.stderr


def test_a_program_that_hangs_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        programs.run("-c", "import threading; print('begun', flush=True); threading.Event().wait()", timeout=0.5)
    assert caught.value.stdout in ("begun\n", "")
    assert programs.run("-c", "print('next')").stdout == "next\n"


def test_in_virtual_time_sleeping_takes_no_time() -> None:
    program = "import time, sys; time.sleep(1000); print('slept'); sys.exit(3)"
    done = programs.run("-c", program, virtual=True)
    assert (done.returncode, done.stdout) == (3, "slept\n"), done.stderr
