"""Metrics of vLLM's KV cache."""

from __future__ import annotations

from typing import Any


class Gauges:
    """Latest metrics; written on vLLM's loop, read from any thread.

    usage: share of the cache that requests hold, 0 to 1. running, waiting: requests. queried, hits: prompt tokens so
    far, and those of them that were in the prefix cache.
    """

    def __init__(self) -> None:
        self.usage = 0.0
        self.running = 0
        self.waiting = 0
        self.queried = 0
        self.hits = 0

    def logger(self, vllm_config: Any, engine_index: int = 0) -> Any:
        """Returns a stat logger; this method is a factory for ``AsyncLLM``."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        gauges = self

        class Logger(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
                if scheduler_stats is not None:
                    gauges._record(scheduler_stats)

            def log_engine_initialized(self) -> None:
                pass

        return Logger(vllm_config, engine_index)

    def _record(self, stats: Any) -> None:
        self.usage = stats.kv_cache_usage
        self.running, self.waiting = stats.num_running_reqs, stats.num_waiting_reqs
        self.queried += stats.prefix_cache_stats.queries
        self.hits += stats.prefix_cache_stats.hits
