"""The demo's app in LlamaIndex: what it does, and what the command says of it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core.base.response.schema import Response
from llama_index.core.query_engine import TransformQueryEngine

import fineflow
from fineflow import cli
from fineflow.demo import data, index_app
from fineflow.demo import run as demo
from fineflow.demo.components import Components
from fineflow.demo.inputs import Settings, check
from fineflow.errors import UsageError
from fineflow.llamaindex import EngineReranker
from fineflow.testing.engines import GatedBatches
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

QUESTION = "Who planned Dunwen Tower?"
ANSWERS = {"multiple search queries": "Dunwen Tower architect\nplanner of Dunwen Tower", "Answer the": "Helen Kormar"}


class Fakes:
    """Components without models; counts how often the engines were reset."""

    def __init__(self) -> None:
        self.resets = 0
        self.llm = FakeLLM(answers=ANSWERS)

    def __call__(self, settings: Settings, progress: Any) -> Components:
        return Components(
            llm=self.llm,
            embeddings=FakeEmbedding(),
            reranker=EngineReranker(engine=GatedBatches(), top_n=2),
            about={"llm": "a fake"},
            reset=self.reset,
        )

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "tower.txt").write_text("Dunwen Tower was planned by Helen Kormar.")
    (docs / "lake.md").write_text("# Lake\n\nThe Ingmora River flows through Nelbury.")
    found = Settings(
        docs=docs, questions=(QUESTION,), repeat=2, timeline=tmp_path / "timeline.html", framework="llamaindex"
    )
    check(found)
    return found


def test_equal(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    fakes = Fakes()
    assert demo.run(replace(settings, plan=True), fakes) == 0
    out = capsys.readouterr().out
    assert "in stock LlamaIndex" in out
    assert f"[1/1] {QUESTION}\n  answer    Helen Kormar\n" in out
    assert "tower.txt" in out
    assert "category" not in out
    assert "  query " in out and "  aquery " in out
    assert "equal: everything returned is the same in all 12 runs" in out
    assert "Plan for RetrieverQueryEngine" in out
    assert fakes.resets == 12
    page = settings.timeline.read_text(encoding="utf-8")
    assert page.index(f"stock query: {QUESTION}") < page.index(f"fineflow aquery: {QUESTION}")


def test_the_app_asks_for_queries_and_refines_with_every_passage(settings: Settings) -> None:
    assert settings.docs is not None
    fakes = Fakes()
    parts = fakes(settings, iter)
    passages = index_app.split_documents(index_app.load_documents(settings.docs))
    assert [passage.metadata["source"] for passage in passages] == ["lake.md", "tower.txt"]
    engine = index_app.build(parts.llm, index_app.index(passages, parts.embeddings), parts.reranker)
    response = engine.query(QUESTION)
    assert str(response) == "Helen Kormar"
    assert len(response.source_nodes) == 2
    scores = [node.score or 0.0 for node in response.source_nodes]
    assert scores == sorted(scores)  # the best one last
    queries, first, refined = fakes.llm.meter.labels
    assert "Generate 3 search queries" in queries
    assert "assistant: Helen Kormar" in refined and "assistant" not in first
    assert not any("source" in call for call in (first, refined))


def test_a_different_answer_is_told_and_fails(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoiled(TransformQueryEngine):
        def _query(self, query_bundle: Any) -> Any:
            found: Any = self._query_engine.query(query_bundle)
            return Response("somebody", found.source_nodes, found.metadata)

        async def _aquery(self, query_bundle: Any) -> Any:
            return self._query(query_bundle)

    monkeypatch.setattr(fineflow, "optimize", lambda engine: Spoiled(engine, None))  # type: ignore[arg-type]
    assert demo.run(settings, Fakes()) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT from the first stock query:\n    fineflow query: answer: 'somebody'\n" in out
    assert "not comparable" in out


def test_what_is_missing_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llama_index" else name)
    with pytest.raises(UsageError, match=r"llama-index-core, which is not installed; .*\[demo,llama"):
        check(settings)


@pytest.mark.engine
def test_real_models_answer_rightly_and_equally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.write_corpus(tmp_path / "all")
    docs = tmp_path / "docs"
    docs.mkdir()
    for file in sorted((tmp_path / "all").iterdir())[:6] + sorted((tmp_path / "all").glob("dunwen-tower.*")):
        file.replace(docs / file.name)
    timeline = tmp_path / "timeline.html"
    args = ["--docs", docs, "--question", QUESTION, "--repeat", 1, "--timeline", timeline, "--json"]
    assert cli.main(["demo", "--framework", "llamaindex", *map(str, args)]) == 0
    out, err = capsys.readouterr()
    [found] = json.loads(out)["questions"]
    assert found["equal"]
    assert found["answer"] == "Helen Kormar"
    assert found["sources"][-1] == "dunwen-tower.md"
    assert set(found["seconds"]["stock"]) == {"query", "aquery"}
    assert "Traceback" not in err
    assert "tinylm" in timeline.read_text(encoding="utf-8")
