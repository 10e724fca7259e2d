"""LlamaIndex components on engines in this process: ordinary components, also in what was never optimized."""
