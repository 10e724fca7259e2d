"""How long the work of emulated engines takes, and where the shipped figures come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LLMProfile:
    """How long iterations of a continuously batching LLM take, and what it has room for.

    iteration: seconds of every iteration. prefill_token: seconds for each prompt token that it prefills besides.
    decode_sequence: seconds for each sequence that it decodes a token of besides. prefill_tokens: most prompt tokens
    of one iteration, longer prompts are prefilled in chunks. sequences: most requests at once. blocks: of the
    key/value cache.
    """

    iteration: float
    prefill_token: float
    decode_sequence: float
    prefill_tokens: int = 2048
    sequences: int = 64
    blocks: int = 1024

    def seconds(self, prefilled: int, decoding: int) -> float:
        """What an iteration takes that prefills so many tokens and decodes so many sequences."""
        return self.iteration + prefilled * self.prefill_token + decoding * self.decode_sequence


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """How long a batch takes: ``call`` seconds and ``item`` seconds for each item, at most ``max_batch`` of them."""

    call: float
    item: float
    max_batch: int = 16

    def seconds(self, items: int) -> float:
        """What a batch of so many items takes."""
        return self.call + items * self.item


LLAMA_2_7B = LLMProfile(iteration=0.0305, prefill_token=0.00023, decode_sequence=0.0003)
"""Llama-2-7B on an RTX 3090. A line through the single prefills of Ayo's Table 3 (1000, 1700 and 3000 tokens in 260,
414 and 720 ms) gives 30.5 ms and 0.23 ms per token, and its split ones lie within 7 % of it. That an iteration which
only decodes takes the same 30.5 ms, and 1 % more for each sequence, is an assumption: both read all weights once."""

EMBEDDER = BatchProfile(call=0.05, item=0.025)
"""The embedding model of Ayo's Figure 4a: 48 texts take 1.8 s in batches of 4, and 1.35 s in batches of 16."""

CROSS_ENCODER = EMBEDDER
"""Ayo tells no times of its reranker; it is assumed to be a model like the one that embeds, run on pairs."""
