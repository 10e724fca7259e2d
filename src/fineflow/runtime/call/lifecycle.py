"""Begin and end of a call of an optimized object: admission, context marks, the end of its graph, warnings."""

from __future__ import annotations

import asyncio
import warnings
from contextvars import ContextVar
from math import inf
from typing import Any, Self

from fineflow.errors import FineflowWarning, PlanningError
from fineflow.ir.text import name_of
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.identity import UNKNOWN, Identity, Marks
from fineflow.runtime.call.query import Call
from fineflow.runtime.loop import runtime_loop, scopes
from fineflow.runtime.loop.interpreter_exit import hold_daemon_task, hold_daemon_thread
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.submission import Submission, Unreachable
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.admission import AdmissionRequest, inside
from fineflow.runtime.queues.permits import lend_permits
from fineflow.runtime.queues.request_context import must_not_wait

_OUTERMOST: Marks = ((inside, True),)


class Admission:
    """Admission of one call, or of a nested call, which counts as part of the outer one.

    A call is admitted, marked (``with``) while its code runs, and ended. A coroutine admits and ends it with
    ``async with``, a plain thread with ``InThread``. Permits that are held around the call are lent until it has ended.

    The marks identify the call to the queues of engines, in whatever stock does for it: what it asks for while stock
    waits is critical (its ``path`` is endless), whichever steps follow.

    identity: what the call says of itself; the rest is as around it. lends: False if nobody waits for the call yet.
    Raises CancelledError if its deadline has passed.
    """

    __slots__ = ("_before", "_lent", "_request", "_values")

    def __init__(self, identity: Identity = UNKNOWN, *, lends: bool = True) -> None:
        scopes.check()
        self._request: AdmissionRequest | None = None
        self._values: Marks = () if identity is UNKNOWN else identity.marks()
        if not inside.get():
            self._request = request = AdmissionRequest(
                request_context.tenant.get() if identity.tenant is None else identity.tenant,
                request_context.priority.get() if identity.priority is None else identity.priority,
            )
            self._values += (*_OUTERMOST, (request_context.path, inf))
            if not request_context.query.get():
                self._values += (
                    (request_context.query, f"call-{request.number}"),
                    (request_context.started, request.queued),
                )
        self._before: tuple[Any, ...] | None = None
        self._lent = lend_permits() if lends else []

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
            request_context.query_began(f"call-{self._request.number}")

    def admitted_sync(self) -> None:
        """Blocks a plain thread until the call may begin. Raises Overloaded.

        On the thread of a running loop the call never waits for a permit: its holder may need that loop.
        """
        if self._request is not None:
            try:
                self._request.admission.acquire_sync(self._request)
            except BaseException as error:
                self.ended_sync(error)
                raise
            request_context.query_began(f"call-{self._request.number}")
        if asyncio._get_running_loop() is not None:
            self._values += ((must_not_wait, True),)

    @property
    def marks(self) -> Marks:
        """The context variables that are set during the code of the call, as added so far, and their values."""
        return self._values

    def mark(self, var: ContextVar[Any], value: Any) -> None:
        """Adds a mark: a context variable and its value during the code of the call."""
        self._values += ((var, value),)

    def apply(self) -> None:
        """Sets the marks permanently, for the graph: in a context that was copied for the call."""
        for var, value in self._values:
            var.set(value)

    def __enter__(self) -> None:
        """Sets the marks for the block. One block at a time."""
        self._before = tuple([var.get() for var, _ in self._values])
        self.apply()

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        for var, value in self._values:
            if var.get() is not value:
                return  # Python collects the coroutine in some other context: there is nothing to reset
        for (var, _value), value in zip(self._values, before, strict=True):
            var.set(value)

    async def ended(self, error: BaseException | None = None) -> None:
        """Ends the call: releases its admission and takes back lent permits. error: the error it ended with."""
        self._left(error)
        for permit in self._lent:
            await permit.reclaim()
        if isinstance(error, Exception):
            await hold_daemon_task()

    def ended_sync(self, error: BaseException | None = None) -> None:
        """Does the same as ``ended`` for a plain thread."""
        self._left(error)
        for permit in self._lent:
            permit.reclaim_sync()

    def _left(self, error: BaseException | None) -> None:
        if self._request is not None:
            self._request.admission.release(self._request, error)
            request_context.query_ended(f"call-{self._request.number}")


class InThread:
    """Context of one call by a plain thread: yields the admitted ``Admission``. Raises Overloaded."""

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


# A plain thread's call has its graph on another thread's event loop.


def stop(call: Call) -> None:
    """Stops the work ahead of a call whose deadline has passed. Thread-safe."""
    call.claims.closed = True
    runtime_loop.post(call.loop, call.stop)


def close(call: Call) -> Summary:
    """Ends a call from a plain thread, and waits for its tasks if it has any."""
    call.claims.closed = True  # the loop starts nothing more from here on, see Call.task
    if on_engine_loop():  # an abandoned stream may be collected on any thread, that one included
        return call.close()
    if not call.reached:  # to wake the loop would take longer than everything else
        return call.close()
    if not call.tasks:
        summary = call.summary()
        call.claims.settle()
        runtime_loop.post(call.loop, call.close)
        return summary
    ending = Submission(call.aclose, call.loop)
    try:
        ending.start()
        return ending.wait()
    except (asyncio.CancelledError, Unreachable):  # the loop was shut down, or has ended with the interpreter
        return call.summary()


def report(summary: Summary, obj: Any, strict: bool) -> None:
    """Warns, after a successful call, of a step that fineflow failed to run ahead and stock did itself.

    Raises PlanningError instead if ``strict``.
    """
    if summary.broken:
        text = f"{name_of(obj)}: while running ahead, {summary.broken[0]}"
        if strict:
            raise PlanningError(f"{text}; without strict=True this is a warning")
        warnings.warn(f"{text}; stock did it. Please report this.", FineflowWarning, stacklevel=6)
