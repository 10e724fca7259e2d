"""vLLM as an engine, in processes of its own."""

from fineflow.backends.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
