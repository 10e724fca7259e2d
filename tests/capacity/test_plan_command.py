"""``fineflow plan``: an app or a trace in, a table, JSON or a page out; bad input is explained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fineflow import cli
from fineflow.cli.common import BAD_INPUT, FAILED

APP = """
from langchain_core.prompts import ChatPromptTemplate
from fineflow.engines import EmulatedLLM, LLMProfile
from fineflow.langchain import ChatEngine

quick = LLMProfile(iteration=0.002, prefill_token=0.0001, decode_sequence=0.0001, sequences=8)
llm = ChatEngine(engine=EmulatedLLM(lambda prompt: "word " * 20, quick, name="llm"))
chain = ChatPromptTemplate.from_template("Answer {question}") | llm
"""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{i // 10:02}.{i % 10}00000,{100 + i},{20 + i % 7}\n" for i in range(300)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "planned_app.py").write_text(APP)
    (tmp_path / "trace.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


CALLED = ["plan", "--app", "planned_app:chain", "--input", '{"question": "Where is the old bridge?"}']


def test_an_app_at_a_rate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--rate", "400", "--seconds", "10", "--slo", "p99=0.4", "--slo", "ttft.p95=200ms", "--cost", "llm=2"]
    assert cli.main([*CALLED, *settings, "--html", "page.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [engine] = found["engines"]
    assert found["met"] and engine["name"] == "llm" and engine["instances"] >= 2
    assert found["price"] == 2 * engine["instances"] and found["saturation"] > found["rate"]
    assert found["latency"]["p50"] > 0.03
    page = (folder / "page.html").read_text()
    assert page.count("<svg") == 2 and not re.search(r'(src|href)="|url\(', page)
    drawn = re.findall(r"<path[^>]* d=\"M([^\"]+)\"", page)
    assert len(drawn) == 4 and "nan" not in page


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CALLED, "--rate", "50", "--seconds", "20", "--slo", "p99=0.4"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^llm +1 +\d+%", out, re.M) and "met" in out and "Bottleneck: llm; saturated at" in out


def test_a_trace_without_an_app(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--trace", "trace.csv", "--engine", "chat=llama-8b-h100", "--slo", "ttft.p99=1", "--json"]
    assert cli.main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rate"] == pytest.approx(10) and found["engines"][0]["name"] == "chat"


def test_what_cannot_be_met_ends_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CALLED, "--rate", "50", "--seconds", "20", "--slo", "p50=1ms"]) == FAILED
    assert "No plan: p50 ≤ 0.001 s cannot be met by any number of instances" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([*CALLED, "--slo", "p99=1"], "expected --rate CALLS"),
        ([*CALLED, "--slo", "p99=1", "--rate", "0"], "--rate is 0; it must be above 0"),
        ([*CALLED, "--slo", "1", "--rate", "2"], "--slo 1: expected a percentile and seconds"),
        ([*CALLED, "--slo", "p99=1", "--rate", "2", "--cost", "gpu=1"], "--cost gpu: the app uses no such engine"),
        ([*CALLED, "--slo", "p99=1", "--rate", "2", "--instances", "llm=0"], "--instances llm=0: expected NAME=NUMBER"),
        ([*CALLED, "--slo", "p99=1", "--rate", "2", "--engine", "llm=gpt"], "expected a file or one of ayo-embedder"),
        (["plan", "--app", "planned_app:chain", "--slo", "p99=1", "--rate", "2"], "expected an example call"),
        (["plan", "--slo", "p99=1", "--rate", "2"], "expected --app MODULE:NAME"),
        (["plan", "--slo", "p99=1", "--trace", "no.csv"], "--trace no.csv"),
        ([*CALLED, "--slo", "p99=1", "--rate", "2", "--html", "no/page.html"], "--html no/page.html"),
    ],
)
def test_bad_input_is_explained(
    folder: Path, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(given) == BAD_INPUT
    assert message in capsys.readouterr().err
