"""vLLM as an engine, in its own processes."""

from fineflow.backends.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
