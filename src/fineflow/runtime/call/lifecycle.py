"""How a call of an optimized object begins and ends: its admission, its marks, the end of its graph, its warnings."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Self

from fineflow.errors import FineflowWarning, PlanningError
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.query import Call
from fineflow.runtime.loop import scopes
from fineflow.runtime.loop.interpreter_exit import hold_daemon_task, hold_daemon_thread
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.submission import Submission, Unreachable
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.admission import AdmissionRequest, inside, process_admission
from fineflow.runtime.queues.permits import lend_permits
from fineflow.runtime.queues.request_context import must_not_wait

_Values = tuple[tuple[ContextVar[Any], Any], ...]
_OUTERMOST: _Values = ((inside, True),)


class Admission:
    """One call, or a part of the call it is made in: admitted, marked (``with``) while its code runs, at last ended.

    For a coroutine ``async with`` does the first and the last, for a plain thread ``InThread``. Permits that are held
    around the call are lent until it has ended.

    tenant, priority: of the call, where it says any. Raises CancelledError where its deadline has passed.
    """

    __slots__ = ("_before", "_lent", "_request", "_values")

    def __init__(self, tenant: str | None = None, priority: int | None = None) -> None:
        scopes.check()
        within = inside.get()
        self._request = None if within else AdmissionRequest(tenant or "", priority or 0)
        self._values: _Values = () if within else _OUTERMOST
        if tenant is not None:
            self._values += (
                (request_context.tenant, tenant),
                (request_context.weight, process_admission().limits.weight(tenant)),
            )
        if priority is not None:
            self._values += ((request_context.priority, priority),)
        self._before: tuple[Any, ...] | None = None
        self._lent = lend_permits()

    async def __aenter__(self) -> Self:
        await self.admitted()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.ended(error)

    async def admitted(self) -> None:
        """Waits until the call may begin. Raises Overloaded."""
        if self._request is not None:
            try:
                await self._request.admission.acquire(self._request)
            except BaseException as error:
                await self.ended(error)
                raise

    def admitted_sync(self) -> None:
        """The same for a plain thread, which it blocks.

        On the thread of a running loop the call will wait for no permit: a holder may need that loop.
        """
        if self._request is not None:
            try:
                self._request.admission.acquire_sync(self._request)
            except BaseException as error:
                self.ended_sync(error)
                raise
        if asyncio._get_running_loop() is not None:
            self._values += ((must_not_wait, True),)

    def mark(self, var: ContextVar[Any], value: Any) -> None:
        """Adds a mark: the code of the call finds this value in the context variable."""
        self._values += ((var, value),)

    def apply(self) -> None:
        """Sets its marks for good, for the graph: in a context that was copied for the call."""
        for var, value in self._values:
            var.set(value)

    def __enter__(self) -> None:
        """Sets what the code of the call finds in its context variables, for the block. One block at a time."""
        self._before = tuple([var.get() for var, _ in self._values])
        self.apply()

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, None
        if before is None or any(var.get() is not value for var, value in self._values):
            return  # a coroutine that Python collects, in whatever context: there is nothing to take back
        for (var, _value), value in zip(self._values, before, strict=True):
            var.set(value)

    async def ended(self, error: BaseException | None = None) -> None:
        """The call is over. error: what it ended with."""
        self._left(error)
        for permit in self._lent:
            await permit.reclaim()
        if isinstance(error, Exception):
            await hold_daemon_task()

    def ended_sync(self, error: BaseException | None = None) -> None:
        """The same for a plain thread."""
        self._left(error)
        for permit in self._lent:
            permit.reclaim_sync()

    def _left(self, error: BaseException | None) -> None:
        if self._request is not None:
            self._request.admission.release(self._request, error)


class InThread:
    """One call by a plain thread. The block begins when it is admitted, and gets it. Raises Overloaded."""

    __slots__ = ("_admission",)

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def __enter__(self) -> Admission:
        self._admission.admitted_sync()
        return self._admission

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._admission.ended_sync(error)
        if kind is not None and kind is not GeneratorExit:
            hold_daemon_thread()


# The graph of a call that a plain thread makes is on another thread's event loop.


def stop(call: Call) -> None:
    """Ends what runs ahead of a call whose deadline has passed. From any thread."""
    call.claims.closed = True
    post(call.loop, call.stop)


def close(call: Call) -> Summary:
    """Ends a call from a plain thread, and waits for that where there is anything to wait for."""
    call.claims.closed = True  # from here on the loop starts nothing more, see Call.spawn
    if on_engine_loop():  # an abandoned stream may be collected on any thread, also on that one
        return call.close()
    if not call.tasks:
        summary = call.summary()
        post(call.loop, call.close)
        return summary
    ending = Submission(call.aclose, call.loop)
    try:
        ending.start()
        return ending.wait()
    except (asyncio.CancelledError, Unreachable):  # the loop was shut down, or has ended with the interpreter
        return call.summary()


def post(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
    """Calls a function on a loop, if that is still there."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def report(summary: Summary, obj: Any, strict: bool) -> None:
    """Warns, after a call that succeeded, of what fineflow failed at meanwhile and stock then did itself.

    Raises PlanningError with ``strict``.
    """
    if summary.broken:
        text = f"{type(obj).__name__}: while running ahead, {summary.broken[0]}"
        if strict:
            raise PlanningError(f"{text}; without strict=True this is a warning")
        warnings.warn(f"{text}; stock did it. Please report this.", FineflowWarning, stacklevel=6)
