"""Processor time of a thread, without what Python's garbage collector takes meanwhile.

The collector runs in whatever thread allocates. In a large process one collection takes a second, which is not what a
walk costs.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress
from typing import Any


class Stopwatch:
    """Runs from when it is made, in the thread that makes it, until ``stop``."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._began = time.thread_time()
        self._since: float | None = None  # when the collector began
        gc.callbacks.append(self._noted)

    def _noted(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() == self._thread:
            if phase == "start":
                self._since = time.thread_time()
            elif self._since is not None:
                self._began += time.thread_time() - self._since

    @property
    def seconds(self) -> float:
        """Seconds of processor time so far."""
        return time.thread_time() - self._began

    def stop(self) -> float:
        """Stops it, and returns its seconds."""
        with suppress(ValueError):  # somebody has taken it away
            gc.callbacks.remove(self._noted)
        return self.seconds
