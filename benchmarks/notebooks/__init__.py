"""Notebooks with their outputs, each written by a command: ``python -m benchmarks.notebooks``."""
