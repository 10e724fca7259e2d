"""Models that run in this process: ``from fineflow.engines import TransformersEngine, SentenceTransformerEngine``.

Components that put them into pipelines are in ``fineflow.langchain``. A name raises ImportError, saying what to
install, when its library is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fineflow._lazy import Lazy, lazily

if TYPE_CHECKING:
    from fineflow.backends.emulated import BatchProfile, EmulatedEmbedding, EmulatedLLM, EmulatedReranker, LLMProfile
    from fineflow.backends.sentence_transformers import CrossEncoderEngine, SentenceTransformerEngine, bundled_minilm
    from fineflow.backends.similarity import EmbeddingSimilarityEngine
    from fineflow.backends.transformers import TransformersEngine

__all__ = [
    "CrossEncoderEngine",
    "EmbeddingSimilarityEngine",
    "EmulatedEmbedding",
    "EmulatedLLM",
    "EmulatedReranker",
    "BatchProfile",
    "LLMProfile",
    "SentenceTransformerEngine",
    "TransformersEngine",
    "bundled_minilm",
]

_EMULATED = Lazy("fineflow.backends.emulated")
_TEXT = Lazy("fineflow.backends.sentence_transformers", "sentence-transformers", ("sentence_transformers",))

__getattr__, __dir__ = lazily(
    __name__,
    {
        "CrossEncoderEngine": _TEXT,
        "EmbeddingSimilarityEngine": Lazy("fineflow.backends.similarity"),
        "EmulatedEmbedding": _EMULATED,
        "EmulatedLLM": _EMULATED,
        "EmulatedReranker": _EMULATED,
        "BatchProfile": _EMULATED,
        "LLMProfile": _EMULATED,
        "SentenceTransformerEngine": _TEXT,
        "TransformersEngine": Lazy("fineflow.backends.transformers", "transformers", ("transformers", "torch")),
        "bundled_minilm": Lazy("fineflow.backends.sentence_transformers"),  # says itself which package carries it
    },
)
