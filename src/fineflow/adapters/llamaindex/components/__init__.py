"""LlamaIndex components on engines in this process: ordinary components, which also work without ``optimize``."""
