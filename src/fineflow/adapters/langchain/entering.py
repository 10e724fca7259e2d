"""How a call of an optimized object begins and ends for the runtime: admitted, counted, known by its tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from fineflow.adapters.langchain.claiming import Claiming, under_way
from fineflow.runtime import asking, scope
from fineflow.runtime.bridge import Chunks
from fineflow.runtime.calling import lend
from fineflow.runtime.limits import Ticket, door, enter, enter_sync, inside
from fineflow.runtime.places import hurried

TENANT, PRIORITY = "fineflow_tenant", "fineflow_priority"
"""Keys of ``config["metadata"]``."""


_Values = tuple[tuple[ContextVar[Any], Any], ...]


class Entered:
    """One call, or a part of the call it is made in: admitted, marked (``with``) while its code runs, at last ended.

    For a coroutine ``async with`` does the first and the last. Places that are held for a component which makes the
    call inside of its own are given away until the call has ended.

    claiming: stock's side of the call, once there is one. Raises ValueError for metadata of no use.
    """

    __slots__ = ("_before", "_lent", "_ticket", "_values", "claiming")

    def __init__(self, config: Any, runnable: Any) -> None:
        self._ticket, self._values = _begin(config, runnable)
        self._before: tuple[Any, ...] | None = None
        self._lent = lend()
        self.claiming: Claiming | None = None

    async def __aenter__(self) -> Entered:
        await self.admitted()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.ended(error)

    async def admitted(self) -> None:
        """Waits until the call may begin. Raises Overloaded."""
        if self._ticket is not None:
            await enter(self._ticket)

    def admitted_sync(self) -> None:
        """The same for a plain thread, which it blocks."""
        if self._ticket is not None:
            enter_sync(self._ticket)
        if asyncio._get_running_loop() is not None:
            self._values += ((hurried, True),)

    def apply(self) -> None:
        """Sets its marks for good, for the graph: in a context that was copied for the call."""
        for var, value in self._values:
            var.set(value)

    def __enter__(self) -> None:
        """Sets what the code of the call finds in its context variables, for the block. One block at a time."""
        found = [var.get() for var, _ in self._values]
        if self.claiming is not None:
            found.append(under_way.get())
            under_way.set(self.claiming)
        self._before = tuple(found)
        self.apply()

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        if len(before) > len(self._values):
            if under_way.get() is not self.claiming:
                return  # a coroutine that Python collects, in whatever context: there is nothing to take back
            under_way.set(before[-1])
        for (var, _value), value in zip(self._values, before, strict=False):
            var.set(value)

    async def ended(self, error: BaseException | None = None) -> None:
        """The call is over. error: what it ended with."""
        self._left(error)
        for hold in self._lent:
            await hold.back()

    def ended_sync(self, error: BaseException | None = None) -> None:
        """The same for a plain thread."""
        self._left(error)
        for hold in self._lent:
            hold.back_sync()

    def _left(self, error: BaseException | None) -> None:
        if self._ticket is not None:
            self._ticket.door.leave(self._ticket, error)


class InThread:
    """One call by a plain thread. The block begins when it is admitted, and gets it. Raises Overloaded."""

    __slots__ = ("_call",)

    def __init__(self, config: Any, runnable: Any) -> None:
        self._call = Entered(config, runnable)

    def __enter__(self) -> Entered:
        self._call.admitted_sync()
        return self._call

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._call.ended_sync(error)


def _begin(config: Any, runnable: Any) -> tuple[Ticket | None, _Values]:
    """The call at the door, or None inside of another one, and its marks. Raises ValueError for metadata of no use."""
    scope.check()
    tenant, priority = _metadata(config, runnable)
    within = inside.get()
    ticket = None if within else Ticket(tenant or "", priority or 0)
    values: _Values = () if within else _OUTERMOST
    if tenant is not None:
        values += ((asking.tenant, tenant), (asking.weight, door().limits.weight(tenant)))
    if priority is not None:
        values += ((asking.priority, priority),)
    return ticket, values


_OUTERMOST = ((inside, True),)


def _metadata(config: Any, runnable: Any) -> tuple[str | None, int | None]:
    tenant: Any = None
    priority: Any = None
    first = config[0] if isinstance(config, list) and config else config
    for found in (first, getattr(runnable, "config", None), var_child_runnable_config.get()):
        metadata = found.get("metadata") if isinstance(found, Mapping) else None
        if metadata:
            tenant = metadata.get(TENANT) if tenant is None else tenant
            priority = metadata.get(PRIORITY) if priority is None else priority
    if tenant is not None and not isinstance(tenant, str):
        raise ValueError(f"metadata[{TENANT!r}] is the name of a tenant, a string; got {tenant!r}")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise ValueError(f"metadata[{PRIORITY!r}] is a whole number, higher ones first; got {priority!r}")
    return tenant, priority


class Steps(Iterator[Any]):
    """The chunks of a stream, each made under the marks of its call, which the reader's code does not see."""

    def __init__(self, chunks: Chunks[Any], marks: Entered) -> None:
        self._chunks = chunks
        self._marks = marks

    def __next__(self) -> Any:
        with self._marks:
            return next(self._chunks)

    def throw(self, *error: Any) -> Any:
        with self._marks:
            return self._chunks.throw(*error)

    def close(self) -> None:
        with self._marks:
            self._chunks.close()
