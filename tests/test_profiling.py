"""``fineflow profile``: what is measured of an engine is what the engine does; the file serves both its readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fineflow import cli, profiling
from fineflow.cli.common import BAD_INPUT
from fineflow.cost_model.costs import Costs
from fineflow.engines import (
    BatchProfile,
    EmulatedEmbedding,
    EmulatedLLM,
    EmulatedReranker,
    LLMProfile,
    batch_profile,
    llm_profile,
)
from fineflow.ir import Op
from fineflow.testing import virtual_threads

in_virtual_time = pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
LONG = " ".join(["word"] * 100)


@in_virtual_time
def test_an_llm_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiling, "PREFILLS", (50, 100, 200))
    monkeypatch.setattr(profiling, "STEPS", 8)
    real = LLMProfile(iteration=0.004, prefill_token=0.0002, decode_sequence=0.002)
    engine = EmulatedLLM(lambda prompt: LONG, real, name="mine")
    made = virtual_threads.run(
        lambda: profiling.profile_llm(engine, model="an emulated one", context=400, repeat=3)
    ).value
    file = tmp_path / "mine.json"
    file.write_text(made.to_json())
    found = llm_profile(file)
    fitted = found.iteration, found.prefill_token, found.decode_sequence
    assert fitted == pytest.approx((real.iteration, real.prefill_token, real.decode_sequence), rel=0.01)
    known = Costs()
    known.load(file)
    assert known.measured("mine", Op.PREFILL) and known.measured("mine", Op.DECODE)
    assert known.predict("mine", Op.DECODE, size=10) > 10 * 0.005
    assert {row["what"] for row in json.loads(file.read_text())["measured"]} == {"prefill", "step"}


@in_virtual_time
@pytest.mark.parametrize(("make", "op"), [(EmulatedEmbedding, Op.EMBED), (EmulatedReranker, Op.RERANK)])
def test_a_batch_engine_is_measured(make: Any, op: Op, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiling, "BATCHES", (1, 4, 8))
    engine = make(BatchProfile(0.01, 0.005), name="mine")
    made = virtual_threads.run(lambda: profiling.profile_batches(engine, op, model="an emulated one", repeat=3)).value
    file = tmp_path / "mine.json"
    file.write_text(made.to_json())
    found = batch_profile(file)
    assert (found.call, found.item) == (pytest.approx(0.01), pytest.approx(0.005))
    known = Costs()
    known.load(file)
    assert known.measured("mine", op) and known.predict("mine", op, size=8) > 0.04


def test_the_line_with_the_least_largest_error() -> None:
    assert profiling.near([(1, 3.0), (2, 5.0), (10, 21.0)]) == (pytest.approx(1.0), pytest.approx(2.0))
    assert profiling.near([(1, 1.0), (2, 2.0), (4, 4.0)]) == (pytest.approx(0.0, abs=1e-6), pytest.approx(1.0))
    assert profiling.near([(1, 5.0), (2, 5.0), (4, 5.0)]) == (pytest.approx(5.0), pytest.approx(0.0, abs=1e-6))
    fixed, each = profiling.near([(1, 4.0), (2, 3.0)])  # the larger, the quicker: not a cost
    assert fixed > 0 and each == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["llm", "--repeat", "2"], "--repeat is 2; it must be at least 3"),
        (["llm", "--out", "no/such/folder/profile.json"], "give the name of a file to write"),
        (["reranker"], "no reranker is bundled; name a cross-encoder"),
    ],
)
def test_bad_input_is_explained(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", *args]) == BAD_INPUT
    assert message in capsys.readouterr().err
