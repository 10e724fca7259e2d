"""Engines with gates: queued and running work, also half done, stays so until the test opens a gate.

Like real engines they live on fineflow's runtime loop; ``meter`` counts the work on them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Any

from fineflow.backends.emulated import overlap
from fineflow.backends.emulated.chat import plain_chat
from fineflow.ir import Op
from fineflow.protocols import Delta, Message, Sampling, TokenLogprob
from fineflow.testing.gates import Gate, Meter, await_
from fineflow.testing.vectors import vector_of


class GatedLLM:
    """An ``LLMEngine`` whose tokens are characters; it answers with the words of ``answer``, one delta each.

    gate: waited at before the first token. token_gate: before each token. prefill_gate: before a prefill is done.
    prefills: counts prefills. capacity: maximum number of tokens (``protocols.Limited``). constraints: as in
    ``protocols.Constrains``; ``answer`` is assumed to follow them. samplings: the sampling settings of each call. If
    logprobs are requested, every token has probability 1.
    """

    block_size = 16
    can_prefill = True

    def __init__(
        self,
        answer: str | Callable[[str], str] = "ok",
        *,
        name: str = "gated-llm",
        gate: Gate | None = None,
        token_gate: Gate | None = None,
        prefill_gate: Gate | None = None,
        capacity: int | None = None,
        constraints: Collection[str] = (),
    ) -> None:
        self.answer = answer
        self.name = name
        self.constraints = frozenset(constraints)
        self.samplings: list[Sampling] = []
        self.gate = gate
        self.token_gate = token_gate
        self.prefill_gate = prefill_gate
        self.capacity = capacity
        self.meter = Meter()
        self.prefills = Meter()

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        return plain_chat(messages, tools, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        with self.prefills.work():
            await await_(self.prefill_gate)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[Delta, None]:
        self.samplings.append(sampling)
        prompt = "".join(map(chr, tokens))
        with self.meter.work(prompt):
            await await_(self.gate)
            said = self.answer if isinstance(self.answer, str) else self.answer(prompt)
            words = re.findall(r"\S+\s*", said)[: sampling.max_tokens] or [""]
            for i, word in enumerate(words):
                await await_(self.token_gate)
                end = "stop" if i + 1 == len(words) else None
                certain = () if sampling.logprobs is None else (TokenLogprob(word, 0.0),)
                yield Delta(word, (i,), end, len(tokens), logprobs=certain)

    async def aclose(self) -> None:
        """Does nothing: there is nothing to free."""


class GatedBatches:
    """A ``BatchEngine`` that embeds and reranks by words. gate: each batch waits at it."""

    ops = frozenset({Op.EMBED, Op.RERANK})

    def __init__(self, *, name: str = "gated-batches", max_batch: int = 4, gate: Gate | None = None) -> None:
        self.name = name
        self.max_batch = max_batch
        self.gate = gate
        self.meter = Meter()

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        with self.meter.work(op.value):
            await await_(self.gate)
            if op is Op.EMBED:
                return [vector_of(text, 32) for _, text in items]
            return [overlap(query, text) for query, text in items]

    async def aclose(self) -> None:
        """Does nothing: there is nothing to free."""
