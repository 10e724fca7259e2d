"""``fineflow timeline``: the picture of a call of an object that a module names, and how often it is called."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fineflow import cli

APP = """
import fineflow
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from fineflow.testing.langchain import FakeChat
ask = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.02)
chain = RunnablePassthrough.assign(first=ask) | RunnablePassthrough.assign(second=ask)
number = 3
asked = []

def count(value):
    asked.append(value)
    return value

counting = RunnableLambda(count) | ask
made = lambda: chain

def broken_step(value):
    raise ValueError("no such thing")

broken = RunnableLambda(broken_step)

@fineflow.effects(writes="ledger")
def book(value):
    asked.append(value)
    return value

writing = RunnableLambda(book) | ask
"""
INPUT = ["--input", '{"question": "who?"}']


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "drawn_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("drawn_app", None)


def asked() -> int:
    return len(sys.modules["drawn_app"].asked)


def test_draws_both_and_writes_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["timeline", "drawn_app:chain", *INPUT, "--perfetto", "trace.json"]) == 0
    page = (tmp_path / "timeline.html").read_text(encoding="utf-8")
    assert page.index("stock: RunnableSequence.invoke") < page.index("fineflow: RunnableSequence.invoke")
    assert "drawn_app:chain, invoke" in page
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"} == {
        "stock: RunnableSequence.invoke",
        "fineflow: RunnableSequence.invoke",
    }
    out, err = capsys.readouterr()
    assert re.search(r"\([\d.]+ m?s instead of [\d.]+ m?s\)", out), out  # who was faster: tests of observe/verdict.py
    assert "timeline.html is written" in err
    assert out.strip() in page


@pytest.mark.parametrize(
    ("args", "calls"),
    [([], 4), (["--cold"], 2), (["--only", "fineflow"], 2), (["--only", "stock", "--cold"], 1)],
)
def test_how_often_it_is_called(args: list[str], calls: int) -> None:
    assert cli.main(["timeline", "drawn_app:counting", *INPUT, *args]) == 0
    assert asked() == calls


def test_a_known_write_is_not_repeated_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["timeline", "drawn_app:writing", *INPUT]
    assert cli.main(command) == 2
    assert asked() == 0
    assert "4 calls would repeat that: add --repeat-writes" in capsys.readouterr().err
    assert cli.main([*command, "--only", "fineflow", "--cold"]) == 0
    assert asked() == 1
    assert cli.main([*command, "--repeat-writes"]) == 0
    assert asked() == 5


@pytest.mark.parametrize("entry", ["ainvoke", "stream", "astream"])
def test_other_methods(entry: str, tmp_path: Path) -> None:
    assert cli.main(["timeline", "drawn_app:chain", *INPUT, "--entry", entry, "--output", "t.html"]) == 0
    assert f"fineflow: RunnableSequence.{entry}" in (tmp_path / "t.html").read_text(encoding="utf-8")


def test_an_app_that_fails_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["timeline", "drawn_app:broken", "--input", "x"]) == 1
    said = capsys.readouterr()
    assert "stock raised ValueError: no such thing" in said.err
    assert "Not comparable: both calls raised an exception" in said.out
    assert "It raised an exception." in (tmp_path / "timeline.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["drawn_app"], "is not like module:name"),
        (["drawn_app:number"], "expected a LangChain Runnable"),
        (["drawn_app:chain", "--entry", "batch"], "expected one of invoke, stream"),
        (["drawn_app:chain", "--output", "no/such/t.html"], "its folder does not exist"),
        (["drawn_app:chain", "--perfetto", "."], "give the name of a file to write"),
    ],
)
def test_bad_input_is_explained(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["timeline", *args, *INPUT]) == 2
    assert says in capsys.readouterr().err.strip().splitlines()[-1]
