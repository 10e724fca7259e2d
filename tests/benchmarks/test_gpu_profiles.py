"""The profiles of a GPU machine: the script runs, its files are read, and its comparison finds wrong answers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM

from benchmarks import gpu_models, gpu_profiles
from fineflow.cost_model.costs import Costs
from fineflow.engines import batch_profile, llm_profile
from fineflow.ir import Op


def test_files_are_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(gpu_profiles.PREFILLS, "tiny", (32, 64))
    monkeypatch.setitem(gpu_profiles.DECODES, "tiny", (1, 2))
    monkeypatch.setitem(gpu_profiles.BATCHES, "tiny", (1, 2))
    assert gpu_profiles.main(["--size", "tiny", "--repeat", "3", "--out", str(tmp_path / "made")]) == 0
    assert "ok    greedy answers are eager ones within rounding" in capsys.readouterr().out
    files = {name: tmp_path / "made" / f"{name}.json" for name in ("llm", "embedding", "reranker")}
    llm = llm_profile(files["llm"])
    assert llm.iteration + llm.decode_sequence > 0  # which of the two took the time so few measurements cannot tell
    for name in ("embedding", "reranker"):
        found = batch_profile(files[name])
        assert found.call + found.item > 0
    for name, op in (("llm", Op.DECODE), ("embedding", Op.EMBED), ("reranker", Op.RERANK)):
        written = json.loads(files[name].read_text())
        assert written["date"] and "torch" in written["hardware"] and "random weights" in written["model"]
        known = Costs()
        known.load(files[name])
        assert known.measured(written["lines"][0]["engine"], op)
    eager = json.loads(files["llm"].read_text())["eager"]
    assert eager["tokens"] == gpu_profiles.ANSWER * len(gpu_profiles.LENGTHS)
    assert eager["furthest"] <= eager["bound"]


def test_answers_that_eager_generation_does_not_give_are_found(tmp_path: Path) -> None:
    path, _ = gpu_models.random_llama(tmp_path, "tiny", device="cpu", dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32", attn_implementation="eager").eval()
    rng = random.Random(1)
    prompts = [[rng.randrange(4096) for _ in range(length)] for length in (5, 40)]
    wrong = [[rng.randrange(4096) for _ in range(gpu_profiles.ANSWER)] for _ in prompts]
    found = gpu_profiles.compare(model, prompts, wrong)
    assert not found.held
    assert found.same < found.tokens


def test_without_a_gpu_only_tiny_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu_profiles.main(["--out", str(tmp_path)])
    assert "there is no GPU that PyTorch can use" in capsys.readouterr().err
