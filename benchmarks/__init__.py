"""What fineflow saves and what it costs: each module is a command, ``python -m benchmarks.assistant --help``."""
