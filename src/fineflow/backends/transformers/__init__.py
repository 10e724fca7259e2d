"""The embedded LLM engine on transformers' continuous batching."""

from fineflow.backends.transformers.engine import CacheStats, TransformersEngine

__all__ = ["CacheStats", "TransformersEngine"]
