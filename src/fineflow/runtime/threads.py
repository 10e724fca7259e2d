"""Threads for the blocking methods of user components.

The number of threads has no practical bound: a component may itself wait for an optimized pipeline whose components
need threads, and any bound would be a deadlock for some depth of nesting. Idle threads are reused.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_pool = ThreadPoolExecutor(max_workers=100_000, thread_name_prefix="fineflow-worker")


async def in_thread(function: Callable[[], T]) -> T:
    """Runs a blocking function in a worker thread, in a copy of the current context."""
    context = contextvars.copy_context()

    def run() -> T:
        try:
            return context.run(function)
        except StopIteration as stop:  # cannot travel through a future
            raise RuntimeError("component raised StopIteration") from stop

    return await asyncio.get_running_loop().run_in_executor(_pool, run)
