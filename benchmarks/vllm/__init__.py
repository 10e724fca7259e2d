"""Benchmarks of real vLLM: ``make bench-vllm``."""
