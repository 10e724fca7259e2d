"""Real engines under the applications: the models' own work, with the lengths and the texts of the script.

A real model decodes as many tokens as the script says, and its text is replaced by the script's, word by word. So every
scheme gets the same texts, as on emulated engines, and the device does work of the same shape (Parrot, section 8.1,
fixes lengths likewise). Embeddings are those of the model; scores are real, too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain_core.documents import Document

from benchmarks.apps.app import App
from benchmarks.gpu_models import ENCODERS, LLAMAS, random_encoder, random_llama
from benchmarks.harness.setting import Device, Setting
from benchmarks.harness.world import World
from fineflow.engines import EmbeddingSimilarityEngine, SentenceTransformerEngine, bundled_minilm
from fineflow.langchain import EngineEmbeddings
from fineflow.protocols import Delta, Message, Sampling
from fineflow.testing.langchain import FakeVectorStore

SAID = ("device", "capacity", "context", "recovers", "shares_at_once")
CONTEXT = 4096  # tokens: more than the bundled model was trained for, but its texts are the script's
CACHE_BYTES = 2**30  # of vLLM's KV cache: more than all prompts of a run need


class Scripted:
    """``LLMEngine`` that has another one do the work, and says what the script says.

    salt: goes before each prompt, so that prompts with another one share nothing of the prefix cache with it.
    """

    def __init__(self, engine: Any, says: Callable[[str], str], salt: str = "") -> None:
        self.engine, self.says, self.salt = engine, says, salt
        self.name, self.block_size, self.can_prefill = engine.name, engine.block_size, engine.can_prefill
        self.requests = self.prompt_tokens = self.written_tokens = 0
        self._texts: dict[tuple[int, ...], str] = {}

    def __getattr__(self, name: str) -> Any:
        """Returns what the engine says of itself, so that plans and queues treat it alike."""
        if name in SAID:
            return getattr(self.engine, name)
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        given = {"tools": tools} if tools else {}
        text: str = self.engine.render_chat(messages, add_generation_prompt=add_generation_prompt, **given)
        return text

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = self.engine.encode(self.salt + text)
        self._texts[tuple(tokens)] = text
        return tokens

    def cached(self, tokens: Sequence[int]) -> int:
        return int(self.engine.cached(tokens)) if hasattr(self.engine, "cached") else 0

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        await self.engine.prefill(tokens, priority=priority)

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        words = re.findall(r"\s+|\S+\s*", self.says(self._texts[tuple(tokens)]))
        fixed = replace(sampling, max_tokens=len(words), min_tokens=len(words), stop=())
        self.requests += 1
        self.prompt_tokens += len(tokens)
        self.written_tokens += len(words)
        said = 0
        async for delta in self.engine.generate(tokens, fixed, priority=priority):
            upto = len(words) if delta.finish_reason else min(said + len(delta.tokens), len(words))
            text, said = "".join(words[said:upto]), upto
            yield replace(delta, text=text, finish_reason="stop" if delta.finish_reason else None, logprobs=())

    async def aclose(self) -> None:
        await self.engine.aclose()


class RealEngines:
    """The models: an LLM, and an embedding model that reranks, too. Several worlds can share them."""

    def __init__(self, device: Device) -> None:
        self._folder = TemporaryDirectory()
        folder = Path(self._folder.name)
        self.llm = _engine(device, folder)
        self.embedder = SentenceTransformerEngine(_encoder(device, folder), name="embedder")
        self._vectors: dict[str, list[float]] = {}

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Returns the vectors of what a standing store holds, each computed once."""
        if fresh := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
            found = EngineEmbeddings(self.embedder).embed_documents(fresh)
            self._vectors.update(zip(fresh, found, strict=True))
        return [self._vectors[text] for text in texts]

    async def aclose(self) -> None:
        """Frees the models."""
        await self.llm.aclose()
        await self.embedder.aclose()
        self._folder.cleanup()


class Served:
    """``BatchEngine`` that has another one do the work: an engine of one world, with a queue of its own."""

    def __init__(self, engine: Any, name: str) -> None:
        self.engine, self.name, self.ops, self.max_batch = engine, name, engine.ops, engine.max_batch

    @property
    def device(self) -> str:
        return str(self.engine.device)

    async def execute(self, op: Any, items: Sequence[Any]) -> list[Any]:
        found: list[Any] = await self.engine.execute(op, items)
        return found

    async def aclose(self) -> None:
        """Does nothing: who made the engine closes it."""


class RealWorld(World):
    """Engines of this machine, or a server; one LLM serves both as the core and as the small one."""

    def __init__(
        self,
        engines: RealEngines,
        setting: Setting,
        says: Callable[[str], str],
        passages: Sequence[str],
        salt: str = "",
    ) -> None:
        super().__init__(setting, says, passages)
        self.engines = engines
        self.embedder = Served(engines.embedder, "embedder")
        self.ranking = EmbeddingSimilarityEngine(self.embedder, name="reranker")
        self.model = Scripted(engines.llm, says, salt)

    def engine(self, kind: str) -> Any:
        return self.model

    def store(self) -> FakeVectorStore:
        made = FakeVectorStore(self.embeddings, latency=self.setting.search)
        made._rows = [
            (vector, Document(page_content=text, id=str(i)))
            for i, (vector, text) in enumerate(zip(self.engines.vectors(self.passages), self.passages, strict=True))
        ]
        return made

    def close(self) -> None:
        """Frees the models."""
        asyncio.run(self.engines.aclose())

    def sent(self) -> dict[str, float]:
        model = self.model
        return {
            "requests": model.requests,
            "prompt_tokens": model.prompt_tokens,
            "written_tokens": model.written_tokens,
        }


def roomy(folder: Path) -> Path:
    """Writes the bundled model to ``folder``, for prompts of up to ``CONTEXT`` tokens; returns the folder."""
    from fineflow.demo.data import default_model

    for each in default_model().iterdir():
        if each.name != "config.json":
            (folder / each.name).symlink_to(each)
    config = json.loads((default_model() / "config.json").read_text(encoding="utf-8"))
    text = json.dumps({**config, "max_position_embeddings": CONTEXT})
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


def _encoder(device: Device, folder: Path) -> Path | str:
    """Returns the embedding model: the bundled one, or one of random weights beside such an LLM."""
    if device.about not in ENCODERS:
        return bundled_minilm()
    (folder / "encoder").mkdir()
    return random_encoder(folder / "encoder", device.about, scores=False, dtype="float32")[0]


def _engine(device: Device, folder: Path) -> Any:
    """Returns the LLM. folder: empty, and there until the engine is closed."""
    if device.kind == "openai":
        from fineflow.engines import OpenAIServerEngine

        return OpenAIServerEngine(device.about)
    model: Path | str = device.about or roomy(folder)
    if device.about in LLAMAS:
        import torch

        on, dtype = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
        (folder / "llm").mkdir()
        model, _ = random_llama(folder / "llm", device.about, device=on, dtype=dtype)
    if device.kind == "transformers":
        from fineflow.engines import TransformersEngine

        return TransformersEngine(model, name="llm")
    from fineflow.engines import VLLMEngine

    return VLLMEngine(model, name="llm", enforce_eager=True, kv_cache_memory_bytes=CACHE_BYTES)


def world_on(device: Device, app: App, setting: Setting) -> World:
    """Returns the engines of a run."""
    if device.kind == "emulated":
        return World(setting, app.says, app.passages)
    return RealWorld(RealEngines(device), setting, app.says, app.passages)
