"""One query: what all graphs of one call share, its tasks, and its end, after which nothing of it is left."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fineflow.ir import Graph, Op
from fineflow.runtime import events
from fineflow.runtime.claims import Claims, Summary
from fineflow.runtime.scheduler import depth, query
from fineflow.runtime.trace import Stamp, Trace


@dataclass
class Call:
    """What is common to all graphs of one query: entry point, limits, tasks, claims.

    May be made on any thread; its methods run on ``loop``.
    """

    loop: asyncio.AbstractEventLoop
    kernels: Mapping[Op, Callable[..., Any]]  # see executor.Kernel
    sync: bool  # entered through invoke/stream: components are used through their sync methods
    streaming: bool  # entered through stream/astream: stock will use the models' streaming methods
    handlers: bool  # a streaming callback handler is attached: stock streams models even inside invoke
    context: contextvars.Context
    label: str
    limit: asyncio.Semaphore | None = None  # RunnableConfig["max_concurrency"]
    claims: Claims = field(init=False)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    waiting: dict[str, list[Callable[[Any], None]]] = field(default_factory=dict)  # opaque leaf -> who wants its value
    fed: dict[str, Any] = field(default_factory=dict)  # opaque leaf -> its value, which nobody has asked for yet
    tables: dict[Any, Any] = field(default_factory=dict)  # per-query memory of kernels
    surprises: list[str] = field(default_factory=list)  # what failed while running ahead
    broken: list[str] = field(default_factory=list)  # those that are faults of fineflow if the call succeeds
    runs: list[tuple[Graph, dict[str, Stamp]]] = field(default_factory=list)  # graphs started so far, with their times
    awaited: dict[str, Stamp] = field(default_factory=dict)  # opaque leaf -> the stamp of its primitive
    began: float = field(init=False)  # seconds, as events.now() counts them

    def __post_init__(self) -> None:
        self.claims = Claims(self.loop)
        self.began = events.now()

    def spawn(
        self,
        work: Awaitable[Any],
        level: int,
        limit: asyncio.Semaphore | None = None,
        *,
        name: str = "",
        stamp: Stamp | None = None,
    ) -> asyncio.Task[Any]:
        """A task in its own copy of the caller's context, with its depth as priority; ``limit`` is held meanwhile.

        ``name``: what it works for, shown in timelines; ``stamp``: of that run.
        """
        context = self.context.copy()
        context.run(_mark, level, self.label, name, stamp)
        task = self.loop.create_task(_run(work, limit), context=context)
        self.tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self.tasks.discard(task)
            if stamp is not None and not task.cancelled():
                stamp.end()
            if not task.cancelled():
                task.exception()  # whoever wanted it has been told; after the end of the call nobody wants it
            if inspect.iscoroutine(work):
                work.close()  # a task that is cancelled before its first step has not touched it

        task.add_done_callback(ended)
        if self.claims.closed:  # looked at after the task was added: `closed` may be set from another thread
            task.cancel()
        return task

    def begins(self, leaf: str) -> None:
        """Stock is about to run the opaque step ``leaf``. From any thread."""
        stamp = self.awaited.get(leaf)
        if stamp is not None:
            stamp.ready = events.now()
            if not self.streaming:  # a stream takes as long as its reader does
                stamp.begun = stamp.ready

    def feed(self, leaf: str, value: Any) -> None:
        """Stock ran the opaque step ``leaf``: its value is there."""
        if leaf not in self.waiting and not self.claims.closed:
            self.fed[leaf] = value  # stock is ahead: the graph gets there later
        for wanted in self.waiting.pop(leaf, ()):
            wanted(value)

    def want(self, leaf: str, wanted: Callable[[Any], None]) -> None:
        """Calls ``wanted`` with the value of the opaque step ``leaf``: now if stock has run it, else when it has."""
        if leaf in self.fed:
            wanted(self.fed.pop(leaf))
        else:
            self.waiting.setdefault(leaf, []).append(wanted)

    def summary(self) -> Summary:
        """What is worth knowing of the call so far."""
        claims = self.claims
        unclaimed = len(claims.unclaimed())
        return Summary(
            claims.claimed, claims.missed, unclaimed, tuple(self.surprises), tuple(self.broken), self._trace()
        )

    def _trace(self) -> Trace:
        runs = tuple(self.runs)
        for _, stamps in runs:
            for stamp in tuple(stamps.values()):
                stamp.settle()
        entry = ("" if self.sync else "a") + ("stream" if self.streaming else "invoke")
        return Trace(entry, self.began, events.now(), runs)

    def close(self) -> Summary:
        """Cancels what still runs, without waiting for it, and lets go of all values."""
        summary = self.summary()
        for task in tuple(self.tasks):
            task.cancel()
        self.claims.close()
        self.waiting.clear()
        self.fed.clear()
        self.tables.clear()
        return summary

    async def aclose(self) -> Summary:
        """The same, and waits until all has stopped; cancelling the caller does not shorten that."""
        summary = self.close()
        cancelled: asyncio.CancelledError | None = None
        while pending := [task for task in self.tasks if task is not asyncio.current_task()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = error
                for task in pending:
                    task.cancel()
        if cancelled is not None:
            raise cancelled
        return summary


def _mark(level: int, label: str, name: str, stamp: Stamp | None) -> None:
    depth.set(level)
    query.set(label)
    events.about(name, stamp)


class LeftToStock(Exception):
    """A kernel raises it: the primitive had better not run ahead in this call; the text says why."""


class Ended(Exception):
    """Carries a SystemExit or KeyboardInterrupt out of a task: raised in one, they would end everybody's loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__} in a component")
        self.error = error


async def _run(work: Awaitable[Any], limit: asyncio.Semaphore | None) -> Any:
    try:
        if limit is None:
            return await work
        async with limit:
            return await work
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise Ended(error) from error
