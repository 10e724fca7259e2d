"""``fineflow report``: a program runs as python runs it, and the report is about what it called."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import programs

CHAIN = """
import sys
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from fineflow.testing.langchain import FakeChat

def main():  # the chain is gone when it returns
    ask = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.05)
    chain = RunnablePassthrough.assign(first=ask) | RunnablePassthrough.assign(second=ask)
    for _ in range(3):
        print(sorted(chain.invoke({"question": "who?"})), sys.argv[1:])

main()
if "fail" in sys.argv:
    raise ValueError("the program's own")
sys.exit(3 if "exit" in sys.argv else 0)
"""
ENGINE = """
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

def main():
    index = VectorStoreIndex([TextNode(text=f"text {i}") for i in range(3)], embed_model=FakeEmbedding())
    engine = index.as_query_engine(llm=FakeLLM(seconds=0.02), response_mode="accumulate", similarity_top_k=3)
    for _ in range(2):
        print(engine.query("where is text 2"))

main()
"""


def _ran(folder: Path, *command: str, **env: str) -> CompletedProcess[str]:
    return programs.run(*command, cwd=folder, env={**os.environ, "COLUMNS": "100", **env})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(CHAIN, encoding="utf-8")
    (tmp_path / "index_app.py").write_text(ENGINE, encoding="utf-8")
    (tmp_path / "empty.py").write_text("print('nothing to see')", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("how", [("app.py",), ("-m", "app")])
@pytest.mark.parametrize("argument", ["--html", "exit"])
def test_as_python_runs_it(folder: Path, how: tuple[str, ...], argument: str) -> None:
    stock, watched = (_ran(folder, *before, *how, argument) for before in ((), ("-m", "fineflow", "report")))
    assert (watched.stdout, watched.returncode) == (stock.stdout, stock.returncode)
    said = " ".join(watched.stderr.split())
    assert "RunnableSequence at app.py:11:" in said
    assert "now (3 calls)" in said and "optimized, as predicted: " in said
    assert max(map(len, watched.stderr.splitlines())) <= 100


def test_errors_look_as_in_python(folder: Path) -> None:
    stock, watched = _ran(folder, "app.py", "fail"), _ran(folder, "-m", "fineflow", "report", "app.py", "fail")
    assert watched.returncode == stock.returncode == 1
    assert watched.stderr.startswith(stock.stderr)
    assert "now (3 calls)" in watched.stderr


def test_files(folder: Path) -> None:
    done = _ran(folder, "-m", "fineflow", "report", "--html", "r.html", "--json", "r.json", "app.py")
    assert done.returncode == 0
    [app] = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    assert app["calls"] == 3 and app["gains"] and app["now_s"] >= 0.1 > app["optimized_s"] >= 0.05
    assert (folder / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_query_engine(folder: Path) -> None:
    done = _ran(folder, "-m", "fineflow", "report", "--json", "-", "index_app.py")
    stock = _ran(folder, "index_app.py")
    assert done.stdout.startswith(stock.stdout)
    found: list[dict[str, Any]] = json.loads(done.stdout.removeprefix(stock.stdout))
    assert [(each["name"], each["calls"]) for each in found] == [("RetrieverQueryEngine", 2)]
    assert "now (" not in done.stderr


def test_nothing_was_called(folder: Path) -> None:
    done = _ran(folder, "-m", "fineflow", "report", "empty.py")
    assert (done.returncode, done.stdout) == (0, "nothing to see\n")
    assert done.stderr == "No call of a LangChain or LlamaIndex object has ended in this program.\n"


def test_disabled_nothing_is_watched(folder: Path) -> None:
    done = _ran(folder, "-m", "fineflow", "report", "app.py", FINEFLOW_DISABLE="1")
    assert done.stderr == "FINEFLOW_DISABLE is set, so nothing was watched.\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "expected a script or -m MODULE; write for example: fineflow report app.py"),
        (["missing.py"], "cannot open 'missing.py'"),
        (["-m", "no.such"], "there is no module 'no.such'"),
        (["."], "has no __main__.py"),
        (["--json", "no/such.json", "app.py"], "its folder does not exist"),
        (["--html", ".", "app.py"], "it is a folder"),
    ],
)
def test_bad_input_is_one_line_and_nothing_runs(folder: Path, args: list[str], says: str) -> None:
    done = _ran(folder, "-m", "fineflow", "report", *args)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("fineflow report: ") and says in line
