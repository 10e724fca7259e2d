"""The graph scheduler: runs one e-graph for one query, ahead of stock (Ayo, section 5.1).

Dataflow by in-degree counting. Trivial primitives run inline, in the call that completed their last input; the
others become tasks. A primitive that fails stops its own branch only: the error is stock's to raise, when it gets
there, and its claim returns the very exception.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.runtime import events
from fineflow.runtime.claims import Claims, Entry
from fineflow.runtime.scheduler import depth, query
from fineflow.runtime.streams import Stream

Kernel = Callable[[Primitive, Mapping[str, Any], "Execution"], Any]
"""Runs one primitive. Returns the value, or an awaitable of it; called on the query's event loop."""


@dataclass
class Call:
    """What is common to all graphs of one query: entry point, limits, tasks, claims."""

    loop: asyncio.AbstractEventLoop
    kernels: Mapping[Op, Kernel]
    sync: bool  # entered through invoke/stream: components are used through their sync methods
    streaming: bool  # entered through stream/astream: stock will use the models' streaming methods
    handlers: bool  # a streaming callback handler is attached: stock streams models even inside invoke
    context: contextvars.Context
    label: str
    limit: asyncio.Semaphore | None = None  # RunnableConfig["max_concurrency"]
    claims: Claims = field(init=False)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    waiting: dict[str, list[Callable[[Any], None]]] = field(default_factory=dict)  # opaque leaf -> who wants its value
    tables: dict[str, Any] = field(default_factory=dict)  # per-query memory of kernels
    surprises: list[str] = field(default_factory=list)  # failures of fineflow's own, for strict mode and statistics

    def __post_init__(self) -> None:
        self.claims = Claims(self.loop)

    def spawn(self, work: Awaitable[Any], level: int) -> asyncio.Task[Any]:
        """A task in its own copy of the caller's context, with its depth as priority."""
        context = self.context.copy()
        context.run(depth.set, level)
        context.run(query.set, self.label)
        task = self.loop.create_task(_run(work), context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def feed(self, leaf: str, value: Any) -> None:
        """Stock ran the opaque step ``leaf``: its value is there."""
        for wanted in self.waiting.pop(leaf, ()):
            wanted(value)

    async def aclose(self) -> None:
        """Cancels what still runs and waits until it has stopped."""
        self.claims.closed = True
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)


async def _run(work: Awaitable[Any]) -> Any:
    return await work


class Execution:
    """One graph (or the body of a MAP for one element) with the values it has so far."""

    def __init__(
        self,
        graph: Graph,
        call: Call,
        inputs: Mapping[str, Any],
        finished: Callable[[Any], None] | None = None,
        level: int = 0,
    ) -> None:
        self.graph = graph
        self.level = level  # depth of the primitive that this graph is the body of
        self.call = call
        self.values: dict[str, Any] = dict(inputs)
        self._finished = finished
        self._missing: dict[str, int] = {}
        self._followers: dict[str, list[Primitive]] = {}
        self._ready: list[Primitive] = []
        self._running = False

    def start(self) -> None:
        """Dispatches everything that can start now; returns without waiting."""
        for p in self.graph:
            needs = {ref.name for ref in p.args.values()} | set(p.after)
            if p.params.get("by") == "stock":
                needs = set()  # it is fed when stock has run it, whatever the graph knows by then
            needs = {name for name in needs if name not in self.values}
            self._missing[p.name] = len(needs)
            for name in needs:
                self._followers.setdefault(name, []).append(p)
        self._ready = [p for p in self.graph if not self._missing[p.name]]
        self._drain()

    def _drain(self) -> None:
        # A loop, not recursion: chains of trivial primitives may be long, and completing one may make others ready.
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                self._dispatch(self._ready.pop(0))
        finally:
            self._running = False

    def _dispatch(self, p: Primitive) -> None:
        if p.params.get("by") == "stock":
            if p.op is Op.CALL:
                self.call.waiting.setdefault(p.meta["leaf"], []).append(lambda value: self.complete(p, value))
            return
        try:
            value = self.call.kernels[p.op](p, {name: self._value(ref) for name, ref in p.args.items()}, self)
        except Exception as error:  # not observable: stock will meet it in its own time, or never
            self._surprise(p, error)
            return
        if isinstance(value, Work):
            self._follow(p, value.entry.done, value.view)
        elif asyncio.iscoroutine(value):
            self._follow(p, self.spawn(self._limited(p, value), p))
        elif asyncio.isfuture(value):
            self._follow(p, value)
        else:
            self.complete(p, value)

    async def _limited(self, p: Primitive, work: Awaitable[Any]) -> Any:
        limit = self.call.limit if p.op is not Op.MAP else None
        if limit is None:
            return await work
        async with limit:
            return await work

    def _follow(self, p: Primitive, future: asyncio.Future[Any], view: Callable[[Any], Any] | None = None) -> None:
        if future.done():
            self._settle(p, future, view)
        else:
            future.add_done_callback(lambda done: self._settle(p, done, view))

    def _settle(self, p: Primitive, future: asyncio.Future[Any], view: Callable[[Any], Any] | None) -> None:
        if future.cancelled() or self.call.claims.closed:
            return
        error = future.exception()
        if error is None:
            try:
                value = future.result() if view is None else view(future.result())
            except Exception as failure:
                error = failure
            else:
                self.complete(p, value)
                return
        self._surprise(p, error)

    def _surprise(self, p: Primitive, error: BaseException) -> None:
        self.call.surprises.append(f"{p.name}: {type(error).__name__}: {error}")
        self.complete(p, Failed(error))

    def complete(self, p: Primitive, value: Any) -> None:
        """A primitive is finished: keeps its value and dispatches whom it was missing for."""
        self.values[p.name] = value
        for follower in self._followers.pop(p.name, ()):
            self._missing[follower.name] -= 1
            if not self._missing[follower.name] and not self._spoilt(follower):
                self._ready.append(follower)
        if self._finished is not None and p.name == self.graph.output.name:
            self._finished(value if isinstance(value, Failed) else self._value(self.graph.output))
        self._drain()

    def _spoilt(self, p: Primitive) -> bool:
        """Whether an input failed: then so has this one, and all that depend on it."""
        for ref in p.args.values():
            failed = self.values.get(ref.name)
            if isinstance(failed, Failed):
                self.complete(p, failed)
                return True
        return False

    def _value(self, ref: Ref) -> Any:
        value = self.values[ref.name]
        return value if ref.key is None else value[ref.key]

    def work(
        self,
        p: Primitive,
        key: Any,
        start: Callable[[Entry], Awaitable[Any]],
        *,
        shared: bool = False,
        stream: bool = False,
    ) -> Entry:
        """Work that stock may claim: started now unless stock has started the same.

        ``start(entry)`` does it and returns the result; ``key`` are the arguments that stock's call will be compared
        by. ``stream``: the pieces go to ``entry.stream`` while they come, and the result is the list of them.
        """
        entry, mine = self.call.claims.expect(p.meta["leaf"], key, shared=shared)
        if mine:
            if stream:
                entry.chunked, entry.stream = True, Stream()
            entry.task = self.spawn(self._produce(p, entry, start), p)
        return entry

    async def _produce(self, p: Primitive, entry: Entry, start: Callable[[Entry], Awaitable[Any]]) -> None:
        queued = begun = perf_counter()
        try:
            if self.call.limit is None:
                result = await start(entry)
            else:
                async with self.call.limit:
                    begun = perf_counter()
                    result = await start(entry)
        except BaseException as error:
            entry.fail(error)
            if entry.stream is not None:
                entry.stream.close(error)
            if not isinstance(error, Exception):
                raise
        else:
            entry.finish(result)
        finally:
            if events.listening() and p.engine and p.meta.get("foreign"):
                now = perf_counter()
                events.report(events.Interval(p.engine, p.name, queued, begun, now, origin=events.origin()))

    def spawn(self, work: Awaitable[Any], p: Primitive) -> asyncio.Task[Any]:
        """A task for (a part of) the primitive, with its depth as priority."""
        return self.call.spawn(work, self.level + p.depth)

    def each(self, p: Primitive, args: Mapping[str, Any]) -> Awaitable[list[Any]]:
        """Runs the body of a MAP for every element; elements of a stream start as they are released."""
        return self._each(p, args)

    async def _each(self, p: Primitive, args: Mapping[str, Any]) -> list[Any]:
        results: list[asyncio.Future[Any]] = []
        outer = {name: value for name, value in args.items() if name != "items"}

        def begin(item: Any) -> None:
            future = self.call.loop.create_future()
            results.append(future)
            done = lambda value: _resolve(future, value)  # noqa: E731
            Execution(p.body, self.call, {**outer, "item": item}, done, self.level + p.depth).start()

        items = args["items"]
        if isinstance(items, Stream):
            async for item in items.read():
                begin(item)
        else:
            for item in items:
                begin(item)
        return [await future for future in results]


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel returns for claimable work: the entry, and what of its result is the primitive's value."""

    entry: Entry
    view: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for the value of a primitive that raised."""

    error: BaseException


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if future.done():
        return
    if isinstance(value, Failed):
        future.set_exception(value.error)
        future.exception()
    else:
        future.set_result(value)
