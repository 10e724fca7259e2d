"""Embedded LLM engine on transformers' continuous batching."""

from fineflow.backends.transformers.engine import TransformersEngine
from fineflow.backends.transformers.model_host import CacheStats

__all__ = ["CacheStats", "TransformersEngine"]
