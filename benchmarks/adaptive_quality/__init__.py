"""Quality and delay of ``fineflow.adaptive`` on a real engine: ``python -m benchmarks.adaptive_quality``."""
