"""Emulated engines: real results, queues and batches, with run times from a latency profile.

For tests and benchmarks without an accelerator. Time is ``asyncio.sleep`` on the loop that uses the engine, so it is
real time, or virtual time in ``fineflow.testing.virtual``. Results are really computed: texts come from a script,
vectors from hashes of words, scores from shared words. Reports mark figures measured this way as emulated.
"""

from __future__ import annotations

from fineflow.backends.emulated.batches import (
    EmulatedEmbedding,
    EmulatedReranker,
    EmulatedSearch,
    overlap,
    word_vector,
)
from fineflow.backends.emulated.cores import SharedCores
from fineflow.backends.emulated.llm import EmulatedLLM
from fineflow.backends.emulated.profiles import (
    CROSS_ENCODER,
    EMBEDDER,
    LLAMA_2_7B,
    BatchProfile,
    LLMProfile,
    batch_profile,
    llm_profile,
    load_profile,
    profile_data,
    profile_names,
)

__all__ = [
    "CROSS_ENCODER",
    "EMBEDDER",
    "LLAMA_2_7B",
    "BatchProfile",
    "EmulatedEmbedding",
    "EmulatedLLM",
    "EmulatedReranker",
    "EmulatedSearch",
    "LLMProfile",
    "SharedCores",
    "batch_profile",
    "llm_profile",
    "load_profile",
    "overlap",
    "profile_data",
    "profile_names",
    "word_vector",
]
