"""One query: the state that all graphs of a call share, its tasks, and its end, after which none of them still runs."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.call.claims import Claims, Summary
from fineflow.runtime.call.gains import Saving, SideBySide, saved_in
from fineflow.runtime.call.trace import Stamp, Stamps, Trace
from fineflow.runtime.loop.scopes import check
from fineflow.runtime.queues.component_calls import LimitedComponent, permit_for
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.in_vain import Account, account
from fineflow.runtime.queues.request_context import depth, path, query, started

T = TypeVar("T")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Call:
    """State that all graphs of one query share: entry point, limits, tasks, claims.

    May be created on any thread; its methods run on ``loop``.

    kernels: kernel of each operation (``executor.Kernel``). entry: the method of the user's object that was called.
    sync: that is a sync method, so components are called by their sync methods. streaming: stock reads the result
    piece by piece. context: the call's own, with its request context. label: id in timelines. limit: bound on
    concurrent component calls, over all graphs of the call (LangChain's ``max_concurrency``). facts: data of the call
    for the framework's own kernels.
    """

    loop: asyncio.AbstractEventLoop
    kernels: Mapping[Op, Callable[..., Any]]
    entry: str
    sync: bool
    context: contextvars.Context
    label: str
    streaming: bool = False
    limit: asyncio.Semaphore | None = None
    facts: Any = None
    account: Account | None = field(init=False)  # of requests ahead
    changed: str = ""  # the last opaque step that changed its input in place: the graph's values are stale
    claims: Claims = field(init=False)
    tasks: dict[asyncio.Task[Any], Any] = field(default_factory=dict)  # task -> coroutine to close at its end
    # Dicts: Python's garbage collector does not track empty ones.
    stocks: dict[asyncio.Task[Any], None] = field(default_factory=dict)  # tasks in which a component works for stock
    steps: dict[asyncio.Task[Any], None] = field(default_factory=dict)  # tasks in which stock runs an opaque step
    waiting: dict[str, list[Callable[[Any], None]]] = field(default_factory=dict)  # opaque leaf -> readers of its value
    fed: dict[str, Any] = field(default_factory=dict)  # opaque leaf -> its value, before the graph reads it
    surprises: tuple[str, ...] = ()  # failures while running ahead
    broken: tuple[str, ...] = ()  # those that are bugs of fineflow if the call succeeds
    runs: list[Stamps] = field(default_factory=list)  # times of the graphs started so far
    awaited: dict[str, Stamp] = field(default_factory=dict)  # opaque leaf -> the stamp of its primitive
    began: float = field(default_factory=events.now)  # seconds on its clock
    savings: list[Saving] = field(default_factory=list)  # of component calls in user functions, by the function's run
    groups: list[SideBySide] = field(default_factory=list)  # calls of stock's that gain together
    reached: bool = False  # something of it may be on its loop
    _memory: dict[type, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.claims = Claims(self.loop)
        self.context.run(_mark_call, self)
        self.account = self.context.run(account.get)

    def enter(self, context: contextvars.Context) -> None:
        """Runs everything that starts from now on in copies of another context, which is marked as the call's."""
        context.run(_mark_call, self)
        self.context = context

    def memory(self, kind: type[T]) -> T:
        """Returns the call's only instance of ``kind``, a class in which kernels keep shared state during a call.

        From any thread.
        """
        found: T | None = self._memory.get(kind)
        if found is None:
            found = self._memory.setdefault(kind, kind())
        return found

    @property
    def bounded(self) -> bool:
        """True if few requests may be in vain: then nothing starts ahead that stock does not claim by itself."""
        return self.account is not None and bool(self.account.bounds)

    def slot(self, stamp: Stamp | None = None, component: LimitedComponent | None = None) -> Slot:
        """Returns a slot for one call of a component, by the graph or by stock.

        stamp: gets the time at which the component began. component: its entry among the limited components.
        """
        return Slot(self.limit, stamp, component)

    def spawn(
        self,
        work: Awaitable[Any],
        level: int,
        *,
        path: float = 0.0,
        slot: Slot | None = None,
        name: str = "",
        stamp: Stamp | None = None,
    ) -> asyncio.Task[Any]:
        """Starts a task in its own copy of the caller's context, with its depth as priority.

        path: predicted seconds to the end of the call. slot: held while the task works, if it calls a component.
        name: primitive that it works for, shown in timelines. stamp: of that run.
        """
        return self.task(_run(work, slot, stamp), level, path, name, stamp, work)

    def task(
        self,
        work: Coroutine[Any, Any, T],
        level: int,
        path: float,
        name: str,
        stamp: Stamp | None,
        inner: object = None,
    ) -> asyncio.Task[T]:
        """Does the same as ``spawn``, for a coroutine that raises no SystemExit or KeyboardInterrupt.

        inner: coroutine that it awaits, closed at the end.
        """
        context = self.context.copy()
        context.run(_mark, level, path, name, stamp)
        task = self.loop.create_task(work, context=context)
        self.tasks[task] = inner
        task.add_done_callback(self._ended, context=context)
        if self.claims.closed:  # checked after the task was added: another thread may set `closed`
            task.cancel()
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        inner = self.tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # mark as retrieved: its readers have it, and after the end of the call there are none
        if inspect.iscoroutine(inner):
            inner.close()  # a task that is cancelled before its first step never awaits it

    async def for_stock(self, make: Callable[[], Awaitable[T]]) -> T:
        """Awaits a component call that stock makes itself, in a slot; the end of the call cancels it.

        Stock leaves tasks behind if one of several steps fails, or if a stream is not read to its end.
        """
        with _counted(self.stocks):
            async with self.slot():
                return await make()

    async def opaque(self, work: Awaitable[T]) -> T:
        """Awaits an opaque step of stock. ``stop`` cancels it; a call that fails does not, as in stock."""
        with _counted(self.steps):
            return await work

    def begins(self, leaf: str) -> None:
        """Records that stock is about to run the opaque step ``leaf``. Thread-safe.

        Raises CancelledError if the deadline of the call has passed.
        """
        check()
        stamp = self.awaited.get(leaf)
        if stamp is not None:
            stamp.ready = events.now()
            if not self.streaming:  # the time of a stream depends on its reader
                stamp.begun = stamp.ready

    def feed(self, leaf: str, value: Any) -> None:
        """Passes the value of the opaque step ``leaf``, which stock ran, to the graph."""
        if leaf not in self.waiting and not self.claims.closed:
            self.fed[leaf] = value  # stock is ahead of the graph
        for wanted in self.waiting.pop(leaf, ()):
            wanted(value)

    def want(self, leaf: str, wanted: Callable[[Any], None]) -> None:
        """Calls ``wanted`` with the value of the opaque step ``leaf``, as soon as stock has run it."""
        if leaf in self.fed:
            wanted(self.fed.pop(leaf))
        else:
            self.waiting.setdefault(leaf, []).append(wanted)

    def summary(self) -> Summary:
        """Returns the figures of the call so far."""
        claims = self.claims
        unclaimed = len(claims.unclaimed())
        return Summary(claims.claimed, claims.missed, unclaimed, self.surprises, self.broken, self._trace())

    def _trace(self) -> Trace:
        runs = tuple((stamps.graph, stamps) for stamps in self.runs if stamps.graph is not None)
        inside = saved_in(self.savings) + sum(each.saved() for each in self.groups)
        return Trace(self.entry, self.began, events.now(), runs, inside)

    def rest(self) -> None:
        """Drops the context when the graph is finished: it is not needed while stock catches up."""
        self.context = _NOTHING

    def close(self, *, stopped: bool = False) -> Summary:
        """Cancels the running tasks, without waiting for them, and drops all values. stopped: see ``Claims.close``."""
        summary = self.summary()
        going_on = self.claims.close(stopped=stopped)
        for task in tuple(self.tasks):
            if task in going_on:
                del self.tasks[task]
            else:
                task.cancel()
        _cancel(self.stocks)
        # The context of a task that user code leaves behind may keep the call alive for long.
        self.waiting.clear()
        self.fed.clear()
        self._memory.clear()
        self.awaited.clear()
        self.context = _NOTHING
        return summary

    def stop(self) -> None:
        """Does the same as ``close`` and cancels opaque steps: the caller was cancelled while stock waits for them."""
        _cancel(self.steps)
        self.close(stopped=True)

    async def aclose(self) -> Summary:
        """Closes the call and waits until its tasks have stopped, even if the caller is cancelled."""
        summary = self.close()
        await self.ended()
        return summary

    async def ended(self) -> None:
        """Waits until all tasks have stopped, even if the caller is cancelled."""
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


@contextmanager
def _counted(tasks: dict[asyncio.Task[Any], None]) -> Iterator[None]:
    task = asyncio.current_task()
    assert task is not None
    tasks[task] = None
    try:
        yield
    finally:
        tasks.pop(task, None)


def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tuple(tasks):
        if not task.cancelling():  # a second cancellation would never be uncancelled
            task.cancel()


def _mark_call(call: Call) -> None:
    if not query.get():  # a nested call is part of the one around it
        query.set(call.label)
    if started.get() is None:
        started.set(call.began)


def _mark(level: int, seconds: float, name: str, stamp: Stamp | None) -> None:
    depth.set(level)
    path.set(seconds)
    events.about(name, stamp)


_NOTHING = contextvars.Context()


class Slot:
    """One of the call's ``limit`` slots (an async context manager), held while a component works.

    Stock bounds its sync branches by the size of a thread pool, and its async ones not at all. Here all component
    calls of the graph share one bound with those that stock makes itself. A task that holds a slot must not wait for
    work that needs one: it takes its slot last.

    component: may have its own limit over all calls (``queues.component_calls``); its permit is taken after the slot.
    ahead: the user's component, if stock does not wait for this call yet (``queues.rate_limits``).
    """

    __slots__ = ("_held", "_limit", "_permit", "_stamp", "ahead", "paused", "since")

    def __init__(
        self, limit: asyncio.Semaphore | None, stamp: Stamp | None = None, component: LimitedComponent | None = None
    ) -> None:
        self.ahead: HeldBack | None = None
        self.paused = 0.0  # seconds in which a slow reader had it wait
        self._limit = limit
        self._stamp = stamp
        self._permit = permit_for(component)
        self._held = False
        self.since = events.now()  # when the work began

    async def __aenter__(self) -> Slot:
        if self.ahead is not None:
            await self.ahead.begin()  # before it holds anything that stock's own calls need
        try:
            await self._enter()
        except BaseException as error:
            self._over(error)
            raise
        return self

    async def _enter(self) -> None:
        if self._limit is not None or self._permit is not None:
            await self.take()
            if self._stamp is not None:
                self._stamp.begun = events.now()
        self.since = events.now()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.leave()
        self._over(error)

    def _over(self, error: BaseException | None) -> None:
        if self.ahead is not None:
            self.ahead.end(error)

    def pause(self) -> None:
        """Releases what is held while a reader has the component wait: other calls may not wait for this one."""
        self.leave()
        if self.ahead is not None:
            self.ahead.settle()

    async def take(self) -> None:
        """Waits for a slot of the call (FIFO), then for a permit of the component (by its policy)."""
        if self._limit is not None:
            await self._limit.acquire()
            self._held = True
        if self._permit is not None:
            try:
                await self._permit.acquire()
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        """Releases what is held."""
        if self._permit is not None:
            self._permit.release()
        if self._limit is not None and self._held:
            self._held = False
            self._limit.release()


class LeftToStock(Exception):
    """Raised by a kernel that leaves its primitive to stock in this call; the message says why."""


class CarriedExit(Exception):
    """Carries a SystemExit or KeyboardInterrupt out of a task: raised inside, it would stop the shared event loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__} in a component")
        self.error = error


async def _run(work: Awaitable[T], slot: Slot | None, stamp: Stamp | None) -> T:
    cancelled = False
    try:
        if slot is None:
            return await work
        async with slot:
            return await work
    except asyncio.CancelledError:
        cancelled = True
        raise
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        raise CarriedExit(error) from error
    finally:
        if stamp is not None and not cancelled:
            stamp.end()
