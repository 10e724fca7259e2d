"""``fineflow distill``: from a file of questions to a profiler that an adaptive object uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fineflow
from fineflow import cli
from fineflow.adaptation import DistilledProfiler

APP = """
import json
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine

def say(prompt):
    profile = {"complexity": "low", "joint_reasoning": "and" in prompt[-30:], "pieces": 2, "summary_words": 40}
    return json.dumps(profile) if "JSON" in prompt else "an answer"

embedding = DeterministicFakeEmbedding(size=16)
store = InMemoryVectorStore(embedding)
store.add_texts(["A passage."] * 8)
model = ChatEngine(engine=EmulatedLLM(say, can_prefill=False))
answer = ChatPromptTemplate.from_template("{context} {question}") | model | StrOutputParser()
rag = {"context": store.as_retriever(), "question": RunnablePassthrough()} | answer
number = 3

def teacher(prompt):
    return "I do not know"

def build():
    return teacher
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of the app, of a name of its own, in the current folder, with questions.txt."""
    name = f"distilled_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(APP)
    (tmp_path / "questions.txt").write_text("".join(f"What is {i}{' and' * (i % 2)}?\n\n" for i in range(12)))
    monkeypatch.chdir(tmp_path)
    return name


def test_what_it_writes_is_what_adaptive_reads(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["distill", f"{app}:rag", "--questions", "questions.txt"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("12 questions (0 without a usable profile)")
    assert said.err == "fineflow-profiler.npz is written\n"

    import importlib

    module = importlib.import_module(app)
    chain = fineflow.adaptive(module.rag, profiler="distilled")
    assert chain.invoke("What is 3 and?") == "an answer"
    assert (chain.last.space_from, chain.last.profile.pieces) == ("profile", 2)
    assert DistilledProfiler.load("fineflow-profiler.npz", module.embedding).agreement.pieces == 1.0


def test_the_result_as_json(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["distill", f"{app}:rag", "--questions", "questions.txt", "--out", "mine.npz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 12
    assert Path("mine.npz").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["{}:rag", "--questions", "none.txt"], "--questions none.txt: "),
        (["{}:rag", "--questions", "few.txt"], "at least 10 different calibration questions, got 1"),
        (["{}:rag", "--questions", "questions.txt", "--teacher", "{}:build"], "0 of 12 calibration questions"),
        (["{}:rag", "--questions", "questions.txt", "--teacher", "{}:number"], "profiler is int"),
        (["{}:model", "--questions", "questions.txt"], "fineflow.adaptive"),
        (["{}:nothing", "--questions", "questions.txt"], "has no attribute 'nothing'"),
    ],
)
def test_bad_input_is_one_line(app: str, given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("few.txt").write_text("Where?\n")
    assert cli.main(["distill", *(each.format(app) for each in given)]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1 and shown.out == ""
    assert not Path("fineflow-profiler.npz").exists()
