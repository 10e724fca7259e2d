"""Commands follow the width of the terminal; texts whose reader is not known are 120 columns wide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

import fineflow
from fineflow import cli
from fineflow.cli.common import width
from fineflow.ir.text import WIDTH
from fineflow.testing.langchain import FakeChat

APP = """
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from fineflow.testing.langchain import FakeChat
ask = ChatPromptTemplate.from_template("{question}") | FakeChat()
chain = RunnablePassthrough.assign(first=ask) | RunnablePassthrough.assign(second=ask)
"""


def _widest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("columns", [60, 100, 160])
def test_commands_follow_the_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wide_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["explain", "wide_app:chain"]) == 0
    said = capsys.readouterr().out
    assert min(columns, 100) - 30 < _widest(said) <= columns
    cli.main(["doctor"])
    long = {line for line in capsys.readouterr().out.splitlines() if len(line) > columns}
    assert all(len(line.split()) <= 2 for line in long)  # a word that is longer stays whole


def test_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    assert width() == WIDTH == 120
    monkeypatch.setenv("COLUMNS", "10")
    assert width() == 40


def test_texts_do_not_follow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ask: Any = ChatPromptTemplate.from_template("{question}") | FakeChat()
    plan = fineflow.explain(RunnablePassthrough.assign(first=ask) | RunnablePassthrough.assign(second=ask))
    monkeypatch.setenv("COLUMNS", "60")
    assert str(plan) == plan.to_text(120)
    assert 60 < _widest(str(plan)) <= 120
    words = " ".join(str(plan).split())
    assert " ".join(plan.to_text(1000).split()) == words  # only breaks differ
