from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import Runnable, RunnableLambda

import fineflow
from fineflow import cli
from fineflow.demo import data
from fineflow.demo import run as demo
from fineflow.demo.components import Components
from fineflow.demo.inputs import Settings, check
from fineflow.testing.langchain import FakeChat, FakeReranker

QUESTION = "Who planned Dunwen Tower?"
ANSWERS = {
    "You classify questions": '{"complexity": "low"}',
    "generate 3 different versions": "Dunwen Tower architect\nplanner of Dunwen Tower",
    "Answer the question": "Helen Kormar",
    "You suggest related questions": '["Who designed Dunwen Tower?"]',
}


class Fakes:
    """Components without models; counts how often the engines were reset and closed."""

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        self.answers = answers or ANSWERS
        self.resets = 0
        self.closed = 0

    def __call__(self, settings: Settings, progress: Any) -> Components:
        return Components(
            llm=FakeChat(answers=self.answers),
            embeddings=DeterministicFakeEmbedding(size=16),
            reranker=FakeReranker(top_n=1),
            about={"llm": "a fake"},
            reset=self.reset,
            engines=[self],
        )

    def reset(self) -> None:
        self.resets += 1

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "tower.txt").write_text("Dunwen Tower was planned by Helen Kormar.")
    (docs / "lake.md").write_text("# Lake\n\nThe Ingmora River flows through Nelbury.")
    found = Settings(docs=docs, questions=(QUESTION,), repeat=2, timeline=tmp_path / "timeline.html")
    check(found)
    return found


def as_json(settings: Settings) -> Settings:
    return Settings(settings.docs, settings.questions, repeat=2, timeline=settings.timeline, json=True)


def spoil(chain: Runnable[Any, Any], **changes: Any) -> Runnable[Any, Any]:
    """A stand-in for an optimizer that gives wrong answers."""
    return chain | RunnableLambda(lambda value: {**value, **changes})


def test_equal(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    fakes = Fakes()
    assert demo.run(settings, fakes) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"[1/1] {QUESTION}" in out
    assert "answer    Helen Kormar" in out
    assert "sources   tower.txt" in out
    assert "equal: everything returned is the same in all 12 runs" in out
    assert "median of 2 runs" in out
    assert out.endswith(f"timeline: {settings.timeline} (the plan: --plan)\n")
    assert "Plan for" not in out
    assert fakes.resets == 12  # before every run of either side
    assert fakes.closed == 1


def test_json(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.run(as_json(settings), Fakes()) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert "Helen Kormar" in err  # the text for people goes to stderr
    assert set(found) == {
        *(
            "fineflow",
            "framework",
            "models",
            "documents",
            "hardware",
            "method",
            "questions",
            "equal",
            "plan",
            "timeline",
        )
    }
    assert found["fineflow"] == fineflow.__version__
    assert found["documents"]["files"] == found["documents"]["passages"] == 2
    assert set(found["hardware"]) == {"cpu", "cores", "torch_threads", "accelerator"}
    assert found["equal"] is True
    assert found["plan"]
    [asked] = found["questions"]
    assert {key: asked[key] for key in ("question", "answer", "sources", "category", "related", "error", "equal")} == {
        "question": QUESTION,
        "answer": "Helen Kormar",
        "sources": ["tower.txt"],
        "category": {"complexity": "low"},
        "related": ["Who designed Dunwen Tower?"],
        "error": None,
        "equal": True,
    }
    for side in ("stock", "fineflow"):
        for entry in ("invoke", "ainvoke"):
            assert asked["seconds"][side][entry] > 0
            assert len(asked["runs"][side][entry]) == 2
            assert asked["differences"][side][entry] == []
    assert asked["speedup"]["invoke"] == pytest.approx(
        asked["seconds"]["stock"]["invoke"] / asked["seconds"]["fineflow"]["invoke"]
    )


def test_a_different_answer_is_told_and_fails(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fineflow, "optimize", lambda chain: spoil(chain, answer="somebody", related=[]))
    assert demo.run(settings, Fakes()) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT from the first stock invoke:\n    fineflow invoke: answer: 'somebody'\n" in out
    assert "    fineflow ainvoke: related: []\n" in out
    assert "not comparable" in out
    assert "as fast" not in out


@pytest.mark.parametrize("key", ["category", "documents", "answer", "related", "question", "something new"])
def test_every_part_of_the_result_counts(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(fineflow, "optimize", lambda chain: spoil(chain, **{key: None}))
    assert demo.run(as_json(settings), Fakes()) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is False
    assert found["questions"][0]["differences"] == {
        "stock": {"invoke": [], "ainvoke": []},
        "fineflow": {"invoke": [key], "ainvoke": [key]},
    }


def test_an_app_that_fails_alike_on_both_sides(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.run(settings, Fakes({**ANSWERS, "You classify questions": "low, I should say"})) == 1
    out = capsys.readouterr().out
    assert "stock raises OutputParserException: Invalid json output: low, I should say" in out
    assert "equal: the exception raised is the same in all 12 runs" in out


def test_an_app_that_fails_on_one_side(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(value: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(fineflow, "optimize", lambda chain: chain | RunnableLambda(fail))
    assert demo.run(settings, Fakes()) == 1
    assert "fineflow ainvoke: raised RuntimeError: no\n" in capsys.readouterr().out


def test_the_timeline_is_one_file_with_stock_above(settings: Settings) -> None:
    demo.run(settings, Fakes())
    page = settings.timeline.read_text(encoding="utf-8")
    places = [
        page.index(f"{side} {entry}: {QUESTION}") for entry in ("invoke", "ainvoke") for side in ("stock", "fineflow")
    ]
    assert places == sorted(places)
    assert "src=" not in page and "<link" not in page


def test_an_interrupt_closes_the_engines(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes = Fakes()

    def interrupted() -> None:
        raise KeyboardInterrupt

    fakes.reset = interrupted  # type: ignore[method-assign]
    monkeypatch.setattr(demo, "run", lambda given, run=demo.run: run(settings, fakes))
    assert cli.main(["demo"]) == 130
    assert fakes.closed == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.engine
def test_real_models_answer_rightly_and_equally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.write_corpus(tmp_path / "all")
    docs = tmp_path / "docs"
    docs.mkdir()
    for file in sorted((tmp_path / "all").iterdir())[:6] + sorted((tmp_path / "all").glob("dunwen-tower.*")):
        file.replace(docs / file.name)
    timeline = tmp_path / "timeline.html"
    args = ["--docs", docs, "--question", QUESTION, "--repeat", 1, "--timeline", timeline, "--json"]
    assert cli.main(["demo", *map(str, args)]) == 0
    out, err = capsys.readouterr()
    [found] = json.loads(out)["questions"]
    assert found["equal"]
    assert found["answer"] == "Helen Kormar"
    assert found["sources"][0] == "dunwen-tower.md"
    assert len(set(found["sources"])) == 3  # the answer is told apart from passages about other buildings
    assert set(found["category"]) == {"complexity", "joint_reasoning", "pieces", "summary_words"}
    assert found["related"] == ["Who designed Dunwen Tower?"]
    assert "Traceback" not in err
    assert "tinylm" in timeline.read_text(encoding="utf-8")
