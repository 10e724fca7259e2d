"""Real engines under the applications: the models' own work, with the lengths and the texts of the script.

A real model decodes as many tokens as the script says, and its text is replaced by the script's, word by word. So every
scheme gets the same texts, as on emulated engines, and the device does work of the same shape (Parrot, section 8.1,
fixes lengths likewise). Embeddings are those of the model; scores are real, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from langchain_core.documents import Document

from benchmarks.apps.app import App
from benchmarks.harness.setting import Device, Setting
from benchmarks.harness.world import World
from fineflow.engines import EmbeddingSimilarityEngine, SentenceTransformerEngine, bundled_minilm
from fineflow.protocols import Delta, Message, Sampling
from fineflow.testing.langchain import FakeVectorStore


class Scripted:
    """``LLMEngine`` that has another one do the work, and says what the script says."""

    def __init__(self, engine: Any, says: Callable[[str], str]) -> None:
        self.engine, self.says = engine, says
        self.name, self.block_size, self.can_prefill = engine.name, engine.block_size, engine.can_prefill
        self.requests = self.prompt_tokens = self.written_tokens = 0
        self._texts: dict[tuple[int, ...], str] = {}

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
        tokens: list[int] = self.engine.encode(text)
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


class RealWorld(World):
    """Engines of this machine, or a server; one LLM serves both as the core and as the small one."""

    def __init__(self, device: Device, setting: Setting, says: Callable[[str], str], passages: Sequence[str]) -> None:
        super().__init__(setting, says, passages)
        self.device = device
        self.embedder = SentenceTransformerEngine(bundled_minilm(), name="embedder")
        self.ranking = EmbeddingSimilarityEngine(self.embedder, name="reranker")

    @cached_property
    def model(self) -> Scripted:
        return Scripted(_engine(self.device), self.says)

    def engine(self, kind: str) -> Any:
        return self.model

    def store(self) -> FakeVectorStore:
        made = FakeVectorStore(self.embeddings, latency=self.setting.search)
        vectors = self.embeddings.embed_documents(list(self.passages))
        made._rows = [
            (vector, Document(page_content=text, id=str(i)))
            for i, (vector, text) in enumerate(zip(vectors, self.passages, strict=True))
        ]
        return made

    def close(self) -> None:
        """Frees the models."""
        asyncio.run(self.model.aclose())
        asyncio.run(self.embedder.aclose())

    def sent(self) -> dict[str, float]:
        model = self.model
        return {
            "requests": model.requests,
            "prompt_tokens": model.prompt_tokens,
            "written_tokens": model.written_tokens,
        }


def _engine(device: Device) -> Any:
    from fineflow.demo.data import default_model

    if device.kind == "transformers":
        from fineflow.engines import TransformersEngine

        return TransformersEngine(device.about or default_model(), name="llm")
    if device.kind == "vllm":
        from fineflow.engines import VLLMEngine

        return VLLMEngine(device.about or default_model(), name="llm")
    from fineflow.engines import OpenAIServerEngine

    return OpenAIServerEngine(device.about)


def world_on(device: Device, app: App, setting: Setting) -> World:
    """Returns the engines of a run."""
    if device.kind == "emulated":
        return World(setting, app.says, app.passages)
    return RealWorld(device, setting, app.says, app.passages)
