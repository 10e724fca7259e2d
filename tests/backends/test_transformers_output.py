"""Text and errors of a Transformers engine: sampling, stop strings, settings that it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tiny_transformers import QUESTIONS, Completion, chat, collect, engine, folder, torch  # noqa: F401

from fineflow.backends.transformers import TransformersEngine
from fineflow.backends.transformers.answer import Detokenizer, StopStrings
from fineflow.errors import BackendError
from fineflow.protocols import Message

pytestmark = pytest.mark.engine


def test_sampler_draws_from_the_distribution() -> None:
    """Frequencies over many seeds, with temperature, top-k, top-p and min-p as transformers' processors apply them."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    from fineflow.backends.transformers.sampler import Sampler

    torch.manual_seed(0)
    logits, draws = torch.randn(1, 12) * 2, 20000
    cuts = [TemperatureLogitsWarper(0.7), TopKLogitsWarper(6), TopPLogitsWarper(0.95), MinPLogitsWarper(0.15)]
    warpers = LogitsProcessorList(cuts)
    expected = warpers(torch.zeros(1, 1, dtype=torch.long), logits).softmax(-1)[0]
    sampler = Sampler()
    sampler.eager = False
    args = torch.empty(5, draws, dtype=torch.int32)
    args[0] = torch.tensor(0.7).view(torch.int32)
    args[1] = torch.tensor(0.95).view(torch.int32)
    args[2] = torch.tensor(0.15).view(torch.int32)
    args[3] = 6
    args[4] = torch.randint(-(2**31), 2**31 - 1, (draws,), dtype=torch.int32)
    tokens = sampler(torch.zeros(draws, dtype=torch.int32), logits.expand(draws, -1), args).argmax(-1)
    found = torch.bincount(tokens, minlength=12) / draws
    assert torch.all(found[expected == 0] == 0)
    assert (found - expected).abs().max() < 0.015


class Bytes:
    """A tokenizer of UTF-8 bytes: every character beyond ASCII takes several tokens."""

    @staticmethod
    def decode(tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["plain", "naïve Zürich", "東京 🏯 ok", "👩‍👩‍👧", ""])
def test_characters_are_never_cut(text: str) -> None:
    detokenizer = Detokenizer(Bytes.decode)
    pieces = [detokenizer.push([byte]) for byte in text.encode()]
    assert "".join(pieces) == text
    assert [piece for piece in pieces if piece] == list(text)


def test_an_unfinished_character_is_left_out() -> None:
    detokenizer = Detokenizer(Bytes.decode)
    assert detokenizer.push(list("aé".encode())[:-1]) == "a"


def test_multibyte_text_of_the_real_tokenizer(engine: TransformersEngine) -> None:
    text = "Zürich: 東京 🏯!"
    tokens = engine.encode(text)
    assert len(tokens) > len(text)
    detokenizer = Detokenizer(lambda ids: str(engine.tokenizer.decode(ids, skip_special_tokens=True)))
    pieces = [detokenizer.push([token]) for token in tokens]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one\ntwo", ("\n",), "one"),
        ("aab", ("ab",), "a"),
        ("abab!", ("abac",), "abab!"),
        ("xENDx", ("END", "NE"), "x"),
        ("", ("a",), ""),
        ("none", (), "none"),
    ],
)
def test_stop_strings(text: str, stops: tuple[str, ...], expected: str, size: int) -> None:
    cutter = StopStrings(stops)
    found = ""
    for at in range(0, len(text), size):
        found += cutter.push(text[at : at + size])
        if cutter.hit:
            break
    else:
        found += cutter.finish()
    assert found == expected
    assert cutter.hit == any(stop in text for stop in stops)


def test_unknown_folder_is_one_clear_line(tmp_path: Path) -> None:
    """The library is not asked: it would take the folder for a malformed hub id."""
    for model in (tmp_path / "nothing", str(tmp_path / "nothing"), Path("nothing"), "./nothing", "~/no/such/folder"):
        with pytest.raises(BackendError, match=r"nothing|folder") as caught:
            TransformersEngine(model)
        assert ": there is no such folder. Expected a folder with a causal LM" in str(caught.value)
        assert "\n" not in str(caught.value) and caught.value.__cause__ is None


def test_a_folder_without_a_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"could not load the LLM.*Expected a folder") as caught:
        TransformersEngine(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"), [("max_tokens", 0), ("temperature", -1.0), ("top_p", 0.0), ("top_p", 1.5), ("top_k", -1)]
)
async def test_settings_out_of_range(engine: TransformersEngine, field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}; it must be"):
        await collect(engine, [5, 6, 7], **{field: value})


async def test_prompts_beyond_the_context_fail_alone(engine: TransformersEngine) -> None:
    good, bad = await asyncio.gather(
        collect(engine, chat(engine, QUESTIONS[0]), max_tokens=4),
        collect(engine, [5] * 2048, max_tokens=4),
        return_exceptions=True,
    )
    assert isinstance(good, Completion)
    assert isinstance(bad, BackendError)
    assert "1 to 2047 tokens, this one has 2048" in str(bad)


def test_what_the_chat_template_refuses(folder: Path) -> None:
    engine = TransformersEngine(folder)
    engine.tokenizer.chat_template = "{{ raise_exception('no system messages') }}"
    with pytest.raises(BackendError, match="refuses the messages: no system messages"):
        engine.render_chat([Message("system", "x")])
    engine.tokenizer.chat_template = None
    with pytest.raises(BackendError, match="has no chat template"):
        engine.render_chat([Message("user", "x")])


async def test_output_is_cut_to_the_context(folder: Path) -> None:
    engine = TransformersEngine(folder, name="short", context=64)
    try:
        found = await collect(engine, engine.encode("a " * 100)[:60], max_tokens=50)
        assert found.completion_tokens <= 4
    finally:
        await engine.aclose()
