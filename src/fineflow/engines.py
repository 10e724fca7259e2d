"""Engines: ``from fineflow.engines import TransformersEngine, SentenceTransformerEngine``.

``instances`` combines several engines into one, ``set_policy`` sets the order in which an engine serves its queue, and
``limit`` bounds the concurrent calls of a component that is not an engine. A ``Context`` is a prompt that grows on an
LLM engine, and forks.

The components that put engines into pipelines are in ``fineflow.langchain`` and ``fineflow.llamaindex``. A name raises
ImportError, with an install hint, when its library is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fineflow._lazy import Lazy, lazily

if TYPE_CHECKING:
    from fineflow.adapters.core.contexts import Context
    from fineflow.adapters.limits import limit, set_policy
    from fineflow.backends.emulated import (
        BatchProfile,
        EmulatedEmbedding,
        EmulatedLLM,
        EmulatedReranker,
        EmulatedSearch,
        LLMProfile,
        SharedCores,
        batch_profile,
        llm_profile,
        profile_names,
    )
    from fineflow.backends.openai_server import OpenAIServerEngine
    from fineflow.backends.sentence_transformers import CrossEncoderEngine, SentenceTransformerEngine, bundled_minilm
    from fineflow.backends.similarity import EmbeddingSimilarityEngine
    from fineflow.backends.transformers import TransformersEngine
    from fineflow.backends.vllm import VLLMEngine
    from fineflow.runtime.queues.instances import instances

__all__ = [
    "Context",
    "CrossEncoderEngine",
    "EmbeddingSimilarityEngine",
    "EmulatedEmbedding",
    "EmulatedLLM",
    "EmulatedReranker",
    "EmulatedSearch",
    "BatchProfile",
    "LLMProfile",
    "SharedCores",
    "batch_profile",
    "llm_profile",
    "profile_names",
    "OpenAIServerEngine",
    "SentenceTransformerEngine",
    "TransformersEngine",
    "VLLMEngine",
    "bundled_minilm",
    "instances",
    "limit",
    "set_policy",
]

_EMULATED = Lazy("fineflow.backends.emulated")
_TEXT = Lazy("fineflow.backends.sentence_transformers", "sentence-transformers", ("sentence_transformers",))

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Context": Lazy("fineflow.adapters.core.contexts"),
        "CrossEncoderEngine": _TEXT,
        "EmbeddingSimilarityEngine": Lazy("fineflow.backends.similarity"),
        "EmulatedEmbedding": _EMULATED,
        "EmulatedLLM": _EMULATED,
        "EmulatedReranker": _EMULATED,
        "EmulatedSearch": _EMULATED,
        "BatchProfile": _EMULATED,
        "LLMProfile": _EMULATED,
        "SharedCores": _EMULATED,
        "batch_profile": _EMULATED,
        "llm_profile": _EMULATED,
        "profile_names": _EMULATED,
        "OpenAIServerEngine": Lazy("fineflow.backends.openai_server", "openai", ("openai",)),
        "SentenceTransformerEngine": _TEXT,
        "TransformersEngine": Lazy("fineflow.backends.transformers", "transformers", ("transformers", "torch")),
        "VLLMEngine": Lazy("fineflow.backends.vllm", "vllm", ("vllm",)),
        "bundled_minilm": Lazy("fineflow.backends.sentence_transformers"),  # names the package that it needs itself
        "instances": Lazy("fineflow.runtime.queues.instances"),
        "limit": Lazy("fineflow.adapters.limits"),
        "set_policy": Lazy("fineflow.adapters.limits"),
    },
)
