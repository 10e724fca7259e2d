"""Embedded LLM engine on transformers' continuous batching."""

from fineflow.backends.transformers import capabilities

capabilities.check()  # before the modules that build on what it checks

from fineflow.backends.transformers.engine import TransformersEngine  # noqa: E402
from fineflow.backends.transformers.model_host import CacheStats  # noqa: E402

__all__ = ["CacheStats", "TransformersEngine"]
