"""What of sampling depends on the tokens so far, on the embedded engine with its real model, against transformers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import as_file, files
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from fineflow.backends.transformers import TransformersEngine, grammars
from fineflow.errors import RequestError
from fineflow.protocols import Constrains, Delta, Message, Sampling

pytestmark = pytest.mark.engine

QUESTION = "Write three search queries, one per line, for: In which city is Kelmora Bridge?"


@pytest.fixture(scope="module")
def engine() -> Iterator[TransformersEngine]:
    with as_file(files("fineflow.demo") / "data" / "tinylm") as folder:
        engine = TransformersEngine(folder, name="tiny")
        yield engine
        asyncio.run(engine.aclose())


@pytest.fixture(scope="module")
def model(engine: TransformersEngine) -> Any:
    return AutoModelForCausalLM.from_pretrained(engine.model_id, dtype=torch.float32).eval()


@pytest.fixture
def prompt(engine: TransformersEngine) -> list[int]:
    return engine.encode(engine.render_chat([Message("user", QUESTION)]))


async def decoded(engine: TransformersEngine, tokens: Sequence[int], **settings: Any) -> list[Delta]:
    return [delta async for delta in engine.generate(tokens, Sampling(**settings))]


def text(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids(deltas: Sequence[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def greedy(model: Any, prompt: list[int], count: int, *processors: Any) -> list[int]:
    """Tokens that transformers decodes without a cache, with its own processors."""
    tokens, end = list(prompt), model.generation_config.eos_token_id
    for _ in range(count):
        with torch.no_grad():
            scores = model(torch.tensor([tokens])).logits[:, -1, :].float()
        scores = LogitsProcessorList(processors)(torch.tensor([tokens]), scores)
        tokens.append(int(scores.argmax()))
        if tokens[-1] == end:
            break
    return tokens[len(prompt) :]


class Less:
    """OpenAI's penalties, by their published formula."""

    def __init__(self, prompt: int, present: float, often: float) -> None:
        self.prompt, self.present, self.often = prompt, present, often

    def __call__(self, tokens: Any, scores: Any) -> Any:
        counts = torch.bincount(tokens[0, self.prompt :], minlength=scores.shape[-1])
        return scores - self.often * counts - self.present * (counts > 0)


async def test_penalties_are_those_of_transformers_and_openai(
    engine: TransformersEngine, model: Any, prompt: list[int]
) -> None:
    plain = ids(await decoded(engine, prompt, max_tokens=24))
    repeated = ids(await decoded(engine, prompt, max_tokens=24, repetition_penalty=1.6))
    assert repeated == greedy(model, prompt, 24, RepetitionPenaltyLogitsProcessor(1.6))
    less = ids(await decoded(engine, prompt, max_tokens=24, presence_penalty=3.0, frequency_penalty=1.5))
    assert less == greedy(model, prompt, 24, Less(len(prompt), 3.0, 1.5))
    assert len({tuple(plain), tuple(repeated), tuple(less)}) == 3


async def test_requests_in_one_batch_do_not_change_each_other(engine: TransformersEngine, prompt: list[int]) -> None:
    settings: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.6}, {"temperature": 2.0, "seed": 4}, {"logprobs": 1}]
    alone = [ids(await decoded(engine, prompt, max_tokens=24, **each)) for each in settings]
    together = await asyncio.gather(*(decoded(engine, prompt, max_tokens=24, **each) for each in settings))
    assert [ids(deltas) for deltas in together] == alone


async def test_min_tokens(engine: TransformersEngine, model: Any, prompt: list[int]) -> None:
    plain = await decoded(engine, prompt, max_tokens=200)
    assert plain[-1].finish_reason == "stop"
    least = len(ids(plain)) + 5
    longer = ids(await decoded(engine, prompt, max_tokens=least + 3, min_tokens=least))
    end = model.generation_config.eos_token_id
    assert longer == greedy(model, prompt, least + 3, MinNewTokensLengthLogitsProcessor(len(prompt), least, end, "cpu"))
    word = text(plain)[2:5]
    cut = await decoded(engine, prompt, max_tokens=30, stop=(word,))
    kept = await decoded(engine, prompt, max_tokens=30, stop=(word,), min_tokens=20)
    assert word not in text(cut)
    assert text(kept).startswith(text(cut) + word)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "seed": 2}, {"repetition_penalty": 1.6}])
async def test_logprobs_are_the_models(
    engine: TransformersEngine, model: Any, prompt: list[int], settings: dict[str, Any]
) -> None:
    deltas = await decoded(engine, prompt, max_tokens=12, logprobs=3, **settings)
    tokens, found = ids(deltas), [each for delta in deltas for each in delta.logprobs]
    assert len(found) == len(tokens)
    with torch.no_grad():
        scores = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    for token, each, row in zip(tokens, found, scores, strict=True):
        assert each.token == engine.tokenizer.decode([token])
        assert each.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert [value for _, value in each.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)
    only = await decoded(engine, prompt, max_tokens=2, logprobs=0)
    assert [each.top for delta in only for each in delta.logprobs] == [(), ()]
    assert not any(delta.logprobs for delta in await decoded(engine, prompt, max_tokens=2))


async def test_texts_of_special_tokens(engine: TransformersEngine, prompt: list[int]) -> None:
    (marker,) = engine.encode("<|user|>")
    plain = await decoded(engine, prompt, max_tokens=8)
    assert text(await decoded(engine, prompt, max_tokens=8, special_tokens=True)) == text(plain)
    tokens = [marker, *engine.encode("Kelmora"), *engine._hosting.eos]
    assert engine._hosting.text.decode(tokens) == "Kelmora"
    assert engine._hosting.text.decode_all(tokens, engine._hosting.eos) == "<|user|>Kelmora"


def test_an_engine_that_holds_forms_says_so(engine: TransformersEngine) -> None:
    assert isinstance(engine, Constrains)
    assert engine.constraints == (grammars.CONSTRAINTS if grammars.available() else frozenset())


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "year": {"type": "integer", "maximum": 3000}},
    "required": ["city", "year"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("settings", [{}, {"temperature": 3.0, "seed": 1}, {"repetition_penalty": 1.5}])
async def test_schemas(engine: TransformersEngine, prompt: list[int], settings: dict[str, Any]) -> None:
    pytest.importorskip("llguidance")
    deltas = await decoded(engine, prompt, max_tokens=200, schema=json.dumps(SCHEMA), **settings)
    assert deltas[-1].finish_reason == "stop"
    found = json.loads(text(deltas))
    assert found.keys() == {"city", "year"}
    assert isinstance(found["year"], int)


async def test_expressions_and_choices(engine: TransformersEngine, prompt: list[int]) -> None:
    pytest.importorskip("llguidance")
    assert re.fullmatch(r"[A-C]{3}-\d\d", text(await decoded(engine, prompt, max_tokens=40, regex=r"[A-C]{3}-\d\d")))
    choices = ("no", 'say "yes"', "naïve")
    drawn = [decoded(engine, prompt, max_tokens=40, choices=choices, temperature=5.0, seed=seed) for seed in range(12)]
    found = {text(deltas) for deltas in await asyncio.gather(*drawn)}
    assert found <= set(choices)
    assert len(found) > 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schema": '{"type": "nothing"}'}, "schema=.* cannot be followed"),
        ({"schema": "no JSON"}, "schema='no JSON' cannot be followed"),
        ({"regex": "(a"}, r"regex='\(a' cannot be followed"),
        ({"extra": (("best_of", 2),)}, r"knows no setting best_of \(extra\); it knows max_tokens, "),
    ],
)
async def test_what_cannot_be_followed(
    engine: TransformersEngine, prompt: list[int], settings: dict[str, Any], expected: str
) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(RequestError, match=expected):
        await decoded(engine, prompt, **settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"min_p": 2.0}, "min_p is 2.0; it must be between 0 and 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be more than 0"),
        ({"min_tokens": 300}, "min_tokens is 300; it must be between 0 and max_tokens"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"regex": "a", "choices": ("a",)}, "an output has one form, got regex and choices"),
    ],
)
async def test_settings_out_of_range(
    engine: TransformersEngine, prompt: list[int], settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        await decoded(engine, prompt, **settings)


async def test_without_the_library_that_holds_forms(
    engine: TransformersEngine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "available", lambda: False)
    assert engine.constraints == frozenset()
    with pytest.raises(RequestError, match=r"cannot follow regex without llguidance; it comes with: pip install"):
        await decoded(engine, prompt, regex="a")


async def test_where_the_pass_is_captured(
    engine: TransformersEngine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.start()
    assert engine._hosting.manager is not None
    monkeypatch.setattr(engine._hosting.manager.logit_processor, "eager", False)
    assert engine.constraints == frozenset()
    with pytest.raises(RequestError, match="cannot follow presence_penalty, logprobs while its pass is captured"):
        await decoded(engine, prompt, presence_penalty=1.0, logprobs=1)
