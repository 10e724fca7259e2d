"""Threads and wake-ups that are late at random, for tests that depend on which thread is first: ``--delays``.

A thread begins, work in an executor begins, an event is set or an event loop is woken up to 3 ms late, one time in
ten; and threads take turns at a random interval, another one in each test. A late thread spins instead of sleeping, so
that virtual time (``fineflow.testing.virtual_threads``) sees it run.
"""

from __future__ import annotations

import ast
import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import thread as executors
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

SHARE, SECONDS = 0.1, 0.003
_sleep = time.sleep  # the real one, as virtual time replaces it

# Where a thread begins or another one is woken up.
PLACES: tuple[tuple[Any, str], ...] = (
    (threading.Thread, "run"),
    (executors._WorkItem, "run"),
    (threading.Event, "set"),
    (threading.Condition, "notify"),
    (asyncio.BaseEventLoop, "call_soon_threadsafe"),
)


class Delays:
    """Plugin of pytest. seed: of the random numbers; the order of threads is another one in each run all the same."""

    def __init__(self, seed: int) -> None:
        self.seed, self.late = seed, 0
        self._random = random.Random(seed)
        # Where threads that parse Python take turns, as LangChain's do, CPython 3.11 raises SystemError now and then.
        parse, alone = ast.parse, threading.RLock()

        @wraps(parse)
        def parse_alone(*args: Any, **kwargs: Any) -> Any:
            with alone:
                return parse(*args, **kwargs)

        self._parse, self._parse_alone = parse, parse_alone

    def pytest_configure(self) -> None:
        ast.parse = self._parse_alone

    def pytest_unconfigure(self) -> None:
        ast.parse = self._parse

    def pytest_report_header(self) -> str:
        return f"delays: seed {self.seed}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        before = sys.getswitchinterval()
        sys.setswitchinterval(10 ** self._random.uniform(-6, -2))
        try:
            with self.everywhere():
                return (yield)
        finally:
            sys.setswitchinterval(before)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Makes all ``PLACES`` late inside the block."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in PLACES:
                patch.setattr(owner, name, self._late(getattr(owner, name)))
            yield

    def _late(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def late(*args: Any, **kwargs: Any) -> Any:
            if self._random.random() < SHARE:
                self.late += 1
                until = time.perf_counter() + self._random.uniform(0, SECONDS)
                while time.perf_counter() < until:
                    _sleep(0)
            return method(*args, **kwargs)

        return late
