"""Base of the queues of batch engines and of LLMs: instances, and one event loop for all requests."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from fineflow.runtime.queues.health import Health
from fineflow.runtime.queues.placement import instances_of
from fineflow.runtime.queues.policy import Policy
from fineflow.runtime.queues.waiting_line import Waiter, WaitingLine

SETTLE_ITERATIONS = 16
"""Iterations of the event loop before a decision: one event (an answer, the end of a batch) often causes several
requests, some of them a few iterations later. Waiting puts them into one batch; an iteration takes microseconds."""


class EngineRequest(Waiter):
    """One request to an engine."""

    def fail(self, error: BaseException) -> None:
        """Raises an error to the caller, if it still waits."""
        raise NotImplementedError


R = TypeVar("R", bound=EngineRequest)


class EngineQueue(Generic[R]):
    """Requests that wait for one engine or a group of instances (``runtime.queues.instances``), all on one loop."""

    def __init__(self, engine: Any, policy: Policy) -> None:
        self.engine = engine
        self.policy = policy
        self.instances = instances_of(engine)
        self._health = Health(self.instances, getattr(engine, "patience", None))
        self._line: WaitingLine[R] = WaitingLine()
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that the requests are on

    def _settle_on_loop(self) -> None:
        """Makes the queue that of the running loop. Drops requests of another one: it has ended, or is a parent's."""
        if not self._here():  # first use, a new loop, or a forked child
            self._loop = asyncio.get_running_loop()
            self._line.drain()
            for instance in self.instances:
                instance.reset()
            self._health.forget()
            self._begin_anew()

    def recheck(self) -> None:
        """Decides again, as an instance may serve that did not. Only on the loop of the queue."""
        raise NotImplementedError

    def _begin_anew(self) -> None:
        """Drops what else the queue has from another loop."""
        raise NotImplementedError

    def _here(self) -> bool:
        """Returns True while requests of the running loop are this queue's; False once it has gone to another loop."""
        return self._loop is not None and asyncio._get_running_loop() is self._loop

    def _fail_waiting(self, error: BaseException) -> None:
        for request in self._line.drain():
            request.fail(error)
