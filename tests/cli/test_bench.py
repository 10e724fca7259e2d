"""``fineflow bench``: how often it calls, what it counts, and what it says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fineflow import cli
from fineflow.checking import Checked
from fineflow.recording.bench import Timed, report

APP = """
import itertools
import fineflow
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from fineflow.testing.langchain import FakeChat

asked, numbers = [], itertools.count()

def note(value):
    asked.append(value)
    return value

ask = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.02)
class Passages(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return [Document(query)]

passages = Passages()

def look_up(question):
    return ask.invoke({"question": passages.invoke(question)[0].page_content})

chain = RunnableLambda(note) | RunnablePassthrough.assign(first=ask) | RunnablePassthrough.assign(second=ask)
sampled = RunnableLambda(lambda value: next(numbers))

def fails(value):
    raise ValueError("no such thing")

broken = RunnableLambda(fails)

@fineflow.effects(writes="ledger")
def book(value):
    asked.append(value)
    return value

writing = RunnableLambda(book)
"""
INPUT = ["--input", '{"question": "who?"}']


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "timed_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("timed_app", None)


def _found(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> list[dict[str, Any]]:
    assert cli.main(["bench", *args, "--json"]) == status
    return list(json.loads(capsys.readouterr().out)["runs"])


def test_both_entries_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    found = _found(capsys, "timed_app:chain", *INPUT, "--repeat", "3")
    assert [each["entry"] for each in found] == ["invoke", "ainvoke"]
    for each in found:
        assert {side: len(seconds) for side, seconds in each["seconds"].items()} == {"stock": 3, "fineflow": 3}
        assert all(seconds >= 0.04 for seconds in each["seconds"]["stock"])  # two answers, one after the other
        assert all(seconds >= 0.02 for seconds in each["seconds"]["fineflow"])
        assert each["requests"] == {"stock": {"FakeChat": 2}, "fineflow": {"FakeChat": 2}}
        assert (each["different"], each["unsteady"], each["error"]) == ([], [], "")
        stock, ours = (sorted(each["seconds"][side])[1] for side in ("stock", "fineflow"))
        assert each["median_s"] == {"stock": stock, "fineflow": ours}
        assert each["speedup"] == pytest.approx(stock / ours)


def test_it_makes_as_many_calls_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "timed_app:chain", *INPUT, "--entry", "invoke", "--repeat", "2"]) == 0
    said = capsys.readouterr()
    assert said.err == "invoke: 10 calls\n"
    assert len(sys.modules["timed_app"].asked) == 10
    assert "requests seen: FakeChat 2, the same on both sides" in said.out
    assert "equal: " in said.out


def test_a_retriever_of_the_users_counts_on_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    [found] = _found(capsys, "timed_app:look_up", "--input", "x", "--repeat", "1")
    assert found["requests"]["stock"] == found["requests"]["fineflow"] == {"Passages": 1, "FakeChat": 1}


def test_what_varies_by_itself_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    [found] = _found(capsys, "timed_app:sampled", "--input", "x", "--entry", "invoke", "--repeat", "1")
    assert found["different"] == []
    assert "value" in found["unsteady"]


def test_an_object_that_raises_is_timed_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "timed_app:broken", "--input", "x", "--entry", "ainvoke", "--repeat", "1"]) == 0
    assert "both raise: " in (out := capsys.readouterr().out)
    assert "no such thing" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["timed_app:chain", *INPUT, "--repeat", "0"], "--repeat is 0; it must be at least 1"),
        (["timed_app:chain", *INPUT, "--entry", "batch"], "expected one of invoke, stream, ainvoke, astream"),
        (["timed_app:chain", "--input", "{bad"], "does not parse"),
        (["timed_app:writing", "--input", "x"], "16 calls would repeat that: add --repeat-writes if that does no harm"),
        (["timed_app:numbers", "--input", "x"], "is of class count; expected a LangChain Runnable"),
        (["timed_app.py:chain", "--input", "x"], "names a file; write timed_app:chain"),
    ],
)
def test_bad_input_is_explained(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *args]) == 2
    said = capsys.readouterr()
    assert says in said.err.splitlines()[-1]
    assert said.out == ""
    assert not sys.modules["timed_app"].asked if "timed_app" in sys.modules else True


def test_writes_are_repeated_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["timed_app:writing", "--input", "x", "--entry", "invoke", "--repeat", "1", "--repeat-writes"]
    assert cli.main(["bench", *args]) == 0
    assert len(sys.modules["timed_app"].asked) == 8


ENGINE = """
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

index = VectorStoreIndex([TextNode(text=f"text {i}") for i in range(3)], embed_model=FakeEmbedding())

def engine():
    return index.as_query_engine(llm=FakeLLM(seconds=0.02), response_mode="accumulate", similarity_top_k=3)
"""


def test_requests_of_a_query_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stock is seen by its spans, fineflow by what engines tell: a wait for these is no request of its own."""
    (tmp_path / "timed_query_engine.py").write_text(ENGINE, encoding="utf-8")
    [found] = _found(capsys, "timed_query_engine:engine", "--input", "text 2", "--entry", "query", "--repeat", "1")
    assert {side: counts["FakeLLM"] for side, counts in found["requests"].items()} == {"stock": 3, "fineflow": 3}
    assert found["different"] == []


def test_what_differs_in_the_requests_stands_by_itself() -> None:
    checked = Checked("invoke", None)
    counts = {"stock": {"model": 4, "store": 1}, "fineflow": {"model": 4}}
    _, times, asked, *_ = report([Timed("invoke", {"stock": [1.0], "fineflow": [1.0]}, counts, checked)])
    assert "no difference" in times
    assert asked.strip() == "requests seen: model 4, the same on both sides; store 1 as it is, 0 optimized"
