"""``fineflow explain``: the plan of an object that a module names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fineflow
from fineflow import cli

APP = """
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from fineflow.testing.langchain import FakeChat
ask = ChatPromptTemplate.from_template("{question}") | FakeChat()
chain = RunnablePassthrough.assign(first=ask) | RunnablePassthrough.assign(second=ask)
number = 3
"""
FLOW = """
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

class Flow(Workflow):
    @step
    async def answer(self, ev: StartEvent) -> StopEvent:
        return StopEvent()

flow = Flow()
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explained_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "explained_app:chain"]) == 0
    shown = capsys.readouterr().out
    assert "Plan for RunnableSequence" in shown and "What starts earlier" in shown and "e-graph" not in shown
    assert cli.main(["explain", "explained_app:chain", "--graphs"]) == 0
    assert "As run (e-graph)" in capsys.readouterr().out


def test_other_forms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["explain", "explained_app:chain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "RunnableSequence"
    assert {note["pass"] for note in found["notes"]} >= {"prune"}
    assert [row["step"] for row in found["earlier"]] == ["second/llm.decode"] and found["in_the_way"] == []
    assert cli.main(["explain", "explained_app:chain", "--mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart")
    assert cli.main(["explain", "explained_app:chain", "--html", "plan.html"]) == 0
    assert (tmp_path / "plan.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_optimize_takes_has_a_plan_also_if_no_other_command_calls_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "explained_flow.py").write_text(FLOW, encoding="utf-8")
    assert cli.main(["explain", "explained_flow:flow"]) == 0
    assert "Plan for Flow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["explained_app"], "is not like module:name"),
        (["no_such_app:chain"], "there is no module 'no_such_app'"),
        (["explained_app:nothing"], "has no attribute 'nothing'"),
        (["explained_app:number"], "expected a LangChain Runnable"),
        (["explained_app:chain", "--input", "{bad"], "does not parse"),
        (["explained_app:chain", "--html", "no/such/folder.html"], "give the name of a file to write"),
    ],
)
def test_bad_input_is_explained(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *args]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("fineflow explain: ") and says in line


def test_what_optimize_does_not_take() -> None:
    [text] = fineflow.explain(3).summary
    assert text.startswith("There is nothing to plan: it is not a LangChain Runnable")
