"""A Transformers engine on the demo's model, and its completions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fineflow.backends.transformers import TransformersEngine
from fineflow.protocols import Message, Sampling

torch = pytest.importorskip("torch")

QUESTIONS = [
    "Who founded Velmar Systems?",
    "Write three search queries, one per line, for: In which city is Kelmora Bridge?",
    "Context: Torstad is a town. Torstad is known for its salt mines.\n\nQuestion: What is Torstad known for?",
    "Which company makes solar panels, Silver Harbor Tools or Varmond Labs?",
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with as_file(files("fineflow.demo") / "data" / "tinylm") as path:
        yield path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(folder, name="tiny", dtype="float32")  # by default on CUDA: the model's own
    yield engine
    asyncio.run(engine.aclose())


def chat(engine: TransformersEngine, text: str) -> list[int]:
    return engine.encode(engine.render_chat([Message("user", text)]))


class Completion(NamedTuple):
    """The whole output of one decode."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tokens: tuple[int, ...]


async def collect(engine: TransformersEngine, tokens: list[int], **settings: Any) -> Completion:
    deltas = [delta async for delta in engine.generate(tokens, Sampling(**settings))]
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    last = deltas[-1]
    assert last.finish_reason is not None
    ids = tuple(token for delta in deltas for token in delta.tokens)
    text = "".join(delta.text for delta in deltas)
    return Completion(text, last.finish_reason, last.prompt_tokens, len(ids), last.cached_tokens, ids)
