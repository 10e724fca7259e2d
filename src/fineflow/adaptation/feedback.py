"""Improves the profiler with the best answers to some queries (RAGServe, section 5)."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any

from fineflow.adaptation.decisions import Log
from fineflow.adaptation.profiler import Profiling
from fineflow.runtime.call.identity import identity
from fineflow.runtime.loop.submission import RuntimeSubmission

EVERY = 30  # queries for one example
KEPT = 4  # examples, the last ones
PRIORITY = -1  # of golden runs: users' queries come first
AT_ONCE = 4  # requests of a golden run; thirty at a time would leave users' queries little memory

_ANSWERED = "\nThe most accurate answer to the query is: {answer}\n"
_EXAMPLES = "\nProfiles of earlier queries, estimated from their most accurate answers:\n"


class Feedback:
    """Examples for the profiler, made in the background, one at a time.

    Every 30th query is answered in the golden configuration; the profiler then sees the query with this answer, and
    what it estimates is an example in its prompt from then on. The last four are kept. A profiler that learns by itself
    is asked to, with this answer or without one.
    """

    def __init__(self, profiler: Profiling, log: Log) -> None:
        self._profiler, self._log = profiler, log
        self._queries = itertools.count(1)
        self._examples: deque[str] = deque(maxlen=KEPT)
        self._running: set[Any] = set()  # tasks and submissions

    @property
    def text(self) -> str:
        """The examples, for the prompt; "" without any."""
        examples = list(self._examples)
        return _EXAMPLES + "\n".join(examples) + "\n" if examples else ""

    def due(self) -> bool:
        """Counts a query. Returns True if it is one to learn from."""
        return next(self._queries) % EVERY == 0

    def learn(self, query: str, golden: Callable[[], Awaitable[str]] | None, context: Context) -> None:
        """Starts to learn from a query, unless it is still learning from another one. Returns at once.

        golden: answers it in the golden configuration; None: learn without an answer. The work is done on the running
        event loop, or on the runtime's if there is none, and ends with its loop.
        """
        if self._running:
            return
        make = partial(self._learn, query, golden)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            work = RuntimeSubmission(make, context)
            self._running.add(work)
            work.outcome.add_done_callback(lambda _: self._running.discard(work))
            work.start()
        else:
            task = loop.create_task(make(), context=context)
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _learn(self, query: str, golden: Callable[[], Awaitable[str]] | None) -> None:
        try:
            with identity(priority=PRIORITY):
                answer = None if golden is None else await golden()
                seen = "" if answer is None else _ANSWERED.format(answer=answer)
                found = await self._profiler.estimate(query, seen, keep=False)
        except Exception:  # a failure of a golden run is nobody's failure; it is counted
            self._log.feedback(failed=True)
            return
        if answer is not None:
            self._examples.append(f"Question: {query}\nAnswer: {answer}\n{found.profile.as_json()}")
        self._log.feedback(failed=False)

    def close(self) -> None:
        """Cancels what runs in the background."""
        for each in list(self._running):
            each.cancel()
